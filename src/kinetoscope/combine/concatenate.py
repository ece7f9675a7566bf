"""Joins several traces on one clock: the cycles of a session, or the recordings of one process.

The definition of a table says what to do: a column whose unit is `row of <table>` gets the new row numbers of that table, points in time
are moved, everything else is copied. Dictionaries (strings, frames, stacks, modules, threads ...) have each entry once; the other tables have the rows
of all traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.model.dictionary import Table
from kinetoscope.model.losses import Loss, loss_columns, losses_of
from kinetoscope.model.processes import Placement
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import STORED
from kinetoscope.model.trace_data import AnyTrace, TraceData

_OF_THE_WHOLE = frozenset(
    {
        "start_realtime_ns",
        "start_monotonic_ns",
        "stop_ns",
        "complete",
        "clock_checks",
        "pauses",
        "cycle",
        "cycles",
    }
)


# How the checks of several clocks combine.
_CLOCK_CHECKS: dict[str, Callable[[Iterable[int]], int]] = {
    "readings": sum, "largest_error_ns": max, "device_calls": sum, "device_calls_crossing": sum,
}  # fmt: skip


def _windows(trace: TraceData) -> list[tuple[int, int]]:
    """Start and duration of each cycle, or of a trace without cycles."""
    table = trace.columns("cycles")
    windows = list(zip(table["start_ns"].tolist(), table["duration_ns"].tolist(), strict=True))
    return windows or [(0, trace.duration_ns)]


def _named(numbers: list[int]) -> str:
    if not numbers:
        return ""
    return f" (cycle{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))})"


# The identity of a dictionary's rows; of equal rows the first is used. The order matters: each table refers only to those before it.
IDENTITY: dict[str, tuple[str, ...]] = {
    "frames": ("function", "file", "line", "first_line"),
    "stacks": ("parent", "frame"),
    "modules": ("address", "path", "class"),
    "parameters": ("module", "name", "address"),
    "shapes": ("dims", "types", "concrete", "strides"),
    "arguments": ("json",),
    "streams": ("device_type", "device_index", "number"),
    "threads": ("os_tid", "torch_tid", "stream name"),
}
POINTS_IN_TIME = frozenset({"start_ns", "time_ns"})
# Computed from allocations. A block freed between two traces is in neither, so these hold within each trace only.
WITHIN_EACH = {
    "allocations": ("span", "match", "total_bytes"),
    "spans": ("bytes", "self_bytes", "device_bytes", "device_self_bytes"),
}
REFERENCE = "row of "


def concatenate(traces: Sequence[AnyTrace]) -> AnyTrace:
    """Join the traces of one process, in the order in which they were recorded.

    Each trace is placed in time by the wall clock; if that was set back, a trace starts where the previous one ended. Threads, modules, stacks and
    so on that occur in several traces are merged. `spans.cycle` and the table `cycles` say which trace a row is from.

    Args:
        traces: The traces of one process, oldest first.

    Returns:
        A new trace; the given traces are unchanged and share no mutable state with it. For one trace, that trace.

    Raises:
        ArgumentError: There are no traces, or they are of several processes.
        StateError: One of them was closed.
    """
    if not traces:
        raise ArgumentError("traces is empty: pass at least one trace.")
    if len(traces) == 1:
        return traces[0]
    processes = {trace.run_info.process for trace in traces}
    if len(processes) > 1:
        named = ", ".join(sorted(str(process) for process in processes))
        raise ArgumentError(f"the traces are of several processes ({named}); pass the traces of one process.")
    if any(len(trace.columns("processes")) for trace in traces):
        raise ArgumentError(
            "one of the traces already contains several processes; join the traces of each process first."
        )
    parts = [
        JoinedTrace(trace, Placement(offset_ns))
        for trace, offset_ns in zip(traces, _offsets_ns(traces), strict=True)
    ]
    return cast("AnyTrace", Joining(parts).run())


def _offsets_ns(traces: Sequence[TraceData]) -> list[int]:
    base_ns = traces[0].run_info.start_realtime_ns or 0
    offsets: list[int] = []
    end_ns = 0
    for trace in traces:
        offset_ns = max(end_ns, (trace.run_info.start_realtime_ns or 0) - base_ns)
        offsets.append(offset_ns)
        end_ns = offset_ns + trace.duration_ns
    return offsets


@dataclass
class JoinedTrace:
    """One of the traces, its place in time, and the new rows of its tables; the last entry of each map is for the row -1."""

    trace: TraceData
    place: Placement
    rows: dict[str, Rows] = field(default_factory=dict)


class Joining:
    """One concatenation.

    Attributes:
        SORTED_BY: The column by which a table must be sorted.
        SHARED: The tables whose rows are merged if they have the same identity.
        DERIVED: The tables that are derived anew.
    """

    SORTED_BY: ClassVar = {"spans": "thread", "allocations": "time_ns", "samples": "time_ns"}
    SHARED: ClassVar[tuple[str, ...]] = tuple(IDENTITY)
    DERIVED: ClassVar[tuple[str, ...]] = ("steps",)

    def __init__(self, parts: list[JoinedTrace]) -> None:
        self._parts = parts
        self._strings: list[str] = []
        self._tables: dict[str, dict[str, Any]] = {}

    def run(self) -> TraceData:
        """Join the strings, the shared tables, and then the others."""
        self._join_strings()
        self._begin()
        for name in self.SHARED:
            self._join_dictionary(name)
        tables = [name for name in STORED if name not in (*self._tables, *self.DERIVED, "losses")]
        # References may lead to any table, so all are numbered before any is moved.
        orders = {name: self._number_rows(name) for name in tables}
        for name, order in orders.items():
            self._put_in_order(name, order)
        self._tables["losses"] = self._losses()
        return self._parts[0].trace.from_columns(self._tables, strings=self._strings, info=self._info())

    def _begin(self) -> None:
        self._number_rows("processes")
        self._number_cycles()

    def _losses(self) -> dict[str, list[Any]]:
        counts: dict[Loss, int] = {}
        cycles: dict[Loss, list[int]] = {}
        for part in self._parts:
            for loss in losses_of(part.trace.columns("losses")):
                kind = replace(loss, count=0)
                counts[kind] = counts.get(kind, 0) + loss.count
                if " (cycle" not in loss.where:
                    cycles.setdefault(kind, []).extend(self._numbers(part))
        return loss_columns(
            replace(kind, count=count, where=f"{kind.where}{_named(cycles.get(kind, []))}")
            for kind, count in counts.items()
        )

    def _info(self) -> dict[str, Any]:
        """Merged metadata: where traces differ, the last one wins, as in torch's own exports, and `cycles` has all values."""
        infos = [part.trace.info for part in self._parts]
        joined = {key: value for info in infos for key, value in info.items() if key not in _OF_THE_WHOLE}
        differing = [
            key for key in joined if any(key not in info or info[key] != joined[key] for info in infos)
        ]
        joined["start_realtime_ns"] = infos[0].get("start_realtime_ns", 0)
        if "start_monotonic_ns" in infos[0]:
            joined["start_monotonic_ns"] = infos[0]["start_monotonic_ns"]
        joined["stop_ns"] = max(part.place.offset_ns + part.trace.duration_ns for part in self._parts)
        joined["complete"] = all(info.get("complete", True) for info in infos)
        checks = [info["clock_checks"] for info in infos if isinstance(info.get("clock_checks"), dict)]
        if checks:
            joined["clock_checks"] = {
                key: together(check.get(key, 0) for check in checks)
                for key, together in _CLOCK_CHECKS.items()
                if any(key in check for check in checks)
            }
        pauses = [pause for info in infos if isinstance(info.get("pauses"), list) for pause in info["pauses"]]
        if pauses:
            joined["pauses"] = pauses
        joined["cycles"] = [cycle for part in self._parts for cycle in self._cycles(part, differing)]
        return joined

    def _cycles(self, part: JoinedTrace, differing: list[str]) -> list[dict[str, Any]]:
        info, windows, offset_ns = part.trace.info, _windows(part.trace), part.place.offset_ns
        facts = {key: info[key] for key in differing if key in info}
        cycles = info.get("cycles")
        earlier = cycles if isinstance(cycles, list) and len(cycles) == len(windows) else [{}] * len(windows)
        return [
            {**facts, **entry, "number": number, "start_ns": offset_ns + start_ns, "duration_ns": duration_ns}
            for entry, number, (start_ns, duration_ns) in zip(
                earlier, self._numbers(part), windows, strict=True
            )
        ]

    def _join_strings(self) -> None:
        rows: dict[str, int] = {}
        for part in self._parts:
            part.rows["strings"] = row_map(rows.setdefault(text, len(rows)) for text in part.trace.strings)
        self._strings = list(rows)

    def _join_dictionary(self, name: str) -> None:
        table = STORED[name]
        row_of_key: dict[Any, int] = {}
        first: list[tuple[JoinedTrace, int]] = []
        for part in self._parts:
            columns = part.trace.columns(name)
            part.rows[name] = rows = np.full(len(columns) + 1, -1, dtype=np.int64)
            keys = [self._key(part, table, key) for key in IDENTITY[name]]
            is_tree = "parent" in IDENTITY[name]
            for row in range(len(columns)):
                key = tuple(values[row] for values in keys)
                if is_tree:
                    # Parents come first, so the new row of a parent is known.
                    key = (int(rows[key[0]]), *key[1:])
                rows[row] = row_of_key.setdefault(key, len(row_of_key))
                if len(first) < len(row_of_key):
                    first.append((part, row))
        joined: dict[str, Any] = {}
        for column in self._given(name):
            values = {id(part): self._moved(part, name, column) for part in self._parts}
            joined[column] = [values[id(part)][row] for part, row in first]
        if name == "threads":
            joined["index"] = np.arange(len(first))
        self._tables[name] = joined

    def _key(self, part: JoinedTrace, table: Table, key: str) -> list[Any]:
        columns = part.trace.columns(table.name)
        if key == "stream name":
            # Tracks of devices have neither thread id; they are identified by their names.
            pairs = zip(columns["name"], columns["torch_tid"].tolist(), strict=True)
            return [name if torch_tid < 0 else "" for name, torch_tid in pairs]
        if key == "parent" or isinstance(columns[key], list):
            return list(columns[key])
        return list(self._moved(part, table.name, key).tolist())

    def _number_cycles(self) -> None:
        numbers = [int(number) for part in self._parts for number in part.trace.column("cycles", "number")]
        counted = all(len(part.trace.columns("cycles")) for part in self._parts)
        windows: list[tuple[int, int]] = []
        for part in self._parts:
            begin = len(windows)
            offset_ns = part.place.offset_ns
            windows += [(offset_ns + start, duration) for start, duration in _windows(part.trace)]
            none = -1 if len(part.trace.columns("cycles")) else begin
            part.rows["cycles"] = np.append(np.arange(begin, len(windows)), none)
        if not counted or len(set(numbers)) < len(numbers):
            numbers = list(range(len(windows)))
        starts_ns, durations_ns = map(list, zip(*windows, strict=True))
        self._tables["cycles"] = {"number": numbers, "start_ns": starts_ns, "duration_ns": durations_ns}

    def _numbers(self, part: JoinedTrace) -> list[int]:
        rows = sorted(set(part.rows["cycles"].tolist()) - {-1})
        return [self._tables["cycles"]["number"][row] for row in rows]

    def _put_in_order(self, name: str, order: Rows | None) -> None:
        # One column at a time: all of them unsorted would double the memory.
        columns = ((column, self._column(name, column)) for column in self._given(name))
        self._tables[name] = {
            column: values if order is None else taken(values, order) for column, values in columns
        }

    def _number_rows(self, name: str) -> Rows | None:
        """Number the rows of a table; return their order, None if it is that of the traces."""
        lengths = [len(part.trace.columns(name)) for part in self._parts]
        order = self._order(name)
        new_rows = np.arange(sum(lengths)) if order is None else np.argsort(order)
        begins = np.cumsum([0, *lengths])
        for part, begin, end in zip(self._parts, begins[:-1], begins[1:], strict=True):
            part.rows[name] = np.append(new_rows[begin:end], -1)
        return order

    def _order(self, name: str) -> Rows | None:
        """The order of the rows of all traces; None if they are in order already."""
        if name not in self.SORTED_BY:
            return None
        # Rows of each trace are in order already, and traces come in order of time: a stable sort is enough.
        return np.argsort(self._column(name, self.SORTED_BY[name]), kind="stable")

    def _given(self, name: str) -> list[str]:
        """The columns to pass on: those that any trace stores, and those that would be derived differently from the whole."""
        names = {column for part in self._parts for column in part.trace.columns(name).given}
        names.update(self._not_derived(name))
        return [column for column in STORED[name].column_names if column in names]

    def _not_derived(self, name: str) -> list[str]:
        """The columns that would be derived differently from the whole, because they hold within each trace only."""
        has_memory = any(len(part.trace.columns("allocations")) for part in self._parts)
        return [*(WITHIN_EACH.get(name, ()) if has_memory else ()), *(["cycle"] if name == "spans" else [])]

    def _column(self, name: str, column: str) -> Any:
        values = [self._moved(part, name, column) for part in self._parts]
        if isinstance(values[0], list):
            return [text for texts in values for text in texts]
        return np.concatenate(values)

    def _moved(self, part: JoinedTrace, name: str, column: str) -> Any:
        """A column of one trace with references and times converted to those of the new one."""
        definition = STORED[name].column(column)
        values = part.trace.column(name, column)
        if definition.unit.startswith(REFERENCE):
            target = definition.unit.removeprefix(REFERENCE)
            return part.rows[target][values].astype(definition.type)
        if column == "duration_ns" and part.place.drift:
            return part.place.lasting(part.trace.column(name, "start_ns"), values)
        return part.place.at(values) if column in POINTS_IN_TIME else values


def taken(values: Any, rows: Rows) -> Any:
    """Some rows of a column, which is an array or a list."""
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values[rows]


def row_map(rows: Any) -> Rows:
    """A map of rows, with an entry for the row -1."""
    return np.array([*rows, -1], dtype=np.int64)
