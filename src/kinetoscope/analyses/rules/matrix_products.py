"""Matrix products, convolutions and attention that are slower than the device could compute them.

Sources and thresholds: PyTorch's former TensorBoard plugin (eligible operators, none of them on tensor cores, compute capability 7 and
above), torch's former pattern matcher (float32 products where TF32 could serve, sizes in 16 bits that are no multiple of 8),
TraceLens (less than 30 % of the roofline; above 110 % the model is wrong). Products in 64 bits: 10 % of step time.
"""

from __future__ import annotations

import re

import numpy as np

import kinetoscope._core as _core
from kinetoscope.analyses.finding import CannotTell, Finding, NotNeeded, Signal
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.rows import ShapesRow
from kinetoscope.tables.costs.attainable import least_call_ns, rates_of
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.evaluate import parsed_inputs
from kinetoscope.tables.costs.peaks import MATRIX, at_peak, known_peaks, trace_peaks, working_ns

LEAST_PRODUCTS_PERCENT = 10.0
LEAST_GAIN_PERCENT = 5.0
LEAST_UNALIGNED_PERCENT = 2.0
FAR_PERCENT = 30.0
WRONG_PERCENT = 110.0
ALIGNED = 8
TIMES_FLOAT32 = 3.0
"""Products in 16 bits that take less than so many times what they would take in 32 may be worth their smaller memory."""
SMALLEST = 16
"""Smaller sizes are not what tensor cores are for."""
TENSOR_CORE_SPEED = 8
"""Tensor cores of these generations compute so many times what the other units compute, by NVIDIA's data sheets."""
# How cuBLAS, cuDNN and CUTLASS name kernels that use tensor cores, and those that multiply numbers of 32 bits without them.
_ON_TENSOR_CORES = re.compile(
    r"tensorop|[his](?:884|1688|16816|16832|8816)|[hi]mma|gmma|xmma(?!.*(?:ffma|simt))|tf32|flash|fmha|nvjet",
    re.IGNORECASE,
)
_IN_FLOAT32 = re.compile(
    r"(?!.*(?:tf32|s1688|tensorop))(?:.*(?:sgemm|scudnn|ffma|simt|f32f32_f32f32)|.*(?:cudnn|conv|grad|winograd|fft).*<float)",
    re.IGNORECASE,
)


def tensor_cores_unused(loop: Loop) -> Finding | None:
    """Find products that all run beside the tensor cores of a device that has no TF32."""
    return _beside_tensor_cores(loop, with_tf32=False)


def tf32_off(loop: Loop) -> Finding | None:
    """Find products of float32 that do not use the tensor cores of a device that has TF32."""
    return _beside_tensor_cores(loop, with_tf32=True)


def matmul_alignment(loop: Loop) -> Finding | CannotTell | None:
    """Find products in 16 bits with sizes for which tensor cores have only slow kernels."""
    if loop.device is None or loop.share(loop.typical_ns(loop.device.products)) < LEAST_PRODUCTS_PERCENT:
        return None
    if len(loop.trace.columns("shapes")) == 0:
        return CannotTell("matmul-alignment", Signal.SHAPES)
    calls, spans = costs_of(loop.trace).calls, loop.trace.columns("spans")
    odd: dict[int, tuple[int, ...]] = {}
    for one in np.unique(calls.of_span[np.flatnonzero(spans["device_ns"] > 0)]).tolist():
        if calls.family[one] == "matmul" and calls.dtype[one] in ("float16", "bfloat16"):
            inputs = parsed_inputs(loop.trace, ShapesRow(int(spans["shapes"][calls.first[one]])))
            shapes = inputs.shapes if inputs else []
            sizes = {
                size for shape in shapes if isinstance(shape, tuple) and len(shape) > 1 for size in shape[-2:]
            }
            if unaligned := tuple(sorted(size for size in sizes if size > SMALLEST and size % ALIGNED)):
                odd[one] = unaligned
    mine = np.flatnonzero(np.isin(calls.of_span, list(odd)) & costs_of(loop.trace).counted.counts)
    mine = mine[loop.in_steps(mine)]
    time_ns = loop.typical_sum(mine, spans["device_ns"][mine])
    share = loop.share(time_ns)
    if share < LEAST_UNALIGNED_PERCENT:
        return None
    longest = int(mine[np.argmax(spans["device_ns"][mine])])
    sizes_text = ", ".join(map(str, odd[int(calls.of_span[longest])]))
    place, module = loop.place_of(longest), loop.module_of(longest)
    return Finding(
        "matmul-alignment",
        sentence(
            f"Matrix products in 16 bits with sizes that are no multiple of {ALIGNED} ({sizes_text}"
            f"{f' at {place}' if place else ''}) take {{}} of {loop.unit.time}",
            (share, "%"),
        ),
        f"Pad these sizes to a multiple of {ALIGNED} (of 64 for the fastest kernels): sequence lengths, vocabularies, channels.",
        share,
        time_ns,
        place,
        module,
        tuple(mine[np.argsort(-spans["device_ns"][mine], kind="stable")][:MOST_ROWS].tolist()),
        time=loop.when(mine),
    )


