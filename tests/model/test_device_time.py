import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.kinds import is_device_work
from kinetoscope.model.schema import KIND_NAMES, SpanKind
from tests.support.trace_builder import TraceBuilder


def device_times(trace):
    """By name of a span of the host: device time of its own, and with what is inside it."""
    spans = trace.columns("spans")
    own, total = spans["device_self_ns"].tolist(), spans["device_ns"].tolist()
    return {
        trace.strings[name]: (own[row], total[row])
        for row, name in enumerate(spans["name"].tolist())
        if spans["stream"][row] < 0 and (own[row] or total[row])
    }


def one_launch(**more):
    """A kernel of 100 ns that a call of the runtime starts at 30."""
    builder = TraceBuilder().runtime("cudaLaunchKernel", 30, 8, correlation=1)
    return builder.kernel("gemm", 60, 100, correlation=1, **more)


def test_a_devices_work_is_kernels_copies_and_fillings():
    kinds = np.arange(len(SpanKind), dtype=np.uint8)
    marked = [KIND_NAMES[kind] for kind in np.flatnonzero(is_device_work(kinds))]
    assert marked == ["kernel", "memcpy", "memset"]


def test_time_counts_for_the_operator_around_the_call_and_not_for_the_call():
    builder = one_launch().span("aten::linear", 0, 90).span("aten::addmm", 10, 40).span("aten::relu", 92, 5)
    assert device_times(builder.build()) == {"aten::addmm": (100, 100), "aten::linear": (0, 100)}


def test_a_driver_call_in_a_runtime_call_counts_for_the_operator_too():
    builder = TraceBuilder().span("aten::mm", 0, 90).runtime("cudaLaunchKernelExC", 20, 30)
    builder.span("cuLaunchKernelEx", 25, 10, kind=SpanKind.DRIVER, correlation=4)
    builder.kernel("gemm", 60, 100, correlation=4)
    assert device_times(builder.build()) == {"aten::mm": (100, 100)}


def test_backward_functions_count_as_operators_do():
    builder = one_launch().backward("MmBackward0", 10, 60, sequence=3)
    assert device_times(builder.build()) == {
        "MmBackward0": (100, 100),
        "autograd::engine::evaluate_function: MmBackward0": (0, 100),
    }


def test_an_operator_counts_before_a_range_inside_it():
    builder = one_launch().span("record_param_comms", 0, 90).annotation("nccl:all_reduce", 10, 40)
    assert device_times(builder.build()) == {"record_param_comms": (100, 100)}


def test_without_an_operator_the_innermost_range_counts_and_without_that_the_call():
    builder = one_launch().annotation("outer", 0, 90).annotation("inner", 10, 40)
    assert device_times(builder.build()) == {"inner": (100, 100), "outer": (0, 100)}
    assert device_times(one_launch().build()) == {"cudaLaunchKernel": (100, 100)}


def test_a_call_that_ends_after_its_operator_belongs_to_what_ran_when_it_began():
    builder = one_launch().span("aten::mul", 0, 90).span("aten::add", 20, 12).span("before", 20, 5)
    builder.annotation("elsewhere", 0, 200, thread=builder.thread())
    assert builder.build().column("spans", "lane").max() == 1
    assert device_times(builder.build()) == {"aten::add": (100, 100), "aten::mul": (0, 100)}


def test_a_call_after_everything_belongs_to_nothing_else():
    late = TraceBuilder().span("aten::mul", 0, 10).runtime("cudaLaunchKernel", 10, 5, correlation=1)
    late.span("aten::add", 12, 9).kernel("gemm", 60, 100, correlation=1)
    assert device_times(late.build()) == {"cudaLaunchKernel": (100, 100)}


def test_a_kernel_counts_once_however_often_it_is_linked():
    trace = one_launch().span("aten::mm", 0, 90).build()
    launches = trace.columns("launches")
    twice = {name: np.tile(launches[name], 2) for name in ("host", "device")}
    given = {name: {column: trace.columns(name)[column] for column in trace.columns(name).given}
             for name in ("spans", "threads", "streams")}  # fmt: skip
    trace = type(trace).from_columns(given | {"launches": twice}, strings=trace.strings)
    assert device_times(trace) == {"aten::mm": (100, 100)}
    assert trace.key_averages().values("self_device_time_total").tolist() == [0.1, 0, 0.1]


