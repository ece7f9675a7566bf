import pytest
from hypothesis import given

from kinetoscope.model.schema import SpanKind
from tests.ledger.test_breakdown import NCCL, traces
from tests.support.trace_builder import TraceBuilder


def two_streams():
    """Work that overlaps in two streams of a device, in a trace of 400 ns."""
    builder = TraceBuilder()
    builder.thread()
    first, second = builder.stream(20, name="stream 20 default"), builder.stream(7)
    builder.span("aten::mm", 0, 400)
    builder.kernel("gemm", 100, 100, stream=first).kernel("gemm", 150, 100, stream=first)
    builder.kernel(NCCL, 200, 100, stream=second).copy("Memset (Device)", 340, 10, stream=second)
    builder.device_annotation("range", 0, 390, stream=second)
    builder.on_device("Stream Sync", 0, 390, SpanKind.SYNC, stream=second)
    return builder


def test_a_stream_is_busy_while_anything_runs_in_it():
    second, first = two_streams().build().table("streams").to_pylist()
    assert first == {
        "id": 0, "device_type": 1, "device_index": 0, "number": 20, "name": "stream 20 default", "kernels": 2, "copies": 0,
        "busy_ns": 150, "compute_ns": 150, "communication_ns": 0, "copy_ns": 0, "work_ns": 200, "first_ns": 100,
        "last_ns": 250, "idle_ns": 0, "utilization_percent": 100.0, "busy_percent": 37.5,
    }  # fmt: skip
    assert second == {
        "id": 1, "device_type": 1, "device_index": 0, "number": 7, "name": None, "kernels": 1, "copies": 1,
        "busy_ns": 110, "compute_ns": 0, "communication_ns": 100, "copy_ns": 10, "work_ns": 110, "first_ns": 200,
        "last_ns": 350, "idle_ns": 40, "utilization_percent": pytest.approx(100 * 110 / 150), "busy_percent": 27.5,
    }  # fmt: skip


def test_a_device_is_busy_while_any_of_its_streams_is():
    builder = two_streams().know("deviceProperties", [{"id": 0, "name": "A100", "totalGlobalMem": 40}, "odd"])
    (row,) = builder.know("distributedInfo", {"rank": 2}).build().table("devices").to_pylist()
    assert row == {
        "device": "cuda:0", "process": 4242, "rank": 2, "device_type": 1, "device_index": 0, "model": "A100", "memory_bytes": 40,
        "allocated_peak_bytes": None, "attributed_peak_bytes": None, "reserved_peak_bytes": None,
        "streams": 2, "kernels": 3, "copies": 1, "busy_ns": 210, "compute_ns": 150, "communication_ns": 100,
        "copy_ns": 10, "work_ns": 310, "first_ns": 100, "last_ns": 350, "idle_ns": 40,
        "utilization_percent": 84.0, "busy_percent": 52.5,
    }  # fmt: skip


def test_a_stream_without_work_is_shown_and_a_device_without_is_not():
    builder = TraceBuilder()
    builder.thread(), builder.stream(7, device_type=12)
    trace = builder.span("aten::mm", 0, 5).build()
    (row,) = trace.table("streams").to_pylist()
    assert (row["busy_ns"], row["first_ns"], row["utilization_percent"]) == (0, None, None)
    assert trace.table("devices").num_rows == 0
    assert TraceBuilder().build().table("streams").num_rows == 0


@given(traces())
def test_nothing_is_busy_for_more_than_all_of_the_time(builder):
    trace = builder.build()
    for name in ("streams", "devices"):
        for row in trace.table(name).to_pylist():
            parts = row["compute_ns"], row["communication_ns"], row["copy_ns"]
            assert max(parts) <= row["busy_ns"] <= sum(parts) <= row["work_ns"]
            assert (row["utilization_percent"] or 0) <= 100
            assert (row["busy_percent"] or 0) <= 100
            assert row["idle_ns"] >= 0
            # A moment at -1, just before the recording, is shown as none.
            if row["first_ns"] is not None and row["last_ns"] is not None:
                assert row["busy_ns"] + row["idle_ns"] == row["last_ns"] - row["first_ns"]


def test_the_same_device_number_in_another_process_is_another_device():
    builder = TraceBuilder().span("aten::mm", 0, 5)
    builder.thread()
    builder.kernel("gemm", 0, 10, stream=builder.stream(7)).kernel("gemm", 0, 30, stream=builder.stream(8))
    trace = builder.build()
    tables = {name: {column: trace.columns(name)[column] for column in trace.columns(name).given}
              for name in ("spans", "threads", "streams")}  # fmt: skip
    tables["threads"]["rank"] = [0, 0, 1]
    trace = type(trace).from_columns(tables, strings=trace.strings)
    rows = trace.table("devices").to_pylist()
    assert [(row["rank"], row["device"], row["busy_ns"]) for row in rows] == [
        (0, "cuda:0", 10),
        (1, "cuda:0", 30),
    ]
