"""Moments at which ranks waited for each other: the barriers of `align_clocks`, and calls between ranks.

Nobody leaves a meeting before everybody has entered it. A rank is seen to enter no later than it really does, and to leave
no earlier, so that what is seen of two ranks bounds the difference of their clocks from both sides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinetoscope.trace._processes import infos

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from kinetoscope.trace import Trace

MARKS = "clock_marks"
BARRIERS, COLLECTIVES = "barriers", "collectives"
# Of these nobody can have the result before everybody has given his part. Of others, such as a broadcast or a call that may
# send nothing to some, that is not so.
_MEET = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
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


def meetings_of(traces: Sequence[Trace]) -> list[Meeting]:
    """All meetings that two or more of the traces tell of."""
    return [
        *_together(BARRIERS, (_barriers(place, trace) for place, trace in enumerate(traces))),
        *_together(COLLECTIVES, _collectives(traces)),
    ]


def _together(kind: str, told: Iterable[Mapping[Hashable, Visit]]) -> list[Meeting]:
    """Bring what each trace tells of a meeting together."""
    found: defaultdict[Hashable, list[Visit]] = defaultdict(list)
    for visits in told:
        for key, visit in visits.items():
            found[key].append(visit)
    return [Meeting(kind, tuple(visits)) for visits in found.values() if len(visits) > 1]


def _barriers(place: int, trace: Trace) -> dict[Hashable, Visit]:
    """The barriers that a trace was at, by their names, which no two barriers of any job share."""
    begin_ns = trace.info.get("start_monotonic_ns")
    if type(begin_ns) is not int:
        return {}
    found: dict[Hashable, Visit] = {}
    for info in infos(trace):
        told = info.get(MARKS)
        for name, mark in told.items() if isinstance(told, dict) else ():
            if not (
                isinstance(mark, list) and len(mark) == 2 and all(type(moment) is int for moment in mark)
            ):
                continue
            entered_ns, left_ns = (moment - begin_ns for moment in mark)
            if entered_ns <= left_ns:
                found[name] = _with(found.get(name), Visit(place, entered_ns, left_ns))
    return found


def _with(known: Visit | None, visit: Visit) -> Visit:
    """Two of one trace at a meeting, as one."""
    if known is None:
        return visit
    return Visit(visit.trace, max(known.entered_ns, visit.entered_ns), min(known.left_ns, visit.left_ns))


# ----------------------------------------------------------------------------------------------------------- collectives


def _collectives(traces: Sequence[Trace]) -> list[dict[Hashable, Visit]]:
    """The calls between ranks, by step, group, name and place among their like, where the traces agree on these.

    Traces without steps must have the same calls from beginning to end.
    """
    told = [_calls(trace) for trace in traces]
    kept: list[dict[Hashable, Visit]] = [{} for _ in traces]
    series: defaultdict[tuple[Hashable, ...], list[tuple[int, list[dict[str, Any]]]]] = defaultdict(list)
    for place, by_series in enumerate(told):
        for key, calls in by_series.items():
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


def _calls(trace: Trace) -> dict[tuple[Hashable, ...], list[dict[str, Any]]]:
    """The calls of a trace at which ranks meet, in order, by (step, group, name, whose)."""
    rows = trace.table("collectives").select(_COLUMNS).to_pylist()
    has_steps = len(trace.columns("steps")) > 0
    one_group = all(_groups(info) < 2 for info in infos(trace))
    carried = [row for row in rows if row["transfer_start_ns"] is not None and row["transfer_ns"] is not None]
    whole = all(row["transfer_start_ns"] % _MICROSECOND == 0 for row in carried)
    found: defaultdict[tuple[Hashable, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in carried:
        # Two groups may be of the same ranks; calls to one of them are in order.
        group = (row["group_ranks"] or "", row["group"] or "")
        if row["name"] not in _MEET or (has_steps and row["step"] is None) or not (any(group) or one_group):
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


def _groups(info: Mapping[str, Any]) -> int:
    """How many process groups a process was in, as far as it says."""
    known = info.get("distributedInfo")
    listed = known.get("pg_config") if isinstance(known, dict) else None
    return len(listed) if isinstance(listed, list) else 0
