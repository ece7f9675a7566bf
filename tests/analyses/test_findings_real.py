"""Findings on real traces of GPUs: every number is computed again by sweeps of plain Python over the raw events."""

import functools
import gzip
import json
import re
import statistics
from collections import defaultdict
from itertools import pairwise

import pytest

import kinetoscope
from kinetoscope.analyses.findings import examine
from kinetoscope.analyses.rule_findings import rule_findings
from kinetoscope.display.sentence import plain
from tests.support.real_traces import ranks_of_a_job, real_trace

FIRST = {
    "a100_nccl_rank3of8": ["poor-overlap"],
    "dlrm_8rank/rank-0": ["exposed-communication", "launch-bound", "main-process-loading"],
    "h100_owlv2_stack_mem": ["main-process-loading", "unfused-attention", "matmul-alignment"],
    "mi300_resnet_stack_rccl_rank0of8": ["slow-collectives", "below-roofline", "small-kernels"],
    "rtx2080ti_resnet": ["input-wait", "tensor-cores-unused", "pageable-copy"],
    "v100_resnet50_mem": ["main-process-loading", "tensor-cores-unused", "zero-grad-fill"],
}
DEVICE = {"a100_nccl_rank3of8": 3, "mi300_resnet_stack_rccl_rank0of8": 2}
# What the first releases of Kineto call the same.
FORMER = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}
SIZES = {"BFloat16": 2, "Float": 4}
IN_FLOAT16 = ("c10::BFloat16", "c10::Half")


