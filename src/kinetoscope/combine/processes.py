"""Merges traces of several processes into one, on one time axis.

Rows that are meaningful only within a process (thread ids, addresses, streams, modules, sequence and correlation numbers, steps, cycles) are
never merged, and refer to their row of `processes`. Strings, frames, stacks, shapes and arguments are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.combine.concatenate import WITHIN_EACH, JoinedTrace, Joining
from kinetoscope.model.losses import Loss, loss_columns, losses_of
from kinetoscope.model.processes import Placement, by_wall_clock, described, one_machine, process_facts
from kinetoscope.model.schema import STORED
from kinetoscope.model.trace_data import AnyTrace, TraceData

# Columns that would be derived differently from all processes. Paths identify modules within a process only.
_NOT_DERIVED: dict[str, Sequence[str]] = {
    "threads": ("process", "rank"),
    "modules": ("path", "depth", "holder"),
    "spans": ("step", "cycle"),
    "samples": ("step",),
    "steps": STORED["steps"].column_names,
}
# Metadata of one process that would be wrong for the whole trace.
_OF_EACH = frozenset({"processes", "complete", "stop_ns", "cycle", "cycles", "pauses", "clock_checks"})


def merge_processes(
    traces: Sequence[AnyTrace], offsets_ns: Sequence[int | Placement] | None = None
) -> AnyTrace:
    """Merge traces of different processes into one trace.

    It contains every row of every trace, on one time axis that starts with the earliest trace. Steps, cycles, live memory, modules, and links between
    forward and backward are those of each process alone. The table `processes` has a row for each process; `info` is that of the first
    trace, and `info["processes"]` has the metadata of each process, in the order of that table.

    Args:
        traces: The traces, each of one process or a result of this function. Join recordings of one process first, with
            `concatenate`.
        offsets_ns: Where the time 0 of each trace lies on a common axis, in nanoseconds or as a `Placement`. If None: for
            traces of one machine since its boot, its monotonic clock is used, to within microseconds (`processes.error_ns`);
            otherwise the wall clocks, with an unknown error and a row of `losses`.

    Returns:
        A new trace; the given traces are unchanged and share no mutable state with it.

    Raises:
        ArgumentError: There are no traces, a trace is passed twice, or the number of offsets differs from that of traces.
        StateError: One of them was closed.
    """
    placements = _placements(traces, offsets_ns)
    base_ns = min(placement.offset_ns for placement in placements)
    parts = [
        JoinedTrace(trace, replace(placement, offset_ns=placement.offset_ns - base_ns))
        for trace, placement in zip(traces, placements, strict=True)
    ]
    return cast("AnyTrace", _MergedProcesses(parts, placements[0].offset_ns - base_ns).run())


def _placements(traces: Sequence[TraceData], offsets_ns: Sequence[int | Placement] | None) -> list[Placement]:
    if not traces:
        raise ArgumentError("traces is empty: pass at least one trace.")
    if len({id(trace) for trace in traces}) < len(traces):
        raise ArgumentError("a trace was passed twice; pass each process once.")
    if offsets_ns is None:
        return one_machine(traces) or by_wall_clock(traces)
    if len(offsets_ns) != len(traces):
        raise ArgumentError(
            f"there are {len(traces)} traces and {len(offsets_ns)} offsets; pass one offset for each trace."
        )
    placements = [
        offset if isinstance(offset, Placement) else Placement(int(offset)) for offset in offsets_ns
    ]
    for placement in placements:
        if not -0.5 < placement.drift < 0.5:
            raise ArgumentError(
                f"drift={placement.drift} is not a possible drift of a clock; pass one near 0."
            )
    return placements


class _MergedProcesses(Joining):
    # Spans are sorted by thread, and threads of different processes stay apart.
    SORTED_BY: ClassVar = {"allocations": "time_ns", "samples": "time_ns", "steps": "start_ns"}
    SHARED: ClassVar = ("frames", "stacks", "shapes", "arguments")
    DERIVED: ClassVar = ()

    def __init__(self, parts: list[JoinedTrace], first_began_ns: int) -> None:
        super().__init__(parts)
        self._first_began_ns = first_began_ns

    # Processes

    def _begin(self) -> None:
        columns: dict[str, list[Any]] = {column: [] for column in STORED["processes"].column_names}
        for part in self._parts:
            table, begin = part.trace.columns("processes"), len(columns["pid"])
            if len(table):
                for name, values in columns.items():
                    values.extend(self._process_column(part, name))
            else:
                for name, value in process_facts(part.trace, part.place).items():
                    columns[name].append(value)
            part.rows["processes"] = np.append(
                np.arange(begin, len(columns["pid"])), -1 if len(table) else begin
            )
        self._tables["processes"] = columns

    def _process_column(self, part: JoinedTrace, name: str) -> list[Any]:
        table = part.trace.columns("processes")
        if name == "error_ns":
            has_error = np.array([part.place.error_ns >= 0]) & (table[name] >= 0)
            return np.where(has_error, table[name] + part.place.error_ns, -1).tolist()  # type: ignore[no-any-return]
        if name == "clock":
            return [
                clock if part.place.error_ns == 0 else f"{clock}, {part.place.clock}" for clock in table[name]
            ]
        return list(self._moved(part, "processes", name))

    # Tables

    def _not_derived(self, name: str) -> list[str]:
        # Rows refer to their process.
        names, within = [*_NOT_DERIVED.get(name, ()), "process_row"], WITHIN_EACH.get(name, ("",))
        is_given = any(within[0] in part.trace.columns(name).given for part in self._parts)
        return [*names, *within] if is_given else names

    def _moved(self, part: JoinedTrace, name: str, column: str) -> Any:
        if name == "threads" and column in ("process", "rank"):
            rows = part.rows["processes"][part.trace.column("threads", "process_row")]
            of_process = np.array([*self._tables["processes"]["pid" if column == "process" else "rank"], -1])
            values = part.trace.column("threads", column)
            return np.where(values >= 0, values, of_process[rows])
        return super()._moved(part, name, column)

    # Metadata

    def _losses(self) -> dict[str, list[Any]]:
        several = len(self._tables["processes"]["pid"]) > 1
        joined: list[Loss] = []
        for part in self._parts:
            process = self._named(part) if several else ""
            losses = losses_of(part.trace.columns("losses"))
            joined += [replace(loss, where=f"{loss.where}{process}") for loss in losses]
        if unsure := sum(part.place.error_ns < 0 for part in self._parts):
            joined.append(Loss.of("uncompared_clocks", unsure))
        for part in self._parts:
            if violated_ns := part.place.facts.get("violated_ns"):
                why = (
                    f"The readings of its clock contradict each other by {violated_ns} ns, so its error may be larger than reported: the "
                    "clock was changed during the recording, or collectives of ranks were matched wrongly."
                )
                joined.append(Loss.of("contradictory_clock", where=f"times{self._named(part)}", why=why))
        return loss_columns(joined)

    def _named(self, part: JoinedTrace) -> str:
        row = int(part.rows["processes"][-1])
        return "" if row < 0 else f" (process {self._tables['processes']['pid'][row]})"

    def _info(self) -> dict[str, Any]:
        traces = [part.trace for part in self._parts]
        first = traces[0].info
        info = {key: value for key, value in first.items() if key not in _OF_EACH}
        for key in ("start_realtime_ns", "start_monotonic_ns"):
            if type(first.get(key)) is int and first[key] > 0:
                info[key] = first[key] - self._first_began_ns
        info["stop_ns"] = max(
            int(part.place.at(np.array([part.trace.duration_ns], np.int64))[0]) for part in self._parts
        )
        info["complete"] = all(trace.run_info.complete for trace in traces)
        if any(trace.run_info.profile_memory for trace in traces):
            info["profile_memory"] = 1
        info["processes"] = [
            entry for part in self._parts for entry in described(part.trace, part.place, self._first_began_ns)
        ]
        return info
