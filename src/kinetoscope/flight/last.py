"""What happened last to a job that was left on: the newest incident, or where it is if it hangs right now."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.flight.budget import MOST_TOGETHER
from kinetoscope.flight.deaths import end_text, last_seen_s, told_of_end
from kinetoscope.flight.incidents import INCIDENTS, time_of
from kinetoscope.flight.jobs import (
    ENDED,
    GONE,
    HANGS,
    RUNS,
    Attempt,
    RankFiles,
    attempt_of_process,
    attempts_in,
    incident_ranks,
)
from kinetoscope.model import units
from kinetoscope.model.names import frame_location, stack_frames
from kinetoscope.model.rows import StackRow
from kinetoscope.model.schema import FLAG_UNFINISHED, SAMPLE_STATES, SpanKind
from kinetoscope.storage.recording_parts import clone
from kinetoscope.tables.stacks import user_stacks
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLLECTIVES = "torch/distributed/distributed_c10d.py"
LAST_STEPS = 20
"""How many steps are compared with those before."""

# Of more ranks, only those that differ are looked into more deeply, and told one by one.
_MOST_COMPARED = _MOST_TOLD = 16
_READERS = 4
# For how many operators and modules estimates are reported, and for how many operators in text.
_ESTIMATED, _ESTIMATED_IN_TEXT = 5, 3


@dataclass
class RankPlace:
    """Where a rank is, or was.

    Attributes:
        rank: The rank.
        process: Its process; None if unknown.
        state: `hangs`, `runs`, `ended`, or `gone` (killed, or crashed).
        step: The step under way; None before the first, and between two.
        last_step: The last step that ended; None if none did.
        in_step_s: For how long the step has been under way, if that is known.
        operator: The innermost operator or range that had begun and not ended; None if there is none.
        module: The path of the module that it is in.
        line: The user's line, `file:line function`.
        thread_state: What the main thread did when it was last sampled.
        collective: The collective that had not ended.
        steps: In words, how the last steps differ from those before; empty if there are too few.
        memory: In words, the memory and its trend; empty if unknown.
        overhead: In words, what recording cost; empty if unknown.
        estimates: For `operator` and `module` the first rows of the table `estimates` with an estimate, of the steps of the most frequent
            kind: the `name`, how long it takes in a step on average (`per_step_ns`), and the 95 % interval (`low_ns`, `high_ns`). Empty
            for too few steps, and for most of many ranks.
        what: What the rank itself said of the incident.
        path: Its recording.
        problem: Why the recording could not be read; empty if it was.
    """

    rank: int
    process: int | None
    state: str
    path: str
    step: int | None = None
    last_step: int | None = None
    in_step_s: float | None = None
    operator: str | None = None
    module: str | None = None
    line: str | None = None
    thread_state: str | None = None
    collective: str | None = None
    steps: str = ""
    memory: str = ""
    overhead: str = ""
    estimates: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    what: str = ""
    problem: str = ""


@dataclass
class LastEvent:
    """What happened last to a job.

    Attributes:
        job: The job, and which start of it.
        reason: `hang`, `crash` and so on; `gone` if the process ended without a word, `runs` if nothing happened.
        sentence: What happened.
        time_s: When, in seconds since 1970.
        folder: The folder of the incident, or of the rings.
        ranks: Where each rank is or was.
        earlier: How many incidents the job had besides.
    """

    job: str
    reason: str
    sentence: str
    time_s: float
    folder: str
    ranks: list[RankPlace] = field(default_factory=list)
    earlier: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As JSON values, with the names of the attributes."""
        return asdict(self)

    def lines(self) -> list[str]:
        """As lines of text."""
        lines = [f"{self.job}: {self.sentence}"]
        places: dict[tuple[object, ...], list[RankPlace]] = {}
        for place in self.ranks:
            # A few ranks are told one by one.
            key = _where(place) if len(self.ranks) > _MOST_TOLD else (place.rank,)
            places.setdefault(key, []).append(place)
        # Those who are alone may be the reason.
        for same in sorted(places.values(), key=len):
            lines += _lines_of(same[0])
            if len(same) > 1:
                ranks = _ranges([place.rank for place in same[1:]])
                lines.append(f"  at the same place: {units.count(len(same) - 1, 'more rank')}, {ranks}")
        if self.earlier:
            # What rings tell may itself be one of them.
            of_rings = Path(self.folder).parent.name != INCIDENTS
            kept = units.count(self.earlier, "incident" if of_rings else "more incident")
            lines.append(f"{kept} of this job" + (f" in {self.folder}/{INCIDENTS}" if of_rings else ""))
        lines.append(self.folder)
        return lines


