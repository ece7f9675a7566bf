"""Where the time went: what the summary, a notebook and the viewer's overview show of a trace, each number computed once and in one way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.analyses.findings import Report, examine
from kinetoscope.analyses.flame import weights_of
from kinetoscope.analyses.line_tree import LineTree, line_tree
from kinetoscope.analyses.sample import sample_of
from kinetoscope.analyses.warm_up import WarmUp, warm_up
from kinetoscope.display.sentence import kinds_in_words
from kinetoscope.ledger.parts import REQUEST_PARTS, StepTime, busiest_places, part_names, step_time
from kinetoscope.ledger.requests import request_names
from kinetoscope.ledger.steps import phase_times
from kinetoscope.model import units
from kinetoscope.model.arrow import ArrowTable, rows_to_arrow
from kinetoscope.model.dictionary import Column, Table
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import host_work, operator_spans
from kinetoscope.model.kinds import is_copy, is_device_work
from kinetoscope.model.losses import consequence, counted, lost
from kinetoscope.model.names import source_line
from kinetoscope.model.processes import host_threads, of_processes, process_tree, steps_of_one
from kinetoscope.model.run_info import RunInfo
from kinetoscope.model.schema import Phase, SpanKind
from kinetoscope.model.strings import to_utf8
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.flops import counted_flops
from kinetoscope.tables.deep_steps import deep_step_count
from kinetoscope.tables.device.collectives import count_collectives
from kinetoscope.tables.device.kernels import kernels
from kinetoscope.tables.device.streams import devices
from kinetoscope.tables.host.host_shares import HostShares, host_shares
from kinetoscope.tables.host.lines import line_groups, lines
from kinetoscope.tables.host.modules import modules, modules_in
from kinetoscope.tables.host.ops import operators_in, ops, ranges_in
from kinetoscope.tables.host.source_lines import source_lines
from kinetoscope.tables.memory.peak import DevicePeak, device_peaks, memory_peak
from kinetoscope.tables.stacks import user_stacks
from kinetoscope.tables.step_extents import start_up_steps, step_extents
from kinetoscope.tables.step_kinds import LEAST_OF_KIND, kinds_in, main_kind, work_of_kinds
from kinetoscope.tables.stored import memory_recorded

Row = dict[str, Any]
# A trace may contain text of any length.
_LONGEST_TEXT = 2000
_MOST_PEAKS = 16


@dataclass(frozen=True)
class StepDurations:
    """How long the steps took. All are counted; times leave out those that contain what ran before the loop.

    Attributes:
        count: How many there are, of all processes.
        numbers: How many different numbers these have.
        processes: How many processes have steps.
        start_up: How many are left out.
        mean_ns: What one of the others takes on average.
        min_ns: The shortest of them.
        max_ns: The longest of them.
        p95_ns: 95 % of them took at most this long.
        shown_of: The first process that has steps, by name and rank; empty in a trace of one process.
        shown_ns: How long its steps took, in order.
        left_out_ns: How long those before them took that are left out, in order.
        ahead_ns: How far the host gets ahead of a device at most, so that a step ends when its device work does; 0 where marks end steps.
    """

    count: int
    numbers: int
    processes: int
    start_up: int
    mean_ns: float
    min_ns: int
    max_ns: int
    p95_ns: float
    shown_of: str
    shown_ns: tuple[int, ...]
    left_out_ns: tuple[int, ...]
    ahead_ns: int


@dataclass(frozen=True)
class Work:
    """The floating-point operations that were counted.

    Attributes:
        flops: How many; None where too little is known of what was computed.
        covered_percent: The share of the operators' own time in which they are known.
        why: Why `flops` is None, as a sentence; else empty.
        flops_per_s: The rate in steps, start-up left out, or without steps in the whole trace; None where not known. It is that of the median step; of
            several kinds of steps, the mean of these medians over the time of the kinds.
        mfu_percent: Model FLOPs utilization in steps, likewise; None where the peak of the devices or the operations are not known.
        kinds: The same of each kind of steps, in the order of `Overview.step_kinds`; each may be None.
        deep_steps: From how many steps it is estimated; None where inputs of all were recorded.
    """

    flops: int | None
    covered_percent: float | None
    why: str
    flops_per_s: float | None
    mfu_percent: float | None
    kinds: tuple[WorkOfKind, ...] = ()
    deep_steps: int | None = None


@dataclass(frozen=True)
class WorkOfKind:
    """The floating-point operations of a kind of steps, in the median step.

    Attributes:
        flops_per_s: The rate; None where not known.
        mfu_percent: Model FLOPs utilization; None where not known.
    """

    flops_per_s: float | None
    mfu_percent: float | None


@dataclass(frozen=True)
class Utilization:
    """How busy one device was, or one process that used none.

    Attributes:
        place: Where its time went.
        model: What the device is, such as `NVIDIA H200`; None where not known.
    """

    place: StepTime
    model: str | None

    @property
    def percent(self) -> float:
        """The share of its step time or, without steps, of its recorded time; 0 of nothing."""
        return 100.0 * self.place.working_ns / self.place.duration_ns if self.place.duration_ns else 0.0


@dataclass(frozen=True)
class Process:
    """A process of a trace of several.

    Attributes:
        row: Its row in the table `processes`.
        name: Its name.
        pid: Its number in the system.
        rank: Its rank, -1 for none.
        depth: How far below the first one it is in the tree of processes.
        operators: How many operators and backward functions it ran.
        place: The device on which it worked most; None where nothing of it is known.
        whole_ns: Its step time or, without steps, the time it was recorded: what its share is of.
    """

    row: int
    name: str
    pid: int
    rank: int
    depth: int
    operators: int
    place: StepTime | None
    whole_ns: int

    @property
    def working_ns(self) -> int:
        """How long the device worked."""
        return 0 if self.place is None else self.place.working_ns


@dataclass(frozen=True)
class HostTime:
    """What took the host's time: lists with the most time first. Times are those in steps, start-up left out; without steps, all.

    Attributes:
        name: The process, where it is that of one.
        shares: Which spans count, and what shares are of.
        operators: Rows of operators, as `operators_in` returns them.
    """

    name: str
    shares: HostShares
    operators: list[Row]


@dataclass(frozen=True)
class Incident:
    """Why a job that was left on kept its last steps.

    Attributes:
        reason: What kind of incident it was, such as `hang`.
        what: What happened, in words.
        step: The step that was under way; None if unknown.
        time_s: When, in seconds since 1970; None if unknown.
        overhead: What recording cost, in words; empty if unknown.
        ranks: A sentence for each rank, if there are several, or for what else is known.
        missing: The ranks of which there is nothing.
    """

    reason: str
    what: str
    step: int | None
    time_s: float | None
    overhead: str
    ranks: tuple[str, ...]
    missing: tuple[int, ...]

    @property
    def title(self) -> str:
        """What happened in which step, in one line."""
        at = "" if self.step is None else f" in step {self.step:,}"
        return f"{self.reason}{at}" + (f": {self.what}" if self.what else "")

    @property
    def notes(self) -> list[str]:
        """What else is known, a sentence each."""
        sentences = list(self.ranks)
        if self.missing:
            word = "rank" if len(self.missing) == 1 else "ranks"
            sentences.append(
                f"nothing is known of {word} {', '.join(map(str, self.missing))}: no answer, and no ring on this machine"
            )
        if self.overhead:
            sentences.append(f"recording cost {self.overhead}")
        return sentences


def _out_of_memory(failures: object) -> Incident | None:
    dicts = (
        [failure for failure in failures if isinstance(failure, dict)] if isinstance(failures, list) else []
    )
    if not dicts:
        return None
    last = dicts[-1]
    requested, free = (
        units.size(value) if isinstance(value := last.get(name), int) else "an unknown size"
        for name in ("bytes", "free_bytes")
    )
    frames = [frame for frame in str(last.get("stack", "")).split(";") if frame]
    notes = [f"at {' < '.join(reversed(frames))}"] if frames else []
    notes += [f"{len(dicts):,} allocations failed; this was the last"] if len(dicts) > 1 else []
    request = f"{requested} requested on {last.get('device', 'the device')}, which had {free} free"
    return Incident("out of memory", request, None, None, "", tuple(notes), ())


def _of_rank(facts: dict[str, Any]) -> str:
    step = facts.get("step")
    at = f" in step {step:,}" if isinstance(step, int) else ""
    return f"rank {facts.get('rank', '?')}{at}: {facts.get('what', facts['reason'])}"


class Overview:
    """Where the time of a trace went. Everything is computed when it is first read; times are nanoseconds.

    Attributes:
        trace: The trace.
    """

    def __init__(self, trace: TraceData) -> None:
        """Store the trace; nothing is computed yet."""
        self.trace = trace
        self.sample = sample_of(trace)

    # How much there is

    @cached_property
    def run(self) -> RunInfo:
        """What the trace states about its run."""
        return self.trace.run_info

    @cached_property
    def command(self) -> str:
        """The recorded program's command line."""
        return to_utf8(self.run.program_line[:_LONGEST_TEXT])

    @cached_property
    def duration_ns(self) -> int:
        """From the start of the trace to its end."""
        return self.trace.duration_ns

    @cached_property
    def lost(self) -> list[tuple[str, str]]:
        """What the trace lacks, with how much of it, and why."""
        return [(counted(loss["what"], loss["count"]), loss["why"]) for loss in lost(self.trace.losses)]

    @cached_property
    def loss_effect(self) -> str:
        """What that means for the trace; empty where it means little."""
        return consequence(loss["code"] for loss in self.trace.losses)

    @cached_property
    def counts(self) -> dict[str, int]:
        """The rows of stored tables, and of threads those of the host."""
        names = (
            "processes", "spans", "threads", "steps", "modules", "stacks", "shapes", "allocations", "streams", "launches",
            "counters",
        )  # fmt: skip
        return {name: len(self.trace.columns(name)) for name in names} | {
            "threads": int(host_threads(self.trace).sum())
        }

    @cached_property
    def work_counts(self) -> dict[str, int]:
        """The numbers of `operators`, `kernels`, `copies`, `device_work` and `collectives`, for which every span is read."""
        kind = self.trace.column("spans", "kind")
        return {
            "operators": int(operator_spans(self.trace).mask.sum()),
            "kernels": int((kind == SpanKind.KERNEL).sum()),
            "copies": int(is_copy(kind).sum()),
            "device_work": int(is_device_work(kind).sum()),
            # Those of the derived table, which also has calls whose arguments were not recorded, and lone kernels.
            "collectives": count_collectives(self.trace),
        }

    @cached_property
    def working_threads(self) -> int:
        """The number of threads that ran operators, ranges or calls of a runtime."""
        return len(np.unique(self.trace.column("spans", "thread")[host_work(self.trace).mask]))

    # Steps, and where their time went

    @cached_property
    def steps(self) -> StepDurations | None:
        """How long the steps took; None without any."""
        marks = self.trace.columns("steps")
        if len(marks) == 0:
            return None
        start_up = start_up_steps(self.trace)
        every = step_extents(self.trace)
        duration = every.duration_ns[~start_up]
        shown_of, is_shown = steps_of_one(self.trace)
        before = every.duration_ns[is_shown & start_up].tolist()
        return StepDurations(
            count=len(marks),
            numbers=len(np.unique(marks["number"])),
            processes=len(np.unique(marks["process_row"])),
            start_up=int(start_up.sum()),
            mean_ns=float(duration.mean()),
            min_ns=int(duration.min()),
            max_ns=int(duration.max()),
            p95_ns=float(np.percentile(duration, 95)),
            shown_of=shown_of,
            shown_ns=tuple(every.duration_ns[is_shown & ~start_up].tolist()),
            left_out_ns=tuple(before),
            ahead_ns=int((every.end_ns - marks["start_ns"] - marks["duration_ns"]).max()),
        )

    @cached_property
    def step_kinds(self) -> list[Row]:
        """The rows of the table `step_kinds`, without FLOPs: the kinds of steps, those with most time first."""
        return kinds_in(self.trace)

    @cached_property
    def main_kind(self) -> Row | None:
        """The kind of steps that stands for all where only one can be shown; None without steps."""
        return self.step_kinds[main_kind(self.trace)] if self.step_kinds else None

    @cached_property
    def _usual_kinds(self) -> list[int]:
        """The kinds of which there are several steps; of none the main one."""
        several = [kind["kind"] for kind in self.step_kinds if kind["count"] >= LEAST_OF_KIND]
        return several or [main_kind(self.trace)]

    @cached_property
    def step_kinds_in_words(self) -> str:
        """How many kinds of steps there are, how many steps each has, and how long these take; empty where there is one kind, or none."""
        kinds = [kind | {"mean_ns": kind["total_ns"] / kind["count"]} for kind in self.step_kinds]
        return kinds_in_words(kinds, "count", "mean_ns") if len(kinds) > 1 else ""

    @cached_property
    def requests(self) -> list[str]:
        """A sentence for each name of requests: how many, how long they took, on what, and what the slowest have more of."""
        rows = request_names(self.trace).to_pylist()
        on_host = all(times.device == "cpu" for times in self.places)
        words = dict(zip(REQUEST_PARTS, part_names(on_host, REQUEST_PARTS), strict=True))
        return [_of_requests(*pair, words) for pair in zip(rows[::2], rows[1::2], strict=True)]

    @cached_property
    def incident(self) -> Incident | None:
        """What happened, if the trace is of an incident of a job that was left on, or a snapshot of memory that had run out."""
        facts = self.trace.info.get("incident")
        if not isinstance(facts, dict) or "reason" not in facts:
            return _out_of_memory(self.trace.info.get("out_of_memory"))
        ranks = facts.get("ranks")
        of_ranks = [
            rank_facts
            for rank_facts in (ranks if isinstance(ranks, dict) else {}).values()
            if isinstance(rank_facts, dict)
        ]
        missing = facts.get("missing")
        step, time_s = facts.get("step"), facts.get("time_s")
        return Incident(
            str(facts["reason"]),
            str(facts.get("what", "")),
            step if isinstance(step, int) else None,
            time_s if isinstance(time_s, float | int) else None,
            str(facts.get("overhead", "")),
            tuple(_of_rank(rank_facts) for rank_facts in of_ranks) if len(of_ranks) > 1 else (),
            tuple(rank for rank in missing if isinstance(rank, int)) if isinstance(missing, list) else (),
        )

    @cached_property
    def warm_up(self) -> WarmUp:
        """What the first steps cost."""
        return warm_up(self.trace)

    @cached_property
    def warm_up_is_shown(self) -> bool:
        """Whether these are steps of the process whose steps are shown."""
        _, is_shown = steps_of_one(self.trace)
        return bool((self.trace.column("steps", "process_row")[is_shown] == self.warm_up.process).any())

    @cached_property
    def places(self) -> list[StepTime]:
        """Where the step time of each process and device went; without steps, where its recorded time went."""
        return step_time(self.sample.trace)

    @cached_property
    def places_that_count(self) -> list[StepTime]:
        """Those with steps where any has some: what loads data for others is no part of their time."""
        return [place for place in self.places if place.steps or not self.counts["steps"]]

    @cached_property
    def divided(self) -> list[tuple[StepTime, list[tuple[str, int]]]]:
        """Each of them with the names and times of its parts, the longest first."""
        return [(place, place.named_parts()) for place in self.places_that_count]

    def place_names(self, place: StepTime) -> list[str]:
        """The process of a place, where there are several, or its rank, and its device."""
        named = place.process >= 0 and (place.rank < 0 or place.steps == 0)
        name = self.trace.columns("processes")["name"][place.process] if named else ""
        return [
            part for part in (name, f"rank {place.rank}" if place.rank >= 0 else "", place.device) if part
        ]

    @cached_property
    def utilization(self) -> list[Utilization]:
        """How busy each device was, or each process that used none: those with steps first, and of each sort the busiest."""
        rows = devices(self.trace).select(["process", "device", "model"]).to_pylist()
        models = {(row["process"], row["device"]): row["model"] for row in rows}
        of_rows = of_processes(self.trace, np.array([times.process for times in self.places], np.int32))
        pids = of_rows["process"].tolist()
        busy = [
            Utilization(times, models.get((None if pid < 0 else pid, times.device)))
            for times, pid in zip(self.places, pids, strict=True)
        ]
        return sorted(busy, key=lambda place_use: (place_use.place.steps == 0, -place_use.percent))

    @property
    def busy_percent(self) -> float | None:
        """How busy the places that count were, together; None if they have no time."""
        whole_ns = sum(times.duration_ns for times in self.places_that_count)
        return (
            100 * sum(times.working_ns for times in self.places_that_count) / whole_ns if whole_ns else None
        )

    @cached_property
    def processes(self) -> list[Process]:
        """The processes of a trace of several, as a tree."""
        tree, times_of = process_tree(self.trace), busiest_places(self.sample.trace)
        if not tree:
            return []
        whose = self.trace.column("threads", "process_row").take(self.trace.column("spans", "thread"))
        operators = Groups(whose, len(tree)).sums(operator_spans(self.trace).mask).tolist()
        listed = []
        for row in tree:
            times = times_of.get(row["row"])
            of_row = {name: row[name] for name in ("row", "name", "pid", "rank", "depth")}
            whole_ns = row["duration_ns"] if times is None else times.duration_ns
            listed.append(Process(**of_row, operators=operators[row["row"]], place=times, whole_ns=whole_ns))
        return listed

    def busiest_processes(self, most: int) -> list[Process]:
        """The first process and the busiest others, as a tree; the busiest alone where `most` is 1."""
        processes = self.processes
        busiest = sorted(enumerate(processes), key=lambda row: (row[0] > 0 and most > 1, -row[1].working_ns))
        return [process for _, process in sorted(busiest[:most], key=lambda row: row[0])]

    # What took it

    @cached_property
    def host(self) -> HostTime:
        """What took the host's time: of the processes that have steps or, where none has any, of all."""
        return self._host_time("", host_shares(self.sample.trace))

    @cached_property
    def elsewhere(self) -> HostTime | None:
        """What the busiest process without steps did, such as a worker of a `DataLoader`, where others have steps."""
        idle = [
            times for times in self.places if times.process >= 0 and times.steps == 0 and times.working_ns
        ]
        if not idle or not self.host.shares.in_steps:
            return None
        process = max(idle, key=lambda times: times.working_ns).process
        name = self.trace.columns("processes")["name"][process]
        return self._host_time(name, host_shares(self.sample.trace, process))

    def _host_time(self, name: str, shares: HostShares) -> HostTime:
        return HostTime(name, shares, operators_in(self.sample.trace, shares))

    @cached_property
    def lines_elsewhere(self) -> list[Row]:
        """The lines at which the process of `elsewhere` spent its time, without what they called: `file`, `line`, `function` and `time_ns`."""
        if self.elsewhere is None or self.elsewhere.shares.process is None:
            return []
        trace = self.sample.trace
        line_of_frame, first = line_groups(trace)
        line = np.append(line_of_frame, -1)[trace.column("stacks", "frame")[user_stacks(trace)]]
        weights = weights_of(trace, "cpu", self.elsewhere.shares.process)
        times_ns = Groups(line, len(first)).sums(weights.of_stack)
        rows = [row for row in np.argsort(-times_ns, kind="stable").tolist() if times_ns[row]]
        names = ("file", "line", "function")
        return [
            dict(zip(names, source_line(trace, first[row]), strict=True)) | {"time_ns": int(times_ns[row])}
            for row in rows
        ]

    @cached_property
    def operators(self) -> list[Row]:
        """The operators of `host`, with `device_self_ns` and `self_bytes` of each in the whole trace."""
        rows = ops(self.sample.trace).select(["name", "kind", "device_self_ns", "self_bytes"]).to_pylist()
        totals = {(row["name"], row["kind"]): row for row in rows}
        return [totals.get((to_utf8(row["name"]), row["kind"]), {}) | row for row in self.host.operators]

    @cached_property
    def ranges(self) -> list[Row]:
        """The ranges with the most time, as `ranges_in` returns them."""
        return ranges_in(self.sample.trace, self.host.shares)

    @cached_property
    def modules(self) -> list[Row]:
        """The modules as a tree, as `modules_in` returns them."""
        return modules_in(self.sample.trace, self.host.shares)

    @cached_property
    def outside_ns(self) -> tuple[int, ...]:
        """The self time of each phase outside all modules, on all threads, without waits."""
        spans = self.sample.trace.columns("spans")
        times_ns = np.where(spans["module"] < 0, self._phase_times_ns, 0)
        return tuple(Groups(spans["phase"], len(Phase)).sums(times_ns).tolist())

    @cached_property
    def threads_ns(self) -> int:
        """The self time of all threads together, without waits: more than the whole where several worked at once."""
        return int(self._phase_times_ns.sum())

    @cached_property
    def _phase_times_ns(self) -> Any:
        return np.where(self.host.shares.counts, phase_times(self.sample.trace), 0)

    @cached_property
    def your_lines(self) -> LineTree:
        """The lines of the program with what runs under them, as `line_tree` returns them."""
        return line_tree(self.sample.trace)

    @cached_property
    def kernels(self) -> ArrowTable:
        """The table `kernels`, the most time first."""
        return kernels(self.trace)

    @cached_property
    def source_lines(self) -> dict[str, dict[int, str]]:
        """The known text of lines, by file and number."""
        return source_lines(self.trace)

    @cached_property
    def report(self) -> Report:
        """What makes the run slow."""
        return examine(self.trace)

    def top(self, name: str, time: str = "host", most: int = 10) -> tuple[ArrowTable, int]:
        """Return what took most of the time.

        Args:
            name: `ops`, `modules`, `lines` or `kernels`.
            time: `host`: times in the steps, start-up left out, as shares of step time, and no ranges. `device`: all time on devices,
                as shares of it. Kernels have only this.
            most: The most rows.

        Returns:
            The rows with time, with `name`, `detail`, `kind`, `key`, `depth`, `count`, `time_ns`, and `share` in percent, and how many rows
            there are in all. Modules are in the order of their tree; those of several processes that have one path and class are one.

        Raises:
            ArgumentError: Another table, or another time.
        """
        if name not in TOP:
            raise ArgumentError(f"top({name[:50]!r}) is not valid: choose one of {', '.join(TOP)}")
        if time not in TIMES:
            raise ArgumentError(f"time={time[:50]!r} is not valid: use 'host' or 'device'")
        rows, whole_ns = self.trace.cached(f"overview: top {name} {time}", lambda: self._top(name, time))
        largest = sorted(enumerate(rows), key=lambda entry: -entry[1]["time_ns"])[:most]
        if name == "modules" or (name, time) == ("lines", "host"):
            largest.sort(key=lambda entry: entry[0])
        with_share = [
            row | {"share": 100.0 * row["time_ns"] / (whole_ns or 1)}
            for _, row in largest
            if row["time_ns"] > 0
        ]
        return rows_to_arrow(_TOP_ROWS, with_share), len(rows)

    def _top(self, name: str, time: str) -> tuple[list[Row], int]:
        """All rows of a list of what took most, and the time that shares are of."""
        columns = TOP[name]
        if time == "host" and name != "kernels":
            if name == "lines":
                tree = self.your_lines
                return [_named(vars(line), "time_ns", columns) for line in tree.lines], tree.whole_ns
            rows, time_column = {
                "ops": (self.host.operators, "self_ns"),
                "modules": (self.modules, "total_ns"),
            }[name]
            return [_named(row, time_column, columns) for row in rows], self.host.shares.whole_ns
        time_column, make = _ON_DEVICE[name]
        table = make(self.trace)
        wanted = dict.fromkeys((time_column, *columns.values()))
        table = table.select([column for column in wanted if column in table.column_names])
        rows = [_named(row, time_column, columns) for row in table.to_pylist()]
        if name == "modules" and self.counts["processes"]:
            rows = _alike_together(rows)
        if name == "kernels":
            return rows, sum(row["time_ns"] for row in rows)
        return rows, int(self.trace.column("spans", "device_self_ns").clip(0).sum())

    # Operations and memory

    @cached_property
    def work(self) -> Work:
        """The floating-point operations."""
        operations = counted_flops(self.sample.trace)
        rate, used = None, None
        kinds: tuple[WorkOfKind, ...] = ()
        if operations.flops is not None and self.counts["steps"]:
            values_of = {name: values.tolist() for name, values in work_of_kinds(self.sample.trace).items()}
            usual = [self.step_kinds[kind_number] for kind_number in self._usual_kinds]
            weights = [kind["count"] * kind["median_ns"] for kind in usual]
            rate, used = (
                _known(_mean_of_known(weights, [values_of[name][kind["kind"]] for kind in usual]))
                for name in ("flops_per_s", "mfu")
            )
            kinds = tuple(
                WorkOfKind(_known(speed), _known(100.0 * share))
                for speed, share in zip(values_of["flops_per_s"], values_of["mfu"], strict=True)
            )
        elif operations.flops and self.sample.trace.duration_ns:
            rate = operations.flops * 1e9 / self.sample.trace.duration_ns
        mfu = None if used is None else 100.0 * used
        return Work(
            operations.flops,
            operations.covered_percent,
            operations.why,
            rate,
            mfu,
            kinds,
            deep_step_count(self.sample.trace),
        )

    @property
    def memory_recorded(self) -> bool:
        """Whether allocations were recorded."""
        return memory_recorded(self.trace)

    @cached_property
    def peaks(self) -> list[DevicePeak]:
        """The memory peak of each device, the largest first; empty if memory was not recorded."""
        return device_peaks(self.trace)

    @cached_property
    def device_bytes(self) -> dict[str, int | None]:
        """How much memory each device has, where that is known."""
        rows = devices(self.trace).select(["device", "memory_bytes"]).to_pylist()
        return {row["device"]: row["memory_bytes"] for row in rows}

    def peak_owners(self, device: str) -> ArrowTable:
        """What held the memory of a device at its peak: the table `memory_peak`."""
        return memory_peak(self.trace, device=device)

    @cached_property
    def peak_lines(self) -> dict[str, tuple[str, int] | None]:
        """The source line that held most of the memory of each device at its peak, and how much; None if no line is known."""
        held = {
            peak.device: memory_peak(self.trace, device=peak.device, by="line", rows=2).to_pylist()
            for peak in self.peaks[:_MOST_PEAKS]
        }
        return {
            device: next(((row["line"], row["bytes"]) for row in rows if row["line"]), None)
            for device, rows in held.items()
        }

    def peak_categories(self, device: str) -> list[Row]:
        """What was held at the peak of a device by `category`, in `bytes`, the most first."""
        held = self.peak_owners(device).select(["category", "bytes"])
        sums = held.group_by("category").aggregate([("bytes", "sum")]).to_pylist()
        sums_of = [{"category": row["category"], "bytes": row["bytes_sum"]} for row in sums]
        return sorted(sums_of, key=lambda row: (-row["bytes"], row["category"] or ""))


