"""The peak, and what was live at it."""

import pytest

from kinetoscope.tables.memory.peak import peak
from tests.support.trace_builder import TraceBuilder


def program():
    builder = TraceBuilder().step(3, 0, 1000)
    layer = builder.module("Linear")
    stack = builder.stack(("net.py", 4, "forward"))
    builder.span("aten::empty", 10, 10, module=layer, stack=stack).span(
        "aten::mm", 30, 40, module=layer, stack=stack
    )
    builder.allocate(15, 0x10, 100)
    builder.allocate(35, 0x20, 300)
    builder.allocate(40, 0x30, 300)
    builder.free(75, 0x20)
    builder.allocate(80, 0x40, 50)
    builder.free(500, 0x30)
    builder.allocate(600, 0x10_000, 5000, device=(1, 0))
    return builder.build()


def test_the_peak_and_its_moment():
    found = peak(program())
    assert (found.bytes, found.time_ns) == (700, 40)
    assert peak(program(), device_type=1).bytes == 5000
    assert peak(TraceBuilder().span("aten::add", 0, 5).build()) is None


def test_what_was_live_is_put_together_by_its_place():
    rows = program().table("memory").to_pylist()
    assert rows == [
        {
            "bytes": 600, "peak_percent": pytest.approx(600 / 7), "blocks": 2, "category": "activation", "operator": "aten::mm", "module": "Linear",
            "stack": "net.py(4): forward", "step": 3, "first_ns": 35, "device": "cpu", "never_freed": 0,
        },
        {
            "bytes": 100, "peak_percent": pytest.approx(100 / 7), "blocks": 1, "category": "activation", "operator": "aten::empty", "module": "Linear",
            "stack": "net.py(4): forward", "step": 3, "first_ns": 15, "device": "cpu", "never_freed": 1,
        },
    ]  # fmt: skip


def test_holders_add_up_to_the_peak():
    trace = program()
    assert sum(row["bytes"] for row in trace.table("memory").to_pylist()) == peak(trace).bytes
    assert [row["bytes"] for row in trace.table("memory", device_type=1).to_pylist()] == [5000]


def test_a_block_allocated_outside_all_spans_has_no_operator():
    builder = TraceBuilder().span("aten::add", 0, 5)
    builder.allocate(50, 0x10, 8, stack=builder.stack(("a.py", 1, "main")))
    row = builder.build().table("memory").to_pylist()[0]
    assert (row["operator"], row["module"], row["step"], row["stack"]) == (None, None, None, "a.py(1): main")
    assert row["never_freed"] == 1


def test_an_address_used_again_without_a_free_holds_one_block():
    builder = TraceBuilder()
    builder.allocate(0, 0x10, 100)
    builder.allocate(10, 0x10, 200)
    trace = builder.build()
    assert peak(trace).bytes == 200
    assert [row["bytes"] for row in trace.table("memory").to_pylist()] == [200]


def test_nothing_recorded_nothing_shown():
    assert TraceBuilder().span("aten::add", 0, 5).build().table("memory").num_rows == 0
