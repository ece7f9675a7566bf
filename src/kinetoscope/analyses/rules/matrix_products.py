"""Matrix products: with convolutions and attention, slower than the machine could compute them."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from kinetoscope.analyses.finding import NotNeeded, Signal
from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.loop_device import LoopDevice
from kinetoscope.analyses.rule import Answer, Match, Rule, longest
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows, ShapesRow
from kinetoscope.model.schema import Phase
from kinetoscope.model.time_spent import Cause
from kinetoscope.tables.costs.attainable import least_call_ns, rates_of
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.evaluate import parsed_inputs
from kinetoscope.tables.costs.peaks import MATRIX, at_peak, known_peaks, trace_peaks, working_ns
from kinetoscope.tables.deep_steps import shapes_of
from kinetoscope.tables.device.kernels import uses_tensor_cores

LEAST_PRODUCTS_PERCENT = 10.0
FAR_PERCENT = 30.0
WRONG_PERCENT = 110.0
ALIGNED = 8
TIMES_FLOAT32 = 3.0
"""Products in 16 bits that take less than so many times what they would take in 32 may be worth their smaller memory."""
SMALLEST = 16
"""Smaller sizes are not what tensor cores are for."""
TENSOR_CORE_SPEED = 8
"""Tensor cores of these generations compute so many times what the other units compute, by NVIDIA's data sheets."""
# How cuBLAS, cuDNN and CUTLASS name kernels that multiply numbers of 32 bits without tensor cores.
_IN_FLOAT32 = re.compile(
    r"(?!.*(?:tf32|s1688|tensorop))(?:.*(?:sgemm|scudnn|ffma|simt|f32f32_f32f32)|.*(?:cudnn|conv|grad|winograd|fft).*<float)",
    re.IGNORECASE,
)


@Rule(
    "tensor-cores-unused",
    "Matrix products and convolutions take {share} of {time}, and none uses the tensor cores",
    "Train in mixed precision: torch.autocast with float16 and a GradScaler.",
    finds="no matrix product uses tensor cores, on devices without TF32",
    source="PyTorch's former TensorBoard plugin (eligible operators, compute capability 7 and above)",
    least=LEAST_PRODUCTS_PERCENT,
    least_gain=5.0,
    explains=("below-roofline", "dominant-kernel"),
).selects_on
def tensor_cores_unused(loop: Loop, device: LoopDevice) -> Answer:
    """Products that all run beside the tensor cores of a device that has no TF32."""
    return _beside_tensor_cores(loop, device, with_tf32=False)


@Rule(
    "tf32-off",
    "Matrix products and convolutions in float32 without TF32 take {share} of {time}",
    'Call torch.set_float32_matmul_precision("high"), or use torch.autocast with bfloat16.',
    finds="products of float32 do not use TF32",
    source="torch's former pattern matcher (float32 products where TF32 could serve)",
    least=LEAST_PRODUCTS_PERCENT,
    least_gain=5.0,
    explains=("below-roofline", "dominant-kernel"),
).selects_on
def tf32_off(loop: Loop, device: LoopDevice) -> Answer:
    """Products of float32 that do not use the tensor cores of a device that has TF32."""
    return _beside_tensor_cores(loop, device, with_tf32=True)


def _beside_tensor_cores(loop: Loop, device: LoopDevice, *, with_tf32: bool) -> Match | None:
    """Products in 32 bits on units that are slower than tensor cores, on devices with or without TF32."""
    properties = device.properties
    if properties is None or not re.match(r"(NVIDIA|Tesla|GeForce|Quadro)\b", properties.name):
        return None
    generation = properties.compute_major or 0
    if generation < 7 or (generation >= 8) != with_tf32 or "GTX" in properties.name:
        return None
    rows, spans, strings = device.products, loop.trace.columns("spans"), loop.trace.strings
    names = spans["name"][rows]
    used = np.unique(names).tolist()
    rows = rows[np.isin(names, [name for name in used if _IN_FLOAT32.match(strings[name])])]
    if not with_tf32 and any(uses_tensor_cores(strings[name]) for name in used):
        return None
    peaks = known_peaks(properties.name) or {}
    plain, fast = peaks.get("float32", 1.0), peaks.get("tf32" if with_tf32 else "float16", TENSOR_CORE_SPEED)
    time_ns = loop.typical_ns(rows)
    gain_ns = int(time_ns * max(0.0, 1.0 - plain / fast))
    return Match(rows, time_ns, gain_ns=gain_ns, module="", spans=longest(loop, rows), time=loop.when(rows))


