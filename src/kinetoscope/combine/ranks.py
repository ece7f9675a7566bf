"""The traces of the ranks of a job as one."""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.combine.processes import merge_processes
from kinetoscope.model import units
from kinetoscope.model.processes import Placement, by_wall_clock, one_machine, process_runs
from kinetoscope.model.run_info import RunInfo
from kinetoscope.model.trace_data import AnyTrace, TraceData
from kinetoscope.tables.device.collectives import collectives

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Values = NDArray[np.float64]


# The difference of two clocks as a straight line, from moments that it is known to lie above or below at.

# No two clocks of computers run further apart: crystals are off by up to 50 parts in a million, and a system that follows
# the time of a network bends its clock by at most 500.
MOST_DRIFT = 1e-3
# And nearly none further than this.
_WORKING_DRIFT = 1e-4
# What tells a drift from chance where it is estimated: how far clocks usually run apart, in parts, how far apart from each
# other guesses are at least, and how many of them at most are taken for independent, for a busy machine is late many times.
_USUAL_DRIFT, _LEAST_SPREAD_NS, _INDEPENDENT = 2e-5, 5e3, 20
# An interval of 0.001 has shrunk below what a double tells apart in it.
_ROUNDS, _GOLDEN = 64, (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Bounds:
    """What is known of the difference `d(t)` that has to be added to a clock to get another one's time.

    Attributes:
        above_at_ns: Moments of the clock.
        above_ns: `d` is at least this at each of them.
        below_at_ns: Further moments.
        below_ns: `d` is at most this at each of them.
    """

    above_at_ns: NDArray[np.int64]
    above_ns: NDArray[np.int64]
    below_at_ns: NDArray[np.int64]
    below_ns: NDArray[np.int64]

    def relaxed(self, error_ns: int) -> Bounds:
        """The same, each bound further away by what the readings may be off."""
        return Bounds(self.above_at_ns, self.above_ns - error_ns, self.below_at_ns, self.below_ns + error_ns)


@dataclass(frozen=True)
class Guesses:
    """What the difference probably is at some moments; each may be off by any time.

    Attributes:
        at_ns: Moments of the clock.
        guess_ns: `d` is about this at each of them.
    """

    at_ns: NDArray[np.int64]
    guess_ns: NDArray[np.int64]


class _Possible:
    """All lines within some bounds whose drift is small enough: a convex set in the plane of offset and drift."""

    def __init__(self, bounds: Bounds, origin_ns: int, most_drift: float) -> None:
        """Moments are counted from `origin_ns`; bounds that contradict each other are moved apart until one line keeps to all."""
        # Near 0, where a double counts single nanoseconds.
        self.origin_ns, self.base_ns = origin_ns, int(bounds.above_ns.max())
        self._low, self._low_at = _near(bounds.above_ns, self.base_ns), _near(bounds.above_at_ns, origin_ns)
        self._high, self._high_at = _near(bounds.below_ns, self.base_ns), _near(bounds.below_at_ns, origin_ns)
        best = _top(self._room, -most_drift, most_drift)
        # Less than half a nanosecond is what was rounded here.
        self.violated_ns = max(0, math.ceil(-self._room(best) / 2 - 0.5))
        self._low, self._high = self._low - self.violated_ns, self._high + self.violated_ns
        self.least, self.most = (
            _edge(self._room, best, -most_drift),
            _edge(self._room, best, most_drift),
        )

    def lowest(self, drift: float) -> float:
        """The least difference at the origin that a line of this drift can have."""
        return float((self._low - drift * self._low_at).max())

    def highest(self, drift: float) -> float:
        """The largest one."""
        return float((self._high - drift * self._high_at).min())

    def range_at(self, at_ns: int, most_drift: float = math.inf) -> tuple[float, float]:
        """Between what the difference lies at a moment, from `base_ns`, for drifts up to `most_drift` where there are such."""
        at = float(at_ns - self.origin_ns)
        least, most = max(self.least, -most_drift), min(self.most, most_drift)
        if least > most:
            least, most = self.least, self.most
        up = _top(lambda drift: self.highest(drift) + drift * at, least, most)
        down = _top(lambda drift: -self.lowest(drift) - drift * at, least, most)
        return self.lowest(down) + down * at, self.highest(up) + up * at

    def _room(self, drift: float) -> float:
        return self.highest(drift) - self.lowest(drift)


@dataclass(frozen=True)
class ClockLine:
    """`d(t) = offset_ns + drift * t`, and how wrong it can be.

    Attributes:
        offset_ns: The difference at 0.
        drift: How it changes, in nanoseconds for each.
        violated_ns: By how much the bounds contradict each other: 0 where some line keeps to all. Where it is above 0 they
            were all moved away by that much, and errors hold for those.
    """

    offset_ns: float
    drift: float
    violated_ns: int
    _possible: _Possible = field(repr=False, compare=False)

    def error_ns(self, begin_ns: int, end_ns: int) -> int:
        """No line within all bounds is further away than this at any moment between the two."""
        farthest = 0.0
        # How far the farthest line is away is a convex function of time, and largest at an end.
        for at_ns in (begin_ns, end_ns):
            low, high = self._possible.range_at(at_ns)
            here = self.offset_ns - self._possible.base_ns + self.drift * at_ns
            farthest = max(farthest, high - here, here - low)
        # One nanosecond more for the rounding of what is computed here, and one for that of what is moved by it.
        return math.ceil(farthest) + 2


def fit(
    bounds: Bounds, begin_ns: int, end_ns: int, most_drift: float = MOST_DRIFT, guesses: Guesses | None = None
) -> ClockLine | None:
    """A line that keeps to the bounds: the likeliest by the guesses, or without these the one in the middle.

    The difference of two clocks is taken for a straight line whose drift is at most `most_drift`; then it is among those that
    keep to the bounds, and `ClockLine.error_ns` says how far the farthest of these is away. The line in the middle is half-way
    between the highest and the lowest of them at both moments, of those only that clocks in order can have where there are
    such. With guesses that are closer to each other than the bounds are,
    it is the line, of those that keep to the bounds, that the guesses are the least away from in sum (which single bad ones
    do not move), where a drift has to be worth it: clocks that run apart by parts in 100,000 are usual, by more are not.

    Args:
        bounds: What is known.
        begin_ns: Where the line is wanted from, of the clock.
        end_ns: And to where.
        most_drift: How far the two clocks may run apart, in parts.
        guesses: What the difference probably is.

    Returns:
        The line; None where nothing bounds it on one of its sides.
    """
    if len(bounds.above_ns) == 0 or len(bounds.below_ns) == 0:
        return None
    possible = _Possible(bounds, (begin_ns + end_ns) // 2, most_drift)
    chosen = None if guesses is None or len(guesses.at_ns) == 0 else _likeliest(possible, guesses)
    drift, at_origin = chosen or _middle(possible, begin_ns, end_ns)
    offset_ns = possible.base_ns + at_origin - drift * possible.origin_ns
    return ClockLine(offset_ns, drift, possible.violated_ns, possible)


def _middle(possible: _Possible, begin_ns: int, end_ns: int) -> tuple[float, float]:
    """The drift, and the difference at the origin, half-way between all that is possible for clocks that work."""
    (begin_low, begin_high), (end_low, end_high) = (
        possible.range_at(moment, _WORKING_DRIFT) for moment in (begin_ns, end_ns)
    )
    first, last = (begin_low + begin_high) / 2, (end_low + end_high) / 2
    drift = (
        (last - first) / (end_ns - begin_ns) if end_ns > begin_ns else (possible.least + possible.most) / 2
    )
    return drift, first + drift * (possible.origin_ns - begin_ns)


def _likeliest(possible: _Possible, guesses: Guesses) -> tuple[float, float] | None:
    """The drift, and the difference at the origin, that fit the guesses best; None where the bounds say more than they do."""
    at, guess = _near(guesses.at_ns, possible.origin_ns), _near(guesses.guess_ns, possible.base_ns)

    def at_origin(drift: float) -> float:
        middle = float(np.median(guess - drift * at))
        return min(max(middle, possible.lowest(drift)), possible.highest(drift))

    def away_ns(drift: float) -> Values:
        return np.abs(guess - drift * at - at_origin(drift))

    closest = _top(lambda drift: -float(away_ns(drift).sum()), possible.least, possible.most)
    spread_ns = max(float(np.median(away_ns(closest))), _LEAST_SPREAD_NS)
    low, high = possible.range_at(possible.origin_ns)
    if spread_ns > (high - low) / 2:
        return None
    weight = min(len(guess), _INDEPENDENT) / spread_ns
    drift = _top(
        lambda drift: -float(away_ns(drift).mean()) * weight - abs(drift) / _USUAL_DRIFT,
        possible.least,
        possible.most,
    )
    return drift, at_origin(drift)


def _near(values: NDArray[np.int64], base: int) -> Values:
    """Numbers as their distance from another one."""
    return (values - np.int64(base)).astype(np.float64)


def _top(concave: Callable[[float], float], low: float, high: float) -> float:
    """Where a concave function is largest, by golden sections."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = concave(left), concave(right)
    for _ in range(_ROUNDS):
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = concave(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = concave(left)
    return (low + high) / 2


def _edge(concave: Callable[[float], float], inside: float, outside: float) -> float:
    """How far from a point where it is not negative a concave function stays so, towards another point."""
    if concave(outside) >= 0:
        return outside
    for _ in range(_ROUNDS):
        middle = (inside + outside) / 2
        if concave(middle) >= 0:
            inside = middle
        else:
            outside = middle
    # The outer side of the edge: of what is possible nothing may be left out.
    return outside


# Moments at which ranks waited for each other: the barriers of `align_clocks`, and calls between ranks.
#
# No rank leaves a meeting before all have entered it. A rank is seen to enter no later than it really does, and to leave
# no earlier, so that what is seen of two ranks bounds the difference of their clocks from both sides.

BARRIERS, COLLECTIVES = "barriers", "collectives"
# No rank can have the result of these before all have contributed. Of others, such as a broadcast or a call that may
# send nothing to some, that is not so.
MEETING_COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
# Sources that write whole microseconds leave out what comes behind them, of the begin and of the duration.
_MICROSECOND, _CUT_OFF_NS = 1_000, 2_000
_COLUMNS = (
    "name", "group", "group_ranks", "rank", "dtype", "input_elements", "output_elements", "transfer_start_ns", "transfer_ns",
    "step", "process",
)  # fmt: skip


@dataclass(frozen=True)
class Visit:
    """One trace at a meeting.

    Attributes:
        trace: Which of the traces.
        entered_ns: The latest moment of it by which nobody of it could have left, on the trace's own axis.
        left_ns: The earliest moment at which somebody of it had left.
    """

    trace: int
    entered_ns: int
    left_ns: int


@dataclass(frozen=True)
class Meeting:
    """A meeting of several traces.

    Attributes:
        kind: `barriers` or `collectives`.
        visits: Who was there; at least two.
    """

    kind: str
    visits: tuple[Visit, ...]


def meetings_of(traces: Sequence[TraceData]) -> list[Meeting]:
    """All meetings that two or more of the traces recorded."""
    return [
        *_together(BARRIERS, (_barriers(place, trace) for place, trace in enumerate(traces))),
        *_together(COLLECTIVES, _collectives(traces)),
    ]


def _together(kind: str, of_traces: Iterable[Mapping[Hashable, Visit]]) -> list[Meeting]:
    """Collect the visits of each meeting from all traces."""
    found: defaultdict[Hashable, list[Visit]] = defaultdict(list)
    for visits in of_traces:
        for key, visit in visits.items():
            found[key].append(visit)
    return [Meeting(kind, tuple(visits)) for visits in found.values() if len(visits) > 1]


def _barriers(place: int, trace: TraceData) -> dict[Hashable, Visit]:
    """The barriers that a trace was at, by their names, which no two barriers of any job share."""
    begin_ns = trace.run_info.start_monotonic_ns
    if begin_ns is None:
        return {}
    found: dict[Hashable, Visit] = {}
    for run in process_runs(trace):
        for name, entered_ns, left_ns in run.clock_marks:
            if entered_ns <= left_ns:
                visit = Visit(place, entered_ns - begin_ns, left_ns - begin_ns)
                found[name] = _with(found.get(name), visit)
    return found


def _with(known: Visit | None, visit: Visit) -> Visit:
    """Two of one trace at a meeting, as one."""
    if known is None:
        return visit
    return Visit(visit.trace, max(known.entered_ns, visit.entered_ns), min(known.left_ns, visit.left_ns))


# ----------------------------------------------------------------------------------------------------------- collectives


def _collectives(traces: Sequence[TraceData]) -> list[dict[Hashable, Visit]]:
    """The calls between ranks, by step, group, name and place among their like, where the traces agree on these.

    Traces without steps must have the same calls from beginning to end.
    """
    kept: list[dict[Hashable, Visit]] = [{} for _ in traces]
    series: defaultdict[tuple[Hashable, ...], list[tuple[int, list[dict[str, Any]]]]] = defaultdict(list)
    for place, trace in enumerate(traces):
        for key, calls in _calls(trace).items():
            series[key[:-1]].append((place, calls))
    for key, of_ranks in series.items():
        likenesses = {tuple(call["like"] for call in calls) for _, calls in of_ranks}
        if len(likenesses) > 1:
            continue
        for place, calls in of_ranks:
            for number, call in enumerate(calls):
                visit = Visit(place, call["entered_ns"], call["left_ns"])
                kept[place][key, number] = _with(kept[place].get((key, number)), visit)
    return kept


def _calls(trace: TraceData) -> dict[tuple[Hashable, ...], list[dict[str, Any]]]:
    """The calls of a trace at which ranks meet, in order, by (step, group, name, whose)."""
    rows = collectives(trace).select(_COLUMNS).to_pylist()
    has_steps = len(trace.columns("steps")) > 0
    one_group = all(len(run.process_groups) < 2 for run in process_runs(trace))
    carried = [row for row in rows if row["transfer_start_ns"] is not None and row["transfer_ns"] is not None]
    whole = all(row["transfer_start_ns"] % _MICROSECOND == 0 for row in carried)
    found: defaultdict[tuple[Hashable, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in carried:
        # Two groups may be of the same ranks; calls to one of them are in order.
        group = (row["group_ranks"] or "", row["group"] or "")
        if (
            row["name"] not in MEETING_COLLECTIVES
            or (has_steps and row["step"] is None)
            or not (any(group) or one_group)
        ):
            continue
        entered_ns = row["transfer_start_ns"]
        left_ns = entered_ns + row["transfer_ns"] + (_CUT_OFF_NS if whole else 0)
        # What a rank gives to an all_gather may have a size of its own.
        elements = row["input_elements"] if row["name"] == "all_reduce" else None
        found[row["step"], group, row["name"], (row["process"], row["rank"])].append(
            {"like": (row["dtype"], elements), "entered_ns": entered_ns, "left_ns": left_ns}
        )
    # A step that comes twice has its calls under one name.
    repeated = Counter(trace.column("steps", "number").tolist())
    several = len(trace.columns("processes")) > 1
    return {key: calls for key, calls in found.items() if several or repeated[key[0]] < 2}


# Where each trace lies on the axis of the first one: by the clock of a machine, by meetings, else by the clock on the wall.

# The clock of the first trace, to which the others are aligned.
OWN = "own"


@dataclass(frozen=True)
class _Machine:
    """Traces with one clock.

    Attributes:
        members: Which of the traces.
        places: Where each lies on the axis of the first of them.
        begin_ns: When the first of them begins on that axis.
        end_ns: When the last of them ends.
    """

    members: tuple[int, ...]
    places: tuple[Placement, ...]
    begin_ns: int
    end_ns: int

    @property
    def error_ns(self) -> int:
        """By how much two of them may be off."""
        return max(place.error_ns for place in self.places)


@dataclass(frozen=True)
class _Tie:
    """How the clock of one machine follows from that of another.

    Attributes:
        anchor: Which machine the other one is.
        line: From the clock of this one to that of the other.
        meetings: How many of each kind it was found by.
    """

    anchor: int
    line: ClockLine
    meetings: Counter[str]

    @property
    def clock(self) -> str:
        """By what it was found."""
        return " and ".join(sorted(self.meetings))


def aligned(traces: Sequence[TraceData], most_drift: float = MOST_DRIFT) -> list[Placement]:
    """A place for every trace, the first at 0.

    Args:
        traces: The traces.
        most_drift: How far two clocks may run apart, in parts.

    Returns:
        The places. Where the error is -1, nothing ties the trace to the others and its clock on the wall was believed.
    """
    machines = _machines(traces)
    ties: dict[int, _Tie] = {}
    if len(machines) > 1:
        ties = _ties(machines, _Seen(machines, meetings_of(traces)), most_drift)
    wall = by_wall_clock(traces)
    result: list[Placement | None] = [None] * len(traces)
    for number, machine in enumerate(machines):
        placed = _placed(number, machines, ties)
        for member, place in zip(machine.members, machine.places, strict=True):
            if number == 0:
                result[member] = Placement(place.offset_ns, 0.0, place.error_ns, place.clock or OWN)
            elif placed is None:
                result[member] = _by_wall(wall[machine.members[0]], place)
            else:
                result[member] = _composed(placed, place)
    return [place for place in result if place is not None]


def _machines(traces: Sequence[TraceData]) -> list[_Machine]:
    """Group the traces by the clock that they share, in the order of the first of each."""
    groups: dict[object, list[int]] = {}
    for place, trace in enumerate(traces):
        boot = trace.run_info.boot_id
        alone = not boot or trace.run_info.start_monotonic_ns is None
        groups.setdefault(("alone", place) if alone else boot, []).append(place)
    machines = []
    for members in groups.values():
        chosen = [traces[member] for member in members]
        places = one_machine(chosen) if len(chosen) > 1 else None
        places = places or [Placement(0, error_ns=0, clock="") for _ in chosen]
        ends = [place.offset_ns + trace.duration_ns for place, trace in zip(places, chosen, strict=True)]
        machines.append(
            _Machine(tuple(members), tuple(places), min(place.offset_ns for place in places), max(ends))
        )
    return machines


class _Seen:
    """What each machine saw of each meeting, as moments of its own axis."""

    def __init__(self, machines: list[_Machine], meetings: list[Meeting]) -> None:
        """Bring the visits of one machine together: the last to enter, and the first to leave."""
        whose = {
            member: (number, place.offset_ns)
            for number, machine in enumerate(machines)
            for member, place in zip(machine.members, machine.places, strict=True)
        }
        shape = (len(machines), len(meetings))
        self.kinds = np.array([meeting.kind for meeting in meetings], dtype=object)
        self.there = np.zeros(shape, bool)
        self.entered_ns = np.full(shape, np.iinfo(np.int64).min)
        self.left_ns = np.full(shape, np.iinfo(np.int64).max)
        for at, meeting in enumerate(meetings):
            for visit in meeting.visits:
                number, offset_ns = whose[visit.trace]
                self.there[number, at] = True
                self.entered_ns[number, at] = max(self.entered_ns[number, at], visit.entered_ns + offset_ns)
                self.left_ns[number, at] = min(self.left_ns[number, at], visit.left_ns + offset_ns)


def _ties(machines: list[_Machine], seen: _Seen, most_drift: float) -> dict[int, _Tie]:
    """Tie every machine to one that it meets: the first one, or else another that is tied itself."""
    ties: dict[int, _Tie] = {}
    waiting = list(range(1, len(machines)))
    reached = [0]
    while reached:
        anchor = reached.pop(0)
        for number in list(waiting):
            tie = _tie(anchor, number, machines, seen, most_drift)
            if tie is not None:
                ties[number] = tie
                waiting.remove(number)
                reached.append(number)
    return ties


def _tie(anchor: int, number: int, machines: list[_Machine], seen: _Seen, most_drift: float) -> _Tie | None:
    """The line from the clock of a machine to that of another; None where they do not meet."""
    both = seen.there[anchor] & seen.there[number]
    if not both.any():
        return None
    entered_ns, left_ns = seen.entered_ns[number, both], seen.left_ns[number, both]
    bounds = Bounds(
        # They left after we had entered, and we after they had.
        above_at_ns=left_ns,
        above_ns=seen.entered_ns[anchor, both] - left_ns,
        below_at_ns=entered_ns,
        below_ns=seen.left_ns[anchor, both] - entered_ns,
    ).relaxed(machines[anchor].error_ns + machines[number].error_ns)
    kinds = seen.kinds[both]
    # Whoever waits in a collective leaves it with the others; who leaves a barrier hears of it sooner or later.
    called = kinds == COLLECTIVES
    guesses = Guesses(left_ns[called], (seen.left_ns[anchor, both] - left_ns)[called])
    own = machines[number]
    line = fit(bounds, own.begin_ns, own.end_ns, most_drift, guesses)
    return None if line is None else _Tie(anchor, line, Counter(kinds.tolist()))


def _placed(number: int, machines: list[_Machine], ties: dict[int, _Tie]) -> Placement | None:
    """Where a machine lies on the axis of the first one, along all that tie it to this; None where nothing does."""
    if number not in ties:
        return None
    own = machines[number]
    offset_ns, stretch, error_ns = 0.0, 1.0, 0.0
    begin_ns, end_ns = float(own.begin_ns), float(own.end_ns)
    facts: dict[str, Any] = {}
    at = number
    while at in ties:
        line = ties[at].line
        # Of each line what it may be off while this machine recorded, by the clock that it starts from.
        error_ns = (
            error_ns * (1 + abs(line.drift)) + line.error_ns(math.floor(begin_ns), math.ceil(end_ns)) + 1
        )
        offset_ns = offset_ns * (1 + line.drift) + line.offset_ns
        stretch *= 1 + line.drift
        begin_ns, end_ns = (moment + line.offset_ns + line.drift * moment for moment in (begin_ns, end_ns))
        if line.violated_ns:
            facts["violated_ns"] = facts.get("violated_ns", 0) + line.violated_ns
        at = ties[at].anchor
    tie = ties[number]
    return Placement(round(offset_ns), stretch - 1, math.ceil(error_ns), tie.clock, {**tie.meetings, **facts})


def _composed(machine: Placement, member: Placement) -> Placement:
    """The place of a trace on the common axis, from that of its machine and its own on the machine's."""
    moved_ns = member.offset_ns + round(member.offset_ns * machine.drift)
    error_ns = machine.error_ns + member.error_ns + 1
    return Placement(machine.offset_ns + moved_ns, machine.drift, error_ns, machine.clock, machine.facts)


def _by_wall(machine: Placement, member: Placement) -> Placement:
    """The place of a trace on a machine that nothing but its clock on the wall ties to the others."""
    return Placement(machine.offset_ns + member.offset_ns, error_ns=-1, clock=machine.clock)


# Ranks record the same steps; their clocks on the wall may differ by so much.
_MOST_APART_NS = 60 * 10**9


def merge_named(traces: Sequence[AnyTrace], names: Sequence[str]) -> AnyTrace:
    """Merge open traces; error messages call them by these names."""
    if not traces:
        raise ArgumentError("traces is empty: pass at least one trace.")
    _refuse(traces, names)
    ordered = sorted(traces, key=_first_rank)
    places = aligned(ordered)
    called = dict(zip(map(id, traces), names, strict=True))
    for reason in _unrelated(ordered, [called[id(trace)] for trace in ordered], places):
        warnings.warn(
            f"{reason}. Check that these are traces of one job: times of unrelated runs cannot be compared",
            stacklevel=3,
        )
    return merge_processes(ordered, places)


def _first_rank(trace: TraceData) -> float:
    """The lowest rank that a trace is of; those of no rank come last."""
    return min((run.rank for run in process_runs(trace) if run.rank is not None), default=float("inf"))


def _unrelated(traces: Sequence[TraceData], names: Sequence[str], places: Sequence[Placement]) -> list[str]:
    """The reasons why traces do not seem to be of one job, as sentences.

    Args:
        traces: The traces.
        names: What to call them.
        places: Their placements on the common axis.
    """
    reasons = []
    ran: dict[str, str] = {}
    for trace, name in zip(traces, names, strict=True):
        for run in process_runs(trace):
            if script := _script(run):
                ran.setdefault(script, name)
    if len(ran) > 1:
        (script, name), (other_script, other) = list(ran.items())[:2]
        reasons.append(f"{name} is of {script} and {other} of {other_script}")
    ranked = [any(run.rank is not None for run in process_runs(trace)) for trace in traces]
    if len(set(ranked)) > 1:
        reasons.append(f"{names[ranked.index(True)]} has a rank and {names[ranked.index(False)]} has none")
    recorded = sorted(
        (place.offset_ns, place.offset_ns + trace.duration_ns, name)
        for trace, name, place in zip(traces, names, places, strict=True)
        if place.clock in ("own", "monotonic", "wall")
    )
    until_ns, last = recorded[0][1:] if recorded else (0, "")
    for begin_ns, end_ns, name in recorded[1:]:
        if begin_ns - until_ns > _MOST_APART_NS:
            apart = units.duration(begin_ns - until_ns)
            reasons.append(f"{name} began {apart} after {last} had ended")
        if end_ns > until_ns:
            until_ns, last = end_ns, name
    return reasons


def _script(run: RunInfo) -> str:
    """The program of a process without its arguments; empty if the trace does not have it."""
    words = list(run.program or run.command_line)
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[1:]
    if words[:1] == ["-c"]:
        return ""  # what follows are arguments
    return " ".join(words[:2]) if words[:1] == ["-m"] else PurePath("".join(words[:1])).name


def _refuse(traces: Sequence[TraceData], names: Sequence[str]) -> None:
    """Raise if two traces are not those of two ranks of one job.

    Args:
        traces: The traces.
        names: What to call them.
    """
    of_rank: dict[int, str] = {}
    of_size: dict[int, str] = {}
    of_process: dict[tuple[int | str | None, ...], list[tuple[int, int, str]]] = {}
    for trace, name in zip(traces, names, strict=True):
        runs = process_runs(trace)
        for rank in {run.rank for run in runs if run.rank is not None}:
            if rank in of_rank:
                raise ArgumentError(
                    f"{of_rank[rank]} and {name} are both of rank {rank}. Pass one trace for each rank; join the cycles of a "
                    "process first, with concatenate, and a process and its children with merge_processes."
                )
            of_rank[rank] = name
        for size in {run.world_size for run in runs if run.world_size is not None}:
            of_size.setdefault(size, name)
        if len(runs) == 1 and runs[0].rank is None and runs[0].process is not None:
            # What two recordings of one process agree in.
            run = runs[0]
            key = (run.process, run.parent_process, run.boot_id, run.host)
            begin_ns = run.start_monotonic_ns
            begin_ns = run.start_realtime_ns or 0 if begin_ns is None else begin_ns
            of_process.setdefault(key, []).append((begin_ns, begin_ns + trace.duration_ns, name))
    if len(of_size) > 1:
        (size, name), (other_size, other) = list(of_size.items())[:2]
        raise ArgumentError(
            f"{name} is of a job of {_ranks(size)} and {other} of a job of {_ranks(other_size)}. Pass the traces of one job; "
            "kinetoscope.trace.merge_processes merges any traces."
        )
    for recorded in of_process.values():
        recorded.sort()
        for (begin_ns, end_ns, name), (next_begin_ns, _, other) in pairwise(recorded):
            # Containers may have equal numbers, and record at the same time then; one process records one thing at a time.
            if next_begin_ns in (begin_ns, 0) or next_begin_ns >= end_ns:
                raise ArgumentError(
                    f"{name} and {other} are of one process. Pass one trace for each rank; join the cycles of a process "
                    "with kinetoscope.trace.concatenate."
                )


def _ranks(count: int) -> str:
    """A number of ranks, in words."""
    return f"{count:,} rank{'' if count == 1 else 's'}"
