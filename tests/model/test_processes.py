"""What is told of several processes together."""

from kinetoscope.combine.processes import merge_processes
from kinetoscope.model.processes import process_tree, steps_of_one
from kinetoscope.tables.host.host_shares import host_shares
from kinetoscope.tables.host.modules import modules_in
from tests.support.trace_builder import TraceBuilder


def of(process, *, parent=None, rank=None, steps=0, root="Net"):
    """A trace of one process with a module that runs once, and some steps."""
    builder = TraceBuilder()
    net = builder.module(root)
    layer = builder.module("Linear", name="fc", parent=net)
    builder.span("aten::linear", 0, 100, module=layer)
    for number in range(steps):
        builder.step(number, 1000 * (number + 1), 10 * process)
    trace = builder.build()
    trace.info["process"] = process
    trace.info |= {} if parent is None else {"parent_process": parent}
    trace.info |= {} if rank is None else {"rank": rank}
    return trace


def tree(*traces):
    return [(row["pid"], row["depth"]) for row in process_tree(merge_processes(traces, [0] * len(traces)))]


def test_each_process_stands_below_the_one_that_started_it():
    assert tree(of(10), of(11, parent=10), of(12, parent=10), of(13, parent=11)) == [
        (10, 0),
        (11, 1),
        (13, 2),
        (12, 1),
    ]


def test_numbers_that_were_used_again_lose_no_process():
    assert sorted(tree(of(10, parent=11), of(11, parent=10), of(12, parent=12))) == [
        (10, 0),
        (11, 0),
        (12, 0),
    ]


def test_one_process_is_no_tree():
    assert process_tree(of(10)) == []
    assert steps_of_one(of(10, steps=2))[0] == ""


def test_the_steps_that_are_told_are_those_of_the_first_process_that_made_any():
    joined = merge_processes([of(10), of(11, rank=1, steps=3), of(12, rank=2, steps=2)], [0, 0, 0])
    name, chosen = steps_of_one(joined)
    assert name.endswith(", rank 1")
    assert joined.column("steps", "duration_ns")[chosen].tolist() == [110, 110, 110]


def test_modules_of_one_path_and_class_are_one_and_others_are_not():
    joined = merge_processes([of(10), of(11), of(12, root="Other")], [0, 0, 0])
    found = {(row["path"], row["class"]): row["total_ns"] for row in modules_in(joined, host_shares(joined))}
    assert found == {("Net", "Net"): 200, ("Other", "Other"): 100, ("fc", "Linear"): 300}