@Rule(
    "matmul-alignment",
    "Matrix products in 16 bits with sizes that are no multiple of {aligned} ({sizes}{at}) take {share} of {time}",
    f"Pad these sizes to a multiple of {ALIGNED} (of 64 for the fastest kernels): sequence lengths, vocabularies, channels.",
    finds=f"products in 16 bits with sizes that are no multiple of {ALIGNED}",
    source="torch's former pattern matcher",
    least=2.0,
    needs=Signal.SHAPES,
    explains=("below-roofline", "dominant-kernel"),
).selects_on
def matmul_alignment(loop: Loop, device: LoopDevice) -> Answer:
    """Products in 16 bits with sizes for which tensor cores have only slow kernels."""
    if loop.share(loop.typical_ns(device.products)) < LEAST_PRODUCTS_PERCENT:
        return None
    if len(loop.trace.columns("shapes")) == 0:
        return Signal.SHAPES
    calls, spans = costs_of(loop.trace).calls, loop.trace.columns("spans")
    of_device = np.unique(calls.of_span[np.flatnonzero(spans["device_ns"] > 0)])
    narrow = np.intersect1d(of_device, _products(loop, ("matmul",), ("float16", "bfloat16"))).tolist()
    odd = {
        call: sizes
        for call in narrow
        if (sizes := _unaligned(loop, int(shapes_of(loop.trace)[calls.first[call]])))
    }
    rows = np.flatnonzero(np.isin(calls.of_span, list(odd)) & costs_of(loop.trace).counted.counts)
    rows = rows[loop.in_steps(rows)]
    if len(rows) == 0:
        return None
    rows = rows[np.argsort(-spans["device_ns"][rows], kind="stable")]
    words = {"aligned": ALIGNED, "sizes": ", ".join(map(str, odd[int(calls.of_span[rows[0]])]))}
    line, module = loop.place_of(int(rows[0])), loop.module_of(int(rows[0]))
    time_ns, when = loop.typical_sum(rows, spans["device_ns"][rows]), loop.when(rows)
    return Match(rows, time_ns, words, place=line, module=module, spans=rows, time=when)


def _unaligned(loop: Loop, shapes: int) -> list[int]:
    """The sizes of some inputs, as a row of `shapes`, that are no multiple of what tensor cores have fast kernels for."""
    inputs = parsed_inputs(loop.trace, ShapesRow(shapes))
    matrices = [
        shape for shape in (inputs.shapes if inputs else []) if isinstance(shape, tuple) and len(shape) > 1
    ]
    sizes = {size for shape in matrices for size in shape[-2:]}
    return sorted(size for size in sizes if size > SMALLEST and size % ALIGNED)


def _products(loop: Loop, families: Collection[str], types: tuple[str, ...]) -> Rows:
    """The calls, as rows of costs, of some families that compute in some types."""
    calls = costs_of(loop.trace).calls
    pairs = zip(calls.family, calls.dtype, strict=True)
    return np.flatnonzero([family in families and dtype in types for family, dtype in pairs])


# oneDNN has none in 64 bits: 5 to 7 times as slow as in 32 bits, measured in a small U-Net.
_CONVOLUTION = ("convolution",)


@Rule(
    "double-precision",
    "Matrix products in 64 bits{most} take {share} of {time}",
    (
        "Use float32: NumPy's arrays are float64 until .float() or astype(numpy.float32), and torch.set_default_dtype and model.double() make parameters "
        "so."
    ),
    finds="matrix products compute in 64 bits; needs `record_shapes=True` or `kinetoscope run`",
    source="no public threshold",
    least=LEAST_PRODUCTS_PERCENT,
    cause=Cause.DOUBLE,
).selects
def double_precision(loop: Loop) -> Answer:
    """Products in 64 bits, which models seldom need. Without shapes nothing is said: most programs have none."""
    rows = _product_rows(loop, ("float64",))
    if len(rows) == 0:
        return None
    time_ns, forward = loop.cost_ns(rows), rows[loop.trace.column("spans", "phase")[rows] == Phase.FORWARD]
    # A whole network is of that type because of its inputs or its parameters.
    call = loop.place_of_stack(loop.common_stack(forward))
    line = call if call and call.function != "<module>" else loop.by_place(rows)[0][0]
    # Twice as many bytes, and half as many numbers in a register; on most devices far less.
    gain_ns = time_ns
    if loop.device is None:
        convolutions = _product_rows(loop, ("float64",), _CONVOLUTION)
        gain_ns = time_ns // 2 + loop.cost_ns(convolutions) // 4
    words = {"most": f", most at {line}," if line else ""}
    left_out = NotNeeded(rows, gain_ns / max(time_ns, 1), calls=False)
    return Match(rows, time_ns, words, gain_ns=gain_ns, place=line, left_out=left_out, time=loop.when(rows))


