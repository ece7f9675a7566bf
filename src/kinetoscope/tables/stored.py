"""The tables of a trace as people see them: names, modules, stacks and kinds as strings, none as null.

The tables that add something up (`ops`, `modules`, `steps`, `lines`, `stacks`, `memory`) are made in
`kinetoscope.tables`; here are those that have one row for each row the trace keeps.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentTypeError
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.dictionary import table_definition
from kinetoscope.model.groups import Groups
from kinetoscope.model.losses import effects
from kinetoscope.model.names import module_classes, stack_texts
from kinetoscope.model.processes import of_processes
from kinetoscope.model.schema import FLAG_ASYNC, FLAG_UNFINISHED, KIND_NAMES, PHASE_NAMES
from kinetoscope.model.steps import cycle_of_spans, stretch_at

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.columns import Columns
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


class _RowSlice:
    """Some rows of the columns of a table, each sliced on demand."""

    def __init__(self, columns: Columns, rows: slice) -> None:
        self._columns, self._rows = columns, rows
        self.numbers = np.arange(len(columns), dtype=np.int32)[rows]

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._rows]


def spans(trace: TraceData, *, rows: slice = EVERY) -> pyarrow.Table:
    """Return the `spans` table, or some rows of it: large files are written in parts.

    Args:
        trace: The trace.
        rows: Only these rows of the trace: a slice, such as `slice(0, 10)`.

    Raises:
        ArgumentTypeError: `rows` is not a slice.
    """
    if not isinstance(rows, slice):
        raise ArgumentTypeError(f"rows={rows!r} is not valid: use a slice, such as slice(0, 10)")
    stored = _RowSlice(trace.columns("spans"), rows)
    strings, texts = trace.strings, stack_texts(trace)
    step, thread, module, shapes, flags = (
        stored[name] for name in ("step", "thread", "module", "shapes", "flags")
    )
    numbers = np.append(trace.column("steps", "number"), -1)
    has_memory = memory_recorded(trace)
    inputs = trace.columns("shapes")
    columns: dict[str, Any] = {
        name: stored[name] for name in (
            "start_ns", "duration_ns", "self_ns", "depth", "parent", "caller", "lane", "sequence", "forward", "origin",
            "stream", "correlation", "external_id", "device_bytes", "device_self_bytes", "device_ns", "device_self_ns",
        )
    }  # fmt: skip
    columns |= {
        "id": stored.numbers,
        "name": Labels(stored["name"], strings),
        "overload": Labels(np.where(stored["overload"] > 0, stored["overload"], -1), strings),
        "kind": Labels(stored["kind"], KIND_NAMES),
        "category": Labels(np.where(stored["category"] > 0, stored["category"], -1), strings),
        "arguments": Labels(stored["arguments"], trace.columns("arguments")["json"]),
        "process": processes(trace)[thread],
        "thread": thread,
        "os_tid": trace.column("threads", "os_tid")[thread],
        "thread_name": Labels(thread, trace.columns("threads")["name"]),
        "rank": ranks(trace)[thread],
        "step": numbers[step],
        "cycle": np.append(trace.column("cycles", "number"), -1)[stored["cycle"]],
        "phase": Labels(stored["phase"], PHASE_NAMES),
        "recompute": stored["recompute"] != 0,
        "module": Labels(module, trace.columns("modules")["path"]),
        "module_class": Labels(module, module_classes(trace)),
        "stack": Labels(stored["stack"], texts),
        "shapes": Labels(shapes, inputs["dims"]),
        "types": Labels(shapes, inputs["types"]),
        "inputs": Labels(shapes, inputs["concrete"]),
        "flops": stored["flops"],
        "bytes_moved": stored["bytes_moved"],
        "bytes": stored["bytes"] if has_memory else None,
        "self_bytes": stored["self_bytes"] if has_memory else None,
        "is_async": (flags & FLAG_ASYNC) != 0,
        "unfinished": (flags & FLAG_UNFINISHED) != 0,
    }
    return to_arrow("spans", columns)


def allocations(trace: TraceData) -> pyarrow.Table:
    """Return the `allocations` table."""
    stored, of_spans = trace.columns("allocations"), trace.columns("spans")
    match, size, time_ns, span = stored["match"], stored["bytes"], stored["time_ns"], stored["span"]
    is_free = size == 0
    other = np.where(match >= 0, np.append(size, 0)[match], stored["freed_bytes"])
    lifetime = np.where(~is_free & (match >= 0), np.append(time_ns, 0)[match] - time_ns, -1)
    columns: dict[str, Any] = {
        name: stored[name] for name in (
            "time_ns", "match", "total_bytes", "allocated_bytes", "reserved_bytes", "address", "device_type",
            "device_index", "span",
        )
    }  # fmt: skip
    columns |= {
        "id": np.arange(len(stored), dtype=np.int32),
        "bytes": np.where(is_free, -other, size),
        "lifetime_ns": lifetime,
        "thread": stored["thread"],
        "os_tid": trace.column("threads", "os_tid")[stored["thread"]],
        "operator": Labels(_look_up(span, of_spans["name"]), trace.strings),
        "module": Labels(_look_up(span, of_spans["module"]), trace.columns("modules")["path"]),
        "stack": Labels(stored["stack"], stack_texts(trace)),
        "process": processes(trace)[stored["thread"]],
        "rank": ranks(trace)[stored["thread"]],
    }
    return to_arrow("allocations", columns)


def frames(trace: TraceData) -> pyarrow.Table:
    """Return the `frames` table."""
    stored = trace.columns("frames")
    columns = {
        "id": np.arange(len(stored), dtype=np.int32),
        "function": Labels(stored["function"], trace.strings),
        "file": Labels(stored["file"], trace.strings),
        "line": stored["line"],
    }
    return to_arrow("frames", columns)


def origins(trace: TraceData) -> pyarrow.Table:
    """Return the `origins` table."""
    stored, strings = trace.columns("origins"), trace.strings
    columns = {name: stored[name] for name in ("first", "weight", "flops", "bytes")}
    columns |= {name: Labels(stored[name], strings) for name in ("kernel", "node", "operator", "dtype")}
    columns |= {
        "id": np.arange(len(stored), dtype=np.int32),
        "module": Labels(stored["module"], trace.columns("modules")["path"]),
        "stack": Labels(stored["stack"], stack_texts(trace)),
    }
    return to_arrow("origins", columns)


def threads(trace: TraceData) -> pyarrow.Table:
    """Return the `threads` table; the process and rank of the whole trace are those of its threads."""
    stored = trace.columns("threads")
    columns = {name: stored[name] for name in stored} | {
        "id": np.arange(len(stored), dtype=np.int32),
        "process": processes(trace),
        "rank": ranks(trace),
    }
    return to_arrow("threads", columns)


def shapes(trace: TraceData) -> pyarrow.Table:
    """Return the `shapes` table."""
    return _as_stored(trace, "shapes")


def losses(trace: TraceData) -> pyarrow.Table:
    """Return the `losses` table."""
    own = trace.columns("losses")
    affects = [", ".join(effects([code])) for code in own["code"]]
    return to_arrow("losses", {**{name: own[name] for name in own}, "affects": affects})


def counters(trace: TraceData) -> pyarrow.Table:
    """Return the `counters` table."""
    stored = trace.columns("counters")
    columns = {name: stored[name] for name in ("time_ns", "value")}
    columns |= {"name": Labels(stored["name"], trace.strings), **of_processes(trace, stored["process_row"])}
    return to_arrow("counters", columns)


def info(trace: TraceData) -> pyarrow.Table:
    """Return the `info` table."""
    keys = sorted(trace.info)
    values = [json.dumps(trace.info[key], ensure_ascii=False) for key in keys]
    return to_arrow("info", {"key": keys, "value": values})


def strings(trace: TraceData) -> pyarrow.Table:
    """Return the `strings` table."""
    return to_arrow(
        "strings",
        {"id": np.arange(len(trace.strings), dtype=np.int32), "text": trace.strings},
    )


def rank(trace: TraceData) -> int | None:
    """The rank of the recorded process, where it took part in a distributed run; of several processes none is it."""
    return None if len(trace.columns("processes")) else trace.run_info.rank


def _as_stored(trace: TraceData, name: str) -> pyarrow.Table:
    """Show a stored table as it is."""
    own = trace.columns(name)
    return to_arrow(table_definition(name), {column: own[column] for column in own})


def _or_of_trace(own: NDArray[Any], of_trace: object) -> NDArray[np.int64]:
    """A number of each thread or, where it has none, that of the whole trace."""
    other = of_trace if isinstance(of_trace, int) and 0 <= of_trace < 2**63 else -1
    return np.where(own >= 0, own, other).astype(np.int64)


def _look_up(rows: Any, values: Any) -> Any:
    """Look up `values` at `rows`, and -1 where the row is -1."""
    return np.where(rows >= 0, np.append(values, -1)[rows], -1)


def cycles(trace: TraceData) -> pyarrow.Table:
    """Return the `cycles` table."""
    stored, steps = trace.columns("cycles"), trace.columns("steps")
    of_step = _cycle_of_steps(trace) if len(stored) else np.zeros(0, dtype=np.int32)
    first = np.full(len(stored), -1, dtype=np.int64)
    inside = np.flatnonzero(of_step >= 0)[::-1]
    first[of_step[inside]] = steps["number"][inside]
    columns = {name: stored[name] for name in stored} | {
        "first_step": first,
        "steps": Groups(of_step, len(stored)).sizes(),
        "spans": Groups(trace.column("spans", "cycle"), len(stored)).sizes(),
        **of_processes(trace, stored["process_row"]),
    }
    return to_arrow("cycles", columns)


def _cycle_of_steps(trace: TraceData) -> NDArray[np.int32]:
    """The row of the cycle that each step began in: of its own process."""
    stored, steps = trace.columns("cycles"), trace.columns("steps")
    if len(trace.columns("processes")) == 0:
        return cycle_of_spans(steps["start_ns"], stored)
    end_ns = stored["start_ns"] + stored["duration_ns"]
    return stretch_at(
        steps["process_row"], steps["start_ns"], stored["process_row"], stored["start_ns"], end_ns
    ).astype(np.int32)
