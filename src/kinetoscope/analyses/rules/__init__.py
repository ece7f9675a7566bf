"""The rules for findings: one module for each kind of fault, with its thresholds and their source."""

from kinetoscope.analyses.rules.anomaly_detection import anomaly_detection
from kinetoscope.analyses.rules.autograd_in_inference import autograd_in_inference
from kinetoscope.analyses.rules.communication import (
    exposed_communication,
    poor_overlap,
    slow_collectives,
    small_collectives,
)
from kinetoscope.analyses.rules.compiled import graph_breaks, recompile_limit, recompiles
from kinetoscope.analyses.rules.conversions import dtype_conversion, layout_copy
from kinetoscope.analyses.rules.device_copies import host_device_copies, pageable_copy
from kinetoscope.analyses.rules.device_idle import (
    device_idle,
    device_start_up,
    launch_bound,
    stalled_queue,
    synchronizing_call,
)
from kinetoscope.analyses.rules.device_memory import allocator_churn, fragmentation, memory_near_limit
from kinetoscope.analyses.rules.evaluation_in_step import evaluation_in_step
from kinetoscope.analyses.rules.garbage_collection import gc_pause
from kinetoscope.analyses.rules.gil_contention import gil_contention
from kinetoscope.analyses.rules.incomplete_trace import incomplete_trace
from kinetoscope.analyses.rules.input_wait import input_wait
from kinetoscope.analyses.rules.kernels import (
    dominant_kernel,
    kernel_variance,
    low_occupancy,
    memory_bound_elementwise,
    small_kernels,
)
from kinetoscope.analyses.rules.matrix_products import (
    below_roofline,
    double_precision,
    half_precision,
    matmul_alignment,
    tensor_cores_unused,
    tf32_off,
)
from kinetoscope.analyses.rules.memory_growth import memory_growth
from kinetoscope.analyses.rules.memory_peak import memory_peak
from kinetoscope.analyses.rules.optimizer_rebuilt import optimizer_rebuilt
from kinetoscope.analyses.rules.output_in_step import output_in_step
from kinetoscope.analyses.rules.processor_wait import processor_wait
from kinetoscope.analyses.rules.profiler_cost import profiler_cost
from kinetoscope.analyses.rules.python_bound import python_bound
from kinetoscope.analyses.rules.ranks import straggler_rank, unbalanced_ranks
from kinetoscope.analyses.rules.recomputation_cost import recomputation_cost
from kinetoscope.analyses.rules.repeated_all_reduce import repeated_all_reduce
from kinetoscope.analyses.rules.repeated_backward import repeated_backward
from kinetoscope.analyses.rules.requests import event_loop_busy, executor_wait, slow_requests
from kinetoscope.analyses.rules.scalar_read import scalar_read
from kinetoscope.analyses.rules.single_tensor_optimizer import single_tensor_optimizer
from kinetoscope.analyses.rules.slowing_steps import slowing_steps
from kinetoscope.analyses.rules.step_outlier import first_step, step_outlier
from kinetoscope.analyses.rules.thread_oversubscription import thread_oversubscription
from kinetoscope.analyses.rules.tiny_operators import tiny_operators
from kinetoscope.analyses.rules.unfused_layers import unfused_attention, unfused_normalization
from kinetoscope.analyses.rules.zero_grad_fill import zero_grad_fill

RULES = (
    allocator_churn,
    anomaly_detection,
    autograd_in_inference,
    below_roofline,
    device_idle,
    device_start_up,
    dominant_kernel,
    double_precision,
    dtype_conversion,
    evaluation_in_step,
    exposed_communication,
    first_step,
    fragmentation,
    gc_pause,
    gil_contention,
    graph_breaks,
    half_precision,
    host_device_copies,
    incomplete_trace,
    input_wait,
    kernel_variance,
    launch_bound,
    layout_copy,
    low_occupancy,
    matmul_alignment,
    memory_bound_elementwise,
    memory_growth,
    memory_near_limit,
    memory_peak,
    optimizer_rebuilt,
    output_in_step,
    pageable_copy,
    poor_overlap,
    processor_wait,
    profiler_cost,
    python_bound,
    recompile_limit,
    recompiles,
    recomputation_cost,
    repeated_all_reduce,
    repeated_backward,
    scalar_read,
    single_tensor_optimizer,
    slow_collectives,
    slowing_steps,
    small_collectives,
    small_kernels,
    stalled_queue,
    step_outlier,
    straggler_rank,
    synchronizing_call,
    tensor_cores_unused,
    tf32_off,
    thread_oversubscription,
    tiny_operators,
    unbalanced_ranks,
    unfused_attention,
    unfused_normalization,
    zero_grad_fill,
)
RULES_OF_REQUESTS = (event_loop_busy, executor_wait, slow_requests)
"""Those for requests where a trace has no steps."""

_LOADING = ("input-wait", "main-process-loading")
_HOST = ("output-in-step", "python-bound", "scalar-read", "single-tensor-optimizer", "tiny-operators")
_KERNELS = (
    "below-roofline", "kernel-variance", "low-occupancy", "matmul-alignment", "memory-bound-elementwise", "small-kernels",
    "tensor-cores-unused", "tf32-off", "unfused-attention", "unfused-normalization",
)  # fmt: skip

CAUSES: dict[str, tuple[str, ...]] = {
    "below-roofline": (
        "low-occupancy",
        "matmul-alignment",
        "tensor-cores-unused",
        "tf32-off",
        "unfused-attention",
    ),
    "device-idle": (
        *_LOADING,
        *_HOST,
        "device-start-up",
        "host-device-copies",
        "launch-bound",
        "pageable-copy",
        "synchronizing-call",
    ),
    "dominant-kernel": _KERNELS,
    "first-step": ("device-start-up", "recompile-limit"),
    "exposed-communication": (
        "repeated-all-reduce",
        "slow-collectives",
        "small-collectives",
        "straggler-rank",
        "unbalanced-ranks",
    ),
    "host-device-copies": ("pageable-copy",),
    "launch-bound": _HOST,
    "low-occupancy": ("launch-bound",),
    "memory-bound-elementwise": ("unfused-attention", "unfused-normalization"),
    "poor-overlap": (
        "repeated-all-reduce",
        "slow-collectives",
        "small-collectives",
        "straggler-rank",
        "unbalanced-ranks",
    ),
    "python-bound": ("gc-pause", "gil-contention", "input-wait", "optimizer-rebuilt", "output-in-step"),
    "small-kernels": ("launch-bound", "single-tensor-optimizer", "tiny-operators"),
    "step-outlier": ("first-step", "gc-pause", "input-wait", "output-in-step", "recompiles", "slowing-steps"),
    "straggler-rank": ("unbalanced-ranks",),
    "recompiles": ("recompile-limit",),
    "scalar-read": ("output-in-step",),
    "synchronizing-call": ("allocator-churn", "output-in-step", "scalar-read"),
    "tiny-operators": ("scalar-read",),
}
"""Findings that say with other words what these, which name its cause, say: they are left out where those explain half of their gain."""

__all__ = ["communication", "ranks"]
