"""Findings about devices: planted in traces that tests build, and on real traces of GPUs, where plain Python computes every number again."""

import functools
import gzip
import json
import re
import statistics

import pytest

import kinetoscope
from kinetoscope.analyses.findings import examine, lines
from tests.analyses.planted_devices import PLANTED, US, Gpu, all_reduce
from tests.support.shared_traces import needs_shared_traces, shared_trace


def codes(trace):
    return [one.code for one in examine(trace).findings]


@pytest.mark.parametrize("program", PLANTED)
def test_a_planted_fault_of_a_device_is_named_first(program):
    assert codes(PLANTED[program](True))[:1] == [program.partition(":")[0]]


@pytest.mark.parametrize("program", PLANTED)
def test_the_same_device_without_the_fault_has_no_finding(program):
    assert codes(PLANTED[program](False)) == []


def test_a_symptom_yields_to_its_cause():
    gpu = Gpu()
    for _ in range(8):
        for one in range(200):
            gpu.launch(f"layer{one % 6}", 4 * US, "aten::cumsum", line=10 + one, blocks_per_sm=0.1)
        gpu.step()
    # The device is idle, its kernels are small and have few blocks: all because the program launches so many.
    assert codes(gpu.build()) == ["launch-bound"]


def test_captured_launches_leave_a_device_idle_by_intention():
    gpu = Gpu()
    gpu.builder.runtime("cudaStreamBeginCapture", 0, 1 * US)
    for _ in range(8):
        for one in range(60):
            gpu.launch(f"layer{one % 6}", 4 * US, "aten::cumsum", line=10 + one)
        gpu.step()
    assert not {"device-idle", "launch-bound"} & set(codes(gpu.build()))


def test_a_device_without_shapes_or_memory_is_said_to_lack_them():
    gpu = Gpu()
    for _ in range(8):
        for _ in range(12):
            gpu.launch("gemm_tf32", 500 * US, "aten::mm")
        gpu.step()
    report = examine(gpu.build())
    lacking = {one.code: one.record for one in report.cannot_tell}
    assert set(lacking) == {
        "below-roofline", "fragmentation", "matmul-alignment", "memory-growth", "memory-near-limit",
    }  # fmt: skip
    assert "--shapes" in lacking["matmul-alignment"]
    assert "--memory" in lacking["fragmentation"]
    # One line for all that the same flag records.
    assert sum(text.startswith("Cannot tell") for text, _ in lines(report)) == 2


def test_one_rank_of_many_cannot_tell_who_is_late():
    gpu = Gpu(rank=0, ranks=8)
    for _ in range(8):
        gpu.work(kernels=3)
        gpu.free_ns[1] = max(gpu.free_ns)
        all_reduce(gpu, 3000 * US)
        gpu.free_ns[0] = max(gpu.free_ns)
        gpu.step()
    assert "straggler-rank" in [one.code for one in examine(gpu.build()).cannot_tell]


# What the first releases of Kineto call the same.
FORMER = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}


class Plain:
    """The raw events of a Kineto file, and sums over them by sweeps of plain Python over whole nanoseconds."""

    def __init__(self, name):
        with gzip.open(shared_trace(name)) as file:
            document = json.load(file)
        self.events = [one for one in document["traceEvents"] if one.get("ph") == "X"]
        marks = self.of("user_annotation", "cpu_op")
        self.steps = sorted(self.span(one) for one in marks if one["name"].startswith("ProfilerStep#"))

    def of(self, *categories):
        return [one for one in self.events if FORMER.get(one.get("cat"), one.get("cat")) in categories]

    @staticmethod
    def span(event):
        start = round(event["ts"] * 1000)
        return start, start + round(event["dur"] * 1000)

    def work(self, device):
        """The kernels, copies and fills of a device."""
        return [
            one for one in self.of("kernel", "gpu_memcpy", "gpu_memset") if one["args"]["device"] == device
        ]

    def waits(self):
        """Calls in which the host waited for the device: by their name, or because a copy was done when they returned."""
        done = {
            one["args"].get("correlation"): self.span(one)[1] for one in self.of("gpu_memcpy", "gpu_memset")
        }
        calls = [
            (one["name"], one["args"].get("correlation"), self.span(one)) for one in self.of("cuda_runtime")
        ]
        return [
            call
            for name, correlation, call in calls
            if "Synchronize" in name or done.get(correlation, call[1] + 1) <= call[1]
        ]

    def loading(self):
        return [self.span(one) for one in self.events if one["name"].startswith("enumerate(DataLoader)#")]

    def in_steps(self, *marked):
        """How long, in each step, only the first of some lists of spans ran: a sweep over all moments at which one begins or ends."""
        return [sweep(step, marked) for step in self.steps]

    @property
    def whole_ns(self):
        return sum(end - start for start, end in self.steps)

    def share(self, times):
        """The median over steps as a share of all steps."""
        return 100 * statistics.median(times) * len(self.steps) / self.whole_ns


def sweep(window, marked):
    """How long in a window a span of the first list runs and none of the others."""
    marked = [[one for one in spans if one[1] > window[0] and one[0] < window[1]] for spans in marked]
    moments = []
    for number, spans in enumerate(marked):
        for start, end in spans:
            start, end = max(start, window[0]), min(end, window[1])
            if start < end:
                moments += [(start, number, 1), (end, number, -1)]
    open_spans, time_ns, before = [0] * len(marked), 0, window[0]
    for moment, number, change in sorted(moments):
        if open_spans[0] and not any(open_spans[1:]):
            time_ns += moment - before
        open_spans[number] += change
        before = moment
    return time_ns


