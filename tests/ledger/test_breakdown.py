import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import ArgumentError
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model.schema import SampleState, SpanKind
from tests.support.trace_builder import TraceBuilder

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def parts(trace, row=0, **options):
    """The parts of one row that are not 0, without their unit."""
    found = trace.table("breakdown", **options).to_pylist()[row]
    assert sum(found[name] for name in PARTS) == found["duration_ns"]
    assert 0 <= found["unrecorded_ns"] <= found["host_wait_ns"]
    return {name.removesuffix("_ns"): found[name] for name in (*PARTS, "unrecorded_ns") if found[name]}


def training():
    """A step of 1000 ns in which every part occurs."""
    builder = TraceBuilder()
    builder.thread()
    first, second = builder.stream(7), builder.stream(20)
    builder.step(3, 0, 1000).annotation(LOADER, 0, 100)
    builder.span("aten::mm", 150, 100)
    builder.kernel("gemm", 200, 300, stream=first)
    builder.kernel(NCCL, 400, 200, stream=second)
    builder.copy("Memcpy HtoD (Pageable -> Device)", 550, 100, stream=first)
    builder.runtime("cudaDeviceSynchronize", 700, 100)
    return builder


def test_each_moment_counts_for_the_first_part_that_fits():
    assert parts(training().build()) == {
        "compute": 300, "communication": 100, "copy": 50, "data_wait": 100, "idle": 100, "host_wait": 350,
        "unrecorded": 300,
    }  # fmt: skip


def test_a_row_says_which_step_and_device_it_is_of():
    (row,) = training().know("distributedInfo", {"rank": 5}).build().table("breakdown").to_pylist()
    assert {name: row[name] for name in ("step", "rank", "device", "start_ns", "duration_ns")} == {
        "step": 3, "rank": 5, "device": "cuda:0", "start_ns": 0, "duration_ns": 1000,
    }  # fmt: skip


def test_loading_behind_a_busy_device_is_no_wait_for_input():
    builder = TraceBuilder()
    builder.step(0, 0, 100).annotation(LOADER, 10, 50).kernel("gemm", 0, 40)
    assert parts(builder.build()) == {"compute": 40, "data_wait": 20, "host_wait": 40, "unrecorded": 40}


def test_ranges_and_waits_on_the_devices_track_are_not_busy():
    builder = TraceBuilder()
    builder.step(0, 0, 100).kernel("gemm", 20, 10).device_annotation("ProfilerStep#0", 0, 90)
    builder.on_device("Stream Sync", 30, 50, SpanKind.SYNC)
    assert parts(builder.build()) == {"compute": 10, "host_wait": 90, "unrecorded": 90}


def test_a_host_that_works_on_another_thread_does_not_only_wait():
    builder = TraceBuilder()
    main, other = builder.thread(), builder.thread("autograd")
    builder.step(0, 0, 100, thread=main).span("aten::item", 10, 60, thread=main)
    builder.runtime("cudaStreamSynchronize", 20, 40, thread=main)
    builder.span("aten::mm", 30, 10, thread=other).kernel("gemm", 90, 10)
    assert parts(builder.build()) == {"compute": 10, "idle": 30, "host_wait": 60, "unrecorded": 30}


def test_a_call_that_makes_a_stream_wait_does_not_make_the_host_wait():
    builder = TraceBuilder()
    builder.step(0, 0, 100).runtime("cudaStreamWaitEvent", 20, 40).kernel("gemm", 90, 10)
    assert parts(builder.build()) == {"compute": 10, "host_wait": 90, "unrecorded": 50}


def test_a_device_whose_work_is_queued_does_not_wait_for_the_host():
    builder = TraceBuilder()
    builder.step(0, 0, 900_000).kernel("gemm", 0, 10_000)
    builder.runtime("cudaLaunchKernel", 100_000, 5_000, correlation=1)
    builder.kernel("gemm", 600_000, 300_000, correlation=1)
    # It could have begun 25 microseconds after the call.
    assert parts(builder.build()) == {
        "compute": 310_000, "host_wait": 120_000, "idle": 470_000, "unrecorded": 115_000,
    }  # fmt: skip


