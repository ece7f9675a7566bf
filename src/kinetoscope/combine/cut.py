"""Cuts a part out of a trace, as a trace of its own.

The part is one or more windows of time, each without its end. A span that crosses an edge is cut there, into one piece for each window that
it touches, so the times of disjoint windows add up to the whole. Other values (bytes of a copy, operations, arguments) stay the same in every
piece. Values that follow from spans outside, such as the module of a backward function whose forward operator is outside, are copied; the rest
is derived anew.

Live memory depends on all earlier allocations. So all allocations between the first and the last moment stay, and blocks that were live at the
start become allocations at `BEFORE_NS`, which memory tables read as present before the recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from kinetoscope.combine.concatenate import POINTS_IN_TIME, REFERENCE, taken
from kinetoscope.model.columns import Columns
from kinetoscope.model.kinds import is_call
from kinetoscope.model.processes import memory_salts, process_entries, thread_processes
from kinetoscope.model.rows import Mask, Rows, mask_of, places_of, rows_of_runs
from kinetoscope.model.schema import FLAG_BEGUN_BEFORE, FLAG_UNFINISHED, STORED
from kinetoscope.model.steps import step_at
from kinetoscope.model.trace_data import AnyTrace, TraceData

# Each table comes after all that refer to it.
_ORDER = (
    "origins", "arguments", "shapes", "parameters", "stacks", "frames", "modules", "streams", "threads",
    "strings",
)  # fmt: skip


def compacted(tables: dict[str, dict[str, Any]], strings: list[str], threads: Mask) -> list[str]:
    """Remove strings, frames, stacks, modules and the like that no row refers to, and renumber the references.

    Args:
        tables: The stored columns of every table, changed in place. Parents come before their children.
        strings: The string table, whose first entry stays.
        threads: The threads that stay even if nothing refers to them.

    Returns:
        The new string table.
    """
    for name in _ORDER:
        length = len(strings if name == "strings" else next(iter(tables[name].values()), ()))
        used = _used(name, length, tables)
        if name in ("strings", "shapes", "stacks") and not used[:1].any():
            # The empty string must exist; a row of shapes and stacks shows that they were recorded.
            used[: 1 if name == "strings" or not used.any() else 0] = True
        elif name == "threads":
            used |= threads
        elif name == "origins" and length:
            # The nodes of a kernel stay together.
            used |= used[tables[name]["first"]]
        elif name == "streams":
            # Streams go only if threads do: an idle stream is information, too.
            used |= bool(threads.all())
        if used.all():
            continue
        rows = np.flatnonzero(used)
        new_row = places_of(rows, length)
        if name == "strings":
            strings = [strings[row] for row in rows.tolist()]
        else:
            tables[name] = {column: taken(values, rows) for column, values in tables[name].items()}
        for table, column in _references(name, tables):
            tables[table][column] = new_row[tables[table][column]]
    return strings


def _used(name: str, length: int, tables: dict[str, dict[str, Any]]) -> Mask:
    """Mark the rows that other tables refer to, and the rows that these refer to in turn."""
    used = np.zeros(length + 1, dtype=bool)
    for table, column in _references(name, tables):
        if table != name:
            used[tables[table][column]] = True
    used = used[:-1]
    self_references = [tables[name][column] for table, column in _references(name, tables) if table == name]
    while True:
        before = int(used.sum())
        for values in self_references:
            above = values[used]
            used[above[above >= 0]] = True
        if int(used.sum()) == before:
            return used


def _references(name: str, tables: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (table, column)
        for table, columns in tables.items()
        for column in columns
        if STORED[table].column(column).unit == f"{REFERENCE}{name}"
    ]


BEGINLESS_NS, ENDLESS_NS = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass
class TracePart:
    """Which part of a trace is selected.

    Attributes:
        base_ns: The time 0 of the new trace.
        start_ns: Where each window starts, ascending; `BEGINLESS_NS` for one without a start.
        end_ns: Where each ends; `ENDLESS_NS` for one without an end. They do not overlap.
        threads: The selected threads; None for all.
        steps: The selected rows of `steps`; None for all in a window.
        by_launch: Whether device spans are selected by their launch, and then whole, or by when they ran.
        selection: The entry of the new trace in `info["selections"]`.
        overlaps: Whether partial overlaps that a cut hides are kept, which needs the nesting of the whole trace.
    """

    base_ns: int
    start_ns: Rows
    end_ns: Rows
    threads: Mask | None = None
    steps: Rows | None = None
    by_launch: bool = False
    selection: dict[str, Any] = field(default_factory=dict)
    overlaps: bool = True

    @classmethod
    def of_window(cls, trace: TraceData, start_ns: int, end_ns: int, **more: Any) -> Self:
        """One window of a trace; at the start of the trace it includes what began before, at the end what happens exactly then."""
        begin_ns = start_ns if start_ns > 0 else BEGINLESS_NS
        limit_ns = end_ns if end_ns < trace.duration_ns else ENDLESS_NS
        return cls(start_ns, np.array([begin_ns], np.int64), np.array([limit_ns], np.int64), **more)

    def windows_of(self, start_ns: Rows, end_ns: Rows) -> tuple[Rows, Rows]:
        """The first and the last window that each time range is in; the last is below the first if it is in none."""
        first = np.searchsorted(self.end_ns, start_ns, side="right")
        # An empty range belongs to the window that begins with it.
        return first, np.searchsorted(self.start_ns, np.maximum(end_ns, start_ns + 1), side="left") - 1


@dataclass
class Pieces:
    """The spans of a part: for each piece the span it is of, its window, and its times on the new axis."""

    row: Rows
    window: Rows
    start_ns: Rows
    duration_ns: Rows
    begun_before: Mask
    unfinished: Mask


def _pieces(trace: TraceData, part: TracePart) -> Pieces:
    spans = trace.columns("spans")
    launch_window = _window_of_launch(trace, part) if part.by_launch else None
    near = _near(trace, part, launch_window)
    start = spans["start_ns"][near]
    end = ends_ns(start, spans["duration_ns"][near])
    first, last = part.windows_of(start, end)
    count = np.maximum(last - first + 1, 0)
    if launch_window is not None:
        first = np.where(launch_window[near] >= 0, launch_window[near], first)
        count[launch_window[near] >= 0] = 1
        count[launch_window[near] == -1] = 0
    near_index, window = rows_of_runs(first, count)
    row, start, end = near[near_index], start[near_index], end[near_index]
    from_ns, to_ns = part.start_ns[window], part.end_ns[window]
    if launch_window is not None:
        uncut = launch_window[row] >= 0
        from_ns, to_ns = np.where(uncut, start, from_ns), np.where(uncut, end, to_ns)
    begun_before, unfinished = start < from_ns, end > to_ns
    cut_start = np.maximum(start, from_ns)
    cut_ns = np.minimum(end, to_ns) - cut_start
    duration = np.where(begun_before | unfinished, cut_ns, spans["duration_ns"][row])
    pieces = Pieces(row, window, cut_start - part.base_ns, duration, begun_before, unfinished)
    # Sort by thread, start, and descending duration if needed, so that parents stay before children.
    thread, longest = spans["thread"][row], -duration
    same_start = cut_start[1:] == cut_start[:-1]
    later = (cut_start[1:] < cut_start[:-1]) | (same_start & (longest[1:] < longest[:-1]))
    if not (later & (thread[1:] == thread[:-1])).any():
        return pieces
    order = np.lexsort((longest, cut_start, thread))
    return Pieces(*(values[order] for values in vars(pieces).values()))


_ROWS_AT_ONCE = 1 << 18


def _near(trace: TraceData, part: TracePart, launch_window: Rows | None) -> Rows:
    """The spans that touch a window, on selected threads."""
    spans = trace.columns("spans")
    start_ns, duration_ns = spans["start_ns"], spans["duration_ns"]
    first_start_ns = np.append(part.start_ns, ENDLESS_NS)
    near = []
    # In blocks, because arrays for all spans of a long trace would be most of the memory of a cut.
    for begin in range(0, len(start_ns), _ROWS_AT_ONCE):
        starts_ns = start_ns[begin : begin + _ROWS_AT_ONCE]
        until_ns = np.maximum(ends_ns(starts_ns, duration_ns[begin : begin + _ROWS_AT_ONCE]), starts_ns + 1)
        # The first window that ends later; past the last one the start is endless.
        window = np.searchsorted(part.end_ns, starts_ns, side="right")
        near.append(begin + np.flatnonzero(until_ns > first_start_ns[window]))
    rows = np.concatenate(near) if near else np.zeros(0, np.int64)
    if part.threads is not None:
        rows = rows[part.threads[spans["thread"][rows]]]
    if launch_window is not None:
        rows = np.union1d(rows, np.flatnonzero(launch_window >= 0))
    return rows


def _window_of_launch(trace: TraceData, part: TracePart) -> Rows:
    """The window of each device span's launch, -1 if outside all windows; -2 for spans without a known launch."""
    window = np.full(len(trace.columns("spans")), -2, dtype=np.int64)
    launches = trace.columns("launches")
    host, device = launches["host"][::-1], launches["device"][::-1]  # the first launch of several decides
    paired = (host >= 0) & (device >= 0)
    window[device[paired]] = window_at(part, trace.column("spans", "start_ns")[host[paired]])
    window[trace.column("spans", "stream") < 0] = -2
    return window