@functools.cache
def real(name):
    """The findings of a shared trace by code, and its raw events."""
    with kinetoscope.open(shared_trace(name)) as trace:
        report = examine(trace)
        return {one.code: one for one in report.findings}, [one.code for one in report.findings], Plain(name)


FIRST = {
    "a100_nccl_rank3of8": ["poor-overlap", "launch-bound"],
    "dlrm_8rank/rank-0": ["exposed-communication", "launch-bound", "main-process-loading"],
    "h100_owlv2_stack_mem": ["main-process-loading", "unfused-attention", "matmul-alignment"],
    "mi300_resnet_stack_rccl_rank0of8": ["exposed-communication", "small-kernels"],
    "rtx2080ti_resnet": ["input-wait", "tensor-cores-unused", "pageable-copy"],
    "v100_resnet50_mem": ["main-process-loading", "tensor-cores-unused", "zero-grad-fill"],
}


@needs_shared_traces
@pytest.mark.parametrize("name", FIRST)
def test_a_real_trace_says_first_what_an_expert_would(name):
    assert real(name)[1][: len(FIRST[name])] == FIRST[name]


def is_communication(event):
    return re.search("nccl", event["name"], re.IGNORECASE) is not None


@needs_shared_traces
@pytest.mark.parametrize(
    ("name", "code", "device"),
    [
        ("a100_nccl_rank3of8", "poor-overlap", 3),
        ("dlrm_8rank/rank-0", "exposed-communication", 0),
        ("mi300_resnet_stack_rccl_rank0of8", "exposed-communication", 2),
    ],
)
def test_exposed_communication_is_what_a_sweep_finds(name, code, device):
    found, _, plain = real(name)
    kernels = [one for one in plain.work(device) if one["cat"].lower() == "kernel"]
    communication = [plain.span(one) for one in kernels if is_communication(one)]
    compute = [plain.span(one) for one in kernels if not is_communication(one)]
    exposed = plain.in_steps(communication, compute)
    assert found[code].gain_ns == sum(exposed)
    assert found[code].share_percent == pytest.approx(100 * sum(exposed) / plain.whole_ns)


@needs_shared_traces
@pytest.mark.parametrize(("name", "device"), [("a100_nccl_rank3of8", 3), ("dlrm_8rank/rank-0", 0)])
def test_time_without_launches_is_what_a_sweep_finds(name, device):
    found, _, plain = real(name)
    work = sorted(plain.span(one) for one in plain.work(device))
    waits, loading = plain.waits(), plain.loading()
    short = [0] * len(plain.steps)
    for step, (first, last) in enumerate(plain.steps):
        reach = first
        for start, end in [*work, (last, last)]:
            begin, finish = reach, min(start, last)
            length = finish - begin - sweep((begin, finish), [loading])
            if 0 < length <= 100_000 and not any(one <= begin <= other for one, other in waits):
                short[step] += length
            reach = max(reach, end)
    assert found["launch-bound"].gain_ns == int(statistics.median(short) * len(short))


@needs_shared_traces
def test_copies_of_pageable_memory_are_what_a_sweep_finds():
    found, _, plain = real("h100_owlv2_stack_mem")
    copies = [one for one in plain.of("gpu_memcpy") if "Pageable" in one["name"]]
    others = [plain.span(one) for one in plain.of("kernel")]
    alone = sum(plain.in_steps([plain.span(one) for one in copies], others))
    waits, loading = plain.waits(), plain.loading()
    work = sorted(plain.span(one) for one in plain.work(0))
    idle, reach = 0, plain.steps[0][0]
    for start, end in [*work, (plain.steps[0][1],) * 2]:
        begin, finish = reach, min(start, plain.steps[0][1])
        if begin < finish and any(one <= begin <= other for one, other in waits):
            idle += finish - begin - sweep((begin, finish), [loading])
        reach = max(reach, end)
    # Every wait of this program is one for a copy of pageable memory.
    assert found["pageable-copy"].gain_ns == alone + idle


@needs_shared_traces
def test_products_beside_tensor_cores_are_what_a_sweep_finds():
    found, _, plain = real("v100_resnet50_mem")
    operators = [
        (one["tid"], *plain.span(one))
        for one in plain.of("cpu_op")
        if re.search("conv|addmm|aten::mm|linear|matmul", one["name"])
    ]
    launched = {
        one["args"]["correlation"]: one for one in plain.of("cuda_runtime") if "correlation" in one["args"]
    }
    by_thread = {}
    for thread, start, end in operators:
        by_thread.setdefault(thread, []).append((start, end))
    each = [0] * len(plain.steps)
    for kernel in plain.of("kernel"):
        call = launched.get(kernel["args"]["correlation"])
        start, end = plain.span(kernel)
        step = next((at for at, (first, last) in enumerate(plain.steps) if first <= start < last), None)
        if call is None or step is None or kernel["args"]["device"] != 0:
            continue
        begun = plain.span(call)[0]
        if any(first <= begun <= last for first, last in by_thread.get(call["tid"], [])):
            each[step] += end - start
    assert found["tensor-cores-unused"].share_percent == pytest.approx(plain.share(each), rel=0.01)


@needs_shared_traces
def test_a_block_of_16_mib_is_not_the_peak_of_a_device_that_holds_178_gib():
    assert real("vllm_graph_capture_stack")[1] == ["profiler-cost"]
