"""What the rules say of a trace, each tried by itself, and which finding owns which time of the steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kinetoscope.analyses.finding import CannotTell, Finding
from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.rules import RULES
from kinetoscope.display.sentence import sentence
from kinetoscope.model.rows import distinct_sorted
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.host.units_of_work import Unit
from kinetoscope.tables.intervals import Intervals

Said = TypeVar("Said")

LEAST_EFFECT = 0.1
"""What a cause gains of what it explains, it says from this part of step time on."""
# Sums of parts of nanoseconds are exact to so much.
_ROUNDING_NS = 1e-3


@dataclass(frozen=True)
class RuleFindings:
    """What the rules say of a trace.

    Attributes:
        loop: Its training loop, or its requests.
        found: What was found, without what other findings explain, the largest gain first.
        unknown: Rules that need what was not recorded.
    """

    loop: Loop
    found: tuple[Finding, ...]
    unknown: tuple[CannotTell, ...]


@derived
def rule_findings(trace: TraceData) -> RuleFindings:
    """Apply all rules to a trace, once."""
    loop = Loop(trace)
    rules = [rule for rule in RULES.values() if loop.unit is Unit.REQUEST or not rule.of_requests]
    results = [result for rule in (rules if loop.whole_ns > 0 else ()) for result in tried(rule, loop) or ()]
    findings = [_with_time(loop, result) for result in results if isinstance(result, Finding)]
    causes = tuple(finding for finding, _ in owners(findings, loop.moments, loop.whole_ns))
    return RuleFindings(loop, causes, tuple(result for result in results if isinstance(result, CannotTell)))


def _with_time(loop: Loop, finding: Finding) -> Finding:
    """A finding with the time of what it leaves out, and of the Python around that, where the rule does not say when its rows run; without any of requests, which overlap."""
    if loop.unit is Unit.REQUEST:
        return replace(finding, time=None)
    if finding.time is not None or finding.not_needed is None:
        return finding
    return replace(finding, time=loop.when(finding.not_needed.rows) | loop.python)


def tried(rule: Callable[..., Said], *of: Any) -> Said | None:
    """What a rule says; where it fails, a warning and nothing: the others, and what is printed besides, do not suffer."""
    try:
        return rule(*of)
    except Exception as error:  # noqa: BLE001
        warnings.warn(
            f"the rule {getattr(rule, 'code', getattr(rule, '__name__', ''))} failed on this trace ({type(error).__name__}: {error}): please report it",
            RuntimeWarning,
            stacklevel=6,
        )
        return None


def findings_with_gains(
    findings: Sequence[Finding], moments: Intervals, whole_ns: int | None = None
) -> tuple[Finding, ...]:
    """Findings of which no others name the cause, with what each gains in rows of its own, the largest gain first."""
    gained = [replace(finding, gain_ns=gain_ns) for finding, gain_ns in owners(findings, moments, whole_ns)]
    return tuple(sorted(gained, key=_rank))


def owners(
    findings: Sequence[Finding], moments: Intervals, whole_ns: int | None = None
) -> list[tuple[Finding, int | None]]:
    """Divide the time of steps among findings: each row of it has one owner, so that gains add up to no more than there is.

    Rows are the stretches between the edges of what findings are about. Causes come before what they explain, then the largest gain. A finding owns rows up to its
    gain: first those that no other one speaks of. One of whose rows its causes own half of its gain says nothing new, and is left out: of a loop, the
    cause in the same function gains the rest, too.

    Args:
        findings: What rules and the account say.
        moments: The time that they divide.
        whole_ns: What shares are of; None for all of that time.

    Returns:
        Findings, with what each gains in rows that no other one owns; None where its rule cannot say.
    """
    ordered = _causes_first(findings)
    times = [None if finding.time is None else finding.time & moments for finding in ordered]
    sets = [moments, *(time for time in times if time is not None)]
    edges = distinct_sorted(
        np.concatenate([edge for moment in sets for edge in (moment.start_ns, moment.end_ns)])
    )
    row_ns = moments.within(edges[:-1], edges[1:]).astype(np.float64)
    whole_ns = moments.total_ns if whole_ns is None else whole_ns
    has_rows = [
        np.ones(len(row_ns), bool) if time is None else time.within(edges[:-1], edges[1:]) > 0
        for time in times
    ]
    is_free = ~np.any(
        [rows for rows, time in zip(has_rows, times, strict=True) if time] or [row_ns < 0], axis=0
    )
    left_ns = row_ns.copy()
    owned_ns: list[NDArray[np.float64]] = []
    explained_by: list[set[int]] = []
    left_out: set[int] = set()
    for index, (finding, time, rows) in enumerate(zip(ordered, times, has_rows, strict=True)):
        causes = {
            cause
            for cause in range(index)
            if _explains(ordered[cause], finding)
            and (time is None or times[cause] is None or (rows & has_rows[cause]).any())
        }
        explained_by.append(causes.union(*(explained_by[cause] for cause in causes)))
        # What may be any time of the steps may be that of the rows.
        of_causes_ns = sum(
            owned_ns[cause][rows if times[cause] is not None else slice(None)].sum()
            for cause in explained_by[index]
        )
        gain_ns = min(finding.gain_ns or 0, row_ns[rows].sum())
        owned_ns.append(np.zeros(len(row_ns)))
        owner = index
        if causes and 2 * of_causes_ns >= gain_ns:
            left_out.add(index)
            all_ns = max(gain_ns, finding.share_percent / 100.0 * whole_ns)
            gain_ns = min(all_ns - of_causes_ns, left_ns[rows].sum())
            here = [cause for cause in explained_by[index] if _same_function(ordered[cause], finding)]
            of_loop = finding.code in RULES and RULES[finding.code].of_loop
            is_known = finding.gain_ns is not None
            if not (here and of_loop and is_known) or gain_ns < LEAST_EFFECT * whole_ns:
                continue
            owner = max(here, key=lambda cause: owned_ns[cause][rows].sum())
            ordered[owner] = _with_effect(ordered[owner], finding, int(gain_ns), whole_ns)
        gain_ns = int(min(gain_ns, left_ns[rows].sum() + _ROUNDING_NS)) + owned_ns[owner].sum()
        for pieces in (rows & is_free, rows):
            missing_ns = gain_ns - owned_ns[owner].sum()
            taken_ns = left_ns[pieces] * min(1.0, missing_ns / max(left_ns[pieces].sum(), 1.0))
            owned_ns[owner][pieces] += taken_ns
            left_ns[pieces] -= taken_ns
    result = [
        (finding, None if finding.gain_ns is None else int(owned_ns[index].sum() + _ROUNDING_NS))
        for index, finding in enumerate(ordered)
        if index not in left_out
    ]
    return sorted(result, key=lambda owner: _rank(owner[0]))


def _with_effect(cause: Finding, effect: Finding, more_ns: int, whole_ns: float) -> Finding:
    """A finding that gains so much more of what it explains."""
    gain_ns = (cause.gain_ns or 0) + more_ns
    time = cause.time if cause.time is None or effect.time is None else cause.time | effect.time
    share = 100.0 * gain_ns / max(whole_ns, 1.0)
    text = sentence(
        f"{cause.finding['text']}; {{}} with what else runs at {effect.place}",
        *cause.finding["values"],
        (share, "%"),
    )
    return replace(cause, finding=text, gain_ns=gain_ns, share_percent=share, time=time)


def _rank(finding: Finding) -> tuple[float, float, str]:
    return -(finding.gain_ns or 0), -finding.share_percent, finding.code


def _causes_first(findings: Sequence[Finding]) -> list[Finding]:
    """Findings in order of their gains, each behind those that explain it."""
    left, ordered = sorted(findings, key=_rank), list[Finding]()
    while left:
        free = (
            finding
            for finding in left
            if not any(_explains(other, finding) for other in left if other is not finding)
        )
        ordered.append(next(free, left[0]))
        left = [finding for finding in left if finding is not ordered[-1]]
    return ordered


def _explains(cause: Finding, finding: Finding) -> bool:
    """Whether one finding, where it is in the same time, is the cause of another one: by its rule, or of a line of the account by the function that both are about."""
    if finding.code in RULES:
        is_cause = cause.code in RULES and finding.code in RULES[cause.code].explains
        return is_cause and (finding.rank == cause.rank or -1 in (finding.rank, cause.rank))
    return cause.code in RULES and _same_function(cause, finding)


def _same_function(cause: Finding, effect: Finding) -> bool:
    """Whether two findings are about lines of one function."""
    here, there = cause.place, effect.place
    return bool(here) and (here.file, here.function) == (there.file, there.function)
