"""What is computed once for a trace."""

from kinetoscope.model.trace_data import derived
from tests.support.trace_builder import TraceBuilder

CALLS: list[tuple] = []


@derived
def counted(trace):
    CALLS.append(())
    return len(trace.columns("spans"))


@derived
def scaled(trace, factor, *, offset=0):
    CALLS.append((factor, offset))
    return len(trace.columns("spans")) * factor + offset


def small():
    CALLS.clear()
    return TraceBuilder().span("aten::mm", 0, 5).build()


def test_a_derived_value_is_computed_once_for_each_trace():
    first, second = small(), small()
    assert [counted(first), counted(first), counted(second)] == [1, 1, 1]
    assert CALLS == [(), ()]


def test_options_tell_values_apart_however_they_are_passed():
    trace = small()
    assert [scaled(trace, 2), scaled(trace, factor=2), scaled(trace, 2, offset=0)] == [2, 2, 2]
    assert scaled(trace, 2, offset=1) == 3
    assert scaled(trace, 3) == 3
    assert CALLS == [(2, 0), (2, 1), (3, 0)]