def last_event(target: str | None, base: Path) -> LastEvent:
    """Find what happened last.

    Args:
        target: The id of a process, or a folder: of all jobs, a job, one start of it, or an incident; None for `base`.
        base: The folder of all jobs.

    Raises:
        ArgumentError: There is no such job, or nothing was left on.
    """
    if target is not None and Path(target).is_dir():
        folder = Path(target)
        if time_of(folder) is not None:
            return _incident(Attempt(folder.parent.parent), folder)
        return _newest(attempts_in(folder), folder)
    if target is not None:
        if not target.isdecimal():
            raise ArgumentError(f"{target!r} is neither a folder nor the id of a process.")
        return _newest([attempt_of_process(base, int(target))], base)
    return _newest(attempts_in(base), base)


def _newest(attempts: Sequence[Attempt], folder: Path) -> LastEvent:
    """What happened last in some attempts: a hang that goes on, an incident, an end without a word, in this order at the same time."""
    found: list[tuple[float, int, Attempt, str, Path | None]] = []
    now_s, now_ns = time.time(), time.monotonic_ns()
    of_attempts: dict[Attempt, list[RankFiles]] = {}
    for attempt in attempts:
        rings = of_attempts[attempt] = attempt.rings(now_ns)
        states = {ring.state for ring in rings}
        if HANGS in states:
            found.append((now_s, 3, attempt, "hang", None))
        elif GONE in states:
            untold = [ring for ring in rings if ring.state == GONE and not told_of_end(attempt, ring)]
            if untold:
                found.append((max(map(last_seen_s, untold)), 1, attempt, "gone", None))
        elif RUNS in states:
            found.append((0.0, 0, attempt, "runs", None))
        found += [(time_of(place) or 0.0, 2, attempt, "", place) for place in attempt.incidents()]
    if not found:
        raise ArgumentError(
            f"{folder} has no incidents, and no job that was left on: see kinetoscope.leave_on."
        )
    _, _, attempt, reason, place = max(found, key=lambda one: one[:2])
    if place is not None:
        return _incident(attempt, place)
    return _of_rings(attempt, reason, of_attempts[attempt], now_ns)


def _incident(attempt: Attempt, place: Path) -> LastEvent:
    """Describe an incident."""
    ranks = incident_ranks(place)
    reason = next((str(rank.facts["reason"]) for rank in ranks if "reason" in rank.facts), place.name)
    places = _places(ranks, None)
    what = next((one.what for one in places if one.what), "")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_of(place) or 0))
    sentence = f"{reason} at {when}" + (f": {what}" if what else "")
    earlier = len(attempt.incidents()) - 1
    sentence += _who_is_missing(places)
    return LastEvent(
        attempt.name, reason, sentence, time_of(place) or 0.0, str(place), places, max(earlier, 0)
    )


