"""Small training loops on a simulated device, as traces that a test builds, each with one planted bottleneck that can be left out.

The host launches kernels in its own time, the device runs them in order, and a launch waits where the device is far behind: a clean
loop keeps the device busy all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kinetoscope
from kinetoscope.model.schema import STORED
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder

US, MS = 1_000, 1_000_000
GIB = 1 << 30
PLANTED: dict[str, Callable[[bool], Trace]] = {}
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 80 * GIB, "computeMajor": 8}
V100 = {"id": 0, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 32 * GIB, "computeMajor": 7}
TENSOR_CORES = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn"
LEAD_NS = 2 * MS


def planted(code: str) -> Callable[[Any], Any]:
    """Register a trace under the code of the finding that must name its fault."""

    def register(make: Any) -> Any:
        PLANTED[f"{code}:{make.__name__}"] = make
        return make

    return register


class Gpu:
    """A program of one process and its device, on a clock for each."""

    def __init__(self, properties: dict[str, Any] | None = None, *, rank: int = -1, ranks: int = 1) -> None:
        properties = properties or A100
        self.builder = TraceBuilder().know("deviceProperties", [properties])
        self.builder.know("devices", [{"type": "cuda", "index": 0, "name": properties["name"]}])
        if rank >= 0:
            self.builder.know("distributedInfo", {"rank": rank, "world_size": ranks, "backend": "nccl"})
        self.main = self.builder.thread()
        self.compute = self.builder.stream(7)
        self.communication = self.builder.stream(20)
        self.host_ns = self.step_ns = 0
        self.free_ns = [0, 0]
        self.number = self.correlation = 0

    def step(self) -> None:
        """Ends a step."""
        self.builder.step(self.number, self.step_ns, self.host_ns - self.step_ns)
        self.number, self.step_ns = self.number + 1, self.host_ns

    def python(self, time_ns: int) -> None:
        """Runs Python."""
        self.host_ns += time_ns

    def launch(
        self,
        kernel: str,
        time_ns: int,
        operator: str = "aten::mm",
        *,
        dims: Any = None,
        dtype: str = "c10::BFloat16",
        line: int = 10,
        function: str = "train",
        cost_ns: int = 10 * US,
        blocks_per_sm: float = 8.0,
        stream: int = 0,
        bytes_: int = -1,
        facts: dict[str, Any] | None = None,
    ) -> None:
        """Calls an operator that launches a kernel or copies memory; waits first where the device is far behind."""
        started = self.host_ns
        self.host_ns = max(self.host_ns, self.free_ns[stream] - LEAD_NS)
        call_ns, self.host_ns = self.host_ns, self.host_ns + cost_ns
        begin = max(self.host_ns, self.free_ns[stream])
        self.free_ns[stream] = begin + time_ns
        self.correlation += 1
        builder, end = self.builder, self.host_ns
        shapes = -1 if dims is None else builder.shapes(dims, [dtype] * len(dims))
        stack = builder.stack(("train.py", line, function))
        builder.span(operator, started, end - started, shapes=shapes, stack=stack, facts=facts)
        called = "cudaMemcpyAsync" if bytes_ >= 0 else "cudaLaunchKernel"
        builder.runtime(called, call_ns, max(1, cost_ns - 2 * US), correlation=self.correlation)
        on = {"stream": stream, "correlation": self.correlation}
        if bytes_ >= 0:
            builder.copy(kernel, begin, time_ns, size_bytes=bytes_, **on)
        else:
            launch = {"blocks_per_sm": blocks_per_sm}
            builder.kernel(
                kernel,
                begin,
                time_ns,
                grid=(int(108 * blocks_per_sm) or 1, 1, 1),
                block=(256, 1, 1),
                launch=launch,
                **on,
            )

    def wait(
        self, operator: str = "", *, call: str = "cudaStreamSynchronize", line: int = 20, stream: int = 0
    ) -> None:
        """Waits until the device is done."""
        start, self.host_ns = self.host_ns, max(self.host_ns, self.free_ns[stream]) + 5 * US
        stack = self.builder.stack(("train.py", line, "train"))
        if operator:
            self.builder.span(operator, start, self.host_ns - start, stack=stack)
        self.builder.runtime(call, start, self.host_ns - start, stack=stack)

    def read(self, size_bytes: int, *, line: int = 20) -> None:
        """Copies a tensor to pageable memory, which waits for all that was launched before."""
        start, begin = self.host_ns, max(self.host_ns, self.free_ns[0])
        self.correlation += 1
        self.free_ns[0], self.host_ns = begin + 2 * US, begin + 10 * US
        stack = self.builder.stack(("train.py", line, "train"))
        self.builder.span("aten::to", start, self.host_ns - start, stack=stack)
        on = {"correlation": self.correlation}
        self.builder.runtime("cudaMemcpyAsync", start + 1 * US, self.host_ns - start - 2 * US, **on)
        self.builder.copy("Memcpy DtoH (Device -> Pageable)", begin, 2 * US, size_bytes=size_bytes, **on)

    def work(
        self,
        *,
        kernels: int = 12,
        time_ns: int = 500 * US,
        product: str = TENSOR_CORES,
        dtype: str = "c10::BFloat16",
    ) -> None:
        """Launches matrix products near the device's peak, with another kernel after each two."""
        size = 2048 if dtype == "float" else 4096
        for number in range(kernels):
            if number % 3 == 2:
                self.launch(
                    "softmax_forward",
                    time_ns // 2,
                    "aten::_softmax",
                    dims=[[size, size]],
                    dtype=dtype,
                    line=11,
                )
            else:
                self.launch(product, time_ns, dims=[[size, size], [size, size]], dtype=dtype)

    def build(self) -> Trace:
        """Builds the trace."""
        return self.builder.build()


