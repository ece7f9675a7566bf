"""What is derived from a recording: kinds, forward links, modules, stacks, phases, memory."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core
from kinetoscope.model.nesting import spread_down
from kinetoscope.model.schema import Phase, SpanKind
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder


def by_name(trace, column):
    values = trace.column("spans", column).tolist()
    return {
        trace.strings[name]: value
        for name, value in zip(trace.column("spans", "name").tolist(), values, strict=True)
    }


def test_kinds_follow_scope_and_name():
    trace = (
        TraceBuilder()
        .step(0, 0, 100)
        .annotation("forward", 10, 20)
        .span("aten::add", 12, 5)
        .backward("AddBackward0", 40, 10, sequence=1)
        .span("ProfilerStep#1", 60, 5)
        .build()
    )
    kinds = by_name(trace, "kind")
    assert kinds["ProfilerStep#0"] == SpanKind.STEP
    assert kinds["forward"] == SpanKind.USER_ANNOTATION
    assert kinds["aten::add"] == SpanKind.OPERATOR
    assert kinds["AddBackward0"] == SpanKind.BACKWARD
    assert kinds["ProfilerStep#1"] == SpanKind.OPERATOR, "an operator of that name is no step"


def test_backward_takes_module_and_stack_of_its_forward():
    builder = TraceBuilder()
    model = builder.module("Net")
    layer = builder.module("Linear", name="fc", parent=model)
    forward = builder.stack(("train.py", 5, "main"), ("net.py", 9, "Net.forward"))
    call = builder.stack(("train.py", 6, "main"))
    builder.span("aten::linear", 0, 10, sequence=3, module=layer, stack=forward)
    builder.backward("LinearBackward0", 20, 10, sequence=3, stack=call)
    builder.span("aten::mm", 22, 4, stack=call)
    trace = builder.build()
    modules, stacks = by_name(trace, "module"), by_name(trace, "stack")
    for name in ("LinearBackward0", "autograd::engine::evaluate_function: LinearBackward0", "aten::mm"):
        assert modules[name] == layer, name
        assert stacks[name] == forward, name
    assert by_name(trace, "forward")["LinearBackward0"] == 0
    assert by_name(trace, "own_stack")["aten::mm"] == call


def test_accumulate_grad_belongs_to_the_module_of_its_parameter():
    builder = TraceBuilder()
    layer = builder.module("Linear")
    weight = builder.parameter(layer)
    builder.span("torch::autograd::AccumulateGrad", 0, 10, scope=1, parameter=weight)
    assert builder.build().column("spans", "module").tolist() == [layer]


def test_phases_reach_down_to_what_runs_inside():
    trace = (
        TraceBuilder()
        .span("aten::linear", 0, 5)
        .backward("AddBackward0", 10, 10, sequence=1)
        .span("aten::mul", 12, 3)
        .annotation("Optimizer.step#SGD.step", 30, 20)
        .span("aten::add_", 33, 3)
        .span("aten::zero_", 60, 3)
        .build()
    )
    phases = by_name(trace, "phase")
    assert phases["aten::linear"] == phases["aten::zero_"] == Phase.FORWARD
    assert (
        phases["aten::mul"] == phases["autograd::engine::evaluate_function: AddBackward0"] == Phase.BACKWARD
    )
    assert phases["aten::add_"] == phases["Optimizer.step#SGD.step"] == Phase.OPTIMIZER


def phases_in_order(builder):
    """What each span of the first thread is, in order of time, as `name: phase`."""
    trace = builder.build()
    spans = trace.columns("spans")
    return [
        f"{trace.strings[spans['name'][row]]}: {Phase(spans['phase'][row]).name.lower()}"
        for row in np.flatnonzero(spans["thread"] == 0).tolist()
    ]


def test_a_closure_of_an_optimizer_is_forward_and_backward():
    builder = TraceBuilder().annotation("Optimizer.step#LBFGS.step", 0, 1000)
    layer = builder.module("Linear")
    for at in (0, 500):
        builder.annotation("Optimizer.zero_grad#LBFGS.zero_grad", at + 10, 5)
        builder.span("aten::randn", at + 20, 5)
        builder.annotation("my forward", at + 29, 32)
        builder.span("aten::linear", at + 30, 20, module=layer, sequence=at).span("aten::addmm", at + 35, 5)
        builder.span("aten::sum", at + 55, 5, sequence=at + 1)
        builder.span("aten::ones_like", at + 65, 5)
        builder.backward("SumBackward0", at + 75, 5, sequence=at + 1)
        builder.backward("AddmmBackward0", at + 85, 5, sequence=at)
        builder.annotation("my update", at + 98, 20)
        builder.span("aten::add_", at + 100, 5)
    closure = [
        "Optimizer.zero_grad#LBFGS.zero_grad: forward",
        *(f"{name}: forward" for name in ("aten::randn", "my forward", "aten::linear", "aten::addmm", "aten::sum", "aten::ones_like")),
        *(f"{wrapper}{name}: backward" for name in ("SumBackward0", "AddmmBackward0") for wrapper in ("autograd::engine::evaluate_function: ", "")),
        "my update: optimizer", "aten::add_: optimizer",
    ]  # fmt: skip
    assert phases_in_order(builder) == ["Optimizer.step#LBFGS.step: optimizer", *closure, *closure]


def test_a_closure_inside_an_optimizer_that_another_wraps_begins_where_that_has_worked():
    builder = TraceBuilder().annotation("Optimizer.step#SAM.step", 0, 1000)
    builder.span("aten::_foreach_add_", 10, 5)
    builder.annotation("closure", 20, 300)
    builder.span("aten::linear", 30, 20, sequence=1)
    builder.backward("LinearBackward0", 100, 20, sequence=1)
    builder.annotation("Optimizer.step#SGD.step", 400, 100).span("aten::_foreach_sub_", 410, 5)
    assert phases_in_order(builder) == [
        "Optimizer.step#SAM.step: optimizer", "aten::_foreach_add_: optimizer", "closure: forward", "aten::linear: forward",
        "autograd::engine::evaluate_function: LinearBackward0: backward", "LinearBackward0: backward",
        "Optimizer.step#SGD.step: optimizer", "aten::_foreach_sub_: optimizer",
    ]  # fmt: skip


def test_a_closure_ends_with_backward_on_another_thread():
    builder = TraceBuilder().annotation("Optimizer.step#Adam.step", 0, 1000)
    _, autograd = builder.thread(), builder.thread("autograd")
    builder.span("aten::linear", 30, 20, sequence=1).span("aten::ones_like", 60, 5)
    builder.backward("LinearBackward0", 100, 300, sequence=1, thread=autograd)
    builder.span("aten::_fused_adam_", 500, 20)
    assert phases_in_order(builder) == [
        "Optimizer.step#Adam.step: optimizer",
        "aten::linear: forward",
        "aten::ones_like: forward",
        "aten::_fused_adam_: optimizer",
    ]


def test_a_range_that_is_entered_in_a_module_makes_no_closure():
    builder = TraceBuilder().annotation("Optimizer.step#SGD.step", 0, 100).span("aten::add_", 10, 5)
    builder.annotation("update", 20, 50, module=builder.module("Linear")).span("aten::mul_", 30, 5)
    assert {line.rpartition(" ")[2] for line in phases_in_order(builder)} == {"optimizer"}
    alone = TraceBuilder()
    alone.annotation("Optimizer.step#SGD.step", 0, 100).annotation(
        "update", 20, 50, module=alone.module("Linear")
    )
    assert {line.rpartition(" ")[2] for line in phases_in_order(alone)} == {"optimizer"}


def test_an_optimizer_whose_step_autograd_records_runs_no_closure():
    builder = (
        TraceBuilder().annotation("Optimizer.step#SGD.step", 0, 100).span("aten::mul", 10, 5, sequence=1)
    )
    builder.backward("MulBackward0", 200, 5, sequence=1)
    assert phases_in_order(builder)[:2] == ["Optimizer.step#SGD.step: optimizer", "aten::mul: optimizer"]


def test_memory_goes_to_the_span_that_ran():
    builder = TraceBuilder().span("outer", 0, 100).span("inner", 10, 20)
    builder.allocate(5, 0x10, 100)
    builder.allocate(15, 0x20, 40)
    builder.free(90, 0x20)
    builder.free(95, 0x999)
    builder.allocate(200, 0x30, 7)
    trace = builder.build()
    assert by_name(trace, "self_bytes") == {"outer": 60, "inner": 40}
    assert by_name(trace, "bytes") == {"outer": 100, "inner": 40}
    assert trace.column("allocations", "span").tolist() == [0, 1, 0, 0, -1]
    assert trace.column("allocations", "match").tolist() == [-1, 2, 1, -1, -1]
    assert trace.column("allocations", "total_bytes").tolist() == [100, 140, 100, 100, 107]


def test_host_and_device_memory_are_kept_apart():
    builder = TraceBuilder().span("op", 0, 100)
    builder.allocate(5, 0x10, 100)
    builder.allocate(6, 0x10, 300, device=(1, 0))
    builder.free(7, 0x10)
    builder.free(8, 0x10, device=(1, 0))
    builder.allocate(9, 0x20, 50, device=(1, 0))
    trace = builder.build()
    assert by_name(trace, "bytes") == {"op": 0}
    assert by_name(trace, "device_bytes") == {"op": 50}
    assert trace.column("allocations", "match").tolist() == [2, 3, 0, 1, -1]
    assert trace.column("allocations", "total_bytes").tolist() == [100, 300, 0, 0, 50]


def test_device_time_goes_to_the_launching_span_and_those_around_it():
    spans = {
        "thread": [0, 0, 1, 1], "start_ns": [0, 10, 50, 80], "duration_ns": [40, 20, 25, 5],
        "name": [1, 2, 3, 3], "kind": [0, 0, 6, 6], "stream": [-1, -1, 0, 0],
    }  # fmt: skip
    trace = Trace.from_columns(
        {
            "spans": spans,
            "threads": {"os_tid": [5, 0]},
            "streams": {"device_type": [1], "device_index": [0], "number": [7]},
            "launches": {"host": [1, 0], "device": [2, 3]},
        },
        strings=["", "outer", "inner", "kernel"],
    )
    assert trace.column("spans", "device_self_ns").tolist() == [5, 25, 0, 0]
    assert trace.column("spans", "device_ns").tolist() == [30, 25, 0, 0]


@st.composite
def forests(draw):
    """Parents and depths, mostly with parents before their children."""
    parent = [draw(st.integers(-1, row - 1)) for row in range(draw(st.integers(0, 40)))]
    depth: list[int] = []
    for above in parent:
        depth.append(0 if above < 0 else depth[above] + 1)
    place = draw(st.one_of(st.just(range(len(parent))), st.permutations(range(len(parent)))))
    moved = np.full((2, len(parent)), -1, np.int32)
    for row, (above, level) in enumerate(zip(parent, depth, strict=True)):
        moved[:, place[row]] = -1 if above < 0 else place[above], level
    return moved[0], moved[1]


def upwards(parent, row):
    """A row and those above it."""
    while row >= 0:
        yield row
        row = parent[row]


@given(forests(), st.data())
def test_sums_below_adds_every_descendant_once(forest, data):
    parent, depth = forest
    own = np.array([data.draw(st.integers(-9, 9)) for _ in parent], np.int64)
    expected = np.zeros_like(own)
    for row in range(len(parent)):
        for above in upwards(parent, row):
            expected[above] += own[row]
    assert _core.sums_below(parent, depth, own).tolist() == expected.tolist()


@given(forests(), st.data())
def test_spread_down_finds_the_nearest_ancestor(forest, data):
    parent, depth = forest
    own = np.array([data.draw(st.sampled_from([0, 1, 9])) for _ in parent], np.uint8)
    expected = [
        next((own[above] for above in upwards(parent, row) if own[above] != 9), 9) for row in range(len(own))
    ]
    assert spread_down(parent, depth, own, 9).tolist() == expected


def test_each_device_has_addresses_and_totals_of_its_own():
    builder = TraceBuilder().span("aten::mm", 0, 100)
    builder.allocate(10, 0x10, 70, device=(1, 0))
    builder.allocate(20, 0x10, 700, device=(1, 1))
    builder.allocate(25, 0x10, 3)
    builder.free(30, 0x10, device=(1, 0))
    trace = builder.build()
    assert trace.column("allocations", "match").tolist() == [3, -1, -1, 0]
    assert trace.column("allocations", "total_bytes").tolist() == [70, 700, 3, 0]
    assert trace.column("spans", "device_bytes").tolist() == [700]
    assert trace.column("spans", "bytes").tolist() == [3]


_KERNELS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=12)


@given(_KERNELS, st.integers(1, 89))
def test_device_work_has_no_children_and_is_its_own_self_time(kernels, cut_ns):
    builder = TraceBuilder()
    stream = builder.stream(7)
    for place, (start_ns, duration_ns) in enumerate(kernels):
        builder.kernel(f"k{place}", start_ns, duration_ns, stream=stream)
    trace = builder.kernel("last", 60, 30, stream=stream).build()
    spans = trace.columns("spans")
    assert np.array_equal(spans["self_ns"], spans["duration_ns"])
    assert (spans["parent"] == -1).all()
    assert (spans["depth"] == 0).all()
    before, after = (
        trace.window(*times, device="time").column("spans", "self_ns")
        for times in ((0, cut_ns), (cut_ns, None))
    )
    assert before.sum() + after.sum() == spans["duration_ns"].sum()


def test_a_range_on_a_stream_encloses_kernels_that_enclose_nothing():
    builder = TraceBuilder()
    stream = builder.stream(7)
    builder.device_annotation("range", 0, 100, stream=stream)
    builder.kernel("outer", 10, 50, stream=stream)
    builder.kernel("inner", 20, 30, stream=stream)
    trace = builder.build()
    rows = {row["name"]: row for row in trace.table("spans").to_pylist()}
    assert {name: row["self_ns"] for name, row in rows.items()} == {"range": 50, "outer": 50, "inner": 30}
    parents = [row["parent"] for row in rows.values()]
    assert parents == [None, 0, None]