def _of_rings(attempt: Attempt, reason: str, found: list[RankFiles], now_ns: int) -> LastEvent:
    """Describe an attempt by its rings, as they were found at a time of the monotonic clock."""
    rings = [ring for ring in found if ring.state != ENDED]
    places = _places(rings, now_ns)
    of_kind = [place for place in places if place.state == (HANGS if reason == "hang" else reason)]
    ranks = _ranks_text([place.rank for place in of_kind], len(places))
    one = of_kind[0]
    if reason == "hang":
        sentence = f"{ranks} hangs" if len(of_kind) == 1 else f"{ranks} hang"
        sentence += f": step {one.step} has not ended for {_time(one.in_step_s)}"
    elif reason == "gone":
        log = next(ring.log for ring in rings if ring.rank == one.rank)
        sentence = f"{ranks} {end_text(one.step, log)}"
    else:
        where = f"in step {one.step}" if one.step is not None else _in_no_step(one.last_step)
        sentence = f"{ranks} {'runs' if len(of_kind) == 1 else 'run'}, {where}"
    sentence += _who_is_missing(places)
    return LastEvent(
        attempt.name,
        reason,
        sentence,
        max(ring.changed_s for ring in rings),
        str(attempt.folder),
        places,
        len(attempt.incidents()),
    )


