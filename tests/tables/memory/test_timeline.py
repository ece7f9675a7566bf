"""Memory over time and who held the peak, on one device and on several."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope
from kinetoscope.tables.memory.peak import peak
from kinetoscope.tables.memory.timeline import content_changes, device_names, find_device
from tests.support.trace_builder import TraceBuilder


def two_devices():
    builder = TraceBuilder()
    layer = builder.module("Linear")
    stack = builder.stack(("train.py", 3, "<module>"), ("net.py", 9, "Net.forward"))
    builder.hold("parameter", 0x100, 1000, module=layer)
    builder.hold("parameter", 0x200, 4000, module=layer, device=("cuda", 1))
    builder.span("aten::linear", 0, 100, module=layer, stack=stack)
    builder.span("aten::empty", 10, 20, module=layer, stack=stack)
    builder.allocate(15, 0x10, 300)
    builder.allocate(16, 0x10, 70, device=(1, 0))
    builder.allocate(20, 0x10, 700, device=(1, 1))
    builder.free(200, 0x10, device=(1, 1))
    builder.allocate(300, 0x20, 50, device=(1, 1))
    builder.free(400, 0x10)
    return builder.build()


def test_every_event_with_what_is_held_after_it():
    rows = two_devices().table("memory_timeline").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (None, "cpu", "preexisting", "parameter", 1000, 1000, 1000),
        (15, "cpu", "create", "activation", 300, 300, 1300),
        (400, "cpu", "destroy", "activation", -300, 0, 1000),
        (16, "cuda:0", "create", "activation", 70, 70, 70),
        (None, "cuda:1", "preexisting", "parameter", 4000, 4000, 4000),
        (20, "cuda:1", "create", "activation", 700, 700, 4700),
        (200, "cuda:1", "destroy", "activation", -700, 0, 4000),
        (300, "cuda:1", "create", "unknown", 50, 50, 4050),
    ]


def test_one_device_is_chosen_by_name():
    rows = two_devices().table("memory_timeline", device="cuda").to_pylist()
    assert [row["device"] for row in rows] == ["cuda:0"]


def test_the_device_that_held_most_is_looked_at_first():
    rows = two_devices().table("memory_peak").to_pylist()
    assert [(row["bytes"], row["category"], row["module"], row["device"]) for row in rows] == [
        (4000, "parameter", "Linear", "cuda:1"),
        (700, "activation", "Linear", "cuda:1"),
    ]
    assert sum(row["peak_percent"] for row in rows) == pytest.approx(100)


def test_holders_say_who_wanted_the_empty_tensor_and_on_which_line():
    (older, newer) = two_devices().table("memory_peak", device="cpu").to_pylist()
    assert (newer["operator"], newer["line"]) == ("aten::linear", "net.py(9): Net.forward")
    assert newer["stack"] == "train.py(3): <module>;net.py(9): Net.forward"
    assert (older["operator"], older["line"], older["stack"]) == (None, None, None)
    assert two_devices().table("memory_peak", device="cpu", rows=1).num_rows == 1


def test_the_peak_of_each_device():
    trace = two_devices()
    assert device_names(trace) == ("cpu", "cuda:0", "cuda:1")
    assert [peak(trace, device=name).bytes for name in device_names(trace)] == [1300, 70, 4700]
    assert peak(trace).bytes == 1300
    assert peak(trace, device_type=1).device == "cuda:1"


def test_devices_are_found_as_torch_writes_them():
    trace = two_devices()
    assert [find_device(trace, name) for name in ("cpu", "cpu:0", "CUDA:0", "cuda", "cuda:1", None)] == [
        0, 0, 1, 1, 2, 2,
    ]  # fmt: skip
    with pytest.raises(kinetoscope.ArgumentError, match=r"'cuda:7'.*cpu, cuda:0, cuda:1"):
        trace.table("memory_peak", device="cuda:7")


def test_a_block_that_takes_an_address_over_ends_the_other_first():
    builder = TraceBuilder()
    builder.allocate(10, 0x10, 100)
    builder.allocate(20, 0x10, 60)
    rows = builder.build().table("memory_timeline").to_pylist()
    assert [(row["action"], row["total_bytes"]) for row in rows] == [
        ("create", 100),
        ("destroy", 0),
        ("create", 60),
    ]


def test_what_an_operator_writes_over():
    builder = TraceBuilder()
    builder.allocate(1, 0x10, 8)
    builder.allocate(2, 0x20, 8)
    builder.span("aten::mul_", 10, 10).give("aten::mul_", 0x10, 8).give("aten::mul_", 0x20, 8, argument=1)
    builder.span("aten::add", 30, 10).give("aten::add", 0x10, 8)
    builder.span("aten::__and__", 50, 5).give("aten::__and__", 0x10, 8)
    builder.span("my_range_", 60, 5).give("my_range_", 0x10, 8)
    builder.span("aten::_foreach_add_", 70, 5).give("aten::_foreach_add_", 0x20, 8)
    times, blocks = content_changes(builder.build())
    assert list(zip(times.tolist(), blocks.tolist(), strict=True)) == [(10, 0), (70, 1)]


def test_tables_without_memory_are_empty():
    trace = TraceBuilder().span("aten::add", 0, 5).build()
    assert trace.table("memory_timeline").num_rows == 0
    assert trace.table("memory_peak").num_rows == 0


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 1)), max_size=60),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=4),
)
def test_totals_are_the_sums_of_their_parts_and_never_negative(events, older):
    builder = TraceBuilder()
    for place, size in older:
        builder.hold("tensor", 0x100 * (place + 1), size)
    for time_ns, (place, size, device) in enumerate(events):
        builder.allocate(time_ns, 0x100 * (place + 1), size, device=(device, -1 if device == 0 else 0))
    trace = builder.build()
    for name in device_names(trace):
        table = trace.table("memory_timeline", device=name)
        change, total = (table.column(column).to_numpy() for column in ("change_bytes", "total_bytes"))
        assert np.array_equal(np.cumsum(change), total)
        assert (total >= 0).all()
        top = peak(trace, device=name)
        holders = trace.table("memory_peak", device=name).column("bytes").to_numpy().sum()
        assert holders == (top.bytes if top is not None else 0)
        if top is not None:
            assert top.bytes == max(total[np.array(table.column("action").to_pylist()) == "create"])
