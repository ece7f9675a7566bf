"""Memory that is allocated and freed within one operator, one module call or one step."""

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope._errors import ArgumentError, ArgumentTypeError
from kinetoscope.cli import main
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables import temporary_allocations
from kinetoscope.tables.memory.blocks import blocks_of
from kinetoscope.tables.temporary_allocations import SCOPES, freed_within
from tests.support.trace_builder import TraceBuilder


def program():
    """A module call from 100 to 500 with two operators, in a step from 0 to 1000."""
    builder = TraceBuilder().step(7, 0, 1000)
    layer = builder.module("Linear", name="fc")
    stack = builder.stack(("net.py", 4, "forward"))
    builder.span("fc", 100, 400, kind=SpanKind.MODULE, module=layer)
    builder.span("aten::softmax", 110, 100, module=layer, stack=stack)
    builder.span("aten::mul", 300, 50, module=layer, stack=stack)
    builder.allocate(120, 0x10, 40)
    builder.allocate(130, 0x20, 1000)
    builder.free(150, 0x10)
    builder.allocate(160, 0x30, 60)
    builder.free(200, 0x30)
    builder.allocate(310, 0x40, 300)
    builder.free(400, 0x40)
    builder.free(900, 0x20)
    builder.allocate(950, 0x50, 5)
    return builder.build()


def rows_of(trace, **options):
    columns = (
        "within",
        "operator",
        "bytes",
        "allocations",
        "largest_bytes",
        "longest_lifetime_ns",
        "peak_bytes",
    )
    return [
        tuple(row[name] for name in columns)
        for row in trace.table("temporary_allocations", **options).to_pylist()
    ]


def test_each_allocation_counts_for_the_smallest_scope_that_holds_its_life():
    assert rows_of(program()) == [
        ("step", "aten::softmax", 1000, 1, 1000, 770, 1000),
        ("module", "aten::mul", 300, 1, 300, 90, 300),
        ("operator", "aten::softmax", 100, 2, 60, 40, 0),
    ]


def test_a_row_leads_to_its_largest_allocation():
    row = program().table("temporary_allocations").to_pylist()[2]
    trace = program()
    assert (row["largest_ns"], trace.strings[trace.column("spans", "name")[row["span"]]]) == (
        160,
        "aten::softmax",
    )
    assert (row["line"], row["device"], row["mean_lifetime_ns"]) == ("net.py(4): forward", "cpu", 35)
    assert row["allocated_percent"] == pytest.approx(100 * 100 / 1405)
    assert row["peak_percent"] == 0


def test_groups_and_short_lives():
    assert rows_of(program(), by="operator", shorter_than_ns=100) == [
        ("module", "aten::mul", 300, 1, 300, 90, 300),
        ("operator", "aten::softmax", 100, 2, 60, 40, 0),
    ]
    by_line = program().table("temporary_allocations", by="line").to_pylist()
    assert [(row["within"], row["operator"], row["line"]) for row in by_line] == [
        (scope, None, "net.py(4): forward") for scope in ("step", "module", "operator")
    ]
    assert program().table("temporary_allocations", rows=1).num_rows == 1
    assert program().table("temporary_allocations", where={"within": "operator"}).num_rows == 1


def test_what_is_not_known_is_said():
    builder = TraceBuilder().step(0, 0, 100).span("aten::add", 0, 50)
    builder.allocate(1, 0x10, 8)
    builder.allocate(2, 0x10, 16)
    builder.free(3, 0x10)
    builder.allocate(4, 0x20, 32)
    trace = builder.build()
    assert [(bytes, within) for within, _, bytes, *_ in rows_of(trace)] == [(16, "operator")]
    found = temporary_allocations.summary(trace)
    assert (found.unseen_frees, found.unseen_free_bytes, found.not_freed, found.not_freed_bytes) == (
        1,
        8,
        1,
        32,
    )
    assert (found.allocations, found.allocated_bytes) == (3, 56)
    assert found.within == {"operator": (1, 16), "module": (0, 0), "step": (0, 0)}
    assert (found.module_calls, found.steps) == (False, True)


def test_a_rebuilt_call_frees_its_locals_before_the_next_operator():
    builder = TraceBuilder()
    builder.thread()
    layer = builder.module("Linear", name="fc")
    call = ("torch/nn/modules/module.py", 1, "Module._wrapped_call_impl")
    stack = builder.stack(("run.py", 1, "main"), call, ("net.py", 4, "forward"))
    builder.span("aten::mm", 10, 20, module=layer, stack=stack)
    builder.span("aten::add", 80, 10, stack=builder.stack(("run.py", 2, "main")))
    builder.allocate(15, 0x10, 40)
    builder.allocate(16, 0x20, 50)
    builder.free(40, 0x10)
    builder.free(85, 0x20)
    builder.know("with_stack", 1)
    assert [row[:3] for row in rows_of(builder.build())] == [("module", "aten::mm", 40)]