def test_a_launch_that_is_not_known_says_nothing_of_a_queue():
    builder = TraceBuilder()
    builder.step(0, 0, 900_000).kernel("gemm", 0, 10_000)
    builder.runtime("cudaLaunchKernel", 100_000, 5_000).kernel("gemm", 600_000, 300_000)
    assert parts(builder.build())["host_wait"] == 590_000


@pytest.mark.parametrize(("size", "queued_ns"), [(1_000, 470_000), (400_000_000, 0)])
def test_a_copy_may_take_what_its_bytes_take(size, queued_ns):
    builder = TraceBuilder()
    builder.step(0, 0, 900_000).kernel("gemm", 0, 10_000)
    builder.runtime("cudaMemcpyAsync", 105_000, 600_000, correlation=1)
    builder.copy("Memcpy HtoD (Pageable -> Device)", 600_500 + 0, 400, size_bytes=size, correlation=1)
    assert parts(builder.build()).get("idle", 0) == queued_ns


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        *((name, True) for name in (
            "cudaDeviceSynchronize", "hipStreamSynchronize", "cuCtxSynchronize", "cudaEventSynchronize_ptsz", "zeEventHostSynchronize",
            "zeCommandListHostSynchronize", "zeFenceHostSynchronize", "urQueueFinish", "urEventWait", "piEventsWait", "synchronizeStream", "waitForEvent",
            "hipMemcpyWithStream", "hipMemcpy", "hipMemcpyDtoH", "cudaMemcpy", "cudaMemcpy2D", "cudaMemcpyFromSymbol", "cuMemcpyDtoH_v2",
        )),
        *((name, False) for name in (
            "cudaLaunchKernel", "cudaMemcpyAsync", "hipMemcpyAsync", "cuMemcpyHtoDAsync_v2", "hipMemcpyDtoDAsync", "cuMemcpyDtoD_v2",
            "cudaMemcpyPeer", "cudaMemcpyBatchAsync", "cudaStreamWaitEvent", "hipStreamWaitEvent", "urEnqueueEventsWait", "piEnqueueEventsWait",
            "urEnqueueEventsWaitWithBarrier", "enqueueCommand waitOnEvent", "cudaMemsetAsync", "cudaEventQuery", "hipExtStreamWaitValue",
        )),
    ],
)  # fmt: skip
def test_calls_of_runtimes_that_wait_for_a_device(call, waits):
    builder = TraceBuilder()
    builder.step(0, 0, 100).runtime(call, 20, 40).kernel("gemm", 90, 10)
    assert parts(builder.build()).get("idle", 0) == (40 if waits else 0)


def test_without_steps_the_whole_trace_is_one_row_and_what_is_not_known_is_idle():
    builder = TraceBuilder()
    builder.span("aten::mm", 100, 50).annotation("mine", 200, 20).kernel("gemm", 120, 100).span(
        "end", 390, 10
    )
    (row,) = builder.build().table("breakdown").to_pylist()
    assert (row["step"], row["start_ns"], row["duration_ns"]) == (None, 0, 400)
    assert parts(builder.build()) == {"compute": 100, "host_wait": 30, "idle": 270}


def test_without_steps_the_program_runs_where_samples_say_so():
    builder = TraceBuilder()
    _, waits = builder.thread(), builder.thread("pool")
    stack = builder.stack(("serve.py", 3, "load"))
    builder.span("aten::mm", 100, 50).span("end", 390, 10)
    builder.sample(50, stack, period_ns=40)  # 10 to 50
    builder.sample(120, stack, period_ns=40)  # 80 to 120, the last 20 in an operator
    builder.sample(200, stack, period_ns=10, state=SampleState.WAITING_FOR_GIL)
    builder.sample(300, stack, period_ns=50, state=SampleState.BLOCKED)
    builder.sample(350, stack, period_ns=50, state=SampleState.UNKNOWN)
    builder.sample(50, stack, period_ns=50, thread=waits, state=SampleState.BLOCKED)
    # Of the samples of Python between operators, some say that the thread did not run.
    assert parts(builder.build()) == {"compute": 60, "host_wait": 231, "unrecorded": 231, "blocked": 109}


