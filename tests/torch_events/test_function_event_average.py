"""Adding events up by hand."""

import pytest

from kinetoscope.torch_events.function_event import FunctionEventAvg
from tests.support.trace_builder import TraceBuilder


def trace():
    builder = TraceBuilder()
    shapes = builder.shapes([[2]], ["float"])
    builder.span("aten::add", 0, 1_000, shapes=shapes, overload="Tensor").span("aten::empty", 100, 300)
    builder.span("aten::add", 2_000, 3_000)
    builder.allocate(150, 0x10, 64)
    builder.allocate(1_500, 0x20, 8)
    builder.allocate(1_600, 0x30, 8)
    return builder.build()


def test_a_sum_takes_its_key_from_the_first_event():
    first, empty, loose, _, second = trace().events()
    total = FunctionEventAvg()
    assert (total.key, total.count, total.cpu_time, total.cpu_time_total) == (None, 0, 0, 0)
    total += first
    assert total.add(second) is total
    assert (total.key, total.count, total.cpu_time_total, total.self_cpu_time_total) == (
        "aten::add",
        2,
        4.0,
        3.7,
    )
    assert (total.cpu_time, total.cpu_time_str, total.input_shapes) == (2.0, "2.000us", [[2]])
    assert (total.cpu_memory_usage, total.self_cpu_memory_usage) == (64, 0)
    assert total.cpu_children == [empty]
    assert total.overload_name == "Tensor"
    memory = FunctionEventAvg().add(loose)
    assert (memory.key, memory.cpu_memory_usage, memory.self_cpu_memory_usage) == ("[memory]", 8, 8)


def test_sums_of_sums_are_the_sums_of_all():
    events = trace().events()
    whole = FunctionEventAvg()
    for average in trace().key_averages(group_by_input_shape=True):
        if average.key == "aten::add":
            whole += average
    assert (whole.count, whole.cpu_time_total) == (2, 4.0)
    assert events.total_average().count == 5
    assert events.total_average().key == "Total"
    assert events.total_average().self_cpu_time_total == pytest.approx(events.self_cpu_time_total)
    assert events.total_average().cpu_memory_usage == 64 + 64 + 8 + 8
    assert "key=Total count=5" in repr(events.total_average())
