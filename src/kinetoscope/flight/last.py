"""What happened last to a job that was left on: the newest incident, or where it is if it hangs right now."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.flight import jobs
from kinetoscope.flight.budget import MOST_TOGETHER
from kinetoscope.flight.incidents import INCIDENTS, time_of
from kinetoscope.flight.live_stacks import CRASHED, Sight, program_line, sight
from kinetoscope.flight.ring_stacks import last_sample, opened_ring, stack_lines
from kinetoscope.flight.slow_ranks import slow_ranks
from kinetoscope.flight.step_log import StepLog
from kinetoscope.flight.unclean_exits import end_text, has_exit_note, last_seen_s
from kinetoscope.model import units
from kinetoscope.model.schema import FLAG_UNFINISHED, SpanKind
from kinetoscope.storage.incident_files import SUMMARY, read_facts
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace

LAST_STEPS = 20
"""How many steps are compared with those before."""

# Of more ranks, only those that differ are looked into more deeply, and told one by one.
_MOST_COMPARED = _MOST_TOLD = 16
_READERS = 4
# Incidents with less than so much time between them may have one cause, of which the last is a consequence.
_TOGETHER_S = 90.0
_ENDINGS = (*jobs.FAILURES, jobs.GONE)
_MOST_FOLLOWING, _MOST_CHARACTERS = 3, 200
# A step that takes so many times as long as usual, and so many seconds, does not go on.
_STUCK_TIMES, _STUCK_S = 10.0, 1.0
_HOLDS_UP, _WAITS, _HAS_ENDED = "holds up", "waits", "has ended"
_IN_ANOTHER = ("is in another collective:", "are in another collective:")
# What processes say of a collective that they wait in.
_CALL = ("collective", "sequence", "shape")


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
        thread_state: What the thread that marks the steps does, or did when it was sampled.
        thread: The system's id of that thread, or of the one that crashed; None for the main one.
        age_s: By how many seconds `line` and `thread_state`, if they are of a sample, are older than the rest; None if they are not.
        sampled_step: The step of that sample, if it is another one than the one under way.
        workers: The data loader's workers that are busy, each in words.
        may_wait_for: What else it may wait for, each in words: other threads, and child processes.
        collective: The collective that had not ended.
        host: Its machine; empty if unknown.
        call: What its process said of that collective: its number in the group and its shape, and what the process does, see `hangs.judge`.
        is_new_line: Whether the recorded steps before have no collective of that line, but of others.
        part: In a hang, `holds up` of a rank that others wait for, and `waits` of those.
        holds_up: In words, for how long the other ranks of a job that runs wait for it, and why; empty if they do not.
        steps: In words, how the last steps differ from those before; empty if there are too few.
        memory: In words, the memory and its trend; empty if unknown.
        overhead: In words, what recording cost; empty if unknown.
        what: What the rank itself said of the incident.
        path: Its recording.
        problem: Why the recording could not be read; empty if it was.
        is_stuck: Whether the step under way takes far longer than those before.
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
    thread: int | None = None
    age_s: float | None = None
    sampled_step: int | None = None
    workers: list[str] = field(default_factory=list)
    may_wait_for: list[str] = field(default_factory=list)
    collective: str | None = None
    call: dict[str, Any] = field(default_factory=dict)
    host: str = ""
    is_new_line: bool = False
    part: str = ""
    holds_up: str = ""
    steps: str = ""
    memory: str = ""
    overhead: str = ""
    what: str = ""
    problem: str = ""
    is_stuck: bool = False

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped the process."""
        return (self.thread_state or "").startswith("stopped")

    @property
    def where(self) -> str:
        """What the thread does, and at which line, or what it waits for, in words."""
        if self.workers:
            return f"waits for {self.workers[0]}"
        if not self.line:
            return self.thread_state or "at an unknown place"
        awaited = f" ({'; '.join(self.may_wait_for)})" if self.may_wait_for else ""
        return f"{self.thread_state or 'last seen'} at {self.line}{awaited}"

    @property
    def collective_text(self) -> str:
        """Its collective as text, with the sequence number and the shape where they are known."""
        shape, number = self.call.get("shape"), self.call.get("sequence")
        text = str(self.collective) + (f" of shape {shape}" if shape is not None else "")
        return text + (f", number {number} of its group" if number is not None else "")


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
        groups: dict[tuple[object, ...], list[RankPlace]] = {}
        for rank in self.ranks:
            # A few ranks are told one by one.
            key: tuple[object, ...] = _where(rank) if len(self.ranks) > _MOST_TOLD else (rank.rank,)
            key = (rank.step, rank.collective, rank.line) if rank.part == _WAITS else key
            groups.setdefault(key, []).append(rank)
        # Those who are alone may be the reason.
        for same in sorted(groups.values(), key=lambda ranks: (ranks[0].part == _WAITS, len(ranks))):
            first = same[0]
            if first.part == _WAITS:
                where = f"{first.collective} at {first.line}, in step {first.step}"
                lines.append(f"{_rank_list(same)}: in {where} for {_time(first.in_step_s)}")
                continue
            lines += _lines_of(first, self.sentence)
            if len(same) > 1:
                ranks = units.ranges([rank.rank for rank in same[1:]])
                lines.append(f"  at the same place: {units.count(len(same) - 1, 'more rank')}, {ranks}")
        if self.earlier:
            # What rings tell may itself be one of them.
            of_rings = Path(self.folder).parent.name != INCIDENTS
            earlier = units.count(self.earlier, "incident" if of_rings else "more incident")
            lines.append(f"{earlier} of this job" + (f" in {self.folder}/{INCIDENTS}" if of_rings else ""))
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
    folder = base if target is None else Path(target)
    if target is None or folder.is_dir():
        if time_of(folder) is not None:
            return _incident(jobs.Attempt(folder.parent.parent), folder)
        return _newest(jobs.attempts_in(folder), folder)
    if not target.isdecimal():
        raise ArgumentError(f"{target!r} is neither a folder nor the id of a process.")
    return _newest([jobs.attempt_of_process(base, int(target))], base)


