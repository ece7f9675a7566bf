"""What the time of steps was spent on: the parts of every step add up to it, whatever a trace holds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import kinetoscope
from kinetoscope._errors import ArgumentError
from kinetoscope.analyses.account import accounts
from kinetoscope.model.nesting import GARBAGE_COLLECTION
from kinetoscope.model.schema import SampleState, SampleWait, SpanKind
from kinetoscope.model.time_spent import CAUSES, Cause, Entry
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


@settings(max_examples=examples(150), deadline=None)
@given(any_traces(max_spans=40))
def test_the_parts_of_each_step_add_up_to_it_and_none_is_negative(trace):
    for one in accounts(trace):
        assert (one.cells.time_ns > 0).all()
        assert one.entry_ns.sum(axis=1).tolist() == one.duration_ns.tolist()
        assert (one.floor_ns <= one.duration_ns).all()
    whole = sum(int(one.duration_ns[one.counted].sum()) for one in accounts(trace))
    for by in ("trace", "step"):
        assert sum(trace.table("account", by=by)["time_ns"].to_pylist()) == whole


def shares(trace):
    """The share of each entry and cause in percent."""
    found = {}
    for row in trace.table("account").to_pylist():
        key = (row["entry"], row["cause"])
        found[key] = found.get(key, 0.0) + row["share_percent"]
    return {key: round(value, 1) for key, value in found.items()}


def calibrated(builder, **curves):
    """The trace, from a machine that attains this: for each curve pairs of size and nanoseconds."""
    builder.know(
        "attainable",
        {"call": [[1, 1000]]} | {name.replace("_", " "): pairs for name, pairs in curves.items()},
    )
    return builder.build()


def test_an_operator_needs_its_least_time_and_the_rest_is_slow():
    builder = TraceBuilder()
    mul = builder.shapes([[1000, 250], []], ["float", "Scalar"], ["", "2."])
    for step in range(3):
        builder.step(step, step * MS, MS)
        builder.span("aten::mul", step * MS, MS // 2, shapes=mul, stack=builder.stack(("train.py", 7, "f")))
    trace = calibrated(builder, stream=[[2_000_000, 101_000]])
    assert shares(trace) == {
        ("needed", None): 10.0,
        # One call, and the Python that issues the next one: fifteen times as much.
        ("needed", "fixed cost of a call"): 1.6,
        ("slow", None): 39.9,
        ("profiler", None): 0.0,
        ("python", None): 48.5,
    }
    (kind,) = trace.account().kinds
    assert trace.account().calibrated
    assert (kind.steps, kind.duration_ns, kind.floor_ns) == (3, 3 * MS, 3 * 116_000)
    assert kind.times_floor == pytest.approx(1000 / 116)
    assert sum(kind.entry_ns.values()) == kind.duration_ns
    needed = next(row for row in trace.account().rows if (row["entry"], row["cause"]) == ("needed", None))
    assert (needed["operator"], needed["file"], needed["line"], needed["count"]) == (
        "aten::mul",
        "train.py",
        7,
        3,
    )


def fixed_costs(times, *, modules=1, in_backward=False):
    """What the fixed costs of calls are in percent of a step of 1 ms: the needed ones and others, where a line calls an operator so often."""
    builder = TraceBuilder()
    mul = builder.shapes([[8], []], ["float", "Scalar"], ["", "2."])
    stack = builder.stack(("train.py", 7, "f"))
    layers = [builder.module("Scale", name=str(one)) for one in range(modules)]
    for step in range(3):
        at = step * MS
        builder.step(step, at, MS)
        for number in range(times):
            more = {"sequence": step * times + number, "module": layers[number % modules], "shapes": mul}
            builder.span("aten::mul", at + number * 5_000, 3_000, stack=stack, **more)
            if in_backward:
                start = at + MS // 2 + number * 5_000
                builder.backward("MulBackward0", start, 4_000, sequence=more["sequence"], forward_thread=0)
                builder.span("aten::mul", start, 3_000, shapes=mul)
    found = shares(calibrated(builder, stream=[[64, 1_001]]))
    return tuple(found.get((entry, "fixed cost of a call"), 0.0) for entry in ("needed", "slow"))


def test_a_call_is_needed_with_the_python_that_issues_it():
    # Nine calls of 1 us each, eight times 2 us of Python between them, and 15 us of the long stretch after the last one.
    assert fixed_costs(9) == (pytest.approx(0.9 + 1.6 + 1.5, abs=0.11), 0.0)


def test_of_the_calls_of_a_loop_one_is_needed():
    # The line could call the operator once, on a whole tensor.
    assert fixed_costs(100) == (pytest.approx(0.1 + 0.2, abs=0.11), pytest.approx(9.9, abs=0.11))


def test_layers_are_no_loop():
    needed, others = fixed_costs(100, modules=50)
    assert needed > 20.0
    assert others == 0.0


def test_a_comparison_has_all_python_between_operators_as_python():
    builder = TraceBuilder()
    for step in range(3):
        builder.step(step, step * MS, MS)
        builder.span("aten::mul", step * MS, MS // 2, stack=builder.stack(("train.py", 7, "f")))
    (one,) = accounts(builder.build())
    entry, cause = one.cells.whole_parts(np.arange(len(one.cells.entry)))
    python = (entry == Entry.PYTHON) & (cause == Cause.NONE)
    assert one.cells.time_ns[python].sum() == 3 * MS // 2
    assert one.entry_ns[:, Entry.PYTHON].sum() < 3 * MS // 2


def test_what_backward_runs_for_a_loop_is_of_the_loop():
    needed, others = fixed_costs(50, in_backward=True)
    assert needed < 4.0
    assert others > 2 * 4.8


def test_without_sizes_what_operators_need_is_unknown_and_so_is_the_floor():
    builder = TraceBuilder().step(0, 0, MS).span("aten::mul", 0, MS // 2)
    trace = builder.build()
    assert shares(trace)["unknown", "inputs were not recorded"] == pytest.approx(50.0, abs=0.1)
    assert trace.account().kinds[0].floor_ns is None
    assert trace.account().kinds[0].times_floor is None


def test_a_busy_machine_does_not_hide_how_little_is_known_of_what_ran():
    builder = TraceBuilder().step(0, 0, MS).span("aten::mul", 0, MS // 2)
    builder.sample(MS, builder.stack(("train.py", 1, "f")), period_ns=MS, waited_ns=9 * MS // 10)
    trace = builder.build()
    assert shares(trace)["unknown", "inputs were not recorded"] < 10.0
    assert trace.account().kinds[0].floor_ns is None
    assert not trace.account().calibrated


def test_waits_pauses_and_the_profiler_have_their_own_entries():
    builder = TraceBuilder()
    builder.step(0, 0, 10 * MS)
    builder.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 2 * MS, scope=7)
    builder.span(GARBAGE_COLLECTION, 2 * MS, MS, kind=SpanKind.PYTHON)
    builder.span("Buffer Flush", 3 * MS, MS, kind=SpanKind.OVERHEAD)
    builder.span("gloo:all_reduce", 4 * MS, MS, scope=7)
    found = shares(builder.build())
    assert found["waiting", "waiting for data"] == 20.0
    assert found["garbage collection", None] == 10.0
    assert found["profiler", None] == 10.0


@pytest.mark.parametrize(
    ("wait", "cause"),
    [(wait, CAUSES[Cause.LOCK - 1 + wait if wait else Cause.BLOCKED]) for wait in SampleWait],
)
def test_a_thread_that_does_not_run_waits_at_its_line(wait, cause):
    builder = TraceBuilder()
    inside = builder.stack(("train.py", 3, "train"), ("log.py", 5, "flush"))
    for step in range(2):
        builder.step(step, step * 10 * MS, 10 * MS)
        builder.span("aten::mm", step * 10 * MS, MS, stack=builder.stack(("train.py", 3, "train")))
        builder.sample(step * 10 * MS + 5 * MS, inside, state=SampleState.BLOCKED, wait=wait)
    (row,) = [row for row in builder.build().table("account").to_pylist() if row["entry"] == "waiting"]
    assert (row["cause"], row["file"], row["line"]) == (cause, "log.py", 5)
    assert row["share_percent"] == pytest.approx(90.0)


def test_backward_on_another_thread_is_what_the_step_waits_for():
    builder = TraceBuilder()
    engine = builder.thread("engine"), builder.thread("autograd")
    builder.step(0, 0, MS)
    builder.span("aten::add", 0, MS // 10)
    builder.span("aten::mul", MS // 10, MS * 9 // 10, thread=engine[1])
    (one,) = accounts(builder.build())
    assert one.entry_ns[0, Entry.PYTHON] == 0
    assert one.entry_ns[0, Entry.UNKNOWN] > 0.9 * MS


def test_the_time_of_a_device_is_that_of_its_kernels_and_of_the_host_that_it_waits_for():
    builder = TraceBuilder()
    builder.step(0, 0, 10 * MS)
    stream = builder.stream(7)
    mm = builder.shapes([[64, 64], [64, 64]], ["float", "float"])
    builder.span("aten::mm", 0, 2 * MS, shapes=mm, external_id=1)
    builder.runtime("cudaLaunchKernel", MS, MS // 2, correlation=5)
    builder.kernel("gemm", 4 * MS, 4 * MS, stream=stream, correlation=5)
    found = shares(builder.build())
    assert sum(found.values()) == pytest.approx(100.0, abs=0.5)
    assert sum(value for (entry, _), value in found.items() if entry in ("needed", "slow", "unknown")) >= 40.0


def test_other_programs_have_the_processor_at_the_cost_of_what_could_be_faster():
    builder = TraceBuilder()
    line = builder.stack(("train.py", 3, "train"))
    builder.step(0, 0, 10 * MS)
    builder.sample(0, line, period_ns=MS, waited_ns=0)
    builder.sample(10 * MS, line, period_ns=10 * MS, waited_ns=5 * MS)
    found = shares(builder.build())
    assert found["waiting", "waiting for a CPU core"] == pytest.approx(50.0, abs=0.2)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_dense_gradient_of_a_table_of_which_few_rows_are_used_is_not_needed(sparse):
    table = torch.nn.Embedding(50_000, 32, sparse=sparse)
    optimizer = torch.optim.SGD(table.parameters(), 0.1)
    with kinetoscope.profile(record_shapes=True) as prof:
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.randint(50_000, (64,))).sum().backward()
            optimizer.step()
            prof.step()
    found = {row["cause"] for row in prof.trace.table("account").to_pylist() if row["entry"] == "not needed"}
    assert found == (set() if sparse else {CAUSES[Cause.ZERO_GRADIENT]})


def test_what_two_changes_are_about_counts_once():
    builder = TraceBuilder()
    mul = builder.shapes([[1000, 250], []], ["float", "Scalar"], ["", "2."])
    for step in range(3):
        builder.step(step, step * MS, MS)
        builder.span(
            "aten::mul", step * MS, MS // 2, shapes=mul, stack=builder.stack(("src/train.py", 7, "f"))
        )
    trace = calibrated(builder, stream=[[2_000_000, 101_000]])
    alone = trace.what_if("aten::mul")
    assert (alone.step_ns, alone.then_ns) == (MS, MS - 399_000)
    assert alone.gain_percent == pytest.approx(39.9)
    # The line has most of the Python, too.
    both = trace.what_if("train.py:7", "aten::mul", "src/train.py:7", "python")
    assert both.then_ns == 116_000
    assert trace.what_if().then_ns == MS
    with pytest.raises(ArgumentError, match=r"what_if\('train.py:8'\): nothing above the floor"):
        trace.what_if("train.py:8")
    with pytest.raises(ArgumentError, match="nothing above the floor"):
        TraceBuilder().build().what_if("python")


def test_what_if_is_about_the_steps_of_all_kinds():
    builder, at = TraceBuilder(), 0
    for number in range(40):
        evaluates = number % 4 == 3
        took = 8 * MS if evaluates else 4 * MS
        name, line = ("aten::conv2d", 9) if evaluates else ("aten::mm", 7)
        builder.step(number, at, took)
        builder.span(name, at, MS, stack=builder.stack(("train.py", line, "f")))
        builder.span(name, at + took - MS, MS, stack=builder.stack(("train.py", line, "f")))
        at += took
    trace = builder.build()
    found = trace.what_if("train.py:9", "profiler")
    assert found.step_ns == 5 * MS
    assert found.then_ns == pytest.approx(5 * MS - 6 * MS / 4, rel=1e-2)
    with pytest.raises(
        ArgumentError, match="what that needs is unknown, as the sizes of inputs were not recorded"
    ):
        trace.what_if("unknown")


def floor_ms(spans, **rates):
    """What a step of 10 ms needs, in ms, and what of it is not needed, by the cause: operators with their sizes, types and times in ms follow each other on one line."""
    builder = TraceBuilder()
    line = builder.stack(("train.py", 7, "f"))
    for step in range(4):
        at = 10 * step * MS
        builder.step(step, at, 10 * MS)
        for name, sizes, kind, took in spans:
            shapes = builder.shapes([list(one) for one in sizes], [kind] * len(sizes))
            builder.span(name, at, round(took * MS), shapes=shapes, stack=line)
            at += round(took * MS)
    trace = calibrated(builder, **rates) if rates else builder.build()
    (kind,) = trace.account().kinds
    rows = [row for row in trace.account().rows if row["entry"] == "not needed"]
    assert sum(kind.entry_ns.values()) == kind.duration_ns
    return kind.floor_ns / kind.steps / MS, {row["cause"]: row["time_ns"] / kind.steps / MS for row in rows}


PRODUCT = ("aten::mm", [[512, 512], [512, 512]])


def test_what_a_finding_says_can_be_left_out_is_no_part_of_the_floor():
    copy = ("aten::clone", [[1_000_000]], "float", 4)
    # As fast as memory is.
    rates = {"stream": [[8_000_000, 4 * MS]], "matmul_float32": [[268_435_456, 6 * MS]]}
    floor, not_needed = floor_ms([copy, (*PRODUCT, "float", 6)], **rates)
    assert not_needed == {"copies to another layout": pytest.approx(4, abs=0.01)}
    assert floor == pytest.approx(6, abs=0.01)


def test_half_of_the_products_in_64_bits_is_not_needed():
    floor, not_needed = floor_ms([(*PRODUCT, "double", 10)])
    assert not_needed == {"double precision": pytest.approx(5, abs=0.01)}
    assert floor == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize("kind", ["c10::Half", "c10::BFloat16"])
def test_products_in_16_bits_need_no_more_than_in_32(kind):
    # 268 million operations.
    assert floor_ms([(*PRODUCT, kind, 10)], matmul_float32=[[268_435_456, 2 * MS]])[0] == (
        pytest.approx(2, abs=0.05)
    )
    # By the slowest processors, where nothing was measured; and not slower than the trace shows it to be.
    large = ("aten::mm", [[256, 256], [256, 256]])
    assert floor_ms([(*large, kind, 10)])[0] == pytest.approx(2 * 256**3 / 20e6, abs=0.05)
    assert floor_ms([(*large, kind, 1)])[0] == pytest.approx(1, abs=0.1)
