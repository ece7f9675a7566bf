from kinetoscope.model.schema import SpanKind
from tests.support.trace_builder import TraceBuilder


def test_a_launch_says_what_called_what_ran_and_how_long_it_took_to_begin():
    builder = TraceBuilder()
    builder.thread(os_tid=70)
    stream = builder.stream(7, device=2)
    builder.step(4, 0, 900).span("aten::mm", 10, 90).runtime("cudaLaunchKernel", 30, 8, correlation=5)
    builder.kernel("before", 40, 100, stream=stream).kernel("gemm", 150, 60, stream=stream, correlation=5)
    (row,) = builder.build().table("launches").to_pylist()
    assert row == {
        "host": 2, "device": 4, "host_name": "cudaLaunchKernel", "device_name": "gemm", "device_kind": "kernel",
        "operator": "aten::mm", "operator_span": 1, "os_tid": 70, "device_index": 2, "stream": 7, "correlation": 5,
        "host_start_ns": 30, "host_ns": 8, "device_start_ns": 150, "device_ns": 60, "delay_ns": 120, "queue_ns": 100,
        "step": 4,
    }  # fmt: skip


def test_the_queue_is_that_of_the_stream_and_not_of_others():
    builder = TraceBuilder()
    builder.thread()
    own, other = builder.stream(7), builder.stream(8)
    builder.runtime("cudaLaunchKernel", 0, 5, correlation=1).kernel("gemm", 50, 10, stream=own, correlation=1)
    builder.kernel("elsewhere", 0, 50, stream=other).kernel("earlier", -10, 15, stream=own)
    (row,) = builder.build().table("launches").to_pylist()
    assert (row["delay_ns"], row["queue_ns"], row["operator"], row["operator_span"]) == (50, 5, None, None)


def test_clocks_that_disagree_make_a_delay_below_0_and_no_queue():
    builder = (
        TraceBuilder().runtime("cudaLaunchKernel", 20, 5, correlation=1).kernel("gemm", 19, 10, correlation=1)
    )
    (row,) = builder.build().table("launches").to_pylist()
    assert (row["delay_ns"], row["queue_ns"]) == (-1, 0)


def test_a_graph_launches_many_kernels_at_once():
    builder = TraceBuilder().span("aten::mm", 0, 5).runtime("cudaGraphLaunch", 20, 5, correlation=1)
    builder.kernel("a", 30, 10, correlation=1).kernel("b", 45, 10, correlation=1)
    rows = builder.build().table("launches").to_pylist()
    assert [(row["host_name"], row["device_name"], row["delay_ns"]) for row in rows] == [
        ("cudaGraphLaunch", "a", 10), ("cudaGraphLaunch", "b", 25),
    ]  # fmt: skip


def test_waits_on_a_stream_are_shown_as_what_they_are():
    builder = TraceBuilder().span("aten::item", 0, 50).runtime("cudaStreamSynchronize", 10, 5, correlation=1)
    builder.on_device("Stream Sync", 10, 9, SpanKind.SYNC, correlation=1)
    (row,) = builder.build().table("launches").to_pylist()
    assert (row["device_kind"], row["operator"]) == ("sync", "aten::item")


def test_launches_are_in_order_of_time_whatever_their_thread():
    builder = TraceBuilder()
    late, early = builder.thread(), builder.thread()
    builder.runtime("late", 50, 5, thread=late, correlation=1).runtime(
        "early", 10, 5, thread=early, correlation=2
    )
    builder.stream()
    builder.kernel("a", 70, 5, correlation=1).kernel("b", 60, 5, correlation=2)
    assert builder.build().table("launches")["host_name"].to_pylist() == ["early", "late"]


def test_a_trace_without_a_device_has_none():
    assert TraceBuilder().span("aten::mm", 0, 5).build().table("launches").num_rows == 0