def test_without_steps_a_host_that_waits_for_its_device_does_so_although_a_sample_says_that_it_runs():
    builder = TraceBuilder().runtime("cudaStreamSynchronize", 20, 40).kernel("gemm", 90, 10)
    builder.sample(60, builder.stack(("serve.py", 3, "spin")), period_ns=40)
    assert parts(builder.build()) == {"compute": 10, "idle": 90}


def test_the_whole_trace_is_taken_to_run_within_its_steps():
    builder = TraceBuilder().step(0, 100, 50).step(1, 200, 50).kernel("gemm", 120, 10)
    builder.span("end", 300, 0)
    trace = builder.build()
    assert parts(trace, by="trace") == {"compute": 10, "host_wait": 90, "unrecorded": 90, "idle": 200}
    assert len(trace.table("breakdown", by="trace")) == 1
    assert len(trace.table("breakdown")) == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_on_a_cpu_operators_compute_and_gloo_communicates(is_async):
    builder = TraceBuilder()
    worker = builder.thread(), builder.thread("gloo")
    builder.step(0, 0, 100).annotation(LOADER, 0, 20).span("aten::stack", 5, 10)
    builder.span("aten::mm", 30, 20).span("c10d::allreduce_", 50, 5)
    # The native engine records that gloo begins it on the thread of the call and ends it on its own.
    builder.annotation("gloo:all_reduce", 40, 30, thread=worker[1], is_async=is_async)
    trace = builder.build()
    assert trace.table("breakdown")["device"].to_pylist() == ["cpu"]
    assert parts(trace) == {
        "compute": 20, "communication": 20, "data_wait": 20, "host_wait": 40, "unrecorded": 40,
    }  # fmt: skip


def test_a_backward_function_that_waits_for_shards_does_not_compute():
    """FSDP waits for its collectives in a range of its own, inside a backward function."""
    builder = TraceBuilder()
    main = builder.thread()
    pool = builder.thread()
    builder.step(1, 0, 100)
    builder.span("RegisterPostBackwardFunctionBackward", 10, 80, thread=main)
    builder.annotation("FSDP::post_backward_reduce (0)", 20, 60, thread=main)
    builder.span("aten::cat", 25, 5, thread=main)
    builder.span("c10d::_reduce_scatter_base_", 30, 5, thread=main)
    builder.annotation("gloo:reduce_scatter", 32, 40, thread=pool)
    builder.annotation("FSDP::post_backward_reduce (1)", 95, 0, thread=pool)
    builder.span("aten::empty", 96, 0, thread=pool)
    # Before and after the range, and the operator in it; in the rest of it, FSDP asks for communication and waits for it.
    assert parts(builder.build()) == {"compute": 25, "communication": 55, "host_wait": 20, "unrecorded": 20}


def test_each_device_has_its_row():
    builder = TraceBuilder().step(0, 0, 100)
    builder.thread()
    first, second = builder.stream(7), builder.stream(7, device=1)
    builder.kernel("gemm", 0, 30, stream=first).kernel("gemm", 10, 60, stream=second)
    rows = builder.build().table("breakdown").to_pylist()
    assert [(row["device"], row["compute_ns"]) for row in rows] == [("cuda:0", 30), ("cuda:1", 60)]


def test_ranks_of_one_trace_are_kept_apart():
    builder = TraceBuilder()
    threads = [builder.thread(), builder.thread()]
    streams = [builder.stream(7), builder.stream(7)]
    for rank in range(2):
        builder.step(0, 100 * rank, 100, thread=threads[rank])
        builder.kernel("gemm", 100 * rank + 10, 20 + rank, stream=streams[rank])
        builder.runtime("cudaDeviceSynchronize", 100 * rank + 40, 30 + rank, thread=threads[rank])
    trace = builder.build()
    tables = {name: {column: trace.columns(name)[column] for column in trace.columns(name).given}
              for name in ("spans", "threads", "streams")}  # fmt: skip
    tables["threads"]["rank"] = [0, 1, 0, 1]
    trace = type(trace).from_columns(tables, strings=trace.strings)
    rows = trace.table("breakdown").to_pylist()
    assert [(row["rank"], row["start_ns"], row["compute_ns"], row["idle_ns"]) for row in rows] == [
        (0, 0, 20, 30), (1, 100, 21, 31),
    ]  # fmt: skip