class Plain:
    """The raw events of a Kineto file, and sums over them in whole nanoseconds."""

    def __init__(self, name):
        with gzip.open(real_trace(name)) as file:
            document = json.load(file)
        self.events = [one for one in document["traceEvents"] if one.get("ph") == "X"]
        marks = self.of("user_annotation", "cpu_op")
        self.steps = sorted(self.span(one) for one in marks if one["name"].startswith("ProfilerStep#"))
        if not self.steps:
            # Each step ends with the optimizer's; the first of these ends what ran before the loop.
            ends = sorted(self.span(one)[1] for one in marks if one["name"].startswith("Optimizer.step#"))
            self.steps = list(pairwise(ends))
        device = DEVICE.get(name, 0)
        work = self.of("kernel", "gpu_memcpy", "gpu_memset")
        self.work = sorted((one for one in work if one["args"]["device"] == device), key=self.span)
        if self.steps and self.work:
            self.steps = self.extents(self.steps)

    def extents(self, marks):
        """The steps as they end on the device, where it is behind the host by at least a tenth of a step on average."""
        calls = {
            one["args"]["correlation"]: self.span(one)[0]
            for one in self.of("cuda_runtime", "cuda_driver")
            if "correlation" in one["args"]
        }
        linked = [one for one in self.work if one["args"]["correlation"] in calls]
        begun = min(self.span(one)[0] for one in linked)
        early = [one for one in self.work if self.span(one)[0] < begun]

        def done(moment):
            launched = [one for one in linked if calls[one["args"]["correlation"]] < moment]
            return max([moment, *(end for _, end in self.spans([*launched, *early]))])

        found = [(done(first), done(last)) for first, last in marks]
        behind = statistics.mean(end - last for (_, end), (_, last) in zip(found, marks, strict=True))
        return found if behind >= 0.1 * statistics.median(end - start for start, end in found) else marks

    def of(self, *categories):
        return [one for one in self.events if FORMER.get(one.get("cat"), one.get("cat")) in categories]

    @staticmethod
    def span(event):
        start = round(event["ts"] * 1000)
        return start, start + round(event["dur"] * 1000)

    def spans(self, events):
        return [self.span(one) for one in events]

    @functools.cached_property
    def kernels(self):
        return [one for one in self.work if one["cat"].lower() == "kernel"]

    @functools.cached_property
    def computing(self):
        return [one for one in self.kernels if "nccl" not in one["name"].lower()]

    @functools.cached_property
    def operators(self):
        return self.spans(self.of("cpu_op"))

    @functools.cached_property
    def loading(self):
        return [self.span(one) for one in self.events if one["name"].startswith("enumerate(DataLoader)#")]

    @functools.cached_property
    def waits(self):
        """Calls in which the host waited for the device: by their name, or because a copy was done when they returned."""
        copies = self.of("gpu_memcpy", "gpu_memset")
        done = {one["args"].get("correlation"): self.span(one)[1] for one in copies}
        return [
            self.span(one)
            for one in self.of("cuda_runtime")
            if "Synchronize" in one["name"]
            or done.get(one["args"].get("correlation"), self.span(one)[1] + 1) <= self.span(one)[1]
        ]

    @functools.cached_property
    def queued(self):
        """When work had been launched and could have begun, as far as the host is concerned, and had not."""
        calls = {
            one["args"]["correlation"]: one
            for one in self.of("cuda_runtime", "cuda_driver")
            if "correlation" in one["args"]
        }
        found = []
        for one in self.work:
            begun, ended = self.span(one)
            if call := calls.get(one["args"]["correlation"]):
                called, done = self.span(call)
                taken = done - called
                if one["cat"].lower() != "kernel":
                    # 2 bytes in a nanosecond.
                    taken = min(taken, max(one["args"].get("bytes", 0) // 2, ended - begun))
                if called + taken + 25_000 < begun:
                    found.append((called + taken + 25_000, begun))
        return found

    @functools.cached_property
    def gaps(self):
        """When the device had nothing to do: its step, when it begins, its length without data loading, and the wait before it."""
        found = []
        for step, (first, last) in enumerate(self.steps):
            reach = first
            for start, end in sorted([*self.spans(self.work), *self.queued, (last, last)]):
                begin, finish = reach, min(start, last)
                if begin < finish:
                    length = finish - begin - sweep((begin, finish), [self.loading])
                    wait = next((one for one in self.waits if one[0] <= begin <= one[1]), None)
                    found.append((step, begin, length, wait))
                reach = max(reach, end)
        return found

    def launched_in(self, kernels, ranges):
        """The kernels whose launch began within some spans of the thread that launched them."""
        calls = {
            one["args"]["correlation"]: one
            for one in self.of("cuda_runtime", "cuda_driver")
            if "correlation" in one["args"]
        }
        by_thread = defaultdict(list)
        for one in ranges:
            by_thread[one["tid"]].append(self.span(one))
        found = []
        for kernel in kernels:
            call = calls.get(kernel["args"]["correlation"])
            begun = self.span(call)[0] if call else -1
            if call and any(first <= begun <= last for first, last in by_thread[call["tid"]]):
                found.append(kernel)
        return found

    def in_steps(self, *marked):
        """How long, in each step, only the first of some lists of spans ran."""
        return [sweep(step, marked) for step in self.steps]

    def step_of(self, moment):
        return next((at for at, (first, last) in enumerate(self.steps) if first <= moment < last), None)

    def usual(self, timed):
        """The sum of some times, each at a moment; of each step up to 1.5 times what nine of ten steps have at most."""
        each = [0] * len(self.steps)
        for moment, time_ns in timed:
            if (step := self.step_of(moment)) is not None:
                each[step] += time_ns
        most = sorted(each)[9 * (len(each) - 1) // 10]
        return int(sum(min(time_ns, 1.5 * most) for time_ns in each)) if len(each) >= 3 else sum(each)

    def usual_duration(self, events):
        return self.usual((start, end - start) for start, end in self.spans(events))


def sweep(window, marked):
    """How long in a window a span of the first list runs and none of the others: from one beginning or end to the next."""
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
def by_rules(name):
    """What each rule finds by itself, before one promises what another one has promised."""
    with kinetoscope.open(real_trace(name)) as trace:
        return {one.code: one for one in rule_findings(trace).found}


@functools.cache
def real(name):
    """The findings of a shared trace by code, in their order, and its raw events."""
    with kinetoscope.open(real_trace(name)) as trace:
        return {one.code: one for one in examine(trace).findings}, Plain(name)


@pytest.mark.parametrize("name", FIRST)
def test_a_real_trace_says_first_what_an_expert_would(name):
    assert list(real(name)[0])[: len(FIRST[name])] == FIRST[name]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("dlrm_8rank/rank-0", "main-process-loading"),
        ("h100_owlv2_stack_mem", "main-process-loading"),
        ("rtx2080ti_resnet", "input-wait"),
        ("v100_resnet50_mem", "main-process-loading"),
    ],
)
def test_waiting_for_data(name, code):
    found, plain = real(name)
    assert found[code].gain_ns == sum(plain.in_steps(plain.loading, plain.spans(plain.work)))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a100_nccl_rank3of8", "poor-overlap"),
        ("dlrm_8rank/rank-0", "exposed-communication"),
    ],
)
def test_exposed_communication(name, code):
    found, plain = real(name)
    communication = [one for one in plain.kernels if "nccl" in one["name"].lower()]
    exposed = plain.in_steps(plain.spans(communication), plain.spans(plain.computing))
    assert found[code].gain_ns == sum(exposed)