def _newest(attempts: Sequence[jobs.Attempt], folder: Path) -> LastEvent:
    """What happened last in some attempts: a hang that goes on, a process that is dead, an incident, in this order at the same time."""
    events: list[tuple[float, int, jobs.Attempt, str, list[jobs.RankFiles], Path | None]] = []
    now_s, now_ns = time.time(), time.monotonic_ns()
    for attempt in attempts:
        rings = attempt.rings(now_ns)
        states = {ring.state for ring in rings}
        incidents = attempt.incidents()
        newest = incidents[-1] if incidents else None
        untold = [ring for ring in rings if ring.state == jobs.GONE and not has_exit_note(attempt, ring)]
        if untold:
            # What happened to other ranks afterwards is the consequence.
            died_s = max(map(last_seen_s, untold))
            newest_s = 0.0 if newest is None else time_of(newest) or 0.0
            after = newest if newest_s >= died_s - 1.0 else None
            at_s = now_s if jobs.HANGS in states else max(died_s, newest_s)
            events.append((at_s, 3, attempt, jobs.GONE, rings, after))
        elif jobs.HANGS in states:
            events.append((now_s, 3, attempt, "hang", rings, None))
        elif jobs.RUNS in states:
            events.append((0.0, 0, attempt, "runs", rings, None))
        if newest is not None:
            events.append((time_of(newest) or 0.0, 2, attempt, "", rings, newest))
    if not events:
        raise ArgumentError(
            f"{folder} has no incidents, and no job that was left on: see kinetoscope.leave_on."
        )
    _, _, attempt, reason, rings, incident = max(events, key=lambda event: event[:2])
    if not reason and incident is not None:
        return _incident(attempt, incident)
    return _of_rings(attempt, reason, rings, now_ns, incident)


