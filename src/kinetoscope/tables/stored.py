"""The stored tables of a trace in readable form: names, modules, stacks and kinds as strings, missing values as null.

These tables have one row for each stored row. Other modules of `kinetoscope.tables` make the tables with sums (`ops`,
`modules`, `steps`, `lines`, `stacks`, `memory`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentTypeError
from kinetoscope.model import schema
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.losses import effects
from kinetoscope.model.names import module_classes, stack_texts
from kinetoscope.model.processes import of_processes
from kinetoscope.model.rows import Rows, look_up
from kinetoscope.model.steps import cycle_of_spans, of_process_at
from kinetoscope.model.trace_data import TraceData

EVERY = slice(None)


def memory_recorded(trace: TraceData) -> bool:
    """Whether allocations were recorded, so that 0 bytes means none."""
    return len(trace.columns("allocations")) > 0 or bool(trace.run_info.profile_memory)


def processes(trace: TraceData) -> Rows:
    """The process id of each row of `threads`, -1 if unknown."""
    return _of_threads(trace, "process")


def ranks(trace: TraceData) -> Rows:
    """The rank of each row of `threads`, -1 outside distributed runs."""
    return _of_threads(trace, "rank")


def spans(trace: TraceData, *, rows: slice = EVERY) -> ArrowTable:
    """Return the `spans` table or some rows of it, so that large files can be written in parts.

    Args:
        trace: The trace.
        rows: Only these rows of the trace: a slice, such as `slice(0, 10)`.

    Raises:
        ArgumentTypeError: `rows` is not a slice.
    """
    if not isinstance(rows, slice):
        raise ArgumentTypeError(f"rows={rows!r} is not valid: use a slice, such as slice(0, 10)")
    columns = Shown(trace, "spans", rows)
    shapes, inputs = columns.stored["shapes"][rows], trace.columns("shapes")
    flags = columns.stored["flags"][rows]
    for name in ("overload", "category"):
        values = columns.stored[name][rows]
        columns[name] = Labels(np.where(values > 0, values, -1), trace.strings)
    columns |= {
        "recompute": columns.stored["recompute"][rows] != 0,
        "module_class": Labels(columns.stored["module"][rows], module_classes(trace)),
        "shapes": Labels(shapes, inputs["dims"]),
        "types": Labels(shapes, inputs["types"]),
        "inputs": Labels(shapes, inputs["concrete"]),
        "is_async": (flags & schema.FLAG_ASYNC) != 0,
        "unfinished": (flags & schema.FLAG_UNFINISHED) != 0,
    }
    if not memory_recorded(trace):
        columns |= dict.fromkeys(("bytes", "self_bytes"))
    return to_arrow("spans", columns)


def allocations(trace: TraceData) -> ArrowTable:
    """Return the `allocations` table."""
    stored, of_spans = trace.columns("allocations"), trace.columns("spans")
    match, size, time_ns = stored["match"], stored["bytes"], stored["time_ns"]
    span, is_free = stored["span"], size == 0
    other = np.where(match >= 0, np.append(size, 0)[match], stored["freed_bytes"])
    return _as_stored(
        trace,
        "allocations",
        bytes=np.where(is_free, -other, size),
        lifetime_ns=np.where(~is_free & (match >= 0), np.append(time_ns, 0)[match] - time_ns, -1),
        operator=Labels(look_up(span, of_spans["name"]), trace.strings),
        module=Labels(look_up(span, of_spans["module"]), trace.columns("modules")["path"]),
    )


def frames(trace: TraceData) -> ArrowTable:
    """Return the `frames` table."""
    return _as_stored(trace, "frames")


def origins(trace: TraceData) -> ArrowTable:
    """Return the `origins` table."""
    return _as_stored(trace, "origins")


def threads(trace: TraceData) -> ArrowTable:
    """Return the `threads` table; a thread without a process or rank has those of the trace."""
    return _as_stored(trace, "threads", process=processes(trace), rank=ranks(trace))


def shapes(trace: TraceData) -> ArrowTable:
    """Return the `shapes` table."""
    return _as_stored(trace, "shapes")


def losses(trace: TraceData) -> ArrowTable:
    """Return the `losses` table."""
    codes = trace.columns("losses")["code"]
    return _as_stored(trace, "losses", affects=[", ".join(effects([code])) for code in codes])


def samples(trace: TraceData) -> ArrowTable:
    """Return the `samples` table: the Python line of each thread, many times a second."""
    stored, frames = trace.columns("samples"), trace.columns("frames")
    stack = stored["stack"]
    # The last entry of each is for the row -1.
    frame = np.append(trace.column("stacks", "frame"), -1)[stack]
    function, file, line = (np.append(frames[name], -1)[frame] for name in ("function", "file", "line"))
    return _as_stored(
        trace,
        "samples",
        waits_for=Labels(
            np.where(stored["wait"] > 0, stored["wait"].astype(np.int64), -1), schema.SAMPLE_WAITS
        ),
        function=Labels(function, trace.strings),
        file=Labels(file, trace.strings),
        line=np.maximum(line, 0),
        stack_row=stack,
    )


def counters(trace: TraceData) -> ArrowTable:
    """Return the `counters` table."""
    return _as_stored(trace, "counters", **of_processes(trace, trace.column("counters", "process_row")))


def info(trace: TraceData) -> ArrowTable:
    """Return the `info` table."""
    keys = sorted(trace.info)
    values = [json.dumps(trace.info[key], ensure_ascii=False) for key in keys]
    return to_arrow("info", {"key": keys, "value": values})


def strings(trace: TraceData) -> ArrowTable:
    """Return the `strings` table."""
    return to_arrow("strings", {"id": np.arange(len(trace.strings), dtype=np.int32), "text": trace.strings})


def rank(trace: TraceData) -> int | None:
    """The rank of the recorded process; None outside of distributed runs and in a trace of several processes."""
    return None if len(trace.columns("processes")) else trace.run_info.rank


# The texts for the values of a column, by the column's unit or name.
_TEXTS: dict[str, Callable[[TraceData], Sequence[str]]] = {
    "row of strings": lambda trace: trace.strings,
    "row of modules": lambda trace: trace.columns("modules")["path"],
    "row of stacks": stack_texts,
    "row of arguments": lambda trace: trace.columns("arguments")["json"],
    "kind": lambda _: schema.KIND_NAMES,
    "phase": lambda _: schema.PHASE_NAMES,
    "state": lambda _: schema.SAMPLE_STATES,
}
_OF_THREADS: dict[str, Callable[[TraceData, NDArray[np.int32]], Any]] = {
    "process": lambda trace, thread: processes(trace)[thread],
    "rank": lambda trace, thread: ranks(trace)[thread],
    "os_tid": lambda trace, thread: trace.column("threads", "os_tid")[thread],
    "thread_name": lambda trace, thread: Labels(thread, trace.columns("threads")["name"]),
}


class Shown(dict[str, Any]):
    """The columns of a stored table in readable form, at some of its rows; each is computed on first use.

    Rows of strings, modules and stacks become texts, rows of steps and cycles their numbers; `id` is the row itself. A table with a
    `thread` column also has the thread's `process`, `rank`, `os_tid` and `thread_name`.

    Attributes:
        stored: The stored table.
    """

    def __init__(self, trace: TraceData, name: str, rows: slice | NDArray[Any] = EVERY) -> None:
        """Read the table `name`; `rows` are those to show, all by default."""
        self.stored = trace.columns(name)
        self._trace, self._rows = trace, rows

    def __missing__(self, name: str) -> Any:
        """Compute a column when it is first used."""
        if name == "id":
            return np.arange(len(self.stored), dtype=np.int32)[self._rows]
        if name in _OF_THREADS and "thread" in self.stored.table.column_names:
            return _OF_THREADS[name](self._trace, self.stored["thread"][self._rows])
        values, unit = self.stored[name][self._rows], self.stored.table.column(name).unit
        if unit in ("row of steps", "row of cycles"):
            return np.append(self._trace.column(unit.removeprefix("row of "), "number"), -1)[values]
        texts = _TEXTS.get(unit or name)
        return values if texts is None else Labels(values, texts(self._trace))


def _as_stored(trace: TraceData, name: str, **more: Any) -> ArrowTable:
    """Return a stored table in readable form, with additional columns `more`."""
    columns = Shown(trace, name)
    columns |= more
    return to_arrow(name, columns)


def _of_threads(trace: TraceData, name: str) -> Rows:
    """The process or rank of each thread; in a trace of one process, the trace's if the thread has none."""
    of_thread = trace.column("threads", name)
    of_trace = None if len(trace.columns("processes")) else getattr(trace.run_info, name)
    return np.where(of_thread >= 0, of_thread, -1 if of_trace is None else of_trace).astype(np.int64)


def cycles(trace: TraceData) -> ArrowTable:
    """Return the `cycles` table."""
    stored, steps = trace.columns("cycles"), trace.columns("steps")
    of_step: NDArray[Any] = np.zeros(0, dtype=np.int32)
    if len(trace.columns("processes")):
        of_step = of_process_at(steps["process_row"], steps["start_ns"], stored)
    elif len(stored):
        of_step = cycle_of_spans(steps["start_ns"], stored)
    first = np.full(len(stored), -1, dtype=np.int64)
    inside = np.flatnonzero(of_step >= 0)[::-1]
    first[of_step[inside]] = steps["number"][inside]
    return _as_stored(
        trace,
        "cycles",
        first_step=first,
        steps=Groups(of_step, len(stored)).sizes(),
        spans=Groups(trace.column("spans", "cycle"), len(stored)).sizes(),
        **of_processes(trace, stored["process_row"]),
    )
