"""What a worker of a `DataLoader` wrote down, as the trace of its process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace import SpanKind, Trace
from kinetoscope.trace._loading_words import COLLATE, FETCH
from kinetoscope.trace._schema import FLAG_BEGUN_BEFORE, FLAG_UNFINISHED, SCOPE_USER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.collect._loader_files import WorkerBatches

_STRINGS = ["", FETCH, COLLATE]
_NEVER_NS = np.int64(2**62)
# What is as true of a worker as of the process that started it.
_SHARED_FACTS = ("start_realtime_ns", "start_monotonic_ns", "boot_id", "host", "rank", "distributedInfo")


def worker_trace(worker: WorkerBatches, begin_ns: int, parent: Trace) -> Trace:
    """Make a trace that begins and ends with that of the process that started the worker.

    Args:
        worker: What it wrote.
        begin_ns: When the trace begins, by the steady clock.
        parent: The trace of that process.

    Returns:
        The trace: a range for each batch, with another one for collating inside. What began earlier or went on is cut and
        flagged.
    """
    length_ns = max(parent.duration_ns, 1)
    name = f"DataLoader {worker.loader}, worker {worker.worker}"
    info = {key: parent.info[key] for key in _SHARED_FACTS if key in parent.info}
    info |= {"process": worker.process, "process_name": name, "stop_ns": length_ns}
    if "process" in parent.info:
        info["parent_process"] = parent.info["process"]
    thread: dict[str, Any] = {
        "index": [0],
        "os_tid": [worker.process],
        "torch_tid": [1],
        "name": [name],
        "process": [worker.process],
    }
    return Trace.from_columns(
        {"threads": thread, "spans": _spans(worker, begin_ns, length_ns)}, strings=_STRINGS, info=info
    )


def _spans(worker: WorkerBatches, begin_ns: int, length_ns: int) -> dict[str, NDArray[Any]]:
    """The ranges of a worker, in the order of spans."""
    begin, end = worker.column("begin_ns"), _or_never(worker.column("end_ns"))
    collated = worker.column("collate_ns") > 0
    collate_end = np.minimum(_or_never(worker.column("collated_ns")), end)[collated]
    start = np.concatenate([begin, worker.column("collate_ns")[collated]]) - begin_ns
    stop = np.concatenate([end, collate_end]) - begin_ns
    name = np.repeat(np.array([1, 2], dtype=np.int32), [len(begin), len(collate_end)])
    kept = np.flatnonzero((start < length_ns) & (stop > 0))
    start, stop, name = start[kept], stop[kept], name[kept]
    flags = np.where(start < 0, FLAG_BEGUN_BEFORE, 0) | np.where(stop > length_ns, FLAG_UNFINISHED, 0)
    start, stop = np.maximum(start, 0), np.minimum(stop, length_ns)
    # The enclosing one first where two begin together.
    order = np.lexsort((name, -stop, start))
    return {
        "thread": np.zeros(len(order), dtype=np.int32),
        "start_ns": start[order],
        "duration_ns": (stop - start)[order],
        "name": name[order],
        "scope": np.full(len(order), SCOPE_USER, dtype=np.uint8),
        "kind": np.full(len(order), SpanKind.USER_ANNOTATION, dtype=np.uint8),
        "flags": flags[order].astype(np.uint8),
    }


def _or_never(time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Points in time, those that have not come yet far away."""
    return np.where(time_ns > 0, time_ns, _NEVER_NS)
