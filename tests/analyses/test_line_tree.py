"""The program's own lines: what counts for which, and which of them are listed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.analyses.line_tree import LEAST_PERCENT, line_tree
from kinetoscope.tables.stacks import installed_package
from tests.support.trace_builder import TraceBuilder

PROJECT = "/home/ann/project"
TRAIN, METRICS = f"{PROJECT}/train.py", f"{PROJECT}/metrics.py"
MAIN = (TRAIN, 50, "<module>")
PACKAGE = "/usr/lib/python3.12/site-packages/torch_geometric/nn/conv.py"
TORCH = "/usr/lib/python3.12/site-packages/torch/nn/functional.py"


def trace_of(*calls, step_ns=1000):
    """A trace of a step of operators, each with its duration and the frames that called it."""
    builder = TraceBuilder()
    builder.know("program", {"command": ["train.py"], "folder": PROJECT})
    at = 0
    for duration_ns, *frames in calls:
        builder.span("aten::mm", at, duration_ns, stack=builder.stack(*frames))
        at += duration_ns
    builder.step(0, 0, max(step_ns, at))
    return builder.build()


def listed(trace, **options):
    """The lines of a tree: the depth, the last part of the file, the line and the time of operators of each."""
    return [
        (line.depth, line.file.rpartition("/")[2], line.line, line.operators_ns)
        for line in line_tree(trace, **options).lines
    ]


def test_a_line_has_what_runs_under_it():
    log, accuracy = (TRAIN, 61, "log"), (METRICS, 12, "accuracy")
    trace = trace_of((400, MAIN, log, accuracy), (300, MAIN, log), (300, MAIN))
    assert listed(trace) == [
        (0, "train.py", 50, 1000),
        (1, "train.py", 61, 700),
        (2, "metrics.py", 12, 400),
    ]


def test_packages_count_for_the_line_that_called_them_and_are_named():
    trace = trace_of(
        (600, MAIN, (TRAIN, 7, "f"), (PACKAGE, 3, "GCNConv.forward"), (TORCH, 9, "linear")),
        (400, MAIN, (TRAIN, 8, "f"), (TORCH, 9, "linear")),
    )
    assert [(line.line, line.package) for line in line_tree(trace).lines] == [(7, "torch_geometric"), (8, "")]


def test_a_line_that_only_leads_to_another_one_is_left_out():
    outer, inner = (TRAIN, 3, "run"), (TRAIN, 9, "train")
    trace = trace_of((960, MAIN, outer, inner), (40, MAIN))
    assert listed(trace) == [(0, "train.py", 9, 960)]


def test_calls_of_one_line_from_several_lines_are_listed_by_their_callers():
    inner = (TRAIN, 3, "accuracy")
    trace = trace_of((600, MAIN, (TRAIN, 51, "main"), inner), (400, MAIN, (TRAIN, 52, "main"), inner))
    assert listed(trace) == [(0, "train.py", 51, 600), (0, "train.py", 52, 400)]


def test_the_wait_for_a_collective_is_at_the_line_that_calls_it():
    builder = TraceBuilder()
    builder.know("program", {"command": ["train.py"], "folder": PROJECT})
    main_thread, gloo_thread = builder.thread(), builder.thread("gloo")
    average, main = builder.stack(MAIN, (TRAIN, 61, "average")), builder.stack(MAIN)
    builder.step(0, 0, 1_000_000)
    builder.span("aten::mm", 0, 300_000, thread=main_thread, stack=main)
    builder.span("c10d::allreduce_", 300_000, 100_000, thread=main_thread, stack=average)
    builder.annotation("gloo:all_reduce", 350_000, 550_000, thread=gloo_thread)
    (line,) = (line for line in line_tree(builder.build()).lines if line.line == 61)
    assert (line.operators_ns, line.waiting_ns) == (100_000, 500_000)


def test_the_wait_for_data_is_at_the_lines_that_make_batches():
    loop, item = (TRAIN, 9, "loop"), (TRAIN, 30, "Words.__getitem__")
    loader = ("/usr/lib/python3.12/site-packages/torch/utils/data/dataloader.py", 700, "__next__")
    builder = TraceBuilder()
    builder.know("program", {"command": ["train.py"], "folder": PROJECT})
    waiting, making = builder.stack(MAIN, loop, loader), builder.stack(MAIN, loop, loader, item)
    builder.step(0, 0, 1_000_000)
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    builder.annotation(name, 0, 800_000, stack=waiting)
    builder.span("aten::mm", 800_000, 200_000, stack=builder.stack(MAIN, loop))
    assert [(line.line, line.waiting_ns) for line in line_tree(builder.build()).lines] == [(9, 800_000)]
    for number in range(4):
        builder.sample(100_000 + 200_000 * number, making if number else waiting)
    lines = line_tree(builder.build()).lines
    assert [(line.line, line.depth, line.waiting_ns) for line in lines] == [(9, 0, 800_000), (30, 1, 600_000)]


def test_a_recursion_is_one_line():
    walk, visit = (TRAIN, 3, "walk"), (TRAIN, 5, "visit")
    trace = trace_of((500, MAIN, walk, visit, walk, visit, walk), (300, MAIN, walk), (200, MAIN))
    assert listed(trace) == [(0, "train.py", 50, 1000), (1, "train.py", 3, 800)]


def test_the_lines_with_most_time_are_listed():
    calls = [(10 * number, MAIN, (TRAIN, number, "f")) for number in range(1, 20)]
    trace = trace_of(*calls)
    tree = line_tree(trace, most=5)
    assert [line.line for line in tree.lines] == [19, 18, 17, 16, 15]
    assert tree.total == sum(10 * number >= LEAST_PERCENT / 100 * tree.whole_ns for number in range(1, 20))


def test_without_a_program_the_lines_are_those_of_all_code_but_torchs():
    builder = TraceBuilder()
    stack = builder.stack(("/srv/app/serve.py", 4, "handle"), (TORCH, 9, "linear"))
    builder.span("aten::mm", 0, 100, stack=stack).step(0, 0, 100)
    assert listed(builder.build()) == [(0, "serve.py", 4, 100)]


def test_a_trace_without_stacks_has_no_lines():
    assert line_tree(TraceBuilder().span("aten::mm", 0, 100).build()).lines == ()
    assert line_tree(TraceBuilder().build()).lines == ()


@pytest.mark.parametrize(
    ("file", "package"),
    [
        (PACKAGE, "torch_geometric"),
        ("/opt/env/lib/python3.12/dist-packages/six.py", "six"),
        ("C:\\env\\Lib\\site-packages\\timm\\models.py", "timm"),
        ("/srv/job.zip/model/net.py", "model"),
        (TRAIN, ""),
    ],
)
def test_the_package_of_a_file(file, package):
    assert installed_package(file) == package


@given(
    st.lists(st.tuples(st.integers(1, 50), st.lists(st.integers(1, 6), max_size=5)), min_size=1, max_size=12)
)
def test_no_line_has_more_than_the_whole_and_those_under_it_not_more_than_it(calls):
    trace = trace_of(*((ns, MAIN, *((TRAIN, line, "f") for line in lines)) for ns, lines in calls), step_ns=1)
    tree = line_tree(trace)
    open_lines = []
    roots_ns = 0
    for line in tree.lines:
        assert line.depth <= len(open_lines)
        del open_lines[line.depth :]
        if open_lines:
            open_lines[-1][1] -= line.time_ns
            assert open_lines[-1][1] >= 0
        else:
            roots_ns += line.time_ns
        open_lines.append([line, line.time_ns])
    assert roots_ns <= tree.whole_ns