def loop(body: Callable[[Gpu, int], None], steps: int = 8, **more: Any) -> Trace:
    """The trace of a loop whose steps run `body`."""
    gpu = Gpu(**more)
    for number in range(steps):
        body(gpu, number)
        gpu.step()
    return gpu.build()


@planted("device-idle")
def python_between_steps(fault: bool) -> Trace:
    def body(gpu: Gpu, _step: int) -> None:
        gpu.work()
        if fault:
            # Code that no profiler sees, between operators of many functions.
            for number in range(60):
                gpu.launch("tiny", 20 * US, "aten::cumsum", line=30 + number, function=f"part{number}")
                gpu.python(150 * US)

    return loop(body)


@planted("launch-bound")
def hundreds_of_short_kernels(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        for one in range(200):
            gpu.launch(f"layer{one % 6}", (4 if fault else 40) * US, "aten::cumsum", line=10 + one)

    return loop(body)


@planted("small-kernels")
def short_kernels_from_a_graph(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        for one in range(300):
            gpu.launch(f"layer{one % 6}", (6 if fault else 60) * US, "aten::cumsum", cost_ns=3 * US)

    return loop(body)


@planted("synchronizing-call")
def a_synchronize_after_each_layer(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        for _ in range(6):
            gpu.work(kernels=3, time_ns=300 * US)
            if fault:
                gpu.wait(call="cudaDeviceSynchronize")
                gpu.python(80 * US)

    return loop(body)


@planted("synchronizing-call")
def a_value_that_decides(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        for _ in range(6):
            gpu.work(kernels=3, time_ns=300 * US)
            if fault:
                gpu.wait("aten::nonzero")
                gpu.python(80 * US)

    return loop(body)


@planted("host-device-copies")
def outputs_are_fetched(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        gpu.work(kernels=6)
        if fault:
            gpu.launch("Memcpy DtoH (Device -> Pinned)", 400 * US, "aten::copy_", bytes_=1 << 22, line=40)
            gpu.wait("aten::copy_", line=40)

    return loop(body)


@planted("pageable-copy")
def batches_from_pageable_memory(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        gpu.launch(
            f"Memcpy HtoD ({'Pageable' if fault else 'Pinned'} -> Device)",
            1 * MS if fault else 50 * US,
            "aten::copy_",
            bytes_=1 << 24,
        )
        gpu.work()

    return loop(body)


@planted("synchronizing-call")
def a_few_bytes_that_wait_for_all_that_ran_before(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        gpu.work()
        if fault:
            gpu.read(8)
            gpu.python(1 * MS)

    return loop(body)


@planted("stalled-queue")
def streams_that_wait_for_each_other(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        gpu.work()
        if fault:
            gpu.free_ns[0] += LEAD_NS

    return loop(body)


@planted("device-start-up")
def kernels_that_are_loaded_at_their_first_use(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        if fault and number == 0:
            start, gpu.host_ns = gpu.host_ns, gpu.host_ns + 40 * MS
            gpu.builder.runtime("cudaLaunchKernel", start, 40 * MS)
        gpu.work()

    return loop(body)


@planted("dominant-kernel")
def one_slow_kernel(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        for one in range(12):
            name = "scatter" if fault and one < 6 else f"layer{one}"
            gpu.launch(name, 500 * US, "aten::scatter_add_", line=50)

    return loop(body)


@planted("low-occupancy")
def a_grid_of_few_blocks(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        for one in range(12):
            gpu.launch(
                f"layer{one}", 500 * US, "aten::cumsum", blocks_per_sm=0.1 if fault and one % 4 == 0 else 4.0
            )

    return loop(body)


@planted("kernel-variance")
def a_kernel_that_is_now_and_then_slow(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        for one in range(20):
            slow = fault and one == 3
            gpu.launch(f"layer{one % 5}", 3 * MS if slow else 200 * US, "aten::cumsum")

    return loop(body)


@planted("memory-bound-elementwise")
def an_activation_in_many_parts(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        for one in range(6):
            for part in range(4):
                operator = "aten::mul" if fault else "aten::cumsum"
                gpu.launch(f"elementwise{(4 * one + part) % 8}", 200 * US, operator, line=60)
            gpu.launch(f"layer{one % 3}", 300 * US, "aten::cumsum")

    return loop(body)


@planted("tensor-cores-unused")
def training_in_float32(fault: bool) -> Trace:
    product = "volta_sgemm_128x64_nt" if fault else "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn"
    return loop(
        lambda gpu, number: gpu.work(
            product=product, dtype="float" if fault else "c10::Half", time_ns=1250 * US
        ),
        properties=V100,
    )


@planted("tf32-off")
def float32_without_tf32(fault: bool) -> Trace:
    product = "ampere_sgemm_128x64_tn" if fault else "ampere_s1688gemm_tf32_128x128_tn"
    return loop(lambda gpu, number: gpu.work(product=product, dtype="float"))


@planted("matmul-alignment")
def a_vocabulary_of_odd_size(fault: bool) -> Trace:
    size = 5185 if fault else 5184
    dims = [[4096, 4096], [4096, size]]

    def body(gpu: Gpu, number: int) -> None:
        for _ in range(12):
            gpu.launch(TENSOR_CORES, 900 * US, dims=dims)

    return loop(body)


@planted("below-roofline")
def products_of_thin_matrices(fault: bool) -> Trace:
    # 2 * 4096^3 operations take 440 us at the peak of an A100.
    def body(gpu: Gpu, number: int) -> None:
        for one in range(12):
            gpu.launch(
                f"{TENSOR_CORES}{one % 6}", (3_000 if fault else 600) * US, dims=[[4096, 4096], [4096, 4096]]
            )

    return loop(body)


def all_reduce(gpu: Gpu, time_ns: int, megabytes: float = 64.0, size: int = 8) -> None:
    """An all-reduce on the stream of the communication."""
    elements = int(megabytes * (1 << 20)) // 4
    argument = [elements, 4, "float"]
    facts = {"call": "allreduce", "group": "0", "size": size, "rank": 0, "arguments": [argument]}
    gpu.launch(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        time_ns,
        "c10d::allreduce_",
        stream=1,
        line=70,
        facts=facts,
        cost_ns=5 * US,
    )


@planted("exposed-communication")
def gradients_that_take_longer_than_the_model(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        all_reduce(gpu, 9 * MS if fault else 2 * MS)
        gpu.work()
        if fault:
            gpu.free_ns[0] = max(gpu.free_ns)

    return loop(body)


@planted("slow-collectives")
def gradients_through_the_memory_of_the_host(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        gpu.work()
        gpu.free_ns[1] = max(gpu.free_ns)
        # 16 MiB at 2.1 GB/s; of eight ranks each sends 1.75 times as much.
        all_reduce(gpu, 8 * MS if fault else 100 * US, megabytes=16.0)
        gpu.free_ns[0] = max(gpu.free_ns)

    return loop(body)


@planted("poor-overlap")
def gradients_after_the_backward(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        if not fault:
            all_reduce(gpu, 2 * MS)
        gpu.work()
        if fault:
            gpu.free_ns[1] = max(gpu.free_ns)
            all_reduce(gpu, 2 * MS)
            gpu.free_ns[0] = max(gpu.free_ns)

    return loop(body)


@planted("repeated-all-reduce")
def no_accumulation_without_communication(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        for micro in range(4):
            sequence = 4 * number + micro
            gpu.builder.span("aten::mm", gpu.host_ns, 50 * US, sequence=sequence)
            gpu.host_ns += 60 * US
            start = gpu.host_ns
            gpu.work(kernels=2)
            if fault or micro == 3:
                all_reduce(gpu, 900 * US)
                gpu.free_ns[0] = gpu.free_ns[1] = max(gpu.free_ns)
            gpu.host_ns += 10 * US
            gpu.builder.backward("MmBackward0", start - 5 * US, gpu.host_ns - start, sequence=sequence)
        gpu.builder.annotation("Optimizer.step#SGD.step", gpu.host_ns, 20 * US)
        gpu.host_ns += 30 * US

    return loop(body)


@planted("small-collectives")
def a_collective_for_each_parameter(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        gpu.work()
        gpu.free_ns[1] = max(gpu.free_ns)
        for _ in range(40 if fault else 0):
            all_reduce(gpu, 40 * US, megabytes=0.01)
        gpu.free_ns[0] = max(gpu.free_ns)

    return loop(body)


def ranks_of_a_job(work_ns: Callable[[int], int], late_ns: Callable[[int], int], ranks: int = 4) -> Trace:
    """Ranks that compute for some time, launch late by some time, and meet in an all-reduce at the end of each step."""
    gpus = [Gpu(rank=rank, ranks=ranks) for rank in range(ranks)]
    for _ in range(8):
        for rank, gpu in enumerate(gpus):
            gpu.python(late_ns(rank))
            gpu.work(kernels=3, time_ns=work_ns(rank))
            gpu.free_ns[1] = max(gpu.free_ns)
        last_ns = max(gpu.free_ns[1] for gpu in gpus) + 60 * US
        for gpu in gpus:
            gpu.host_ns = max(gpu.host_ns, gpu.free_ns[1] - LEAD_NS) + 1
            all_reduce(gpu, last_ns - max(gpu.host_ns + 5 * US, gpu.free_ns[1]), size=ranks)
            gpu.free_ns[0] = gpu.free_ns[1]
            gpu.host_ns = last_ns
            gpu.step()
    return kinetoscope.merge([gpu.build() for gpu in gpus])


@planted("straggler-rank")
def one_rank_logs(fault: bool) -> Trace:
    return ranks_of_a_job(lambda rank: 1 * MS, lambda rank: 900 * US if fault and rank == 2 else 0)


@planted("unbalanced-ranks")
def one_rank_has_longer_sequences(fault: bool) -> Trace:
    return ranks_of_a_job(lambda rank: 2 * MS if fault and rank == 1 else 1 * MS, lambda rank: 0)


@planted("allocator-churn")
def the_cache_is_emptied(fault: bool) -> Trace:
    def body(gpu: Gpu, number: int) -> None:
        gpu.work()
        if fault or number == 0:
            for name in ("cudaFree", "cudaMalloc"):
                # Freeing waits until the device is done, which has nothing to do from then on.
                end_ns = max(gpu.host_ns, *gpu.free_ns) + 200 * US
                gpu.builder.runtime(name, gpu.host_ns, end_ns - gpu.host_ns)
                gpu.host_ns = end_ns

    return loop(body)


def with_memory(allocated: int, reserved: int) -> Trace:
    """A clean loop whose allocator counts so much."""
    gpu = Gpu()
    for number in range(8):
        gpu.builder.allocate(gpu.host_ns, 4096 + number, 512, device=(1, 0))
        gpu.work()
        gpu.builder.free(gpu.host_ns, 4096 + number, device=(1, 0))
        gpu.step()
    trace = gpu.build()
    columns = {
        name: {column: trace.columns(name)[column] for column in trace.columns(name).given} for name in STORED
    }
    count = len(trace.columns("allocations"))
    columns["allocations"] |= {"allocated_bytes": [allocated] * count, "reserved_bytes": [reserved] * count}
    return Trace.from_columns(columns, strings=trace.strings, info=dict(trace.info))


@planted("fragmentation")
def sizes_that_differ(fault: bool) -> Trace:
    return with_memory(20 * GIB, (60 if fault else 24) * GIB)


@planted("memory-near-limit")
def a_batch_that_barely_fits(fault: bool) -> Trace:
    return with_memory((76 if fault else 40) * GIB, 78 * GIB if fault else 42 * GIB)