def _incident(attempt: jobs.Attempt, newest: Path) -> LastEvent:
    """Describe an incident, with those shortly before that may have caused it."""
    episode = _episode(attempt, newest)
    ranks, failures = _failures(episode)
    lead = failures[0] if failures else ranks[0] if ranks else None
    reason = newest.name if lead is None else str(lead.facts.get("reason", newest.name))
    time_s = time_of(newest) or 0.0
    if lead is not None:
        time_s = float(lead.facts.get("time_s") or time_s)
        ranks = [lead, *(rank for rank in ranks if rank.rank != lead.rank)]
    described = _places(ranks, None)
    # Those that ended without an incident, before others failed because they were no longer there.
    fails = lead is not None and jobs.is_consequence(lead)
    ended = _ended(attempt, ranks, time.monotonic_ns()) if fails or reason == "hang" else []
    who = f" of rank {lead.rank}" if lead is not None and len(ranks) > 1 else ""
    sentence = f"{reason}{who} at {_date(time_s)}"
    cause = described[0].what if described else ""
    if reason == "hang":
        cause = _who_is_missing([*described, *ended]) or cause
        described = _in_order([*described, *ended])
    elif ended:
        sentence = f"{_rank_list(ended)} ended before, {ended[0].where}; then {sentence}"
        described = [*ended, *described]
    sentence += (f": {cause}" if cause else "") + _consequences(failures[1:]) + _missing(episode)
    earlier = len(attempt.incidents()) - len(episode)
    folder = newest if lead is None else lead.recording.parent
    return LastEvent(attempt.name, reason, sentence, time_s, str(folder), described, max(earlier, 0))


def _episode(attempt: jobs.Attempt, newest: Path) -> list[Path]:
    """The incidents of what ended with one of them: those that end a job, each less than a while after the one before; else itself."""
    chain = [newest]
    for path in reversed([path for path in attempt.incidents() if path.name < newest.name]):
        near = (time_of(chain[-1]) or 0.0) - (time_of(path) or 0.0) <= _TOGETHER_S
        # A person ends a job that hangs much later.
        if near or (
            _kind(path) == "hang" and _kind(chain[-1]) in ("exit", jobs.GONE) and _same_step(path, chain[-1])
        ):
            chain.append(path)
    return [path for path in chain if _kind(path) in _ENDINGS] or [newest]


def _kind(incident: Path) -> str:
    """The reason of an incident, by the name of its folder."""
    return incident.name.split("-")[1] if "-" in incident.name else ""


def _same_step(*incidents: Path) -> bool:
    steps = [{rank.facts.get("step") for rank in jobs.incident_ranks(incident)} for incident in incidents]
    return bool(set.intersection(*steps) - {None})


def _failures(incidents: Sequence[Path]) -> tuple[list[jobs.RankFiles], list[jobs.RankFiles]]:
    """The ranks of some incidents, each once, and those of them that failed by themselves, the first failure first."""
    of_rank: dict[int, list[jobs.RankFiles]] = {}
    for incident in incidents:
        for rank in jobs.incident_ranks(incident):
            of_rank.setdefault(rank.rank, []).append(rank)
    ranks = []
    for number in sorted(of_rank):
        itself = jobs.first_failure(of_rank[number])
        ranks.append(itself[0] if itself else of_rank[number][0])
    return ranks, jobs.first_failure(ranks)


def _consequences(failures: Sequence[jobs.RankFiles]) -> str:
    """What other ranks had afterwards, as the end of a sentence."""
    text = ""
    for rank in failures[:_MOST_FOLLOWING]:
        cause = str(rank.facts.get("what") or rank.facts.get("reason")).split("\n", 1)[0]
        text += f"; then rank {rank.rank}: {cause[:_MOST_CHARACTERS]}"
    more = len(failures) - _MOST_FOLLOWING
    return text + (f"; and {units.count(more, 'more rank')}" if more > 0 else "")


def _missing(incidents: Sequence[Path]) -> str:
    """The ranks of which nothing was kept, as the end of a sentence."""
    missing: set[int] = set()
    for incident in incidents:
        missing.update(read_facts(incident / SUMMARY).get("missing", ()))
    missing -= {rank.rank for incident in incidents for rank in jobs.incident_ranks(incident)}
    if not missing:
        return ""
    return f"; nothing is known of rank{'s' if len(missing) > 1 else ''} {units.ranges(sorted(missing))}: dead, or on another machine"