# Where values are unknown for so much of the time, so is their mean.
_MOST_UNKNOWN = 0.1


def _mean_of_known(weights: Sequence[float], values: Sequence[float]) -> float:
    """The mean of those values that are numbers; not a number where they are few."""
    pairs = [(weight, value) for weight, value in zip(weights, values, strict=True) if math.isfinite(value)]
    known_weight = sum(weight for weight, _ in pairs)
    if known_weight <= (1 - _MOST_UNKNOWN) * sum(weights):
        return math.nan
    return sum(weight * value for weight, value in pairs) / known_weight


def _known(value: float) -> float | None:
    return value if math.isfinite(value) and value > 0 else None


@derived
def overview(trace: TraceData) -> Overview:
    """Return where the time of a trace went; the same object each time."""
    return Overview(trace)


TIMES = ("host", "device")

TOP: dict[str, dict[str, str]] = {
    "ops": {"name": "name", "kind": "kind", "count": "count"},
    "modules": {"name": "path", "detail": "class", "key": "id", "depth": "depth", "count": "total_operators"},
    "lines": {"name": "file", "detail": "function", "key": "line", "depth": "depth", "count": "count"},
    "kernels": {"name": "name", "detail": "operator", "kind": "category", "count": "count"},
}  # fmt: skip
"""The lists of what took most: which columns of the table are `name`, `detail`, `kind`, `key`, `depth` and `count`."""