def window_at(part: TracePart, time_ns: Rows) -> Rows:
    """The window each moment lies in, -1 for none."""
    window = np.searchsorted(part.end_ns, time_ns, side="right")
    inside = (window < len(part.end_ns)) & (np.append(part.start_ns, ENDLESS_NS)[window] <= time_ns)
    return np.where(inside, window, -1)


def ends_ns(start_ns: Rows, duration_ns: Rows) -> Rows:
    """The end of each span, clamped to 64 bits."""
    end = start_ns + duration_ns
    return np.where((end < start_ns) & (duration_ns > 0), ENDLESS_NS, end)


BEFORE_NS = -1
_BYTES = ("bytes", "self_bytes", "device_bytes", "device_self_bytes")
# Tables that lose rows; dictionaries keep all of theirs until `compacted`.
_RENUMBERED = ("spans", "processes", "steps", "cycles", "allocations")
_OF_SPANS = ("launches", "kernels", "copies", "operands", "tensor_versions", "collectives")


def cut(trace: AnyTrace, part: TracePart) -> AnyTrace:
    """Return a part of a trace as a trace of its own, without shared mutable state."""
    return cut_with_rows(trace, part)[0]


def cut_with_rows(trace: AnyTrace, part: TracePart) -> tuple[AnyTrace, Rows]:
    """Like `cut`, and also return the old row of each span of the new trace."""
    cutting = _Cutting(trace, part)
    return cast("AnyTrace", cutting.run()), cutting.span_rows