def _of_rings(
    attempt: jobs.Attempt,
    reason: str,
    all_rings: list[jobs.RankFiles],
    now_ns: int,
    after: Path | None = None,
) -> LastEvent:
    """Describe an attempt by its rings, as they were found at a time of the monotonic clock, and an incident after a death."""
    rings = [ring for ring in all_rings if ring.state != jobs.ENDED]
    ranks, failures = _failures(_episode(attempt, after)) if after is not None else ([], [])
    present = {ring.rank for ring in rings}
    statuses = _places(rings, now_ns) + _places([rank for rank in ranks if rank.rank not in present], None)
    of_kind = [status for status in statuses if status.state == (jobs.HANGS if reason == "hang" else reason)]
    late = slow_ranks(rings, now_ns) if reason == jobs.RUNS else {}
    of_kind.sort(key=lambda status: [*late, status.rank].index(status.rank))
    for status in of_kind:
        status.holds_up = late.get(status.rank, "")
    statuses = [*of_kind, *(status for status in statuses if status not in of_kind)]
    numbers = _ranks_text([status.rank for status in of_kind], len(statuses))
    first = of_kind[0]
    if reason == jobs.GONE:
        ring = next(ring for ring in rings if ring.rank == first.rank)
        sentence = (
            f"{numbers} {end_text(first.step, ring.log, ring.death)}; last seen at {_date(last_seen_s(ring))}"
        )
        sentence += _consequences([rank for rank in failures if rank.rank not in present])
        waiting = [status for status in statuses if status.state == jobs.HANGS]
        sentence += f"; {_rank_list(waiting)} hang" if waiting else ""
    else:
        statuses += _ended(attempt, rings, now_ns)
        sentence = _who_is_missing(statuses)
        statuses = _in_order(statuses)
        if not sentence and reason == "hang":
            sentence = f"{numbers} hang{'s' if len(of_kind) == 1 else ''}: step {first.step} has not ended for {_time(first.in_step_s)}"
            sentence += f", {first.where}" if len(of_kind) == 1 else ""
        elif not sentence:
            where = f"in step {first.step}" if first.step is not None else _in_no_step(first.last_step)
            where += f" for {_time(first.in_step_s)}, far longer than usual" if first.is_stuck else ""
            sentence = f"{numbers} {'runs' if len(of_kind) == 1 else 'run'}, {where}"
            sentence += f". {first.holds_up}" if first.holds_up else ""
    changed_s, earlier = max(ring.changed_s for ring in rings), len(attempt.incidents())
    return LastEvent(attempt.name, reason, sentence, changed_s, str(attempt.folder), statuses, earlier)


def _ranks_text(ranks: list[int], count: int) -> str:
    if count == 1:
        return "it"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} of {count} ranks"


def _in_no_step(last_step: int | None) -> str:
    return "no step began" if last_step is None else f"after step {last_step:,}"


