"""Each operation is counted once, however operators are nested."""

import json
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from kinetoscope.tables.costs.call import NO_INPUTS, OperatorCall, parse_inputs
from kinetoscope.tables.costs.columns import count_once
from kinetoscope.tables.costs.evaluate import Standing, built_in, evaluate
from kinetoscope.trace import Trace
from tests.support.counting import costs_in, recorded
from tests.support.trace_builder import TraceBuilder

SQUARE = ([[4, 4], [4, 4]], ["float", "float"])
WEIGHT = ([[4, 4], [4, 4], []], ["float", "float", ""])


class Spans(NamedTuple):
    parent: np.ndarray
    depth: np.ndarray
    name: np.ndarray
    standing: np.ndarray
    flops: np.ndarray
    by_user: np.ndarray


def counted_once(spans):
    return count_once(spans._asdict(), spans.standing, spans.flops, spans.by_user)


@st.composite
def trees(draw):
    """Spans as a tree in preorder, with a name, a standing and operations for each."""
    count = draw(st.integers(1, 25))
    parent = [-1] + [draw(st.integers(-1, row - 1)) for row in range(1, count)]
    depth = []
    for row in range(count):
        depth.append(0 if parent[row] < 0 else depth[parent[row]] + 1)
    return Spans(
        np.array(parent, np.int32),
        np.array(depth, np.int32),
        np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), np.int32),
        np.array(draw(st.lists(st.sampled_from(list(Standing)), min_size=count, max_size=count)), np.uint8),
        np.array(draw(st.lists(st.sampled_from([0, 1, 10, 100]), min_size=count, max_size=count)), np.int64),
        np.array(draw(st.lists(st.sampled_from([False, False, True]), min_size=count, max_size=count)), bool),
    )


def above(parent, row):
    while (row := int(parent[row])) >= 0:
        yield row


def inside(spans, row):
    return [child for child in range(len(spans.parent)) if row in above(spans.parent, child)]


def without(spans, row):
    """What is counted inside a span if it does not count itself."""
    only = np.isin(np.arange(len(spans.parent)), inside(spans, row))
    counted = counted_once(spans._replace(standing=np.where(only, spans.standing, Standing.OTHERS)))
    return spans.flops[counted.counts].sum()


@given(trees())
def test_no_span_counts_inside_one_that_counts(spans):
    counted = counted_once(spans)
    for row in range(len(spans.parent)):
        around = any(counted.counts[outer] for outer in above(spans.parent, row))
        assert counted.inside[row] == around
        assert not (counted.counts[row] and around)
        assert not counted.counts[row] or spans.standing[row] in (Standing.FIRM, Standing.DEFERRED)


@given(trees())
def test_a_formula_counts_unless_more_is_counted_inside(spans):
    counted = counted_once(spans)
    for row in np.flatnonzero((spans.standing == Standing.FIRM) & ~counted.inside).tolist():
        if not counted.counts[row]:
            part = without(spans, row)
            assert part >= spans.flops[row]
            assert (
                part
                == spans.flops[counted.counts][
                    np.isin(np.flatnonzero(counted.counts), inside(spans, row))
                ].sum()
            )
        elif not spans.by_user[row]:
            assert without(spans, row) < max(2 * spans.flops[row], 1)


@given(trees())
def test_a_formula_of_the_program_always_counts(spans):
    counted = counted_once(spans)
    firm = (spans.standing == Standing.FIRM) & spans.by_user
    assert (counted.counts | counted.inside)[firm].all()


@given(trees())
def test_deferred_formulas_count_where_too_little_is_counted_inside(spans):
    counted = counted_once(spans)
    for row in np.flatnonzero((spans.standing == Standing.DEFERRED) & ~counted.inside).tolist():
        assert counted.counts[row] == (without(spans, row) < spans.flops[row] / 2)


