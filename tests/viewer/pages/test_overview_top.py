from collections import Counter

import pytest

import kinetoscope
from kinetoscope.combine.processes import merge_processes
from kinetoscope.viewer.server.routes import answer
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder


def rows(trace, name, **query):
    return answer(trace, f"top/{name}", query).table.to_pylist()


def layered(rank=None):
    """Two layers of a model, called from two lines, with work on a device."""
    builder = TraceBuilder()
    if rank is not None:
        builder.know("distributedInfo", {"rank": rank, "world_size": 2})
    model = builder.module("Net")
    layers = [builder.module("Linear", name=name, parent=model) for name in ("first", "second")]
    stream = builder.stream(7)
    builder.step(3, 0, 1000)
    for place, layer in enumerate(layers):
        start, duration = 100 + 400 * place, 100 + 100 * place
        stack = builder.stack(("train.py", 3, "<module>"), ("model.py", 7 + place, "Net.forward"))
        builder.span("aten::linear", start, duration, module=layer, stack=stack)
        builder.span("aten::mm", start + 10, 50, module=layer, stack=stack)
        builder.runtime("cudaLaunchKernel", start + 20, 5, correlation=place + 1)
        builder.kernel(f"gemm_{place}", start + 30, 300 - 200 * place, stream=stream, correlation=place + 1)
    return builder.build()


def test_operators_with_most_time_come_first_and_steps_are_none():
    trace = layered()
    found = rows(trace, "ops")
    table = {row["name"]: row for row in trace.table("ops").to_pylist()}
    assert [row["name"] for row in found] == ["aten::linear", "aten::mm", "cudaLaunchKernel"]
    for row in found:
        of_table = table[row["name"]]
        assert (row["time_ns"], row["count"]) == (of_table["self_ns"], of_table["count"])
        assert row["share"] == pytest.approx(of_table["self_percent"])


def test_device_time_is_that_of_the_table_and_adds_up_to_a_hundred():
    trace = layered()
    found = rows(trace, "ops", time="device")
    table = {row["name"]: row["device_self_ns"] for row in trace.table("ops").to_pylist()}
    assert [(row["name"], row["time_ns"]) for row in found] == [("aten::mm", 400)]
    assert found[0]["time_ns"] == table["aten::mm"]
    assert sum(row["share"] for row in found) == pytest.approx(100)


def test_kernels_are_those_of_the_table():
    trace = layered()
    table = trace.table("kernels").to_pylist()
    assert [(row["name"], row["time_ns"], row["detail"]) for row in rows(trace, "kernels")] == [
        (row["name"], row["total_ns"], row["operator"]) for row in table
    ]
    assert [row["share"] for row in rows(trace, "kernels")] == pytest.approx(
        [row["kernel_percent"] for row in table]
    )


def test_lines_have_their_file_line_and_function():
    trace = layered()
    found = rows(trace, "lines")
    assert [(row["name"], row["key"], row["detail"], row["time_ns"]) for row in found] == [
        ("model.py", 7, "Net.forward", 330),
        ("model.py", 8, "Net.forward", 270),
    ]
    # The line of the module's caller only leads there; of the recorded 1 us, the device works for some and waits for the host.
    assert [row["share"] for row in found] == pytest.approx([33, 27])


def test_modules_stay_in_the_order_of_their_tree():
    trace = layered()
    found = rows(trace, "modules")
    table = [row for row in trace.table("modules").to_pylist() if row["total_ns"]]
    assert [(row["name"], row["depth"], row["time_ns"], row["key"]) for row in found] == [
        (row["path"], row["depth"], row["total_ns"], row["id"]) for row in table
    ]
    assert [row["share"] for row in found] == pytest.approx([row["total_percent"] for row in table])


def test_modules_of_ranks_are_one_row_by_path():
    both = merge_processes([layered(0), layered(1)], [0, 50])
    alone = {row["name"]: row["time_ns"] for row in rows(layered(), "modules")}
    found = rows(both, "modules")
    assert {row["name"]: row["time_ns"] for row in found} == {name: 2 * time for name, time in alone.items()}
    assert sum(row["time_ns"] for row in found if row["depth"] == 0) == sum(
        row["total_ns"] for row in both.table("modules").to_pylist() if row["depth"] == 0
    )


def test_two_root_modules_of_one_class_are_separate_rows():
    builder = TraceBuilder()
    for start in (0, 100):
        builder.span("aten::mm", start, 50, module=builder.module("Net"))
    trace = builder.build()
    assert [row["time_ns"] for row in rows(trace, "modules")] == [50, 50]


def test_at_most_ten_and_how_many_there_are():
    builder = TraceBuilder()
    for number in range(30):
        builder.span(f"op{number:02}", 1000 * number, 100 + number)
    found = answer(builder.build(), "top/ops", {})
    assert found.total == 30
    assert found.table["name"].to_pylist() == [f"op{number}" for number in range(29, 19, -1)]


@pytest.mark.parametrize("name", ["ops", "modules", "lines", "kernels"])
def test_an_empty_trace_has_no_rows(name):
    assert rows(TraceBuilder().build(), name) == []


def test_an_unknown_table_is_not_found():
    with pytest.raises(LookupError):
        answer(layered(), "top/spans", {})


def test_the_first_rows_of_a_real_trace_are_those_of_its_tables():
    with kinetoscope.open(real_trace("mi300_resnet_stack_rccl_rank0of8")) as trace:
        for name, column in (("ops", "device_self_ns"), ("lines", "device_self_ns"), ("kernels", "total_ns")):
            values = sorted(trace.table(name)[column].to_pylist(), reverse=True)
            times_ns = [time_ns for time_ns in values[:10] if time_ns > 0]
            assert [row["time_ns"] for row in rows(trace, name, time="device")] == times_ns
        spans = trace.table("spans").select(["name", "kind", "step", "stream", "self_ns"]).to_pylist()
        sums = Counter()
        for span in spans:
            ranges = ("user_annotation", "step", "python", "module")
            if span["step"] is not None and span["stream"] is None and span["kind"] not in ranges:
                sums[span["name"], span["kind"]] += span["self_ns"]
        found = rows(trace, "ops")
        assert [row["time_ns"] for row in found] == sorted(sums.values(), reverse=True)[:10]
        step_ns = sum(trace.table("steps")["duration_ns"].to_pylist())
        assert [row["share"] for row in found] == pytest.approx(
            [100 * row["time_ns"] / step_ns for row in found]
        )