class _Cutting:
    def __init__(self, trace: TraceData, part: TracePart) -> None:
        self._trace = trace
        self._part = part
        self._base_ns = part.base_ns
        self._spans = trace.columns("spans")
        self._tables: dict[str, dict[str, Any]] = {}
        self._rows_of: dict[str, Rows] = {}
        self._rows_of["processes"] = self._wanted_processes()
        self._pieces_kept = pieces = _pieces(trace, part)
        self._rows_of["spans"] = self.span_rows = pieces.row
        self._place = self._place_of("spans")

    def run(self) -> TraceData:
        self._take("processes", self._rows_of["processes"])
        self._steps()
        self._cycles()
        self._cut_spans()
        for name in _OF_SPANS:
            held = self._trace.columns(name)
            references = [
                held[column.name] for column in STORED[name].columns if column.unit == "row of spans"
            ]
            is_used = np.logical_and.reduce([(rows < 0) | (self._place[rows] >= 0) for rows in references])
            self._take(name, np.flatnonzero(is_used))
        self._memory()
        for name in ("counters", "samples"):
            inside = window_at(self._part, self._trace.column(name, "time_ns")) >= 0
            self._take(name, np.flatnonzero(inside & self._wanted_of(name)))
        self._compiles()
        for name in (*_ORDER[:-1], "losses"):
            self._take(name, np.arange(len(self._trace.columns(name))))
        self._bytes_of_pieces()
        strings = list(self._trace.strings)
        if any(len(rows) < len(self._trace.columns(name)) for name, rows in self._rows_of.items()):
            strings = compacted(self._tables, strings, self._wanted_threads())
        return self._trace.from_columns(self._tables, strings=strings, info=self._info())

    # Spans

    def _cut_spans(self) -> None:
        pieces, spans = self._pieces_kept, self._spans
        columns = self._given("spans", pieces.row)
        columns["start_ns"], columns["duration_ns"] = pieces.start_ns, pieces.duration_ns
        columns["flags"] = (
            spans["flags"][pieces.row]
            | pieces.begun_before * np.uint8(FLAG_BEGUN_BEFORE)
            | pieces.unfinished * np.uint8(FLAG_UNFINISHED)
        )
        forward = spans["forward"][pieces.row]
        outside = (forward >= 0) & (self._place[forward] < 0)
        # Links depend on which operator began last, which cut spans no longer show.
        if outside.any() or (pieces.begun_before & (spans["sequence"][pieces.row] >= 0)).any():
            columns["forward"] = self._place[forward]
            for name in ("module", "forward_stack"):
                columns[name] = spans[name][pieces.row]
        if "lane" in columns or (self._part.overlaps and spans["lane"][pieces.row].any()):
            columns |= self._nesting_as_it_was()
        if "step" not in columns and pieces.begun_before.any():
            steps, begun_ns = self._trace.columns("steps"), spans["start_ns"][pieces.row]
            begun_in = step_at(begun_ns, steps["start_ns"], steps["duration_ns"])
            columns["step"] = self._place_of("steps")[begun_in]
        self._tables["spans"] = columns

    def _nesting_as_it_was(self) -> dict[str, Any]:
        """Parents, depths and lanes from the whole trace: a cut may hide that spans overlapped."""
        pieces, spans = self._pieces_kept, self._spans
        windows = len(self._part.start_ns)
        key = pieces.row * windows + pieces.window
        order = np.argsort(key, kind="stable")
        key = key[order]

        def same_window(rows: Rows) -> NDArray[np.int32]:
            wanted = rows[pieces.row].astype(np.int64) * windows + pieces.window
            row = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
            return np.where((rows[pieces.row] >= 0) & (key[row] == wanted), order[row], -1).astype(np.int32)

        cut_off = pieces.begun_before | pieces.unfinished

        def inside_of(around: NDArray[np.int32]) -> NDArray[np.int32]:
            # Work launched in the window is whole, and may reach beyond a cut range of the device.
            start, end = pieces.start_ns, pieces.start_ns + pieces.duration_ns
            reaches_out = cut_off[around] & ~cut_off & ((start < start[around]) | (end > end[around]))
            return np.where((around >= 0) & reaches_out, -1, around).astype(np.int32)

        parent, caller = inside_of(same_window(spans["parent"])), inside_of(same_window(spans["caller"]))
        lane, of_call = spans["lane"][pieces.row], is_call(spans["kind"][pieces.row])
        self_ns = spans["self_ns"][pieces.row].copy()
        # Outside of lane 0, only device work has a self time.
        changed = cut_off & ((lane == 0) | (self_ns > 0))
        of_work, of_calls = pieces.duration_ns.copy(), pieces.duration_ns.copy()
        # Work is inside work, a call contains whatever is directly inside it. Parents come first, so of two that enclose a span
        # the later one is the inner.
        inside = np.flatnonzero((lane == 0) & ~of_call & (parent >= 0))
        inside = inside[changed[parent[inside]]]
        np.subtract.at(of_work, parent[inside], pieces.duration_ns[inside])
        around = np.maximum(parent, caller)
        inside = np.flatnonzero((lane == 0) & (around >= 0))
        inside = inside[changed[around[inside]]]
        np.subtract.at(of_calls, around[inside], pieces.duration_ns[inside])
        self_ns[changed] = np.where(of_call, of_calls, of_work)[changed]
        depth = spans["depth"][pieces.row]
        return {"parent": parent, "caller": caller, "depth": depth, "lane": lane, "self_ns": self_ns}

    # What is no span

    def _steps(self) -> None:
        part, steps = self._part, self._trace.columns("steps")
        start, end = steps["start_ns"], ends_ns(steps["start_ns"], steps["duration_ns"])
        first, last = part.windows_of(start, end)
        inside = first <= last
        if part.steps is not None:
            inside &= np.isin(np.arange(len(inside)), part.steps)
        if part.threads is not None:
            inside &= (steps["span"] < 0) | (self._place[steps["span"]] >= 0)
        rows = np.flatnonzero(inside)
        self._rows_of["steps"] = rows
        cut_start = np.maximum(start, np.append(part.start_ns, 0)[first])[rows]
        cut_end = np.minimum(end, part.end_ns[last])[rows]
        # Also if empty: the new trace must not derive steps itself.
        times = {"start_ns": cut_start - self._base_ns, "duration_ns": cut_end - cut_start}
        self._tables["steps"] = self._given("steps", rows, tuple(steps)) | times

    def _memory(self) -> None:
        part, events = self._part, self._trace.columns("allocations")
        time_ns, end_ns = events["time_ns"], int(part.end_ns[-1])
        wanted = (time_ns < end_ns) & self._wanted_of("allocations")
        begin = int(np.searchsorted(time_ns, self._base_ns)) if self._base_ns > 0 else 0
        if begin:
            wanted[:begin] &= self._live_at(begin)
        self._take("allocations", np.flatnonzero(wanted))
        taken, allocations = self._rows_of["allocations"], self._tables["allocations"]
        if len(taken):
            before = taken < begin
            allocations["time_ns"] = np.where(before, BEFORE_NS, time_ns[taken] - self._base_ns)
            # Only merged traces store these.
            if "span" in allocations:
                allocations["span"][before] = -1
            if "total_bytes" in allocations:
                allocations["total_bytes"][before] = self._live_bytes(taken[before])
        before_end = self._trace.column("storages", "time_ns") < end_ns
        self._take("storages", np.flatnonzero(before_end & self._wanted_of("storages")))

    def _compiles(self) -> None:
        """Compilations up to the end of the part; those that ended before it, or ran on other threads, no longer count as recorded."""
        part, compiles = self._part, self._trace.columns("compiles")
        self._take("graph_breaks", np.flatnonzero(self._wanted_of("graph_breaks")))
        start = compiles["start_ns"]
        end = ends_ns(start, np.maximum(compiles["duration_ns"], 0))
        first, last = part.windows_of(start, end)
        recorded = (compiles["recorded"] > 0) & (first <= last) & self._wanted_of("compiles", "thread")
        wanted = self._wanted_of("compiles", "process_row")
        rows = np.flatnonzero(wanted & (recorded | (start < part.end_ns[-1])))
        self._take("compiles", rows)
        if len(compiles):
            self._tables["compiles"]["recorded"] = recorded[rows].astype(np.uint8)

    def _live_at(self, begin: int) -> Mask:
        events, cycles = self._trace.columns("allocations"), self._trace.columns("cycles")
        match = events["match"][:begin]
        live: Mask = (events["bytes"][:begin] != 0) & ((match < 0) | (match >= begin))
        process = thread_processes(self._trace)[events["thread"][:begin]]
        if len(cycles) > 1:
            # Blocks of an earlier cycle may have been freed before this one.
            begun_ns = np.zeros(len(self._trace.columns("processes")) + 1, dtype=np.int64)
            early = cycles["start_ns"] <= self._base_ns
            np.maximum.at(begun_ns, cycles["process_row"][early], cycles["start_ns"][early])
            live &= events["time_ns"][:begin] >= begun_ns[process if len(begun_ns) > 1 else 0]
        unmatched = np.flatnonzero(live & (match < 0))
        if len(unmatched):
            # The free of such a block was not recorded, but its address was reused, so it is gone.
            key = events["address"][:begin] ^ (_devices(events)[:begin] << np.uint64(48))
            key ^= memory_salts(self._trace)[process]
            _, last = np.unique(key[::-1], return_index=True)
            is_last = mask_of(begin - 1 - last, begin)
            live[unmatched] = is_last[unmatched]
        return live

    def _live_bytes(self, rows: Rows) -> Rows:
        """The live bytes of the device and process after each of some allocations, which have no frees between them."""
        events = self._trace.columns("allocations")
        device, size = _devices(events)[rows], events["bytes"][rows]
        device += thread_processes(self._trace)[events["thread"][rows]].astype(np.uint64) << np.uint64(32)
        total = np.zeros(len(rows), dtype=np.int64)
        for number in np.unique(device).tolist():
            total[device == number] = np.cumsum(size[device == number])
        return total

    def _bytes_of_pieces(self) -> None:
        span_columns, pieces = self._tables["spans"], self._pieces_kept
        handed_over = [name for name in _BYTES if name in span_columns]
        changed = pieces.begun_before | pieces.unfinished
        if not handed_over or not changed.any():
            return
        spans = {name: values for name, values in span_columns.items() if name not in _BYTES}
        part = self._trace.from_columns(self._tables | {"spans": spans}, strings=self._trace.strings)
        for name in handed_over:
            span_columns[name] = np.where(changed, part.column("spans", name), span_columns[name])

    def _cycles(self) -> None:
        part, cycles = self._part, self._trace.columns("cycles")
        start, end = cycles["start_ns"], ends_ns(cycles["start_ns"], cycles["duration_ns"])
        from_ns, to_ns = np.maximum(start, part.start_ns[0]), np.minimum(end, part.end_ns[-1])
        lasting = (from_ns < to_ns) | ((start == end) & (from_ns == to_ns))
        rows = np.flatnonzero(lasting & self._wanted_of("cycles"))
        self._take("cycles", rows)
        self._tables["cycles"] |= {
            "start_ns": (from_ns - self._base_ns)[rows],
            "duration_ns": (to_ns - from_ns)[rows],
        }

    def _wanted_threads(self) -> Mask:
        if self._part.threads is not None:
            return self._part.threads
        return np.ones(len(self._trace.columns("threads")), dtype=bool)

    def _wanted_processes(self) -> Rows:
        count, threads = len(self._trace.columns("processes")), self._part.threads
        if threads is None or count == 0:
            return np.arange(count)
        of_threads = self._trace.column("threads", "process_row")
        return np.flatnonzero(np.isin(np.arange(count), of_threads[threads]))

    def _wanted_of(self, name: str, *columns: str) -> Mask:
        """Which rows of a table belong to selected threads and processes, or to none; `columns` restricts the check to these."""
        table = self._trace.columns(name)
        wanted = np.ones(len(table), dtype=bool)
        chosen = {"thread": self._wanted_threads(), "process_row": self._place_of("processes")[:-1] >= 0}
        for column in {*(columns or chosen)} & {*table}:
            wanted &= np.append(chosen[column], True)[table[column]]
        return wanted

    def _info(self) -> dict[str, Any]:
        trace_info, pieces = self._trace.info, self._pieces_kept
        info = dict(trace_info)
        for key in ("start_realtime_ns", "start_monotonic_ns"):
            if isinstance(begun_ns := trace_info.get(key), int) and begun_ns:
                info[key] = begun_ns + self._base_ns
        if len(self._trace.columns("processes")):
            entries = process_entries(self._trace)
            info["processes"] = [entries[row] for row in self._rows_of["processes"].tolist()]
        if isinstance(trace_info.get("stop_ns"), int) or self._part.end_ns[-1] < ENDLESS_NS:
            info["stop_ns"] = max(0, min(self._trace.duration_ns, int(self._part.end_ns[-1])) - self._base_ns)
        if len(self._trace.columns("allocations")) and len(self._rows_of["allocations"]) == 0:
            # No row shows any more that memory was recorded.
            info.setdefault("profile_memory", True)
        if isinstance(cycles := trace_info.get("cycles"), list):
            table = self._tables["cycles"]
            numbers = [int(number) for number in table.get("number", ())]
            info["cycles"] = [
                cycle
                | {
                    name: int(table[name][numbers.index(cycle["number"])])
                    for name in ("start_ns", "duration_ns")
                }
                for cycle in cycles
                if isinstance(cycle, dict) and cycle.get("number") in numbers
            ]
        earlier = trace_info.get("selections")
        cut_spans = int((pieces.begun_before | pieces.unfinished).sum())
        selection = {
            **self._part.selection,
            "cut_spans": cut_spans,
            "spans_left_out": int((self._place[:-1] < 0).sum()),
        }
        info["selections"] = [*(earlier if isinstance(earlier, list) else []), selection]
        return info

    # Tables

    def _take(self, name: str, rows: Rows) -> None:
        self._rows_of[name] = rows
        self._tables[name] = self._given(name, rows)

    def _given(self, name: str, rows: Rows, names: Sequence[str] | None = None) -> dict[str, Any]:
        """The columns to pass on of a table, at some rows; by default those that cannot be derived."""
        columns = self._trace.columns(name)
        new_columns: dict[str, Any] = {}
        for column in columns.given if names is None else names:
            values = taken(columns[column], rows)
            target = STORED[name].column(column).unit.removeprefix(REFERENCE)
            if target in _RENUMBERED:
                values = (self._place if target == "spans" else self._place_of(target))[values]
            elif column in POINTS_IN_TIME:
                values = values - self._base_ns
            new_columns[column] = values
        return new_columns

    def _place_of(self, name: str) -> NDArray[np.int32]:
        """The new row of each old row of a table, and -1 for the row -1."""
        # The first piece of a span.
        return places_of(self._rows_of[name], len(self._trace.columns(name)))


def _devices(events: Columns) -> NDArray[np.uint64]:
    kind, index = (events[name].astype(np.uint64) for name in ("device_type", "device_index"))
    return np.where(kind == 0, np.uint64(0), (kind << np.uint64(8)) + (index & np.uint64(255)))