def test_the_outermost_formula_counts():
    builder = TraceBuilder()
    shapes = builder.shapes(*SQUARE)
    builder.span("aten::mm", 0, 100, shapes=shapes).span("aten::add", 10, 20, shapes=shapes).span(
        "aten::mm", 40, 20, shapes=-1
    )
    found = costs_in(builder.build())
    assert found.by_name == {"mm": 2 * 64}
    assert found.unknown == set()


def test_a_composite_counts_only_what_nothing_inside_counts():
    builder = TraceBuilder()
    weight, square = builder.shapes(*WEIGHT), builder.shapes(*SQUARE)
    builder.span("aten::linear", 0, 100, shapes=weight).span("aten::addmm", 10, 20)
    builder.span("aten::linear", 200, 100, shapes=weight).span("aten::mm", 210, 20, shapes=square)
    builder.span("aten::linear", 400, 100, shapes=weight).span("aten::add_", 410, 20, shapes=square)
    found = costs_in(builder.build())
    # The first: the product inside has no inputs; the third: only a small part was recorded inside.
    assert found.by_name == {"linear": 2 * 128, "mm": 128}
    assert found.unknown == set()


def test_autocast_counts_the_inner_call_with_the_types_computed_in():
    layer = torch.nn.Linear(8, 8, bias=False)
    conv = torch.nn.Conv2d(3, 4, 3, bias=False)

    def run():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(torch.ones(4, 8))
            conv(torch.ones(1, 3, 8, 8))

    found = recorded(run)
    assert found.by_name["conv2d"] == 2 * 36 * 4 * 27
    assert (
        sum(found.by_name.get(name, 0) for name in ("mm", "linear", "mkldnn_linear", "addmm", "matmul"))
        == 2 * 4 * 64
    )
    # Two bytes an element: the convolution that counts is the one on shortened numbers.
    assert found.bytes["conv2d"] == 2 * (3 * 64 + 4 * 27 + 4 * 36)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_change_nothing(mode):
    def run():
        with mode():
            functional.conv2d(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3)).relu()

    assert recorded(run).by_name == {"conv2d": 2 * 36 * 4 * 27, "relu": 144}


def test_a_mapped_function_counts_the_whole_batch():
    weight, batch = torch.ones(4, 3), torch.ones(6, 3)
    found = recorded(lambda: torch.func.vmap(lambda x: torch.tanh(weight @ x))(batch))
    assert found.flops == 2 * 6 * 4 * 3 + 6 * 4
    assert found.unknown == set()


def test_nested_tensors_count_what_they_hold():
    x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(5, 4)], layout=torch.jagged)
    layer = torch.nn.Linear(4, 3)
    found = recorded(lambda: torch.nn.functional.gelu(layer(x)))
    assert found.by_name["addmm"] == 2 * 7 * 4 * 3
    assert found.by_name["gelu"] == 5 * 7 * 3
    assert found.unknown == set()


