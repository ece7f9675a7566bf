"""The time between operators, and the lines that it is charged to."""

import inspect
import re

import numpy as np
import pytest
import torch
from hypothesis import given

import kinetoscope
from kinetoscope.analyses.flame import flame_graph
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model.schema import SampleState, SpanKind
from kinetoscope.tables.host.python_time import charged, gaps, program_calls
from tests.support.any_trace import any_traces
from tests.support.trace_builder import TraceBuilder

TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"


def lines(trace):
    return {
        (row["line"], row["function"]): (row["python_self_ns"], row["blocked_self_ns"])
        for row in trace.table("lines").to_pylist()
        if row["python_self_ns"] or row["blocked_self_ns"]
    }


def program():
    """Two operators of one function, called from its lines 3 and 5, and one of another function that it calls."""
    builder = TraceBuilder().step(0, 0, 1000)
    builder.span("aten::mm", 100, 100, stack=builder.stack(("train.py", 3, "train")))
    builder.span("aten::add", 500, 100, stack=builder.stack(("train.py", 5, "train")))
    deep = builder.stack(("train.py", 6, "train"), (TORCH, 9, "_call_impl"), ("net.py", 2, "forward"))
    builder.span("aten::relu", 700, 100, stack=deep)
    return builder


def test_without_samples_the_function_that_called_both_has_the_time():
    trace = program().build()
    # Before the first and behind the last operator nobody knows.
    assert lines(trace) == {(5, "train"): (300, 0), (6, "train"): (100, 0)}
    (step,) = trace.table("steps").to_pylist()
    assert (step["compute_ns"], step["host_wait_ns"], step["largest_gap_ns"]) == (300, 700, 300)
    assert (step["largest_gap_file"], step["largest_gap_line"]) == ("train.py", 5)


def test_samples_say_which_lines_ran_and_which_waited():
    builder = program()
    slow = builder.stack(("train.py", 4, "train"), ("metric.py", 8, "accuracy"))
    asleep = builder.stack(("train.py", 4, "train"), ("metric.py", 9, "accuracy"))
    for time in (210, 310, 410):
        builder.sample(time, slow, period_ns=100)
    builder.sample(450, asleep, period_ns=100, state=SampleState.BLOCKED)
    trace = builder.build()
    assert lines(trace) == {
        (8, "accuracy"): (225, 0),
        (9, "accuracy"): (0, 75),
        (6, "train"): (100, 0),
    }
    (step,) = trace.table("steps").to_pylist()
    assert (step["host_wait_ns"], step["blocked_ns"], step["largest_gap_line"]) == (625, 75, 8)


def test_few_samples_speak_for_all_times_at_the_same_place():
    builder = TraceBuilder()
    ends = [builder.stack(("train.py", line, "train")) for line in (3, 5)]
    for number in range(4):
        builder.step(number, 1000 * number, 1000)
        builder.span("aten::mm", 1000 * number, 100, stack=ends[0])
        builder.span("aten::add", 1000 * number + 900, 100, stack=ends[1])
    builder.sample(1500, builder.stack(("train.py", 4, "train")))
    assert lines(builder.build()) == {(4, "train"): (3200, 0)}


def test_samples_in_operators_and_of_other_threads_say_nothing_of_gaps():
    builder = program()
    elsewhere = builder.stack(("train.py", 99, "elsewhere"))
    builder.thread("other")
    builder.sample(150, elsewhere).sample(300, elsewhere, thread=1)
    assert (99, "elsewhere") not in lines(builder.build())


def test_samples_of_a_recording_that_ran_nothing_are_of_no_gap():
    builder = TraceBuilder()
    builder.thread("main")
    builder.sample(5, builder.stack(("train.py", 3, "train")))
    assert len(gaps(builder.build())) == 0


def test_what_runs_between_backward_functions_is_no_line_of_python():
    builder = TraceBuilder().step(0, 0, 1000)
    stack = builder.stack(("train.py", 3, "train"))
    builder.span("aten::mm", 0, 100, stack=stack, sequence=1)
    builder.backward("MmBackward0", 200, 100, sequence=1, stack=stack)
    builder.backward("MmBackward0", 600, 100, sequence=1, stack=stack)
    trace = builder.build()
    assert lines(trace) == {}
    (step,) = trace.table("steps").to_pylist()
    assert (step["host_wait_ns"], step["largest_gap_ns"]) == (1000 - step["compute_ns"], 299)


def test_a_range_is_where_the_program_was():
    builder = TraceBuilder().step(0, 0, 1000)
    inside = builder.stack(("train.py", 7, "train"))
    builder.annotation("mine", 100, 500, stack=inside)
    builder.span("aten::mm", 300, 100, stack=builder.stack(("train.py", 8, "train")))
    trace = builder.build()
    # From entering the range up to the operator, and from there to leaving it.
    assert lines(trace) == {(8, "train"): (200, 0), (7, "train"): (200, 0)}
    assert sum(trace.table("lines")["self_ns"].to_pylist()) == 100


