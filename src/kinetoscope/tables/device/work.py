"""What devices did: their kernels, copies and fillings, which of it was communication, and on which device it ran."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.hierarchy import device_work_spans
from kinetoscope.model.names import device_name
from kinetoscope.model.rows import Mask, ProcessRow, Rows, mask_of
from kinetoscope.model.schema import ColumnCode, SpanKind
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.intervals import Intervals, united_by
from kinetoscope.tables.stored import ranks

# Kernels that move data between devices, by their names: NCCL, RCCL (which keeps NCCL's names), MSCCL, oneCCL, HCCL,
# NVSHMEM, DeepEP and its kin, the all-reduces of vLLM and SGLang, and those of torch's symmetric memory.
_COMMUNICATES = re.compile(
    r"nccl|rccl|msccl|oneccl|hccl|nvshmem|(?<!\w)ep::|deep_ep::|quickreduce::"
    r"|cross_device_reduce|(one|two)_?shot_all_?reduce|all_?reduce_(fusion|(one|two)_?shot)|multimem_(one_shot_)?all_?",
    re.IGNORECASE,
)
# MTIA's copies look like its kernels.
_COPIES = re.compile(r"dma_|memcpy|memset", re.IGNORECASE)
# What a source says of a kernel that carries out a call between ranks.
_CALL_BETWEEN_RANKS = '"Collective name"'


class WorkCategory(ColumnCode):
    """The category of device work. A moment with several of them counts for the first."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


WORK_CATEGORIES = ("compute", "communication", "copy")


@dataclass(frozen=True, order=True)
class Owner:
    """The owner of a thread or of device work: a process or, in files without processes, a rank.

    Attributes:
        rank: The rank of the process, -1 where it is not known.
        process: Its row in the table `processes`, -1 in a trace of one process.
    """

    rank: int
    process: ProcessRow


@dataclass(frozen=True, order=True)
class Device:
    """A device of a process.

    Attributes:
        rank: The rank of the process, -1 where it is not known.
        type: torch's device type.
        index: Its index among the devices of this type.
        process: The row of the process in the table `processes`, -1 in a trace of one process.
    """

    rank: int
    type: int
    index: int
    process: ProcessRow

    @property
    def owner(self) -> Owner:
        """The owner of its work."""
        return Owner(self.rank, self.process)

    @property
    def name(self) -> str:
        """The name as torch writes it, such as `cuda:0`."""
        return device_name(self.type, self.index)


@dataclass(frozen=True)
class DeviceWork:
    """The work of all devices.

    Attributes:
        rows: The spans, ascending.
        category: What each is: a `WorkCategory`.
        device: On which of `devices` each ran.
        devices: The devices in order of rank, type and index, those without work left out.
        start_ns: When each began.
        end_ns: When each ended.
    """

    rows: Rows
    category: NDArray[np.uint8]
    device: NDArray[np.int32]
    devices: list[Device]
    start_ns: Rows
    end_ns: Rows


@dataclass(frozen=True)
class Busy:
    """When a device computed, communicated and copied; these may overlap.

    Attributes:
        compute: When a kernel computed.
        communication: When a kernel communicated.
        copies: When a copy or filling ran.
    """

    compute: Intervals
    communication: Intervals
    copies: Intervals


@derived
def device_work(trace: TraceData) -> DeviceWork:
    """Find the work of all devices, once for a trace."""
    spans = trace.columns("spans")
    kind, rows = spans["kind"], device_work_spans(trace).rows
    category = np.full(len(rows), WorkCategory.COMPUTE, dtype=np.uint8)
    communicates, copies = _kernel_names(trace)
    name = spans["name"][rows]
    category[communicates[name] | _told_to_communicate(trace, rows)] = WorkCategory.COMMUNICATION
    category[copies[name] | (kind[rows] != SpanKind.KERNEL)] = WorkCategory.COPY
    device, devices = _devices(trace, rows)
    start = spans["start_ns"][rows]
    return DeviceWork(rows, category, device, devices, start, start + spans["duration_ns"][rows])


@derived
def busy(trace: TraceData) -> list[Busy]:
    """When each of `device_work(trace).devices` did what, once for a trace."""
    work = device_work(trace)
    groups = len(work.devices) * len(WorkCategory)
    group = work.device * np.int32(len(WorkCategory)) + work.category
    sets = united_by(group, groups, work.start_ns, work.end_ns)
    return [Busy(*sets[first : first + len(WorkCategory)]) for first in range(0, groups, len(WorkCategory))]


@derived
def thread_owners(trace: TraceData) -> tuple[Rows, list[Owner]]:
    """For each row of `threads`, and for -1, the place of its owner in a list, -1 where nothing is known; and that list."""
    process = np.append(trace.column("threads", "process_row").astype(np.int64), -1)
    if len(trace.columns("processes")) == 0:
        process[:] = -1
    pairs = np.stack([np.append(ranks(trace), -1), process], axis=1)
    distinct, owner_index = np.unique(pairs, axis=0, return_inverse=True)
    # Unknown owners sort first, and -1 among the threads is always there.
    owners = [Owner(rank, row) for rank, row in distinct[1:].tolist()]
    return owner_index.reshape(-1).astype(np.int64) - 1, owners


def _kernel_names(trace: TraceData) -> tuple[Mask, Mask]:
    """For each string, as the name of a kernel, whether the kernel communicates, and whether it copies."""
    spans = trace.columns("spans")
    is_kernel = mask_of(spans["name"][spans["kind"] == SpanKind.KERNEL], len(trace.strings))
    communicates, copies = np.zeros((2, len(is_kernel)), dtype=bool)
    for row in np.flatnonzero(is_kernel).tolist():
        text = trace.strings[row]
        communicates[row] = _COMMUNICATES.search(text) is not None
        copies[row] = _COPIES.match(text) is not None
    return communicates, copies


def _told_to_communicate(trace: TraceData, rows: Rows) -> Mask:
    """Which of some rows belong to a collective according to their source."""
    texts = trace.columns("arguments")["json"]
    communicates = np.array([*(_CALL_BETWEEN_RANKS in text for text in texts), False])
    return np.asarray(communicates[trace.column("spans", "arguments")[rows]])


def _devices(trace: TraceData, rows: Rows) -> tuple[NDArray[np.int32], list[Device]]:
    spans, streams = trace.columns("spans"), trace.columns("streams")
    owner_of_thread, owners = thread_owners(trace)
    # A queue is of one device, but queues of equal numbers in several processes may share a row.
    kinds = len(owners) + 1
    code = spans["stream"][rows] * np.int64(kinds) + owner_of_thread[spans["thread"][rows]] + 1
    numbers = np.flatnonzero(mask_of(code, len(streams) * kinds))
    types, indices = streams["device_type"].tolist(), streams["device_index"].tolist()
    of_numbers = []
    for stream, owner_number in (divmod(number, kinds) for number in numbers.tolist()):
        owner = owners[owner_number - 1] if owner_number else Owner(-1, ProcessRow(-1))
        of_numbers.append(Device(owner.rank, types[stream], indices[stream], owner.process))
    devices = sorted(set(of_numbers))
    device_of = np.zeros(len(streams) * kinds, dtype=np.int32)
    device_of[numbers] = [devices.index(device) for device in of_numbers]
    return device_of[code], devices