class Half(torch.Tensor):
    """A tensor that says it is twice as long as what it computes with, like a part of a distributed one."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, (2 * inner.shape[0], *inner.shape[1:]), dtype=inner.dtype
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*(arg.inner if isinstance(arg, cls) else arg for arg in args), **(kwargs or {})))


def test_a_subclass_counts_what_it_computes_and_not_what_it_pretends():
    part = Half(torch.ones(3, 4))
    assert recorded(lambda: torch.mm(part, torch.ones(4, 5))).by_name == {"mm": 2 * 3 * 4 * 5}


def test_unknown_operators_say_so_and_what_they_call_counts():
    builder = TraceBuilder()
    shapes = builder.shapes(*SQUARE)
    builder.span("mylib::fused", 0, 100).span("aten::mm", 10, 20, shapes=shapes)
    trace = builder.build()
    assert trace.column("spans", "flops").tolist() == [-1, 128]
    assert trace.column("spans", "bytes_moved").tolist() == [-1, 3 * 64]


def test_ranges_steps_and_backward_functions_count_nothing():
    builder = TraceBuilder()
    shapes = builder.shapes(*SQUARE)
    builder.step(0, 0, 1000).annotation("range", 10, 900).backward("MmBackward0", 20, 800, sequence=1)
    builder.span("aten::mm", 30, 20, shapes=shapes)
    trace = builder.build()
    assert sorted(trace.column("spans", "flops").tolist()) == [0, 0, 0, 0, 128]


def test_without_shapes_nothing_is_known():
    trace = TraceBuilder().span("aten::mm", 0, 10).span("aten::view", 20, 10).annotation("x", 40, 5).build()
    assert trace.column("spans", "flops").tolist() == [-1, -1, -1]


HOSTILE = [
    "", "[", "null", "1", "{}", '["a"]', "[[-1]]", "[[1.5]]", "[[true]]", "[[1e400]]", "[[[1], 2]]", "[" * 5000, '[["x"]]',
    "[[99999999999999999999999999999]]", "[[4, 4]]", "[[4, 4], [4]]", "[[4, 4], [5, 4]]", "[[], []]", "[[0, 0], [0, 0]]",
]  # fmt: skip


@pytest.mark.parametrize("dims", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize(
    "types", ['["float", "float"]', '["float", 3]', "["], ids=["types", "wrong", "damaged"]
)
def test_damaged_inputs_are_unknown_and_no_error(dims, types):
    names = ["", *sorted(built_in())]
    count = len(names) - 1
    trace = Trace.from_columns(
        {
            "spans": {
                "start_ns": np.arange(count) * 10, "duration_ns": np.full(count, 5), "name": np.arange(1, count + 1),
                "shapes": np.zeros(count, np.int32), "thread": np.zeros(count, np.int32),
            },
            "threads": {"index": [0], "os_tid": [1], "torch_tid": [1], "name": ["main"]},
            "shapes": {"dims": [dims], "types": [types], "concrete": ['["']},
        },
        strings=names,
    )  # fmt: skip
    flops = trace.column("spans", "flops")
    assert flops.min() >= -1
    assert len(trace.table("flops")) > 0


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.floats(), lambda inner: st.lists(inner, max_size=4)
)


SIZES = st.lists(st.lists(st.integers(0, 2**40), max_size=6) | JSON, max_size=12)
TYPES = st.lists(st.sampled_from(["float", "", "Scalar"]) | JSON, max_size=12)
VALUES = st.lists(
    st.sampled_from(["", "1", "[1, 2]", "True", "[0, 0, 0]", "999999999999"]) | JSON, max_size=12
)


@given(SIZES, TYPES, VALUES)
def test_no_formula_fails_on_any_inputs(dims, types, values):
    inputs = parse_inputs(json.dumps(dims), json.dumps(types), json.dumps(values)) or NO_INPUTS
    for name in built_in():
        found = evaluate(OperatorCall(name, *inputs), 0)
        assert found.flops >= 0
        assert found.bytes >= -1


def test_element_types_are_read_as_any_compiler_or_release_spells_them():
    spelled = [
        "c10::Half",
        "long int",
        "long long",
        "unsigned char",
        "c10::complex<float>",
        "bfloat16",
        "Int",
        "Device",
    ]
    inputs = parse_inputs(json.dumps([[]] * 8), json.dumps(spelled), "[]")
    assert inputs.dtypes == ["float16", "int64", "int64", "uint8", "complex64", "bfloat16", None, None]
    assert inputs.shapes == [()] * 6 + [None] * 2


def test_what_a_compiler_made_is_unknown_and_ranges_are_not():
    builder = TraceBuilder()
    square = builder.shapes(*SQUARE)
    builder.span("CompiledFunction", 0, 100).span("aten::mm", 10, 20, shapes=square)
    builder.span("forward", 200, 100).span("aten::mm", 210, 20, shapes=square)
    builder.backward("CompiledFunctionBackward", 400, 50, sequence=1)
    found = costs_in(builder.build())
    assert found.flops == 2 * 128
    assert found.unknown == {"CompiledFunction", "CompiledFunctionBackward"}