def test_other_rows_than_those_there_are_are_refused():
    with pytest.raises(ArgumentError, match="by='month' is not valid: use one of step, trace"):
        training().build().table("breakdown", by="month")


def test_a_trace_of_nothing_has_no_time():
    (row,) = TraceBuilder().build().table("breakdown").to_pylist()
    assert (row["duration_ns"], row["idle_ns"]) == (0, 0)


KINDS = (
    "aten::mm",
    LOADER,
    "range",
    "cudaLaunchKernel",
    "cudaStreamSynchronize",
    "gemm",
    NCCL,
    "Memcpy DtoD",
    "gloo:send",
)


@st.composite
def traces(draw):
    """Steps, and spans of all sorts anywhere."""
    builder = TraceBuilder()
    builder.thread(), builder.thread(), builder.stream(7), builder.stream(8), builder.stream(9, device=1)
    for number in range(draw(st.integers(0, 3))):
        builder.step(number, draw(st.integers(-20, 80)), draw(st.integers(0, 60)))
    for _ in range(draw(st.integers(1, 14))):
        name = draw(st.sampled_from(KINDS))
        start, duration = draw(st.integers(-20, 100)), draw(st.integers(0, 50))
        if name.startswith("cuda"):
            builder.runtime(name, start, duration, thread=draw(st.integers(0, 1)))
        elif name in ("gemm", NCCL):
            builder.kernel(name, start, duration, stream=draw(st.integers(0, 2)))
        elif name == "Memcpy DtoD":
            builder.copy(name, start, duration, stream=draw(st.integers(0, 2)))
        elif name == "aten::mm":
            builder.span(name, start, duration, thread=draw(st.integers(0, 1)))
        else:
            builder.annotation(name, start, duration, thread=draw(st.integers(0, 1)))
    return builder


@given(traces(), st.sampled_from(["step", "trace"]))
def test_parts_add_up_and_are_what_counting_moments_says(builder, by):
    trace = builder.build()
    spans = [(trace.strings[builder_span.name], builder_span) for builder_span in builder.spans]
    for row in trace.table("breakdown", by=by).to_pylist():
        counted = dict.fromkeys(PARTS, 0)
        for moment in range(row["start_ns"], row["start_ns"] + row["duration_ns"]):
            counted[part_of(spans, row["device"], moment)] += 1
        assert {name: row[name] for name in PARTS} == counted


def part_of(spans, device, moment):
    """The rule of the table, for one nanosecond, said in another way."""
    now = [(name, span) for name, span in spans if span.start_ns <= moment < span.start_ns + span.duration_ns]
    here = {name for name, span in now if span.stream >= 0 and device == f"cuda:{span.stream // 2}"}
    host = [(name, span) for name, span in now if span.stream < 0]
    names = {name for name, _ in host}
    waiting = {span.thread for name, span in host if name == "cudaStreamSynchronize"}
    working = {span.thread for name, span in host if name in ("aten::mm", "cudaLaunchKernel")}
    waits = waiting and not working - waiting
    if device == "cpu":
        if LOADER in names:
            return "data_wait_ns"
        if waits:
            return "device_wait_ns"
        if working or waiting:
            return "compute_ns"
    if "gemm" in here:
        return "compute_ns"
    if NCCL in here or "gloo:send" in names:
        return "communication_ns"
    if "Memcpy DtoD" in here:
        return "copy_ns"
    if LOADER in names:
        return "data_wait_ns"
    if waits:
        return "idle_ns"
    runs = waiting or working or "range" in names or any(name.startswith("ProfilerStep#") for name in names)
    return "host_wait_ns" if runs else "idle_ns"