def test_ranges_and_waits_on_a_devices_track_are_no_work():
    builder = TraceBuilder().span("aten::mm", 0, 90).runtime("cudaStreamSynchronize", 10, 5, correlation=1)
    builder.on_device("Stream Sync", 30, 50, SpanKind.SYNC, correlation=1)
    builder.runtime("cudaLaunchKernel", 20, 5, correlation=2).device_annotation("step", 30, 70, correlation=2)
    trace = builder.build()
    assert device_times(trace) == {}
    assert "Self CUDA time total: 0.000us" in trace.key_averages().table()
    assert "Self CUDA time total: 0.000us" in trace.events().table()


def test_copies_and_fillings_count_and_work_at_the_same_time_adds_up():
    builder = TraceBuilder().span("aten::to", 0, 90)
    second = builder.thread(), builder.stream(7), builder.stream(20)
    for number, name in enumerate(("Memcpy HtoD (Pinned -> Device)", "Memset (Device)")):
        builder.runtime("cudaMemcpyAsync", 10 + 10 * number, 5, correlation=number)
        builder.copy(name, 30, 50, stream=second[1 + number] - second[1], correlation=number)
    assert device_times(builder.build()) == {"aten::to": (100, 100)}


def test_modules_operators_stacks_and_lines_have_device_time():
    builder = TraceBuilder()
    model = builder.module("GPT")
    layer = builder.module("Linear", name="fc", parent=model)
    stack = builder.stack(("train.py", 3, "<module>"), ("model.py", 7, "GPT.forward"))
    builder.span("aten::linear", 0, 90, module=layer, stack=stack).span(
        "aten::mm", 5, 60, module=layer, stack=stack
    )
    builder.runtime("cudaLaunchKernel", 30, 8, correlation=1).kernel("gemm", 60, 100, correlation=1)
    trace = builder.build()
    rows = trace.table("modules").to_pylist()
    modules = {row["path"]: (row["device_self_ns"], row["device_ns"]) for row in rows}
    assert modules == {"GPT": (0, 100), "fc": (100, 100)}
    ops = {row["name"]: (row["device_self_ns"], row["device_ns"]) for row in trace.table("ops").to_pylist()}
    assert ops == {"aten::linear": (0, 100), "aten::mm": (100, 100), "cudaLaunchKernel": (0, 0)}
    stacks = [(row["device_self_ns"], row["device_ns"]) for row in trace.table("stacks").to_pylist()]
    assert stacks == [(0, 100), (100, 100)]
    lines = {
        row["file"]: (row["device_self_ns"], row["device_ns"]) for row in trace.table("lines").to_pylist()
    }
    assert lines == {"model.py": (100, 100), "train.py": (0, 100)}


@given(st.data())
def test_all_device_time_is_that_of_all_work_that_was_started(data):
    builder = TraceBuilder()
    for number in range(data.draw(st.integers(1, 12))):
        start = data.draw(st.integers(0, 60))
        name = data.draw(st.sampled_from(["aten::mm", "range", "cudaLaunchKernel", "cuLaunchKernel"]))
        duration = data.draw(st.integers(0, 40))
        thread = data.draw(st.integers(0, 1))
        if name == "range":
            builder.annotation(name, start, duration, thread=thread)
        elif name == "aten::mm":
            builder.span(name, start, duration, thread=thread)
        else:
            builder.runtime(name, start, duration, thread=thread, correlation=number)
    builder.thread(), builder.thread(), builder.stream()
    calls = [span.correlation for span in builder.spans if span.correlation >= 0]
    started = [number for number in calls if data.draw(st.booleans())]
    durations = [data.draw(st.integers(0, 50)) for _ in started]
    for number, duration in zip(started, durations, strict=True):
        builder.kernel("k", 100, duration, correlation=number)
    builder.kernel("unknown", 7, 9)
    trace = builder.build()
    assert trace.column("spans", "device_self_ns").sum() == sum(durations)
    root = trace.column("spans", "parent") < 0
    assert trace.column("spans", "device_ns")[root].sum() == sum(durations)