def test_time_without_launches():
    found, plain = real("dlrm_8rank/rank-0")
    short = [(begin, length) for _, begin, length, wait in plain.gaps if wait is None and length <= 100_000]
    assert found["launch-bound"].gain_ns == plain.usual(short)


def outermost(plain, call):
    """The outermost operator around a call of the loop's thread."""
    around = [one for one in plain.operators if one[0] <= call[0] and call[1] <= one[1]]
    return max(around, key=lambda one: one[1] - one[0], default=None)


@pytest.mark.parametrize("name", ["h100_owlv2_stack_mem", "rtx2080ti_resnet"])
def test_copies_of_pageable_memory(name):
    _, plain = real(name)
    copies = [one for one in plain.work if "Pageable" in one["name"]]
    kernels = plain.spans(plain.kernels)
    alone = [(start, sweep((start, end), [[(start, end)], kernels])) for start, end in plain.spans(copies)]
    # A wait for a copy takes no more than twice as long as its bytes may take.
    calls = {one["args"].get("correlation"): plain.span(one) for one in plain.of("cuda_runtime")}
    most = defaultdict(int)
    for one in copies:
        start, end = plain.span(one)
        operator = outermost(plain, calls[one["args"]["correlation"]])
        most[operator] += max(one["args"]["bytes"] // 2, end - start) + 25_000
    after = [
        (wait[0], length)
        for _, _, length, wait in plain.gaps
        if wait and wait[1] - wait[0] <= 2 * most.get(outermost(plain, wait), -1)
    ]
    assert by_rules(name)["pageable-copy"].gain_ns == plain.usual(alone + after)


@pytest.mark.parametrize("name", ["rtx2080ti_resnet", "v100_resnet50_mem"])
def test_products_beside_tensor_cores(name):
    found, plain = real(name)
    products = [
        one for one in plain.of("cpu_op") if re.search("conv|addmm|aten::mm|linear|matmul", one["name"])
    ]
    time_ns = plain.usual_duration(plain.launched_in(plain.kernels, products))
    # A few helpers of cuDNN compute nothing in 32 bits.
    assert found["tensor-cores-unused"].share_percent == pytest.approx(
        100 * time_ns / sum(last - first for first, last in plain.steps), rel=0.02
    )


def test_products_of_odd_sizes():
    found, plain = real("h100_owlv2_stack_mem")
    odd = [
        one
        for one in plain.of("cpu_op")
        if one["name"] in ("aten::bmm", "aten::addmm", "aten::mm")
        and one["args"]["Input type"][0] in IN_FLOAT16
        and any(
            size > 16 and size % 8
            for shape in one["args"]["Input Dims"]
            if len(shape) > 1
            for size in shape[-2:]
        )
    ]
    assert by_rules("h100_owlv2_stack_mem")["matmul-alignment"].gain_ns == plain.usual_duration(
        plain.launched_in(plain.work, odd)
    )
    # Attention by hand makes most of these products, and promises their time already.
    both = found["matmul-alignment"].gain_ns + found["unfused-attention"].gain_ns
    assert both <= plain.usual_duration(plain.work)


def test_attention_by_hand():
    found, plain = real("h100_owlv2_stack_mem")
    operators = sorted(plain.of("cpu_op"), key=plain.span)
    products = [one for one in operators if one["name"] == "aten::bmm"]
    layers = []
    for one in operators:
        if one["name"] == "aten::softmax":
            before = [other for other in products if other["ts"] < one["ts"]]
            after = [other for other in products if other["ts"] > one["ts"]]
            end = after[0]["ts"] + after[0]["dur"]
            layers.append({"tid": one["tid"], "ts": before[-1]["ts"], "dur": end - before[-1]["ts"]})
    time_ns = plain.usual_duration(plain.launched_in(plain.work, layers))
    # The device is hardly ever idle while these run.
    assert found["unfused-attention"].gain_ns == pytest.approx(time_ns, rel=0.01)


def test_short_kernels():
    found, plain = real("mi300_resnet_stack_rccl_rank0of8")
    short = [one for one in plain.computing if plain.span(one)[1] - plain.span(one)[0] < 10_000]
    assert by_rules("mi300_resnet_stack_rccl_rank0of8")["small-kernels"].gain_ns == plain.usual_duration(
        short
    )
    assert found["small-kernels"].gain_ns < plain.usual_duration(short)


def test_steps_end_with_the_device_work_that_the_host_issued_ahead():
    _, plain_trace = real("mi300_resnet_stack_rccl_rank0of8")
    with kinetoscope.open(real_trace("mi300_resnet_stack_rccl_rank0of8")) as trace:
        whole_ns = examine(trace).whole_ns
    calls = {one["args"]["correlation"]: plain_trace.span(one)[0] for one in plain_trace.of("cuda_runtime")}
    linked = [one for one in plain_trace.work if one["args"]["correlation"] in calls]
    first = min(plain_trace.span(one)[0] for one in linked)
    # What ran before had been launched before the recording began.
    begin = max(end for start, end in plain_trace.spans(plain_trace.work) if start < first and end <= first)
    done = max(end for _, end in plain_trace.spans(linked))
    assert whole_ns == pytest.approx(done - begin, rel=0.001)


def test_kernels_that_steps_launch_are_counted_whenever_they_run():
    found, plain_trace = real("mi300_resnet_stack_rccl_rank0of8")
    assert plain(found["small-kernels"].finding).startswith("742 kernels a step")
    calls = {one["args"]["correlation"] for one in plain_trace.of("cuda_runtime")}
    assert round(sum(one["args"]["correlation"] in calls for one in plain_trace.computing) / 3) == 742


def test_the_fastest_large_message_of_a_slow_group():
    found, plain_trace = real("mi300_resnet_stack_rccl_rank0of8")
    rates = [
        1.75 * args["In msg nelems"] * SIZES[args["dtype"]] / args_ns
        for one in plain_trace.kernels
        if (args := one["args"]).get("Collective name") == "allreduce"
        and (args_ns := plain_trace.span(one)[1] - plain_trace.span(one)[0])
    ]
    assert plain(found["slow-collectives"].finding).startswith(
        f"Collectives never exceed {max(rates):.1f} GB/s: all_reduce of 16.8 MiB"
    )


def test_gradients_that_are_filled():
    found, plain = real("v100_resnet50_mem")
    operators = plain.of("cpu_op", "user_annotation")
    around = plain.spans(one for one in operators if one["name"].startswith("Optimizer.zero_grad#"))
    fills = [
        one
        for one in operators
        if one["name"] == "aten::zero_" and any(first <= plain.span(one)[0] < last for first, last in around)
    ]
    work = plain.spans(plain.work)
    idle = [(start, sweep((start, end), [[(start, end)], work])) for start, end in plain.spans(fills)]
    launched = defaultdict(int)
    calls = {one["args"]["correlation"]: plain.span(one)[0] for one in plain.of("cuda_runtime")}
    for one in plain.launched_in(plain.work, fills):
        # What a fill launched counts for the step of the fill.
        launched[calls[one["args"]["correlation"]]] += plain.span(one)[1] - plain.span(one)[0]
    fill_ns = plain.usual([*idle, *launched.items()])
    assert found["zero-grad-fill"].gain_ns == 2 * fill_ns


def test_one_step_of_eight_ranks_does_not_say_who_is_late_again_and_again():
    with kinetoscope.merge(ranks_of_a_job()) as trace:
        assert "straggler-rank" not in [one.code for one in examine(trace).findings]


def test_a_block_of_16_mib_is_not_the_peak_of_a_device_that_holds_178_gib():
    findings = real("vllm_graph_capture_stack")[0]
    assert set(findings) == {"profiler-cost", "dominant-line"}
    cost = findings["profiler-cost"]
    # It has no steps, and torch.profiler has no python_calls.
    assert plain(cost.finding) == (
        "The profiler takes at least 17.1 % of recorded time: it records 126,829 events"
    )
    assert cost.advice.startswith("Record without with_stack=True")


def test_the_blocks_of_a_whole_model_are_not_those_of_the_line_that_calls_it():
    assert "memory-peak" not in real("v100_resnet50_mem")[0]
