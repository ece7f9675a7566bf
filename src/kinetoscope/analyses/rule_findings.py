"""What the rules say of a trace, each tried by itself."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kinetoscope.analyses.finding import CannotTell, Finding
from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.rules import RULES
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.host.units_of_work import Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kinetoscope.model.trace_data import TraceData

Said = TypeVar("Said")


@dataclass(frozen=True)
class RuleFindings:
    """What the rules say of a trace.

    Attributes:
        loop: Its training loop, or its requests.
        found: What was found, ranked.
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
    results = [one for rule in (rules if loop.whole_ns > 0 else ()) for one in tried(rule, loop) or ()]
    found = ranked([_with_time(loop, one) for one in results if isinstance(one, Finding)])
    return RuleFindings(loop, found, tuple(one for one in results if isinstance(one, CannotTell)))


def _with_time(loop: Loop, one: Finding) -> Finding:
    """A finding with the time of what it leaves out, and of the Python around that, where the rule does not say when its rows run."""
    if one.time is not None or one.not_needed is None or loop.unit is Unit.REQUEST:
        return one
    return replace(one, time=loop.when(one.not_needed.rows) | loop.python)


def tried(rule: Callable[..., Said], *of: Any) -> Said | None:
    """What a rule says; where it fails, a warning and nothing: the others, and what is printed besides, do not suffer."""
    try:
        return rule(*of)
    except Exception as error:  # noqa: BLE001
        warnings.warn(
            f"the rule {getattr(rule, 'code', '')} failed on this trace ({type(error).__name__}: {error}): please report it",
            RuntimeWarning,
            stacklevel=6,
        )
        return None


def ranked(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings of which no others name the cause, the largest possible gain first."""
    causes = _causes_only(list(found))
    return tuple(sorted(causes, key=lambda one: (-(one.gain_ns or 0), -one.share_percent, one.code)))


def _causes_only(found: list[Finding]) -> list[Finding]:
    """Leave out findings of which others name the cause, so that nothing is said twice: those gain half of it in the time of its own rows."""

    def is_explained(one: Finding) -> bool:
        gains: dict[str, int] = {}
        for other in found:
            explains = RULES[other.code].explains if other.code in RULES else ()
            if one.code in explains and (one.rank == other.rank or -1 in (one.rank, other.rank)):
                gain_ns = other.gain_ns or 0
                if one.time is not None and other.time is not None:
                    shared = one.time & other.time
                    if len(shared) == 0:
                        continue
                    gain_ns = min(gain_ns, shared.total_ns)
                gains[other.code] = max(gains.get(other.code, 0), gain_ns)
        return bool(gains) and 2 * sum(gains.values()) >= (one.gain_ns or 0)

    return [one for one in found if not is_explained(one)]