def double_precision(loop: Loop) -> Finding | None:
    """Find products in 64 bits, which models seldom need. Without shapes nothing is said: most programs have none."""
    if len(loop.trace.columns("shapes")) == 0:
        return None
    costs = costs_of(loop.trace)
    wide = [
        row
        for row, (family, dtype) in enumerate(zip(costs.calls.family, costs.calls.dtype, strict=True))
        if family in MATRIX and dtype == "float64"
    ]
    rows = np.flatnonzero(np.isin(costs.calls.of_span, wide) & costs.counted.counts & loop.inside)
    if len(rows) == 0:
        return None
    time_ns = loop.cost_ns(rows)
    share = loop.share(time_ns)
    if share < LEAST_PRODUCTS_PERCENT:
        return None
    place, _, mine = loop.by_place(rows)[0]
    return Finding(
        "double-precision",
        sentence(
            f"Matrix products in 64 bits{f', most at {place},' if place else ''} take {{}} of {loop.unit.time}",
            (share, "%"),
        ),
        "Use float32: NumPy's arrays are float64 until .float() or astype(numpy.float32), and torch.set_default_dtype and model.double() make "
        "parameters so.",
        share,
        # Twice as many bytes, and half as many numbers in a register; on most devices far less.
        time_ns // 2 if loop.device is None else time_ns,
        place,
        loop.module_of(int(mine[0])),
        tuple(mine[:MOST_ROWS].tolist()),
        not_needed=NotNeeded(rows, 0.5, calls=False),
        time=loop.when(rows),
    )


def half_precision(loop: Loop) -> Finding | None:
    """Find products in 16 bits on the host that are slower than they would be in 32: processors without units for them convert each number."""
    if len(loop.trace.columns("shapes")) == 0 or loop.device is not None:
        return None
    trace, costs = loop.trace, costs_of(loop.trace)
    calls, spans = costs.calls, loop.trace.columns("spans")
    narrow = np.flatnonzero([
        family in MATRIX and dtype in ("float16", "bfloat16")
        for family, dtype in zip(calls.family, calls.dtype, strict=True)
    ])  # fmt: skip
    rows = np.flatnonzero(np.isin(calls.of_span, narrow) & costs.counted.counts & loop.inside)
    if len(rows) == 0:
        return None
    least_ns = least_call_ns(trace)[calls.of_span[rows]]
    took_ns = spans["duration_ns"][rows]
    lost = np.maximum(took_ns - least_ns - rates_of(trace).call_ns, 0).astype(np.int64)
    gain_ns, time_ns = loop.typical_sum(rows, lost), loop.cost_ns(rows)
    if loop.share(gain_ns) < LEAST_PRODUCTS_PERCENT or time_ns < TIMES_FLOAT32 * (time_ns - gain_ns):
        return None
    place, _, mine = loop.by_place(rows)[0]
    return Finding(
        "half-precision",
        sentence(
            f"Matrix products in {calls.dtype[int(calls.of_span[mine[0]])]} on the processor{f', most at {place},' if place else ''} take {{}} of {loop.unit.time}, far more than in "
            "float32",
            (loop.share(time_ns), "%"),
        ),
        "Use float32 on this processor, or bfloat16 where it has instructions for it (lscpu: avx512_bf16, amx_bf16): it converts other numbers of 16 bits one by one.",
        loop.share(time_ns),
        gain_ns,
        place,
        loop.module_of(int(mine[0])),
        tuple(mine[:MOST_ROWS].tolist()),
        is_predicted=True,
        time=loop.when(rows),
    )