def test_modules_have_the_python_of_their_forward():
    builder = TraceBuilder()
    net = builder.module("Net")
    first, second = (builder.module("Linear", name=name, parent=net) for name in ("a", "b"))
    builder.span("aten::mm", 100, 100, module=first).span("aten::mm", 300, 100, module=first)
    builder.span("aten::mm", 500, 100, module=second).span("aten::add", 900, 100)
    found = {
        row["path"]: (row["python_self_ns"], row["python_ns"])
        for row in builder.build().table("modules").to_pylist()
    }
    assert found == {"Net": (100, 200), "a": (100, 100), "b": (0, 0)}


def test_recorded_calls_of_modules_say_whose_python_it_is():
    builder = TraceBuilder()
    net = builder.module("Net")
    inner = builder.module("Linear", name="a", parent=net)
    builder.span("Net", 0, 600, kind=SpanKind.MODULE, module=net)
    builder.span("a", 100, 200, kind=SpanKind.MODULE, module=inner)
    builder.span("aten::mm", 150, 50, module=inner).span("aten::add", 900, 100)
    found = {row["path"]: row["python_self_ns"] for row in builder.build().table("modules").to_pylist()}
    assert found == {"Net": 400, "a": 150}


def test_a_loop_that_makes_its_batches_has_their_python_in_the_wait():
    builder = TraceBuilder().step(0, 0, 1000)
    builder.annotation(
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        0,
        400,
        stack=builder.stack(("train.py", 2, "train")),
    )
    builder.span("aten::mm", 600, 100, stack=builder.stack(("train.py", 3, "train")))
    builder.sample(200, builder.stack(("train.py", 2, "train"), ("data.py", 4, "__getitem__")))
    trace = builder.build()
    assert lines(trace)[4, "__getitem__"] == (400, 0)
    (step,) = trace.table("steps").to_pylist()
    assert (step["data_wait_ns"], step["host_wait_ns"], step["compute_ns"]) == (400, 500, 100)


def test_a_wait_for_workers_is_nobodys_python():
    builder = TraceBuilder().step(0, 0, 1000)
    builder.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 400)
    builder.span("aten::mm", 400, 600)
    assert len(gaps(builder.build())) == 0


def called():
    """The same program with the calls of two functions recorded between its first two operators, one called from torch's code."""
    builder = program()
    builder.span("train", 50, 900, kind=SpanKind.PYTHON, stack=builder.stack(("train.py", 1, "train")))
    builder.span(
        "accuracy", 220, 200, kind=SpanKind.PYTHON, stack=builder.stack(("metric.py", 7, "accuracy"))
    )
    builder.span("_call_impl", 250, 100, kind=SpanKind.PYTHON, stack=builder.stack((TORCH, 8, "_call_impl")))
    builder.span("hook", 260, 50, kind=SpanKind.PYTHON, stack=builder.stack(("metric.py", 20, "hook")))
    builder.span("builtins.len", 400, 10, kind=SpanKind.PYTHON)
    return builder


def test_recorded_calls_divide_the_time_exactly():
    # What torch's code and built-in functions ran counts for their caller; the function at both ends keeps its line.
    assert lines(called().build()) == {
        (7, "accuracy"): (150, 0),
        (20, "hook"): (50, 0),
        (5, "train"): (100, 0),
        (6, "train"): (100, 0),
        # Before the first operator and behind the last one only the call is known.
        (1, "train"): (200, 0),
    }


def test_samples_say_which_line_of_a_recorded_call_ran():
    builder = called()
    inside = builder.stack(("train.py", 4, "train"), ("metric.py", 9, "accuracy"))
    for time in (230, 300, 380):
        # The one at 300 was taken while `hook` ran: a torn or late sample says nothing of another function.
        builder.sample(time, inside, period_ns=100)
    assert lines(builder.build())[9, "accuracy"] == (150, 0)
    assert lines(builder.build())[20, "hook"] == (50, 0)


def test_a_function_around_all_of_backward_has_nothing_of_what_autograd_does():
    builder = TraceBuilder().step(0, 0, 1000)
    stack = builder.stack(("train.py", 3, "train"))
    builder.span("train", 0, 1000, kind=SpanKind.PYTHON, stack=builder.stack(("train.py", 1, "train")))
    builder.span("aten::mm", 0, 100, stack=stack, sequence=1)
    builder.backward("MmBackward0", 200, 100, sequence=1, stack=stack)
    builder.backward("MmBackward0", 600, 100, sequence=1, stack=stack)
    builder.span("backward", 400, 150, kind=SpanKind.PYTHON, stack=builder.stack(("ops.py", 4, "backward")))
    assert lines(builder.build()) == {(4, "backward"): (150, 0), (1, "train"): (398, 0)}


def test_samples_of_a_program_without_operators_are_in_no_gap():
    builder = TraceBuilder()
    builder.sample(5, builder.stack(("train.py", 1, "train")))
    trace = builder.build()
    assert len(gaps(trace)) == 0
    assert charged(trace).tolist() == []
    assert trace.findings().num_rows == 0


