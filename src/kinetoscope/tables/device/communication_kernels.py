"""Communication kernels: the collective each belongs to, what its name says, and the computation that overlaps it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.model.rows import SpanRow
from kinetoscope.tables.device.collective_facts import UNKNOWN_CALL, Facts, type_named
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.device.work import WorkCategory, busy, device_work

if TYPE_CHECKING:
    from collections.abc import Container

    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


# NCCL's names, as RCCL has them too, those of vLLM's, SGLang's and torch's own all-reduces, and those of DeepEP.
_NAMES = (
    (re.compile(r"(?:(?<!\w)|deep_)ep::.*dispatch", re.IGNORECASE), "dispatch"),
    (re.compile(r"(?:(?<!\w)|deep_)ep::.*combine", re.IGNORECASE), "combine"),
    (re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE), "all_reduce"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "all_to_all"),
    (re.compile(r"send_?recv", re.IGNORECASE), "send_recv"),
    (re.compile(r"broadcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
)
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_REDUCTION = re.compile(r"_(Sum|Prod|Min|Max|MinMax|PreMulSum|SumPostDiv)(?=_)")
_TYPE = re.compile(
    r"_(f16|f32|f64|bf16|i8|u8|i32|u32|i64|u64|half|float|double|__nv_bfloat16|int8_t|uint8_t|int32_t|int64_t)(?=[_(]|$)"
)
_KERNEL_TYPES = {
    "f16": "Half", "half": "Half", "f32": "Float", "float": "Float", "f64": "Double", "double": "Double", "bf16": "BFloat16",
    "__nv_bfloat16": "BFloat16", "i8": "Char", "int8_t": "Char", "u8": "Byte", "uint8_t": "Byte", "i32": "Int",
    "int32_t": "Int", "i64": "Long", "int64_t": "Long", "u32": "uint32", "u64": "uint64",
}  # fmt: skip


@dataclass(frozen=True)
class KernelTimes:
    """How long the kernels of each call ran.

    Attributes:
        total_ns: Their durations added up.
        overlapped_ns: The part of it in which the same device computed too.
        device: The device of the first, as a place in `device_work(trace).devices`; -1 without kernels.
    """

    total_ns: NDArray[np.int64]
    overlapped_ns: NDArray[np.int64]
    device: NDArray[np.int32]


def kernels_of_calls(trace: TraceData, calls: Container[SpanRow]) -> dict[SpanRow, list[SpanRow]]:
    """The kernels that carried out each call, by its row; those that belong to none of the calls under their own rows."""
    work, started, parent = device_work(trace), starters(trace), trace.column("spans", "parent")
    rows = work.rows[work.category == WorkCategory.COMMUNICATION]
    rows = rows[np.argsort(trace.column("spans", "start_ns")[rows], kind="stable")]
    hosts = np.where(started.operator[rows] >= 0, started.operator[rows], started.call[rows])
    found: dict[SpanRow, list[SpanRow]] = {}
    for row, host in zip(rows.tolist(), hosts.tolist(), strict=True):
        at = host
        while at >= 0 and at not in calls:
            at = int(parent[at])
        found.setdefault(at if at >= 0 else row, []).append(row)
    return found


def facts_of_kernel(name: str) -> Facts:
    """Say what a kernel does by its name, such as ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``."""
    short = name.replace("(anonymous namespace)::", "").partition("(")[0]
    call = next((known for pattern, known in _NAMES if pattern.search(short)), UNKNOWN_CALL)
    facts = Facts(call)
    if call in _REDUCTIONS:
        # For others NCCL names a reduction and a type too, of bytes that it only moves.
        reduction, element = _REDUCTION.search(short), _TYPE.search(short)
        facts.reduction = reduction[1].upper() if reduction else ""
        if element:
            facts.type, facts.item_bytes = type_named(_KERNEL_TYPES[element[1]])
    return facts


def kernel_times(trace: TraceData, kernels: list[list[SpanRow]]) -> KernelTimes:
    """How long the kernels of each of some collectives ran, and how much of it overlapped computing."""
    work = device_work(trace)
    of_call = np.repeat(np.arange(len(kernels)), [len(rows) for rows in kernels])
    rows = np.array([row for rows in kernels for row in rows], dtype=np.int64)
    place = np.searchsorted(work.rows, rows)
    device, start, end = work.device[place], work.start_ns[place], work.end_ns[place]
    overlapped = np.zeros(len(rows), dtype=np.int64)
    for number, when in enumerate(busy(trace)):
        mine = np.flatnonzero(device == number)
        overlapped[mine] = when.compute.within(start[mine], end[mine])
    totals, hidden = np.zeros((2, len(kernels)), dtype=np.int64)
    np.add.at(totals, of_call, end - start)
    np.add.at(hidden, of_call, overlapped)
    first = np.full(len(kernels), -1, dtype=np.int32)
    first[of_call[::-1]] = device[::-1]
    return KernelTimes(totals, hidden, first)
