from hypothesis import given, settings
from hypothesis import strategies as st

import kinetoscope
from kinetoscope.tables.host.ops import WAYS
from kinetoscope.viewer.server.routes import answer
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder


def on_device():
    builder = TraceBuilder()
    builder.thread("main")
    fast, slow = builder.stream(7), builder.stream(8)
    builder.step(3, 0, 100)
    builder.span("aten::linear", 0, 60).span("aten::mm", 10, 40).runtime("launch", 20, 5, correlation=1)
    builder.span("aten::mm", 70, 20).runtime("launch", 72, 5, correlation=2)
    launch = {"registers": 40, "shared_bytes": 128}
    builder.kernel(
        "gemm", 30, 100, stream=fast, correlation=1, grid=(8, 2, 1), block=(64, 1, 1), launch=launch
    )
    builder.kernel(
        "gemm", 80, 50, stream=slow, correlation=2, grid=(4, 1, 1), block=(64, 1, 1), launch=launch
    )
    return builder.build()


def chosen(trace, name, kind, **more):
    return answer(trace, "chosen", {"name": name, "kind": kind, **more})


def brief(rows):
    return [(row["label"], row["count"], row["total_ns"]) for row in rows]


def test_an_operator_tells_who_called_it_what_is_inside_and_what_it_had_run():
    told = chosen(on_device(), "aten::mm", "operator")
    assert (told["count"], told["total_ns"], told["self_ns"], told["device_ns"]) == (2, 60, 50, 150)
    assert brief(told["parts"]["caller"]) == [("aten::linear", 1, 40), ("ProfilerStep*", 1, 20)]
    assert brief(told["parts"]["inside"]) == [("launch", 2, 10)]
    assert brief(told["parts"]["kernel"]) == [("gemm", 2, 150)]
    assert brief(told["parts"]["step"]) == [("step 3", 2, 60)]


def test_an_operator_has_the_kernels_of_what_runs_in_it():
    told = chosen(on_device(), "aten::linear", "operator")
    assert brief(told["parts"]["kernel"]) == [("gemm", 1, 100)]
    assert told["parts"]["kernel"][0]["kind"] == "kernel"


def test_a_kernel_tells_who_launched_it_how_and_where():
    told = chosen(on_device(), "gemm", "kernel")
    assert (told["count"], told["total_ns"], told["device_ns"]) == (2, 150, None)
    assert brief(told["parts"]["operator"]) == [("aten::mm", 2, 150)]
    assert brief(told["parts"]["stream"]) == [("device 0, stream 7", 1, 100), ("device 0, stream 8", 1, 50)]
    first = told["parts"]["launch"][0]
    assert [first[f"grid_{axis}"] for axis in "xyz"] == [8, 2, 1]
    assert (first["registers"], first["shared_bytes"]) == (40, 128)


def test_of_a_call_within_itself_only_the_outermost_counts():
    builder = TraceBuilder()
    builder.span("f", 0, 100).span("f", 10, 50)
    told = chosen(builder.build(), "f", "operator")
    assert (told["count"], told["total_ns"], told["self_ns"]) == (2, 100, 100)
    assert "inside" not in told["parts"]


def test_many_parts_end_with_one_for_the_rest():
    builder = TraceBuilder()
    for number in range(45):
        builder.span("f", 100 * number, 45 - number, shapes=builder.shapes([[number]]))
    parts = chosen(builder.build(), "f", "operator")["parts"]["shape"]
    assert (parts[0]["label"], parts[-1]["label"], parts[-1]["others"]) == ("[[0]]", None, 5)
    assert sum(part["total_ns"] for part in parts) == 45 * 46 // 2


@settings(max_examples=examples(40), deadline=None)
@given(any_traces(max_spans=20), st.sampled_from(WAYS))
def test_parts_add_up_to_what_the_table_says(trace, way):
    for row in answer(trace, "operators", {"by": way}).table.to_pylist():
        more = {} if way == "name" else {"by": way}
        if row["place"] is not None:
            more["place"] = row["place"]
        told = chosen(trace, row["name"], row["kind"], **more)
        assert (told["count"], told["total_ns"], told["self_ns"]) == tuple(
            row[name] for name in ("count", "total_ns", "self_ns")
        )
        for name, parts in told["parts"].items():
            if name not in ("inside", "kernel"):
                assert sum(part["total_ns"] for part in parts) == row["total_ns"]
                assert sum(part["count"] for part in parts) == row["count"]
        if told["device_ns"] is not None:
            assert sum(part["total_ns"] for part in told["parts"].get("kernel", [])) == told["device_ns"]


def test_a_name_that_nothing_has_has_no_parts():
    told = chosen(on_device(), "nothing", "operator")
    assert (told["count"], told["total_ns"], told["parts"]) == (0, 0, {})


def test_real_device_times_are_those_of_the_table():
    trace = kinetoscope.open(real_trace("a100_alexnet_small"))
    for row in trace.table("ops").to_pylist():
        told = chosen(trace, row["name"], row["kind"])
        assert (told["device_ns"], told["total_ns"]) == (row["device_ns"], row["total_ns"])
        if row["count"] == 1:
            inside = sum(part["total_ns"] for part in told["parts"].get("inside", []))
            assert inside + told["self_ns"] == told["total_ns"]
    for row in trace.table("kernels").to_pylist():
        told = chosen(trace, row["name"], "kernel")
        assert (told["count"], told["total_ns"]) == (row["count"], row["total_ns"])
