"""From the floor of a step to the step, in a few parts: what stands between what it needs and what it takes, as people read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kinetoscope.analyses.account import Account, KindAccount, line_of
from kinetoscope.display.sentence import printable
from kinetoscope.model import units
from kinetoscope.model.time_spent import Cause, words_of

MOST_PARTS = 5
LEAST_WAITS = 0.1
"""Waits for other ranks are named as a part of the floor if they are so much of the step."""
LEAST_PART = 0.01
"""Above the floor, so many parts are named that are so much of the step; the rest is one."""
# Small costs of everything, for which no line is to blame alone, and work of many lines that a finding gives one place.
_WITHOUT_LINE = frozenset(
    cause.words
    for cause in (
        Cause.CALL,
        Cause.AUTOGRAD,
        Cause.LAUNCH,
        Cause.NO_INPUTS,
        Cause.PROCESSOR,
        Cause.DATA,
        Cause.EVALUATION,
        Cause.SAME_GRAPH,
        Cause.RUN_AGAIN,
        Cause.NAN_CHECKS,
        Cause.ZERO_FILL,
    )
)


@dataclass(frozen=True)
class Part:
    """One part of a step.

    Attributes:
        what: What it is, and the line where it is of one.
        time_ns: How long it takes in a step, on average.
        is_floor: Whether it is the floor.
        file: The file of its line, empty where it is of none.
        line: That line, -1 where it is of none.
    """

    what: str
    time_ns: float
    is_floor: bool = False
    file: str = ""
    line: int = -1


def parts_of_step(account: Account, kind: KindAccount, most: int = MOST_PARTS) -> list[Part]:
    """The parts of the steps of one kind, which add up to the step: the floor, or what operators are known to need, then the largest others."""
    steps, sums = max(kind.steps, 1), dict[_Place, int]()
    for row in account.rows_of(kind):
        part = _place(row)
        sums[part] = sums.get(part, 0) + row["time_ns"]
    floor_ns = sums.pop(_FLOOR, 0)
    named = [part for part in sums if sums[part] >= LEAST_PART * kind.duration_ns]
    largest = sorted(named, key=lambda part: (-sums[part], part))[:most]
    parts = [
        Part(
            "floor" if kind.floor_ns is not None else "needed, as far as known",
            floor_ns / steps,
            is_floor=True,
        )
    ]
    parts += [
        Part(words, sums[words, file, line] / steps, file=file, line=line) for words, file, line in largest
    ]
    rest_ns = kind.duration_ns - floor_ns - sum(sums[part] for part in largest)
    return [*parts, Part("everything else", rest_ns / steps)] if rest_ns > 0 else parts


def no_problem(account: Account) -> str:
    """What is said where nothing is found: how far a step is from its floor, and what takes most of it."""
    if not account.kinds:
        return "No problem found."
    kind, parts = account.kinds[0], list[str]()
    if kind.times_floor is not None:
        parts.append(f"{what_takes(account, kind)} takes {_times(kind)} times its floor")
    named = ", ".join(
        f"{words} ({units.percent(100 * time_ns / kind.duration_ns)})"
        for words, time_ns in _largest(account, kind)
        if kind.duration_ns
    )
    if named:
        parts.append(f"the largest parts are {named}")
    return printable(f"No problem found: {'; '.join(parts)}.") if parts else "No problem found."


def what_takes(account: Account, kind: KindAccount) -> str:
    """What a sentence about a kind of steps is about: a step, a request, with its name where there are several, or the whole run."""
    if not kind.request:
        longest = " of the kind with most time" if len(account.kinds) > 1 and kind is account.kinds[0] else ""
        return f"a step{longest}" if kind.kind >= 0 else "the run"
    several = len({kind_account.request for kind_account in account.kinds}) > 1
    return f"a request named {kind.request}" if several else "a request"


def floor_sentence(account: Account, kind: KindAccount) -> str:
    """How long a step of a kind takes, and how far that is from its floor."""
    takes = f"{what_takes(account, kind)} takes {units.duration(kind.duration_ns / max(kind.steps, 1))}"
    if kind.times_floor is None:
        above = ""
        if kind.above_ns >= LEAST_PART * kind.duration_ns:
            above = (
                f", of which {units.duration(kind.above_ns / max(kind.steps, 1))} or more are above its floor"
            )
        unknown = "what its operators need is unknown" if above else "its floor is unknown"
        return (
            f"{takes}{above}; {unknown}: record the sizes of inputs (record_shapes=True, or kinetoscope run)"
        )
    by = "" if account.calibrated else ", which is the same operators at the best rates of this trace"
    waits_ns = sum(
        row["time_ns"]
        for row in account.rows_of(kind)
        if row["cause"] == Cause.COLLECTIVE.words and row["needed_ns"]
    )
    if waits_ns >= LEAST_WAITS * kind.duration_ns:
        by += f"{' and' if by else ', with'} {units.duration(waits_ns / max(kind.steps, 1))} of waits for other ranks"
    return f"{takes}, {_times(kind)} times its floor{by}"


def floor_with_parts(account: Account | None, most: int = 3) -> str:
    """How far a step is from its floor, and by what, in a sentence; empty where the floor is unknown."""
    if account is None or not account.kinds or account.kinds[0].times_floor is None:
        return ""
    kind = account.kinds[0]
    above = (part for part in parts_of_step(account, kind, most) if not part.is_floor)
    named = ", ".join(f"{units.duration(part.time_ns)} {part.what}" for part in above)
    return printable(f"{floor_sentence(account, kind)}: {named}")


def as_mapping(account: Account) -> dict[str, Any] | None:
    """The account of the kind of steps with most time, for programs; None of a trace without time."""
    if not account.kinds:
        return None
    kind = account.kinds[0]
    return {
        "request": kind.request or None,
        "steps": kind.steps,
        "step_ns": round(kind.duration_ns / max(kind.steps, 1)),
        "floor_ns": None if kind.floor_ns is None else round(kind.floor_ns / max(kind.steps, 1)),
        "above_floor_ns": round(kind.above_ns / max(kind.steps, 1)),
        "times_floor": None if kind.times_floor is None else round(kind.times_floor, 2),
        "sentence": floor_sentence(account, kind),
        "calibrated": account.calibrated,
        "entries_ns": {name: round(time_ns / max(kind.steps, 1)) for name, time_ns in kind.entry_ns.items()},
        "parts": [
            {
                "what": part.what,
                "time_ns": round(part.time_ns),
                "is_floor": part.is_floor,
                "file": part.file or None,
                "line": part.line if part.file else None,
            }
            for part in parts_of_step(account, kind)
        ],
    }


def _times(kind: KindAccount) -> str:
    times = kind.times_floor or 0.0
    return f"{times:.1f}" if times < 100 else f"{times:,.0f}"


_Place = tuple[str, str, int]
"""What a part is called, its file and its line."""
_FLOOR: _Place = ("", "", -1)


def _place(row: dict[str, Any]) -> _Place:
    cause = row["cause"] or ""
    if row["needed_ns"]:
        return _FLOOR
    words = words_of(row["entry"], cause)
    if cause in _WITHOUT_LINE or not row["file"]:
        return words, "", -1
    return f"{words} at {line_of(row)}", row["file"], row["line"]


def _largest(account: Account, kind: KindAccount, most: int = 3) -> list[tuple[str, int]]:
    """The operators, by line, and the lines of Python that take most of the steps, with what they need."""
    sums: dict[str, int] = {}
    for row in account.rows_of(kind):
        issues = f"Python at {line_of(row)}" if row["cause"] == Cause.CALL.words and row["file"] else ""
        words = row["operator"] or _place(row)[0] or issues or row["cause"] or "other"
        words = f"{words} at {line_of(row)}" if row["operator"] and row["file"] else words
        sums[words] = sums.get(words, 0) + row["time_ns"]
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:most]