@Rule(
    "half-precision",
    "Matrix products in {dtype} on the processor{most} take {share} of {time}, far more than in float32",
    (
        "Use float32 on this processor, or bfloat16 where it has instructions for it (lscpu: avx512_bf16, amx_bf16): it converts other numbers of 16 bits one by "
        "one."
    ),
    finds=(
        "matrix products in 16 bits on a processor that computes them slower than in 32; needs `record_shapes=True` or `kinetoscope run`. `kinetoscope calibrate` measures the speed of float32; "
        "without it a cautious default is used and fewer cases are reported. Its gain is a prediction"
    ),
    source="what fewer bytes may be worth",
    also=f"{TIMES_FLOAT32:g} times float32",
    least_gain=LEAST_PRODUCTS_PERCENT,
    is_predicted=True,
).selects
def half_precision(loop: Loop) -> Answer:
    """Products in 16 bits on the host: processors without units for them convert each number."""
    rows = _product_rows(loop, ("float16", "bfloat16"))
    if loop.device is not None or len(rows) == 0:
        return None
    calls = costs_of(loop.trace).calls
    least_ns = least_call_ns(loop.trace)[calls.of_span[rows]] + rates_of(loop.trace).call_ns
    lost = np.maximum(loop.trace.column("spans", "duration_ns")[rows] - least_ns, 0).astype(np.int64)
    gain_ns, time_ns = loop.typical_sum(rows, lost), loop.cost_ns(rows)
    if time_ns < TIMES_FLOAT32 * (time_ns - gain_ns):
        return None
    line, _, most = loop.by_place(rows)[0]
    words = {
        "dtype": calls.dtype[int(calls.of_span[most[0]])],
        "most": f", most at {line}," if line else "",
    }
    return Match(rows, time_ns, words, gain_ns=gain_ns, place=line, time=loop.when(rows))


def _product_rows(loop: Loop, types: tuple[str, ...], families: Collection[str] = MATRIX) -> Rows:
    """The operators of the steps that multiply matrices in some types, of some families; none without shapes."""
    if len(loop.trace.columns("shapes")) == 0:
        return np.zeros(0, np.int64)
    costs = costs_of(loop.trace)
    is_product = np.isin(costs.calls.of_span, _products(loop, families, types))
    return np.flatnonzero(is_product & costs.counted.counts & loop.inside)


@Rule(
    "below-roofline",
    "Matrix products far below the peak of {device} take {share} of {time}; {operator}{at} reaches {percent:%} of it",
    "Make them larger or put them together, use types and sizes of which tensor cores have fast kernels, and avoid transposed copies.",
    finds=f"products below {FAR_PERCENT:g}% of the device's peak; needs `record_shapes=True` or `kinetoscope run` and a [known peak](flops.md)",
    source="TraceLens (above 110 % the model is wrong)",
    least_gain=5.0,
    explains=("dominant-kernel",),
).selects_on
def below_roofline(loop: Loop, device: LoopDevice) -> Answer:
    """Products that reach little of the device's peak, and take much longer than they would at it."""
    trace, spans = loop.trace, loop.trace.columns("spans")
    if loop.share(loop.typical_ns(device.products)) < LEAST_PRODUCTS_PERCENT:
        return None
    if len(trace.columns("shapes")) == 0:
        return Signal.SHAPES
    costs, peaks = costs_of(trace), trace_peaks(trace)
    ideal_s = at_peak(trace, costs)
    if ideal_s is None or peaks is None:
        return None
    # The peak is that of all devices together; a call runs on one of them.
    ideal_ns, time_ns = np.nan_to_num(ideal_s) * 1e9 * len(peaks), working_ns(trace)
    rows = np.flatnonzero((ideal_ns > 0) & (spans["device_ns"] > 0))
    rows = rows[loop.in_steps(rows)]
    calls = Groups.by([costs.calls.of_span[rows]])
    reached = 100.0 * calls.sums(ideal_ns[rows]) / np.maximum(1.0, calls.sums(time_ns[rows]))
    low = rows[reached[calls.of_row] < FAR_PERCENT]
    # Above the peak some product is computed in another type than the trace says, such as TF32.
    is_known = len(low) > 0 and reached.max() <= WRONG_PERCENT
    return _far_below(loop, low, ideal_ns, time_ns) if is_known else None


def _far_below(loop: Loop, low: Rows, ideal_ns: NDArray[np.float64], time_ns: Rows) -> Match:
    """The match of products that reach little of the peak, by what each span would take at it, and what it takes."""
    trace, costs, spans = loop.trace, costs_of(loop.trace), loop.trace.columns("spans")
    lost_ns = (time_ns[low] - ideal_ns[low]).clip(0).astype(np.int64)
    calls = Groups.by([costs.calls.of_span[low]])
    worst = low[calls.of_row == calls.largest(lost_ns)]
    shapes = int(shapes_of(trace)[worst[0]])
    inputs = trace.column("shapes", "dims")[shapes] if shapes >= 0 else ""
    words = {
        "operator": f"{trace.strings[int(spans['name'][worst[0]])]} of {inputs}",
        "percent": 100.0 * float(ideal_ns[worst].sum()) / max(1, int(time_ns[worst].sum())),
    }
    of_low_ns, gain_ns = loop.typical_sum(low, time_ns[low]), loop.typical_sum(low, lost_ns)
    line = loop.place_of(int(worst[0]))
    return Match(worst, of_low_ns, words, gain_ns=gain_ns, place=line, spans=worst, time=loop.when(low))