def _ranks_text(ranks: list[int], count: int) -> str:
    if count == 1:
        return "it"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} of {count} ranks"


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as `0 to 3, 5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, run)) for run in runs)


def _in_no_step(last_step: int | None) -> str:
    return "no step began" if last_step is None else "between two steps"


def _time(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else units.duration(seconds * 1e9)


def _who_is_missing(places: list[RankPlace]) -> str:
    """Which ranks are not in the collective that others wait in, as the end of a sentence."""
    waiting = [place for place in places if place.collective]
    others = [place for place in places if not place.collective]
    if not waiting or not others:
        return ""
    missing = _ranges([place.rank for place in others])
    who, has = ("rank", "has") if len(others) == 1 else ("ranks", "have")
    return f"; the others wait in {waiting[0].collective}, which {who} {missing} {has} not entered"


def _places(ranks: Sequence[RankFiles], now_ns: int | None) -> list[RankPlace]:
    """Where ranks are, by their files; `now_ns` is the monotonic clock if their rings may still be written.

    Of many ranks, most do the same. What changed in the last step, which takes longest to find, is told for the first of each place.
    """
    if not ranks:
        return []
    with tempfile.TemporaryDirectory(prefix="kinetoscope-last-") as scratch:

        def place(files: RankFiles, *, compare: bool = len(ranks) <= _MOST_COMPARED) -> RankPlace:
            return _place(files, now_ns, Path(scratch), compare=compare)

        with ThreadPoolExecutor(min(len(ranks), _READERS)) as pool:
            found = list(pool.map(place, ranks))
        if len(ranks) > _MOST_COMPARED:
            first = {_where(place): at for at, place in reversed(list(enumerate(found)))}
            for at in sorted(first.values())[:_MOST_COMPARED]:
                found[at] = place(ranks[at], compare=True)
    return found


def _where(place: RankPlace) -> tuple[object, ...]:
    """What ranks that are at the same place have in common."""
    return (
        place.state,
        place.step,
        place.last_step,
        place.operator,
        place.module,
        place.line,
        place.thread_state,
        place.collective,
        place.what,
        place.problem,
    )


def _place(files: RankFiles, now_ns: int | None, scratch: Path, *, compare: bool) -> RankPlace:
    """Where a rank is, by its files.

    Args:
        files: Its files.
        now_ns: The monotonic clock if its ring may still be written; None for an incident.
        scratch: A folder for copies.
        compare: Whether to find what changed in the last step.
    """
    facts, log = files.facts, files.log
    place = RankPlace(files.rank, files.process, files.state, str(files.recording))
    place.what, place.overhead = str(facts.get("what", "")), str(facts.get("overhead", ""))
    if "step" in facts:
        place.step = int(facts["step"])
    if log is not None:
        if log.number >= 0:
            # Between two steps none is under way.
            place.step = log.number if log.began_ns else None
        if log.steps:
            place.last_step = log.steps[-1].number
            # Steps that are only counted have no entry of their own until the last one of them ends.
            counted = log.began_ns and not log.recorded and log.number - place.last_step <= MOST_TOGETHER
            if counted and log.number > place.last_step:
                place.last_step = log.number - 1
        if now_ns is not None and log.began_ns:
            until_ns = (
                now_ns if files.state in (HANGS, RUNS) else max((at for at, _ in log.memory), default=now_ns)
            )
            place.in_step_s = max(until_ns - log.began_ns, 0) / 1e9
        place.steps = _step_times([step.duration_ns for step in log.steps])
        place.memory = _memory([bytes_ for _, bytes_ in log.memory], [at for at, _ in log.memory])
    try:
        # A ring may go on while it is read; what its process writes meanwhile does not matter.
        goes_on = files.state in (HANGS, RUNS)
        copy = scratch / f"{files.rank}.recording" if goes_on else files.recording
        if goes_on:
            clone(files.recording, copy)
        with open_trace(copy) as trace:
            if goes_on:
                copy.unlink()
            _look_into(trace, place, compare=compare)
    except Exception as error:  # noqa: BLE001  (what else is known is shown, whatever is wrong with the file)
        place.problem = f"{type(error).__name__}: {error}"
    return place


def _look_into(trace: Trace, place: RankPlace, *, compare: bool) -> None:
    """Find in a recording what was open when it ended."""
    steps = trace.columns("steps")
    if place.step is None and place.last_step is None and len(steps):
        place.step = int(steps["number"][-1])
    if place.last_step is None and len(steps) > 1:
        place.last_step = int(steps["number"][-2])
    # Of the process, the main thread has the same id.
    threads = np.flatnonzero(trace.columns("threads")["os_tid"] == place.process)
    main = int(threads[0]) if len(threads) else 0
    spans = trace.columns("spans")
    is_open = (spans["flags"] & FLAG_UNFINISHED) != 0
    rows = np.flatnonzero(is_open & (spans["kind"] != SpanKind.STEP))
    rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
    own = rows[spans["thread"][rows] == main]
    if len(own):
        row = int(own[-1])
        place.operator = trace.strings[int(spans["name"][row])]
        place.module = _module(trace, int(spans["module"][row]))
        place.line = _line(trace, int(spans["stack"][row]))
    samples = trace.columns("samples")
    mine = np.flatnonzero(samples["thread"] == main)
    if len(mine) and (len(own) == 0 or samples["time_ns"][mine[-1]] >= spans["start_ns"][own[-1]]):
        last = int(mine[-1])
        place.thread_state = SAMPLE_STATES[int(samples["state"][last])]
        place.line = _line(trace, int(samples["stack"][last])) or place.line
        place.module = _module(trace, int(samples["module"][last])) or place.module
        # In a step that is not recorded, only samples tell of it.
        place.collective = _collective_in(trace, int(samples["stack"][last]))
    open_calls = set(rows.tolist())
    if open_calls:
        calls = trace.table("collectives").select(["span", "name", "transfer_span"]).to_pylist()
        for call in calls:
            if call["span"] in open_calls or call["transfer_span"] in open_calls:
                place.collective = call["name"]
    if not place.steps:
        place.steps = _step_times(steps["duration_ns"][:-1].tolist())
    if place.steps and compare:
        place.steps += _what_changed(trace)
    if compare:
        place.estimates = {by: found for by in ("operator", "module") if (found := _estimates(trace, by))}


def _estimates(trace: Trace, by: str) -> list[dict[str, Any]]:
    """The first rows of the table `estimates` that have one, of the steps that are most frequent."""
    rows = [row for row in trace.table("estimates", by=by).to_pylist() if not row["captured"] and row["name"]]
    known = [row for row in rows if row["per_step_ns"] is not None]
    if not known:
        return []
    kind = max(known, key=lambda row: row["of_steps"])["step_kind"]
    columns = ("name", "per_step_ns", "low_ns", "high_ns", "effective_steps")
    return [{name: row[name] for name in columns} for row in known if row["step_kind"] == kind][:_ESTIMATED]


def _module(trace: Trace, row: int) -> str | None:
    return None if row < 0 else str(trace.columns("modules")["path"][row])


def _line(trace: Trace, stack: int) -> str | None:
    """The user's innermost line of a stack."""
    if stack < 0:
        return None
    shown = int(user_stacks(trace)[stack])
    found = stack_frames(trace, StackRow(shown if shown >= 0 else stack), 1)
    return frame_location(trace, found[0]) if found else None


def _collective_in(trace: Trace, stack: int) -> str | None:
    """The collective of torch.distributed that a stack is in."""
    frames, found = trace.columns("frames"), None
    for frame in stack_frames(trace, StackRow(stack)):
        if trace.strings[int(frames["file"][frame])].endswith(_COLLECTIVES):
            function = trace.strings[int(frames["function"][frame])]
            # The outermost one, which the program calls; a decorator's wrapper is not it.
            found = function if function.isidentifier() and function != "wrapper" else found
    return found


def _step_times(durations_ns: list[int]) -> str:
    """How the last steps differ from those before."""
    last, before = durations_ns[-LAST_STEPS:], durations_ns[:-LAST_STEPS]
    if len(before) < LAST_STEPS:
        return ""
    now_ns, usual_ns = median(last), median(before)
    change = units.change_percent(100 * (now_ns / usual_ns - 1)) if usual_ns else "?"
    return f"the last {len(last)} steps took {units.duration(now_ns)} each, those before {units.duration(usual_ns)} ({change})"


def _what_changed(trace: Trace) -> str:
    """What the last recorded step that has ended had most more of than the others."""
    numbers = trace.columns("steps")["number"]
    if len(numbers) < 3:
        return ""
    step = int(numbers[-2])
    found = trace.compare_steps(step).to_pylist()
    more = [
        row for row in found if row["kind"] in ("operator", "python") and row["more_ns"] > 0 and row["name"]
    ]
    if not more:
        return ""
    row = max(more, key=lambda one: one["more_ns"])
    return f"; step {step:,} has most more of {row['name']}: {units.duration(row['more_ns'])}"


def _memory(sizes: list[int], times_ns: list[int]) -> str:
    """The resident memory and its trend."""
    if not sizes:
        return ""
    text = f"memory {units.size(sizes[-1])}"
    if len(sizes) < 2:
        return text
    change = sizes[-1] - sizes[0]
    sign = "+" if change >= 0 else "-"
    return f"{text}, {sign}{units.size(abs(change))} in {units.duration(times_ns[-1] - times_ns[0])}"


def _estimate_text(row: dict[str, Any]) -> str:
    """An estimate in words: `1.2 ms of aten::mm (1.1 to 1.3 ms)`."""
    low, high = (units.duration(max(row[name], 0)) for name in ("low_ns", "high_ns"))
    return f"{units.duration(row['per_step_ns'])} of {row['name']} ({low} to {high})"


def _lines_of(place: RankPlace) -> list[str]:
    """A rank as lines of text."""
    head = f"rank {place.rank}: "
    head += f"in step {place.step:,}" if place.step is not None else _in_no_step(place.last_step)
    if place.in_step_s is not None:
        head += f" for {_time(place.in_step_s)}"
    if place.last_step is not None:
        head += f", last complete step {place.last_step:,}"
    if place.process is not None:
        head += f", process {place.process}"
    lines = [head]
    where = [
        *([place.operator] if place.operator else []),
        *([f"collective {place.collective}"] if place.collective else []),
        *([f"module {place.module}"] if place.module else []),
        *([place.line] if place.line else []),
        *([f"main thread {place.thread_state}"] if place.thread_state else []),
    ]
    if where:
        lines.append("  in " + ", ".join(where))
    overhead = f"overhead {place.overhead}" if place.overhead else ""
    average = ", ".join(
        _estimate_text(row) for row in place.estimates.get("operator", [])[:_ESTIMATED_IN_TEXT]
    )
    average = f"a step has on average {average}" if average else ""
    lines += [f"  {text}" for text in (place.steps, average, place.memory, overhead) if text]
    if place.problem:
        lines.append(f"  the recording cannot be read: {place.problem}")
    lines.append(f"  {place.path}")
    return lines
