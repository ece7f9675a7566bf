from collections import Counter

import pytest
from hypothesis import given, settings

import kinetoscope
from kinetoscope.viewer.server.report import requests_of
from kinetoscope.viewer.server.routes import answer, encoded
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder


def small_net():
    """A module that holds two, of which one ran operators that launched a kernel."""
    builder = TraceBuilder()
    builder.thread()
    stream = builder.stream(7)
    net = builder.module("Net")
    first = builder.module("Linear", name="first", parent=net)
    second = builder.module("ReLU", name="second", parent=net)
    builder.span("aten::view", 0, 30, module=second)
    shapes = builder.shapes([[4, 8], [8, 2]], ["float", "float"])
    builder.span("aten::mm", 100, 50, module=first, shapes=shapes)
    builder.runtime("cudaLaunchKernel", 110, 10, correlation=1, module=first)
    builder.kernel("gemm", 200, 90, stream=stream, correlation=1)
    builder.span("aten::mm", 300, 70, module=first, shapes=shapes)
    return builder.build()


def test_modules_are_those_of_the_table_with_flops_and_a_span():
    trace = small_net()
    found = answer(trace, "table/modules", {})
    rows = found.table.to_pylist()
    assert found.total == 3
    assert [(row["path"], row["total_ns"], row["flops"], row["self_flops"]) for row in rows] == [
        ("Net", 150, 256, 0),
        ("first", 120, 256, 256),
        ("second", 30, 0, 0),
    ]
    names = trace.table("spans")["name"].to_pylist()
    # What holds others begins with the first of what they run.
    assert [names[row["span"]] for row in rows] == ["aten::view", "aten::mm", "aten::view"]


def test_operators_of_modules():
    rows = answer(small_net(), "table/module_operators", {}).table.to_pylist()
    assert [
        (row["module"], row["name"], row["kind"], row["count"], row["self_ns"], row["device_self_ns"])
        for row in rows
    ] == [
        (1, "aten::mm", "operator", 2, 110, 90),
        (2, "aten::view", "operator", 1, 30, 0),
        (1, "cudaLaunchKernel", "runtime", 1, 10, 0),
    ]
    spans = small_net().table("spans").to_pylist()
    assert spans[rows[0]["span"]]["duration_ns"] == 70, "the longest of them"


def test_trace_without_modules():
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::add", 0, 10)
    trace = builder.build()
    assert answer(trace, "table/modules", {}).total == 0
    assert answer(trace, "table/module_operators", {}).total == 0


def check_sums(trace):
    """What ran in modules adds up to the table, and the table is what is answered."""
    table, found = trace.table("modules"), answer(trace, "table/modules", {}).table
    assert found.select(table.column_names).equals(table)
    own, on_device = Counter(), Counter()
    for row in answer(trace, "table/module_operators", {}).table.to_pylist():
        own[row["module"]] += row["self_ns"]
        on_device[row["module"]] += row["device_self_ns"]
        assert trace.column("spans", "module")[row["span"]] == row["module"]
    rows = table.to_pylist()
    assert own == Counter({row["id"]: row["self_ns"] for row in rows if row["self_ns"]})
    assert on_device == Counter({row["id"]: row["device_self_ns"] for row in rows if row["device_self_ns"]})
    flops = {row["id"]: row for row in found.to_pylist()}
    for row in flops.values():
        below = [other["flops"] or 0 for other in flops.values() if other["parent"] == row["id"]]
        assert (row["flops"] or 0) == (row["self_flops"] or 0) + sum(below)


@settings(max_examples=examples(10), deadline=None)
@given(any_traces())
def test_any_trace_adds_up_to_the_table(trace):
    check_sums(trace)
    for path, query in requests_of(trace, ["modules"]):
        assert encoded(answer(trace, path, query)).status == 200


@pytest.mark.parametrize("name", ["mi300_resnet_stack_rccl_rank0of8"])
def test_a_real_trace_adds_up_to_the_table(name):
    check_sums(kinetoscope.open(real_trace(name)))