# The column with the time on devices, and what makes the table.
_ON_DEVICE = {
    "ops": ("device_self_ns", ops),
    "modules": ("device_ns", modules),
    "lines": ("device_self_ns", lines),
    "kernels": ("total_ns", kernels),
}


_TOP_ROWS = Table(
    "top",
    "What took time.",
    (
        *(Column(name, "string", "", "") for name in ("name", "detail", "kind")),
        *(Column(name, "int64", "", "") for name in ("key", "depth", "count")),
        Column("time_ns", "int64", "ns", ""),
        Column("share", "float64", "%", ""),
    ),
)


def _named(row: Row, time_column: str, columns: dict[str, str]) -> Row:
    no_number = dict.fromkeys(("key", "depth", "count"), -1)
    values = {name: row[column] for name, column in columns.items() if row.get(column) is not None}
    return {"detail": None, "kind": None, **no_number, **values, "time_ns": row[time_column] or 0}


def _alike_together(rows: Sequence[Row]) -> list[Row]:
    """Add up the modules of one path and class, each in the place of the first."""
    alike: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        first = alike.setdefault((row["name"], row["detail"], row["depth"]), row | {"count": 0, "time_ns": 0})
        first["key"] = min(first["key"], row["key"])
        for name in ("count", "time_ns"):
            first[name] += row[name]
    return [*alike.values()]