def below_roofline(loop: Loop) -> Finding | CannotTell | None:
    """Find products that reach little of the device's peak, and take much longer than they would at it."""
    trace = loop.trace
    if loop.device is None or loop.share(loop.typical_ns(loop.device.products)) < LEAST_PRODUCTS_PERCENT:
        return None
    if len(trace.columns("shapes")) == 0:
        return CannotTell("below-roofline", Signal.SHAPES)
    costs, peaks = costs_of(trace), trace_peaks(trace)
    ideal_s = at_peak(trace, costs)
    if ideal_s is None or peaks is None:
        return None
    # The peak is that of all devices together; a call runs on one of them.
    ideal_ns = np.nan_to_num(ideal_s) * 1e9 * len(peaks)
    calls = np.flatnonzero((ideal_ns > 0) & (trace.column("spans", "device_ns") > 0))
    calls = calls[loop.in_steps(calls)]
    time = working_ns(trace)
    group, first = _core.group([costs.calls.of_span[calls]])
    reached = (
        100.0
        * np.bincount(group, ideal_ns[calls], len(first))
        / np.maximum(1.0, np.bincount(group, time[calls], len(first)))
    )
    if len(first) == 0 or reached.max() > WRONG_PERCENT:
        # Some product is computed in another type than the trace says, such as TF32.
        return None
    low = calls[reached[group] < FAR_PERCENT]
    lost = (time[low] - ideal_ns[low]).clip(0).astype(np.int64)
    gain_ns = loop.typical_sum(low, lost)
    if loop.share(gain_ns) < LEAST_GAIN_PERCENT:
        return None
    each = np.bincount(costs.calls.of_span[low], lost)
    worst = low[costs.calls.of_span[low] == int(np.argmax(each))]
    row = int(worst[0])
    place, shapes = loop.place_of(row), int(trace.column("spans", "shapes")[row])
    name = trace.strings[int(trace.column("spans", "name")[row])]
    percent = 100.0 * float(ideal_ns[worst].sum()) / max(1, int(time[worst].sum()))
    share = loop.share(loop.typical_sum(low, time[low]))
    inputs = trace.column("shapes", "dims")[shapes] if shapes >= 0 else ""
    return Finding(
        "below-roofline",
        sentence(
            f"Matrix products far below the peak of {loop.device.name} take {{}} of {loop.unit.time}; {name} of {inputs}"
            f"{f' at {place}' if place else ''} reaches {{}} of it",
            (share, "%"),
            (percent, "%"),
        ),
        "Make them larger or put them together, use types and sizes of which tensor cores have fast kernels, and avoid transposed copies.",
        share,
        gain_ns,
        place,
        loop.module_of(row),
        tuple(worst[:MOST_ROWS].tolist()),
        time=loop.when(low),
    )


def _beside_tensor_cores(loop: Loop, *, with_tf32: bool) -> Finding | None:
    """Find products in 32 bits on units that are slower than tensor cores, on devices with or without TF32."""
    device = loop.device
    properties = device.properties if device else None
    if (
        device is None
        or properties is None
        or properties.compute_major is None
        or not re.match(r"(NVIDIA|Tesla|GeForce|Quadro)\b", properties.name)
    ):
        return None
    if (
        properties.compute_major < 7
        or (properties.compute_major >= 8) != with_tf32
        or "GTX" in properties.name
    ):
        return None
    rows, spans = device.products, loop.trace.columns("spans")
    peaks = known_peaks(properties.name) or {}
    plain, fast = peaks.get("float32", 1.0), peaks.get("tf32" if with_tf32 else "float16", TENSOR_CORE_SPEED)
    names = spans["name"][rows]
    used = [(one, loop.trace.strings[one]) for one in np.unique(names).tolist()]
    rows = rows[np.isin(names, [one for one, text in used if _IN_FLOAT32.match(text)])]
    if len(rows) == 0 or (not with_tf32 and any(_ON_TENSOR_CORES.search(text) for _, text in used)):
        return None
    time_ns = loop.typical_ns(rows)
    share, gain_ns = loop.share(time_ns), int(time_ns * max(0.0, 1.0 - plain / fast))
    if share < LEAST_PRODUCTS_PERCENT or loop.share(gain_ns) < LEAST_GAIN_PERCENT:
        return None
    place, _, _ = loop.by_place(device.operators(rows), spans["duration_ns"][rows])[0]
    longest = tuple(rows[np.argsort(-spans["duration_ns"][rows], kind="stable")][:MOST_ROWS].tolist())
    if with_tf32:
        text = f"Matrix products and convolutions in float32 without TF32 take {{}} of {loop.unit.time}"
        advice = 'Call torch.set_float32_matmul_precision("high"), or use torch.autocast with bfloat16.'
        code = "tf32-off"
    else:
        text = (
            f"Matrix products and convolutions take {{}} of {loop.unit.time}, and none uses the tensor cores"
        )
        advice = "Train in mixed precision: torch.autocast with float16 and a GradScaler."
        code = "tensor-cores-unused"
    time = loop.when(rows)
    return Finding(
        code, sentence(text, (share, "%")), advice, share, gain_ns, place, spans=longest, time=time
    )
