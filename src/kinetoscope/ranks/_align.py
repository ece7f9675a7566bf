"""Where each trace lies on the axis of the first one: by the clock of a machine, by meetings, else by the clock on the wall."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.ranks._clock_line import MOST_DRIFT, Bounds, ClockLine, fit
from kinetoscope.ranks._meetings import meetings_of
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
    """How the clock of one machine follows from that of another."""

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
    placed: dict[int, Placement] = {0: Placement(0, error_ns=0, clock=machines[0].places[0].clock)}
    ties: dict[int, _Tie] = {}
    if len(machines) > 1:
        meetings = meetings_of(traces)
        _tie_all(machines, meetings, most_drift, placed, ties)
    wall = by_wall_clock(traces)
    result: list[Placement | None] = [None] * len(traces)
    for number, machine in enumerate(machines):
        for member, place in zip(machine.members, machine.places, strict=True):
            result[member] = (
                _composed(placed[number], place, ties.get(number))
                if number in placed
                else _by_wall(wall[machine.members[0]], place)
            )
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


def _tie_all(
    machines: list[_Machine],
    meetings: list[Meeting],
    most_drift: float,
    placed: dict[int, Placement],
    ties: dict[int, _Tie],
) -> None:
    """Place every machine that meets one that has a place: the first one, or else another."""
    waiting = list(range(1, len(machines)))
    reached = [0]
    while reached:
        anchor = reached.pop(0)
        for number in list(waiting):
            tie = _tie(machines[anchor], machines[number], meetings, most_drift)
            if tie is None:
                continue
            placed[number] = _behind(placed[anchor], tie)
            ties[number] = tie
            waiting.remove(number)
            reached.append(number)


def _tie(anchor: _Machine, other: _Machine, meetings: list[Meeting], most_drift: float) -> _Tie | None:
    """The line from the clock of a machine to that of another; None where they do not meet."""
    own, others = _offsets(anchor), _offsets(other)
    above: list[tuple[int, int]] = []
    below: list[tuple[int, int]] = []
    kinds: Counter[str] = Counter()
    for meeting in meetings:
        here = [(visit, own[visit.trace]) for visit in meeting.visits if visit.trace in own]
        there = [(visit, others[visit.trace]) for visit in meeting.visits if visit.trace in others]
        if not here or not there:
            continue
        kinds[meeting.kind] += 1
        # They left after we had entered, and we after they had.
        left_ns = min(visit.left_ns + offset_ns for visit, offset_ns in there)
        above.append((left_ns, max(visit.entered_ns + offset_ns for visit, offset_ns in here) - left_ns))
        entered_ns = max(visit.entered_ns + offset_ns for visit, offset_ns in there)
        below.append((entered_ns, min(visit.left_ns + offset_ns for visit, offset_ns in here) - entered_ns))
    if not kinds:
        return None
    (above_at, above_ns), (below_at, below_ns) = (np.array(pairs, np.int64).T for pairs in (above, below))
    bounds = Bounds(above_at, above_ns, below_at, below_ns).relaxed(anchor.error_ns + other.error_ns)
    line = fit(bounds, other.begin_ns, other.end_ns, most_drift)
    return None if line is None else _Tie(line, kinds)


def _offsets(machine: _Machine) -> dict[int, int]:
    """Where each trace of a machine begins on its axis."""
    return {member: place.offset_ns for member, place in zip(machine.members, machine.places, strict=True)}


def _behind(anchor: Placement, tie: _Tie) -> Placement:
    """The place of a machine whose clock follows from that of one with a place."""
    line = tie.line
    return Placement(
        round(anchor.offset_ns + line.offset_ns * (1 + anchor.drift)),
        (1 + anchor.drift) * (1 + line.drift) - 1,
        anchor.error_ns + line.error_ns + 1,
        tie.clock,
    )


def _composed(machine: Placement, member: Placement, tie: _Tie | None) -> Placement:
    """The place of a trace on the common axis, from that of its machine and its own on the machine's."""
    if tie is None:
        return Placement(
            machine.offset_ns + member.offset_ns, machine.drift, member.error_ns, member.clock or OWN
        )
    facts: dict[str, object] = dict(tie.meetings)
    if tie.line.violated_ns:
        facts["violated_ns"] = tie.line.violated_ns
    moved_ns = member.offset_ns + round(member.offset_ns * machine.drift)
    return Placement(
        machine.offset_ns + moved_ns, machine.drift, machine.error_ns + member.error_ns + 1, tie.clock, facts
    )


def _by_wall(machine: Placement, member: Placement) -> Placement:
    """The place of a trace on a machine that nothing but its clock on the wall ties to the others."""
    return Placement(machine.offset_ns + member.offset_ns, error_ns=-1, clock=machine.clock)