@given(any_traces())
def test_charges_add_up_to_the_gaps_and_the_parts_to_the_steps(trace):
    found = gaps(trace)
    assert int(charged(trace).sum()) == int(found.duration_ns.sum())
    assert (found.duration_ns > 0).all()
    half = np.arange(len(found)) % 2 == 0
    assert int(charged(trace, half).sum()) == int(found.duration_ns[half].sum())
    for row in trace.table("steps").to_pylist():
        parts = [row[name] for name in PARTS]
        assert sum(parts) == row["duration_ns"]
        assert min(parts) >= 0
        assert 0 <= row["largest_gap_ns"] <= row["duration_ns"]


def test_a_slow_function_of_a_recorded_program_has_its_time():
    def slow_metric():
        total = 0
        for number in range(200_000):
            total += number
        return total

    weight = torch.randn(16, 16)
    # A sampler that gets no processor for long takes few samples.
    for steps in (4, 16, 64, 256):
        with kinetoscope.profile() as prof:
            for _ in range(steps):
                weight @ weight
                slow_metric()
                weight @ weight
                prof.step()
        thread = prof.trace.column("spans", "thread")[0]
        if np.count_nonzero(prof.trace.column("samples", "thread") == thread) >= 8:
            break
    times = {}
    for row in prof.trace.table("lines").to_pylist():
        times[row["function"]] = (
            times.get(row["function"], 0) + row["python_self_ns"] + row["blocked_self_ns"]
        )
    slow = sum(time for name, time in times.items() if "slow_metric" in name)
    assert slow == pytest.approx(sum(times.values()), rel=0.3)


def first():
    return sum(number * number for number in range(20_000))


def second():
    return sorted(range(30_000), key=lambda number: -number)


def test_recorded_calls_of_a_program_have_their_own_durations():
    weight = torch.randn(16, 16)
    with kinetoscope.profile(python_calls=True, samples=False) as prof:
        for _ in range(4):
            weight @ weight
            first()
            second()
            weight @ weight
            prof.step()
    spans = prof.trace.columns("spans")
    own_ns = {}
    calls = program_calls(prof.trace)
    for row in calls.rows.tolist():
        name = prof.trace.strings[spans["name"][row]]
        own_ns[name] = own_ns.get(name, 0) + int(calls.self_ns[row])
    found = {}
    for (_, function), (python, _) in lines(prof.trace).items():
        found[function] = found.get(function, 0) + python
    # No operator runs in these.
    names = ("first", "second", "first.<locals>.<genexpr>", "second.<locals>.<lambda>")
    assert {name: found.get(name) for name in names} == {name: own_ns.get(name) for name in names}


class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * weigh(3_000)


def weigh(count):
    return sum(first() for _ in range(2)) + count


def prepare(count):
    total = weigh(count)
    return torch.ones(16) * total


def train(model, prof):
    for _ in range(4):
        model(prepare(2_000))
        prof.step()


def test_recorded_calls_without_samples_stand_below_their_callers():
    model = Scaled()
    with kinetoscope.profile(python_calls=True, samples=False) as prof:
        train(model, prof)
    trace = prof.trace
    assert len(trace.columns("samples")) == 0
    body = inspect.getsourcelines(prepare)[1]
    rows = trace.table("stacks").to_pylist()
    named = {row["id"]: row["frame"].partition("(")[2].replace("): ", " ") for row in rows}
    spent = [row for row in rows if named[row["id"]].endswith("first.<locals>.<genexpr>")]
    chains = {tuple(re.findall(r"\((\d+)\): ([\w.<>]+)", row["stack"])[-6:-3]) for row in spent}
    called = [(str(inspect.getsourcelines(train)[1] + 2), "train"), (str(body + 1), "prepare")]
    weighing = (str(inspect.getsourcelines(weigh)[1] + 1), "weigh")
    assert (*called, weighing) in chains
    # The line that called them has all of their time, and the module whose forward ran them.
    by_line = {(row["line"], row["function"]): row for row in trace.table("lines").to_pylist()}
    below = sum(row["python_ns"] for row in spent if row["stack"].count("prepare"))
    assert by_line[body + 1, "prepare"]["python_ns"] >= below > 0
    (module,) = trace.table("modules").to_pylist()
    assert (
        module["python_ns"]
        >= sum(row["python_ns"] for row in spent if row["stack"].count("Scaled.forward"))
        > 0
    )
    # No time is counted twice, and none in two places.
    whole = sum(row["self_ns"] + row["python_self_ns"] for row in rows)
    assert sum(row["total_ns"] + row["python_ns"] for row in rows if row["parent"] is None) == whole
    graph = flame_graph(trace, library=False).to_pylist()
    roots = [row for row in graph if row["parent"] is None and not row["rest"]]
    assert {row["function"] for row in roots}.isdisjoint(
        {"first", "weigh", "prepare", "first.<locals>.<genexpr>"}
    )