# A part is named with this share of a request, or of what the slowest have more.
_LEAST_OF_REQUEST = 0.05


def _of_requests(of_all: Row, slowest: Row, words: dict[str, str]) -> str:
    count, mean_ns = of_all["count"], of_all["total_ns"] / of_all["count"]
    text = f"{of_all['name']}: {units.count(count, 'request')}"
    if of_all["errors"]:
        text += f", {units.count(of_all['errors'], 'error')}"
    text += f" · p50 {units.duration(of_all['p50_ns'])} · p99 {units.duration(of_all['p99_ns'])}"
    shares = {part: of_all[part] / max(mean_ns, 1) for part in REQUEST_PARTS}
    named = [
        part for part in sorted(shares, key=lambda part: -shares[part]) if shares[part] >= _LEAST_OF_REQUEST
    ]
    text += " · " + ", ".join(f"{words[part]} {units.percent(100 * shares[part])}" for part in named)
    more = {part: slowest[part] - of_all[part] for part in REQUEST_PARTS}
    most = max(more, key=lambda part: more[part])
    if count >= _LEAST_REQUESTS and more[most] >= _LEAST_OF_REQUEST * mean_ns:
        text += f" · slowest 10 %: {units.duration(more[most])} more {words[most]}"
    return text


_LEAST_REQUESTS = 20