def test_options_that_cannot_be_used():
    with pytest.raises(ArgumentError, match="by='what' is not valid"):
        program().table("temporary_allocations", by="what")
    with pytest.raises(ArgumentTypeError, match="shorter_than_ns=1.5 is not valid"):
        program().table("temporary_allocations", shorter_than_ns=1.5)
    with pytest.raises(ArgumentError, match="shorter_than_ns=-1 is not valid: use 0 or more"):
        program().table("temporary_allocations", shorter_than_ns=-1)
    assert TraceBuilder().span("aten::add", 0, 5).build().table("temporary_allocations").num_rows == 0


def test_the_command_line_prints_it(tmp_path):
    path = tmp_path / "run.ktrace"
    program().save(path)
    found = CliRunner().invoke(main, ["table", str(path), "temporary_allocations", "--by", "operator"])
    assert found.exit_code == 0
    assert [line.split()[:2] for line in found.output.splitlines()[:4]] == [
        ["operator", "within"],
        ["aten::softmax", "step"],
        ["aten::mul", "module"],
        ["aten::softmax", "operator"],
    ]


SPANS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 180), st.integers(1, 120)), max_size=12)
LIVES = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 8), st.integers(1, 64), st.integers(0, 200), st.integers(0, 90) | st.none()
    ),
    max_size=25,
)  # fmt: skip


@given(SPANS, SPANS, SPANS, LIVES)
def test_rows_are_never_more_than_what_was_allocated(operators, calls, steps, lives):
    builder = TraceBuilder()
    for _ in range(2):
        builder.thread()
    layer = builder.module("Linear", name="fc")
    for thread, start, duration in operators:
        builder.span("aten::mul", start, duration, thread=thread)
    for thread, start, duration in calls:
        builder.span("fc", start, duration, thread=thread, kind=SpanKind.MODULE, module=layer)
    for number, (_, start, duration) in enumerate(steps):
        builder.step(number, start, duration)
    events = []
    for thread, address, size, start, lifetime in lives:
        events.append((2 * start, address, size, thread))
        if lifetime is not None:
            events.append((2 * (start + lifetime) + 1, address, 0, thread))
    for time, address, size, thread in sorted(events):
        builder.allocate(time, 0x1000 + address, size, thread=thread)
    trace = builder.build()
    events = trace.columns("allocations")
    made = events["bytes"] > 0
    for by in ("all", "category", "module", "operator", "line"):
        table = trace.table("temporary_allocations", by=by).to_pylist()
        assert sum(row["bytes"] for row in table) <= int(events["bytes"].sum())
        assert sum(row["allocations"] for row in table) <= int((made & (events["match"] >= 0)).sum())
        assert sum(row["allocated_percent"] for row in table) <= 100 + 1e-9
        assert sum(row["peak_percent"] for row in table) <= 100 + 1e-9
        for row in table:
            assert row["largest_bytes"] <= row["bytes"]
            assert 0 <= row["mean_lifetime_ns"] <= row["longest_lifetime_ns"]
    if made.any():
        found = temporary_allocations.summary(trace)
        whole = trace.table("temporary_allocations").to_pylist()
        assert sum(size for _, size in found.within.values()) == sum(row["bytes"] for row in whole)
        known = sum(count for count, _ in found.within.values()) + found.unseen_frees + found.not_freed
        assert known <= found.allocations


@given(SPANS, LIVES)
def test_each_block_ends_within_its_scope(calls, lives):
    builder = TraceBuilder().step(0, 0, 100).step(1, 150, 300)
    builder.thread()
    layer = builder.module("Linear", name="fc")
    for _, start, duration in calls:
        builder.span("fc", start, duration, kind=SpanKind.MODULE, module=layer)
    for place, (_, _, size, start, lifetime) in enumerate(lives):
        builder.allocate(start, 0x1000 * (place + 1), size)
        if lifetime is not None:
            builder.free(start + lifetime, 0x1000 * (place + 1))
    trace = builder.build()
    blocks, scope = blocks_of(trace), freed_within(trace)
    spans, steps = trace.columns("spans"), trace.columns("steps")
    begun = {"module": spans["start_ns"][spans["kind"] == SpanKind.MODULE], "step": steps["start_ns"]}
    lasted = {"module": spans["duration_ns"][spans["kind"] == SpanKind.MODULE], "step": steps["duration_ns"]}
    for block in range(len(blocks)):
        start, end = blocks.start_ns[block], blocks.end_ns[block]
        holds = {
            name: bool(np.any((begun[name] <= start) & (end <= begun[name] + lasted[name]))) for name in begun
        }
        within = SCOPES[scope[block]] if scope[block] >= 0 else None
        # Of nested calls the innermost counts, so a block may be of the step though an outer call contains it.
        assert within is None or holds[within]
        assert within is not None or not holds["step"]