def _date(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def _time(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else units.duration(seconds * 1e9)


def _who_is_missing(statuses: Sequence[RankPlace]) -> str:
    """Which ranks hold up the job, and who waits for them, as a sentence; empty if nobody does, or that is unknown. Notes the part of each."""
    stopped = [status for status in statuses if status.is_stopped]
    stuck = [
        status
        for status in statuses
        if (status.state != jobs.RUNS or status.is_stuck) and status.part != _HAS_ENDED
    ]
    waiting = [status for status in stuck if status.collective and not status.is_stopped]
    blamed = stopped or ([status for status in stuck if not status.collective] if waiting else [])
    verbs = ("is", "are") if stopped else ("holds up the job:", "hold up the job:")
    if waiting and not blamed:
        blamed = [status for status in statuses if status.part == _HAS_ENDED]
        verbs = ("has ended:", "have ended:")
    if waiting and not blamed:
        blamed, verbs = _different(waiting), _IN_ANOTHER
        waiting = [status for status in waiting if status not in blamed]
    if not blamed:
        return _disagreement(waiting)
    first = blamed[0]
    who = "the process" if len(statuses) == 1 else _rank_list(blamed)
    step = "" if first.step is None else f", in step {first.step}"
    step += f" for {_time(first.in_step_s)}" if step and first.in_step_s is not None else ""
    call = f"{first.collective_text}, " if verbs == _IN_ANOTHER else ""
    text = f"{who} {verbs[len(blamed) > 1]} {call}{first.where}{step}"
    if waiting:
        awaited = waiting[0].collective_text if call else waiting[0].collective
        text += f"; {_rank_list(waiting)} wait{'s' if len(waiting) == 1 else ''} in {awaited}"
    for status in (*blamed, *waiting):
        status.part = _WAITS if status in waiting else _HOLDS_UP
    return text


def _different(waiting: Sequence[RankPlace]) -> list[RankPlace]:
    """Those of the ranks that wait in collectives whose collective is another one than that of most."""
    new = [status for status in waiting if status.is_new_line]
    if 0 < 2 * len(new) < len(waiting):
        return new
    groups: dict[str, list[RankPlace]] = {}
    for status in waiting:
        key = (status.collective_text, status.step, status.line)
        groups.setdefault(repr(key), []).append(status)
    *fewer, most = sorted(groups.values(), key=len) or [[]]
    is_most = fewer and len(fewer[-1]) < len(most)
    return [status for group in fewer for status in group] if is_most else []


def _disagreement(waiting: Sequence[RankPlace]) -> str:
    """That ranks wait in different collectives, none of which is that of most; empty if they do not."""
    texts = {status.rank: f"{status.collective_text} at {status.line}" for status in waiting[:_MOST_TOLD]}
    by_rank = "; ".join(f"rank {rank} in {text}" for rank, text in texts.items())
    return f"ranks wait in different collectives: {by_rank}" if len(set(texts.values())) > 1 else ""


def _in_order(statuses: Sequence[RankPlace]) -> list[RankPlace]:
    """Those that hold up the job first, those that wait for them last; without those that have ended and hold up nobody."""
    order = {_HOLDS_UP: 0, "": 1, _WAITS: 2}
    return sorted(
        (status for status in statuses if status.part != _HAS_ENDED), key=lambda status: order[status.part]
    )


def _ended(attempt: jobs.Attempt, ranks: Sequence[jobs.RankFiles], now_ns: int) -> list[RankPlace]:
    """Ranks besides these that have stopped recording, as at the end of the program, while others go on: where they are, or were last."""
    present = {rank.rank for rank in ranks}
    rings = [ring for ring in attempt.rings(now_ns) if ring.rank not in present and ring.log is not None]
    ended = [_place(ring, now_ns, compare=False) for ring in rings if ring.state == jobs.ENDED]
    for status in ended:
        status.part = _HAS_ENDED
    return ended


def _rank_list(statuses: Sequence[RankPlace]) -> str:
    return f"rank{'s' if len(statuses) > 1 else ''} {units.ranges([status.rank for status in statuses])}"


def _places(ranks: Sequence[jobs.RankFiles], now_ns: int | None) -> list[RankPlace]:
    """Where ranks are, by their files; `now_ns` is the monotonic clock if their rings may still be written.

    Of many ranks, most do the same. What changed in the last step, which takes longest to find, is told for the first of each place.
    """
    if not ranks:
        return []

    def place(files: jobs.RankFiles, *, compare: bool = len(ranks) <= _MOST_COMPARED) -> RankPlace:
        return _place(files, now_ns, compare=compare)

    with ThreadPoolExecutor(min(len(ranks), _READERS)) as pool:
        statuses = list(pool.map(place, ranks))
    if len(ranks) > _MOST_COMPARED:
        first = {_where(status): number for number, status in reversed(list(enumerate(statuses)))}
        for number in sorted(first.values())[:_MOST_COMPARED]:
            statuses[number] = place(ranks[number], compare=True)
    return statuses


# What ranks that are at the same place have in common.
_where = attrgetter(
    "state", "step", "last_step", "operator", "module", "line", "thread_state", "sampled_step", "collective", "what", "problem", "part", "holds_up"
)  # fmt: skip


def _place(files: jobs.RankFiles, now_ns: int | None, *, compare: bool) -> RankPlace:
    """Where a rank is, by its files.

    Args:
        files: Its files.
        now_ns: The monotonic clock if its ring may still be written; None for an incident.
        compare: Whether to find what changed in the last step.
    """
    facts, log = files.facts, files.log
    status = RankPlace(files.rank, files.process, files.state, str(files.recording))
    status.host = str(facts.get("host", socket.gethostname() if log is not None and log.is_of_here else ""))
    status.what, status.overhead = str(facts.get("what", "")), str(facts.get("overhead", ""))
    if facts.get("reason") == jobs.GONE:
        status.state = jobs.GONE
    if facts.get("step") is not None:
        status.step = int(facts["step"])
    if log is not None:
        if log.number >= 0:
            # Between two steps none is under way.
            status.step = log.number if log.began_ns else None
        if log.steps:
            status.last_step = log.steps[-1].number
            # Steps that are only counted have no entry of their own until the last one of them ends.
            counted = log.began_ns and not log.recorded and log.number - status.last_step <= MOST_TOGETHER
            if counted and log.number > status.last_step:
                status.last_step = log.number - 1
        if now_ns is not None and log.began_ns:
            until_ns = now_ns if files.state in (jobs.HANGS, jobs.RUNS) else log.last_seen_ns
            status.in_step_s = max(until_ns - log.began_ns, 0) / 1e9
        durations_ns = [step.duration_ns for step in log.steps]
        if status.in_step_s is not None and durations_ns:
            status.is_stuck = status.in_step_s > max(_STUCK_S, _STUCK_TIMES * median(durations_ns) / 1e9)
        status.steps = _step_times(durations_ns)
        status.memory = _memory(log.memory)
        if log.judged_ns > log.began_ns > 0:
            status.call = {name: value for name, value in log.judgement.items() if name in _CALL}
    goes_on = files.state in (jobs.HANGS, jobs.RUNS)
    look = Sight(**facts["sight"]) if facts.get("sight") else None
    if log is not None and log.is_of_here and now_ns is not None and files.state != jobs.GONE:
        look = sight(log.process, log.layout, log.thread)
    usual_lines: set[str | None] = set()
    try:
        if files.state == jobs.ENDED and now_ns is not None and log is not None:
            # Its ring is gone.
            status.line = log.judgement.get("line") or (log.place.program_line if log.place else None)
        else:
            with opened_ring(files.recording) if goes_on else open_trace(files.recording) as trace:
                usual_lines = _look_into(trace, status, log, compare=compare)
    except Exception as error:  # noqa: BLE001  (what else is known is shown, whatever is wrong with the file)
        status.problem = f"{type(error).__name__}: {error}"
    # One that has ended, and that nobody waits for yet, has a state and no line.
    if look is not None and look.thread_state != jobs.ENDED:
        status.line, status.thread_state, status.thread = look.line, look.thread_state, look.thread
        status.workers, status.may_wait_for = list(look.workers), list(look.may_wait_for)
        status.age_s = status.sampled_step = None
        # Which of torch's collectives, a span of this step may say that DDP called it.
        collective = look.collective or status.call.get("collective")
        status.collective = collective and (status.collective or collective)
    status.is_new_line = bool(usual_lines) and status.line not in usual_lines
    return status


def _look_into(trace: Trace, status: RankPlace, log: StepLog | None, *, compare: bool) -> set[str | None]:
    """Find in a recording what was open when it ended, and what its last sample says, with its age; return the lines of collectives before."""
    steps = trace.columns("steps")
    if status.step is None and status.last_step is None and len(steps):
        status.step = int(steps["number"][-1])
    if status.last_step is None and len(steps) > 1:
        status.last_step = int(steps["number"][-2])
    # Of the process, the main thread has the same id.
    marks_steps = log.thread if log is not None and log.thread else status.process
    threads = np.flatnonzero(trace.columns("threads")["os_tid"] == marks_steps)
    main = int(threads[0]) if len(threads) else 0
    # From when on something says where the rank is: a step that is not recorded has no spans, and perhaps no samples.
    zero_ns = trace.run_info.start_monotonic_ns or 0
    from_ns = 0 if log is None or log.recorded else (log.began_ns or log.last_seen_ns) - zero_ns
    spans = trace.columns("spans")
    is_open = (spans["flags"] & FLAG_UNFINISHED) != 0
    rows = np.flatnonzero(is_open & (spans["kind"] != SpanKind.STEP) & (spans["start_ns"] >= from_ns))
    rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
    main_rows = rows[spans["thread"][rows] == main]
    if len(main_rows):
        row = int(main_rows[-1])
        status.operator = trace.strings[int(spans["name"][row])]
        status.module = _module(trace, int(spans["module"][row]))
        status.line = program_line(stack_lines(trace, int(spans["stack"][row])))
    stack, module = last_sample(trace, main)
    is_logged = (
        log is not None and log.place is not None and (stack is None or log.place.time_ns > stack.time_ns)
    )
    if log is not None and is_logged:
        stack, module = log.place, -1
    at_ns = -1 if stack is None else stack.time_ns - zero_ns
    if stack is not None and (len(main_rows) == 0 or at_ns >= spans["start_ns"][main_rows[-1]]):
        status.thread_state = stack.state
        status.thread = None if stack.thread == status.process else stack.thread
        status.line = stack.program_line or status.line
        if log is not None and stack.state != CRASHED:
            status.age_s = max(log.last_seen_ns - stack.time_ns, 0) / 1e9
            if is_logged:
                status.sampled_step = None if log.place_step == status.step else log.place_step
            elif log.began_ns == 0 or at_ns < log.began_ns - zero_ns:
                row = int(np.searchsorted(steps["start_ns"], at_ns, side="right")) - 1
                status.sampled_step = int(steps["number"][row]) if row >= 0 else None
        if at_ns >= from_ns:
            status.module = _module(trace, module) or status.module
            # In a step that is not recorded, only samples tell of it.
            status.collective = stack.collective
    open_calls, usual_lines = set(rows.tolist()), set()
    if open_calls or status.call:
        calls = trace.table("collectives").select(["span", "name", "transfer_span"]).to_pylist()
        stacks = {int(spans["stack"][call["span"]]) for call in calls if call["span"] not in open_calls}
        usual_lines = {program_line(stack_lines(trace, stack)) for stack in stacks if stack >= 0}
        for call in calls:
            # Of a dead process, the end of what another thread did may be missing.
            if call["span"] in open_calls or (
                call["transfer_span"] in open_calls and status.state != jobs.GONE
            ):
                status.collective = call["name"]
    if not status.steps:
        status.steps = _step_times(steps["duration_ns"][:-1].tolist())
    if status.steps and compare:
        status.steps += _what_changed(trace)
    return usual_lines


def _module(trace: Trace, row: int) -> str | None:
    return None if row < 0 else str(trace.columns("modules")["path"][row])


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
    rows = trace.compare_steps(step).to_pylist()
    more = [
        row for row in rows if row["kind"] in ("operator", "python") and row["more_ns"] > 0 and row["name"]
    ]
    if not more:
        return ""
    row = max(more, key=lambda row: row["more_ns"])
    return f"; step {step:,} has most more of {row['name']}: {units.duration(row['more_ns'])}"


def _memory(readings: Sequence[tuple[int, int]]) -> str:
    """The memory of a process and its trend, by readings of times and bytes; empty without any."""
    if not readings:
        return ""
    (first_ns, first_bytes), (last_ns, last_bytes) = readings[0], readings[-1]
    text = f"memory {units.size(last_bytes)}"
    if len(readings) < 2:
        return text
    sign = "+" if last_bytes >= first_bytes else "-"
    return (
        f"{text}, {sign}{units.size(abs(last_bytes - first_bytes))} in {units.duration(last_ns - first_ns)}"
    )


def _lines_of(status: RankPlace, sentence: str) -> list[str]:
    """A rank as lines of text, without what the sentence of the event says of it."""
    head = f"rank {status.rank}{f' on {status.host}' if status.host else ''}"
    head += f"{', dead' if status.state == jobs.GONE else ''}: "
    head += f"in step {status.step:,}" if status.step is not None else _in_no_step(status.last_step)
    if status.in_step_s:
        head += f" for {_time(status.in_step_s)}"
    if status.last_step is not None:
        head += f", last complete step {status.last_step:,}"
    if status.process is not None:
        head += f", process {status.process}"
    lines = [head]
    collective = status.collective and f"collective {status.collective}"
    thread = "main thread" if status.thread is None else f"thread {status.thread}"
    where = list(filter(None, [status.operator, collective, status.module and f"module {status.module}"]))
    sampled = list(filter(None, [status.line, status.thread_state and f"{thread} {status.thread_state}"]))
    if status.state == jobs.GONE and not (where or sampled):
        lines.append("  where in the step is unknown: neither this step nor the ones before have samples")
    if status.age_s is None:
        where, sampled = where + sampled, []
    if where:
        lines.append("  in " + ", ".join(where))
    if sampled:
        step = "" if status.sampled_step is None else f", in step {status.sampled_step:,}"
        lines.append(
            f"  last sample, {_time(status.age_s)} before the process was last seen{step}: {', '.join(sampled)}"
        )
    lines += [f"  {text}" for text in (*status.workers, *status.may_wait_for)]
    lines += [f"  {status.holds_up}"] if status.holds_up and status.holds_up not in sentence else []
    overhead = f"overhead {status.overhead}" if status.overhead else ""
    lines += [f"  {text}" for text in (status.steps, status.memory, overhead) if text]
    if status.problem:
        lines.append(f"  the recording cannot be read: {status.problem}")
    lines.append(f"  {status.path}")
    return lines
