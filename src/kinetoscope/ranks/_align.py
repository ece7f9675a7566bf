"""Where each trace lies on the axis of the first one: by the clock of a machine, by meetings, else by the clock on the wall."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.ranks._clock_line import MOST_DRIFT, Bounds, ClockLine, Guesses, fit
from kinetoscope.ranks._meetings import COLLECTIVES, meetings_of
from kinetoscope.trace._placement import Placement, by_wall_clock, one_machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetoscope.ranks._meetings import Meeting
    from kinetoscope.trace import Trace

# How the clock of the first trace is told, to which the others are brought.
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


def aligned(traces: Sequence[Trace], most_drift: float = MOST_DRIFT) -> list[Placement]:
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


def _machines(traces: Sequence[Trace]) -> list[_Machine]:
    """Group the traces by the clock that they share, in the order of the first of each."""
    groups: dict[object, list[int]] = {}
    for place, trace in enumerate(traces):
        boot = trace.info.get("boot_id")
        alone = not isinstance(boot, str) or type(trace.info.get("start_monotonic_ns")) is not int
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
