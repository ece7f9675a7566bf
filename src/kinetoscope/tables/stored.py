"""The tables of a trace as people see them: names, modules, stacks and kinds as strings, none as null.

The tables that add something up (`ops`, `modules`, `steps`, `lines`, `stacks`, `memory`) are made in
`kinetoscope.tables`; here are those that have one row for each row the trace keeps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentTypeError
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.losses import effects
from kinetoscope.model.names import module_classes, stack_texts
from kinetoscope.model.processes import of_processes
from kinetoscope.model.rows import look_up
from kinetoscope.model.schema import (
    FLAG_ASYNC,
    FLAG_UNFINISHED,
    KIND_NAMES,
    PHASE_NAMES,
    SAMPLE_STATES,
    SAMPLE_WAITS,
)
from kinetoscope.model.steps import cycle_of_spans, of_process_at
from kinetoscope.model.trace_data import TraceData

EVERY = slice(None)


def memory_recorded(trace: TraceData) -> bool:
    """Whether the recording watched allocations, so that 0 bytes means none."""
    return len(trace.columns("allocations")) > 0 or bool(trace.run_info.profile_memory)


def processes(trace: TraceData) -> NDArray[np.int64]:
    """The process id of each row of `threads`, -1 where it is not known."""
    whole = None if len(trace.columns("processes")) else trace.run_info.process
    return _or_of_trace(trace.column("threads", "process"), whole)


def ranks(trace: TraceData) -> NDArray[np.int64]:
    """The rank of each row of `threads`, -1 outside distributed runs."""
    return _or_of_trace(trace.column("threads", "rank"), rank(trace))


def spans(trace: TraceData, *, rows: slice = EVERY) -> ArrowTable:
    """Return the `spans` table, or some rows of it: large files are written in parts.

    Args:
        trace: The trace.
        rows: Only these rows of the trace: a slice, such as `slice(0, 10)`.

    Raises:
        ArgumentTypeError: `rows` is not a slice.
    """
    if not isinstance(rows, slice):
        raise ArgumentTypeError(f"rows={rows!r} is not valid: use a slice, such as slice(0, 10)")
    of_spans, strings = trace.columns("spans"), trace.strings

    def stored(name: str) -> Any:
        return of_spans[name][rows]

    thread, module, shapes, flags = map(stored, ("thread", "module", "shapes", "flags"))
    has_memory = memory_recorded(trace)
    inputs = trace.columns("shapes")
    columns: dict[str, Any] = {
        name: stored(name) for name in (
            "start_ns", "duration_ns", "self_ns", "depth", "parent", "caller", "lane", "sequence", "forward", "origin",
            "stream", "correlation", "external_id", "device_bytes", "device_self_bytes", "device_ns", "device_self_ns",
        )
    }  # fmt: skip
    columns |= {
        "id": np.arange(len(of_spans), dtype=np.int32)[rows],
        "name": Labels(stored("name"), strings),
        "overload": Labels(np.where(stored("overload") > 0, stored("overload"), -1), strings),
        "kind": Labels(stored("kind"), KIND_NAMES),
        "category": Labels(np.where(stored("category") > 0, stored("category"), -1), strings),
        "arguments": Labels(stored("arguments"), trace.columns("arguments")["json"]),
        "process": processes(trace)[thread],
        "thread": thread,
        "os_tid": trace.column("threads", "os_tid")[thread],
        "thread_name": Labels(thread, trace.columns("threads")["name"]),
        "rank": ranks(trace)[thread],
        "step": np.append(trace.column("steps", "number"), -1)[stored("step")],
        "cycle": np.append(trace.column("cycles", "number"), -1)[stored("cycle")],
        "phase": Labels(stored("phase"), PHASE_NAMES),
        "recompute": stored("recompute") != 0,
        "module": Labels(module, trace.columns("modules")["path"]),
        "module_class": Labels(module, module_classes(trace)),
        "stack": Labels(stored("stack"), stack_texts(trace)),
        "shapes": Labels(shapes, inputs["dims"]),
        "types": Labels(shapes, inputs["types"]),
        "inputs": Labels(shapes, inputs["concrete"]),
        "flops": stored("flops"),
        "bytes_moved": stored("bytes_moved"),
        "bytes": stored("bytes") if has_memory else None,
        "self_bytes": stored("self_bytes") if has_memory else None,
        "is_async": (flags & FLAG_ASYNC) != 0,
        "unfinished": (flags & FLAG_UNFINISHED) != 0,
    }
    return to_arrow("spans", columns)


def allocations(trace: TraceData) -> ArrowTable:
    """Return the `allocations` table."""
    stored, of_spans = trace.columns("allocations"), trace.columns("spans")
    match, size, time_ns = stored["match"], stored["bytes"], stored["time_ns"]
    thread, span, is_free = stored["thread"], stored["span"], size == 0
    other = np.where(match >= 0, np.append(size, 0)[match], stored["freed_bytes"])
    return _as_stored(
        trace,
        "allocations",
        bytes=np.where(is_free, -other, size),
        lifetime_ns=np.where(~is_free & (match >= 0), np.append(time_ns, 0)[match] - time_ns, -1),
        os_tid=trace.column("threads", "os_tid")[thread],
        operator=Labels(look_up(span, of_spans["name"]), trace.strings),
        module=Labels(look_up(span, of_spans["module"]), trace.columns("modules")["path"]),
        process=processes(trace)[thread],
        rank=ranks(trace)[thread],
    )


def frames(trace: TraceData) -> ArrowTable:
    """Return the `frames` table."""
    return _as_stored(trace, "frames")


def origins(trace: TraceData) -> ArrowTable:
    """Return the `origins` table."""
    return _as_stored(trace, "origins")


def threads(trace: TraceData) -> ArrowTable:
    """Return the `threads` table; the process and rank of the whole trace are those of its threads."""
    return _as_stored(trace, "threads", process=processes(trace), rank=ranks(trace))


def shapes(trace: TraceData) -> ArrowTable:
    """Return the `shapes` table."""
    return _as_stored(trace, "shapes")


def losses(trace: TraceData) -> ArrowTable:
    """Return the `losses` table."""
    codes = trace.columns("losses")["code"]
    return _as_stored(trace, "losses", affects=[", ".join(effects([code])) for code in codes])


def samples(trace: TraceData) -> ArrowTable:
    """Return the `samples` table: which line of Python each thread was in, many times a second."""
    stored, frames = trace.columns("samples"), trace.columns("frames")
    stack, thread = stored["stack"], stored["thread"]
    # The last entry of each is for the row -1.
    frame = np.append(trace.column("stacks", "frame"), -1)[stack]
    function, file, line = (np.append(frames[name], -1)[frame] for name in ("function", "file", "line"))
    return _as_stored(
        trace,
        "samples",
        state=Labels(stored["state"], SAMPLE_STATES),
        waits_for=Labels(np.where(stored["wait"] > 0, stored["wait"].astype(np.int64), -1), SAMPLE_WAITS),
        function=Labels(function, trace.strings),
        file=Labels(file, trace.strings),
        line=np.maximum(line, 0),
        step=np.append(trace.column("steps", "number"), -1)[stored["step"]],
        os_tid=trace.column("threads", "os_tid")[thread],
        thread_name=Labels(thread, trace.columns("threads")["name"]),
        stack_row=stack,
        process=processes(trace)[thread],
        rank=ranks(trace)[thread],
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
    """The rank of the recorded process, where it took part in a distributed run; of several processes none is it."""
    return None if len(trace.columns("processes")) else trace.run_info.rank


def _as_stored(trace: TraceData, name: str, **more: Any) -> ArrowTable:
    """Show a stored table with its row numbers as `id`, and rows of strings, modules and stacks as texts; `more` are columns that follow from it."""
    stored = trace.columns(name)
    texts_of: dict[str, Callable[[], Sequence[str]]] = {
        "row of strings": lambda: trace.strings,
        "row of modules": lambda: trace.columns("modules")["path"],
        "row of stacks": lambda: stack_texts(trace),
    }
    columns: dict[str, Any] = {"id": np.arange(len(stored), dtype=np.int32)}
    for column in stored.table.columns:
        values, texts = stored[column.name], texts_of.get(column.unit)
        columns[column.name] = values if texts is None else Labels(values, texts())
    return to_arrow(name, columns | more)


def _or_of_trace(own: NDArray[Any], of_trace: object) -> NDArray[np.int64]:
    """A number of each thread or, where it has none, that of the whole trace."""
    other = of_trace if isinstance(of_trace, int) and 0 <= of_trace < 2**63 else -1
    return np.where(own >= 0, own, other).astype(np.int64)


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
