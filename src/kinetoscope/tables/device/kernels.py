"""The `kernels` table: device kernels, one by one or summed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import checked_choice
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.rows import Mask, Rows, begins_run
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.evaluate import is_generated_launch
from kinetoscope.tables.costs.peaks import peak_for, per_second, trace_peaks
from kinetoscope.tables.device.launches import launch_rows, starters
from kinetoscope.tables.device.work import WORK_CATEGORIES, DeviceWork, device_work

_WAYS = ("name", "launch", "span")
_SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_MEANS = ("blocks_per_sm", "warps_per_sm", "occupancy_percent")
_MOST_OPERATORS = 10

# The matrix shape of a tensor core instruction, or the name of a kernel family that uses tensor cores.
_USES = re.compile(
    r"tensorop|tf32|wmma|[hiqud]mma|gmma|mma[_.]sync|tcgen05|nvjet|xmma_|warpgroup|warpspecialized"
    r"|[a-z](884|1688|8816|8832|16816|16832|16864|161616|168256)(gemm|fprop|dgrad|wgrad|conv|cudnn|_|$)"
    r"|tensor\d+x\d+x\d+|fmha_v\d+|flash_(fwd|bwd)|fmha_cutlass[fb]_(f16|bf16)\w*_sm(70|75|80|90)"
    r"|xdlops|_xdl_|mfma|_mi(16|32|4)x(16|32|4)x\d|igemm_\w+_gtcx",
    re.IGNORECASE,
)
_USES_NOT = re.compile(
    r"simt|ffma|(^|_)(maxwell|volta|turing|ampere)_(s|d|c|z)gemm|convolve_sgemm|gemv", re.IGNORECASE
)


def kernels(trace: TraceData, by: str = "name") -> ArrowTable:
    """Return the `kernels` table.

    Args:
        trace: The trace.
        by: `name` for one row per name, `launch` for one per name and launch configuration (grid, block, registers and
            shared memory), `span` for one per kernel execution.

    Returns:
        The table; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: `by` has another value.
    """
    checked_choice("by", by, _WAYS)
    spans, work = trace.columns("spans"), device_work(trace)
    chosen = spans["kind"][work.rows] == SpanKind.KERNEL
    rows, category = work.rows[chosen], work.category[chosen]
    launch = _launch_columns(trace, rows)
    name = spans["name"][rows]
    keys = [name, category.astype(np.int32)]
    if by == "span":
        keys = [np.arange(len(rows), dtype=np.int32)]
    elif by == "launch":
        keys += [launch[column] for column in (*_SIZES, "registers", "shared_bytes")]
    groups = Groups.by(keys)
    call, start_ns = starters(trace).call[rows], spans["start_ns"]
    delay_ns = np.where(call >= 0, start_ns[rows] - start_ns[call], np.nan)
    first, duration = groups.first, spans["duration_ns"][rows]
    total, count = groups.sums(duration), groups.sizes()
    columns: dict[str, Any] = {
        "name": Labels(name[first], trace.strings),
        "category": Labels(category[first], WORK_CATEGORIES),
        "count": count,
        "total_ns": total,
        "mean_ns": total / np.maximum(count, 1),
        "min_ns": groups.minima(duration),
        "max_ns": groups.maxima(duration),
        "delay_ns": _mean(groups, delay_ns, np.ones(len(rows), np.int64)),
        "kernel_percent": percent(total, int(duration.sum())),
        "device_percent": percent(total, int((work.end_ns - work.start_ns).sum())),
        **{column: _shared(groups, launch[column]) for column in (*_SIZES, "registers", "shared_bytes")},
        **{column: _mean(groups, launch[column], duration) for column in _MEANS},
        "tensor_cores": _tensor_cores(name[first], trace.strings),
        **_started(trace, rows, groups, duration),
        **_generated(trace, rows, groups, total),
        **_places(trace, work, chosen, rows, groups),
        "first_ns": groups.minima(spans["start_ns"][rows]),
        "span": rows if by == "span" else np.full(len(groups), -1),
        "step": np.append(trace.column("steps", "number"), -1)[spans["step"][rows]] if by == "span" else np.full(len(groups), -1),
    }  # fmt: skip
    order = np.argsort(columns["first_ns"] if by == "span" else -total, kind="stable")
    return to_arrow("kernels", columns, order)


def uses_tensor_cores(name: str) -> bool | None:
    """Whether a kernel uses tensor cores, by its name; None if the name does not show it."""
    if _USES_NOT.search(name):
        return False
    return True if _USES.search(name) else None


def _tensor_cores(names: NDArray[np.int32], strings: Sequence[str]) -> NDArray[np.int8]:
    used, place = np.unique(names, return_inverse=True)
    answers = [uses_tensor_cores(strings[name]) for name in used.tolist()]
    return np.array([-1 if answer is None else answer for answer in answers], np.int8)[place]


def _launch_columns(trace: TraceData, rows: Rows) -> dict[str, NDArray[Any]]:
    """The launch configuration of each row; -1 or NaN if unknown."""
    stored, stored_rows = trace.columns("kernels"), launch_rows(trace)[rows]
    columns: dict[str, NDArray[Any]] = {}
    for name in (*_SIZES, "registers", "shared_bytes"):
        columns[name] = np.append(stored[name], stored[name].dtype.type(-1))[stored_rows]
    for name in _MEANS:
        values = np.append(stored[name], -1.0)[stored_rows]
        columns[name] = np.where(values >= least_reported(name), values, np.nan)
    return columns


def least_reported(column: str) -> float:
    """Return the smallest value of a column of `kernels` that counts as reported; smaller ones mean unknown.

    Kineto writes an occupancy of 0 if it has none; no running kernel has that.
    """
    return np.finfo(np.float64).tiny if column == "occupancy_percent" else 0.0


def _shared(groups: Groups, values: NDArray[Any]) -> Rows:
    """The value of each group if all its rows agree, else -1."""
    least = groups.minima(values)
    return np.where(least == groups.maxima(values), least, -1)


def _mean(groups: Groups, values: NDArray[np.float64], weight: Rows) -> NDArray[np.float64]:
    """The weighted mean of the known values of each group; weights below 1 count as 1; null without known values."""
    is_known, heavy = ~np.isnan(values), np.maximum(weight, 1)
    weights = groups.sums(heavy, is_known)
    return np.asarray(groups.sums(values * heavy, is_known) / np.where(weights == 0, np.nan, weights))


def _started(trace: TraceData, rows: Rows, groups: Groups, duration: Rows) -> dict[str, Any]:
    spans, texts = trace.columns("spans"), trace.strings
    operator = starters(trace).operator[rows]
    name = np.where(operator >= 0, spans["name"][operator], -1).astype(np.int32)
    module = np.where(operator >= 0, spans["module"][operator], -1).astype(np.int32)
    captured, origins = spans["origin"][rows], trace.columns("origins")
    name = np.where(captured >= 0, np.append(origins["operator"], -1)[captured], name).astype(np.int32)
    module = np.where(captured >= 0, np.append(origins["module"], -1)[captured], module).astype(np.int32)
    paths = trace.columns("modules")["path"]
    listed: Any = Labels(name, texts)
    # With one row per kernel, groups keep the order of `rows`.
    if len(groups) < len(rows):
        name, listed = _ranked(groups, name, duration, texts)
        module, _ = _ranked(groups, module, duration, None)
    return {"operator": Labels(name, texts), "operators": listed, "module": Labels(module, paths)}


def _generated(trace: TraceData, rows: Rows, groups: Groups, total_ns: Rows) -> dict[str, Any]:
    """Operations, bytes and rates of compiler-generated kernels, by group; their launching span launches nothing else."""
    spans, costs, operator = trace.columns("spans"), costs_of(trace), starters(trace).operator[rows]
    launches = np.append(is_generated_launch(trace) | (spans["kind"] == SpanKind.FUSED_KERNEL), False)
    generated = launches[operator]
    peaks = trace_peaks(trace) or []
    columns: dict[str, Any] = {"generated": groups.minima(generated) > 0}
    for name, values in (("flops", costs.flops), ("bytes_moved", costs.bytes_moved)):
        generated_values = np.where(generated, np.append(values, -1)[operator], -1)
        columns[name] = np.where(groups.minima(generated_values) >= 0, groups.sums(generated_values), -1)
    columns["flops_per_s"] = per_second(columns["flops"], total_ns)
    columns["bytes_per_s"] = per_second(columns["bytes_moved"], total_ns)
    dtypes = costs.calls.dtype
    of_group = costs.calls.of_span[operator[groups.first]].tolist()
    shortened = trace.run_info.float32_matmul_precision in ("high", "medium")
    speeds = [
        [peak_for(peak, dtypes[call], shortened=shortened) or np.nan for peak in peaks] for call in of_group
    ]
    fastest = np.array([max(speed, default=np.nan) for speed in speeds], dtype=np.float64)
    columns["peak_percent"] = 100.0 * columns["flops_per_s"] / fastest
    return columns


def _ranked(
    groups: Groups, value: NDArray[np.int32], duration: Rows, texts: list[str] | None
) -> tuple[NDArray[np.int32], list[str | None]]:
    """For each group the value with the most time and, with `texts`, the joined texts of all its values, most time first."""
    most = np.full(len(groups), -1, dtype=np.int32)
    listed: list[list[str]] = [[] for _ in range(len(groups))] if texts is not None else []
    pairs = Groups.by([groups.of_row, value], value >= 0)
    if len(pairs):
        of_group, of_value = groups.of_row[pairs.first], value[pairs.first]
        order = np.lexsort((-pairs.sums(duration), of_group))
        leads = np.flatnonzero(begins_run(of_group[order]))
        most[of_group[order[leads]]] = of_value[order[leads]]
        if texts is not None:
            # The loop runs over pairs of kernel and operator, not over spans.
            for number, text in zip(of_group[order].tolist(), of_value[order].tolist(), strict=True):
                if len(listed[number]) < _MOST_OPERATORS:
                    listed[number].append(texts[text])
    return most, ["; ".join(names) if names else None for names in listed]


def _places(trace: TraceData, work: DeviceWork, chosen: Mask, rows: Rows, groups: Groups) -> dict[str, Any]:
    """The devices and streams of each group."""
    spans, streams = trace.columns("spans"), trace.columns("streams")
    device, stream = work.device[chosen], spans["stream"][rows]
    columns: dict[str, Any] = {}
    for name, values in (("devices", device), ("streams", stream)):
        pairs = Groups.by([groups.of_row, values])
        columns[name] = Groups(groups.of_row[pairs.first], len(groups)).sizes()
    columns["device_index"] = _shared(groups, streams["device_index"][stream])
    columns["stream"] = np.where(columns["streams"] == 1, _shared(groups, streams["number"][stream]), -1)
    columns["device_index"] = np.where(columns["devices"] == 1, columns["device_index"], -1)
    return columns
