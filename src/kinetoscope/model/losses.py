"""Losses: what a trace is missing. The codes with their words and effects, and the rows of the table `losses`."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetoscope.model import units
from kinetoscope.model.dictionary import page
from kinetoscope.model.rows import as_columns
from kinetoscope.model.step_plan import recorded_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kinetoscope.model.columns import Columns

# Counts in the metadata of a recording.
TOLD_AT_STOP = ("recorder_faults", "call_threads_lost")

NOT_STOPPED = "recording_not_stopped"
UNFINISHED_SPANS = "unfinished_spans"
TORN_SAMPLES = "torn_samples"
UNREAD_GRADIENTS = "unread_gradients"
CALLS_MISSING = "calls_missing"
# Fewer torn samples, or a smaller share of all samples, change no visible number.
_LEAST_TORN, _LEAST_TORN_SHARE = 10, 0.02


LOWER_BOUNDS = ("times", "counts", "memory", "device times", "device counts", "Python calls")
"""Effects of losses that make numbers too small."""
UNCERTAIN = ("all numbers", "durations in seconds", "times across clocks")
"""Effects of losses that may make numbers wrong."""


class Words(NamedTuple):
    """The default texts for one kind of loss, by column of `losses`."""

    what: str
    where: str
    affects: str
    """The numbers that it makes incomplete, separated by commas; all others are exact. `consequence` makes a sentence of them."""
    why: str


# The native readers count by these codes, and files store them: never change the meaning of a code.
CODES = {
    row["code"].strip("`"): Words(row["what"], row["where"], row["affects"], row["why"])
    for row in page().rows("Codes of losses")
}
"""For every code what is missing, where and why, from the dictionary of tables."""


_UNKNOWN = "times, counts, memory"


def effects(codes: Iterable[str]) -> list[str]:
    """The distinct effects of losses; an unknown code of another release may affect everything."""
    listed = (CODES[code].affects if code in CODES else _UNKNOWN for code in codes)
    return list(dict.fromkeys(effect for affects in listed if affects for effect in affects.split(", ")))


def consequence(codes: Iterable[str]) -> str:
    """The consequence of losses, such as `times and counts are lower bounds`; empty if all numbers are exact."""
    affected = effects(codes)
    clauses = []
    for kinds, singular, several in (
        (LOWER_BOUNDS, "is a lower bound", "are lower bounds"),
        (UNCERTAIN, "may be wrong", "may be wrong"),
    ):
        if words := [kind for kind in kinds if kind in affected]:
            clauses.append(f"{units.listed(words)} {singular if words == ['memory'] else several}")
    return "; ".join(clauses)


def inexact(losses: Iterable[Mapping[str, Any]]) -> str:
    """A sentence on which numbers are not exact with these rows of `losses`, and why; empty if all are exact."""
    rows = [loss for loss in losses if consequence([loss["code"]])]
    causes = "; ".join(dict.fromkeys(counted(loss["what"], loss["count"]) for loss in rows))
    return f"{consequence(loss['code'] for loss in rows)}: {causes}" if rows else ""


def lost(losses: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up losses by kind and reason, over all processes and threads: `what`, `why` and `count` of each."""
    totals: Counter[tuple[str, str]] = Counter()
    for loss in losses:
        totals[loss["what"], loss["why"]] += loss["count"]
    return [{"what": subject, "why": why, "count": count} for (subject, why), count in totals.items()]


def counted(what: str, count: int) -> str:
    """Say how much is missing in words that fit any count: `spans not written (12)`."""
    return f"{what} ({count:,})"


@dataclass(frozen=True)
class Loss:
    """One row of `losses`; the fields are its columns."""

    what: str
    count: int
    where: str
    why: str
    code: str

    @classmethod
    def of(cls, code: str, count: int = 1, *, what: str = "", where: str = "", why: str = "") -> Loss:
        """A loss with the words of its code, except for those given.

        Raises:
            KeyError: `CODES` has no such code.
        """
        words = CODES[code]
        return cls(what or words.what, count, where or words.where, why or words.why, code)


_COLUMNS = tuple(field.name for field in fields(Loss))


def counted_losses(counts: Mapping[str, int]) -> list[Loss]:
    """What a reader counted, by codes; zeros are left out. One that is newer than this code counts what has no words here."""
    return [
        Loss.of(code, int(count))
        if code in CODES
        else Loss(code.replace("_", " "), int(count), "recording", "It was counted by a newer release.", code)
        for code, count in counts.items()
        if count > 0
    ]


def sample_losses(torn: int, complete: int, missing: object) -> list[Loss]:
    """What the sampler of Python stacks missed.

    Args:
        torn: How many samples could not be read.
        complete: How many were read.
        missing: The metadata of that name: why there are no samples at all.
    """
    losses = [Loss.of("samples_missing", why=f"{missing}.")] if missing else []
    if torn >= max(_LEAST_TORN, _LEAST_TORN_SHARE * (torn + complete)):
        losses.append(Loss.of(TORN_SAMPLES, torn))
    return losses


def paused_losses(pauses: object) -> list[Loss]:
    """One loss for each activity that was off: how often, and for how long in all.

    Args:
        pauses: The metadata of that name: when collection was switched off, as the session noted it.
    """
    entries = [pause for pause in pauses if isinstance(pause, dict)] if isinstance(pauses, list) else []
    losses: list[Loss] = []
    for activity in sorted({str(pause.get("activity")) for pause in entries}):
        of_activity = [pause for pause in entries if str(pause.get("activity")) == activity]
        lasted_ns = [_lasted_ns(pause) for pause in of_activity]
        ended_ns = [ns for ns in lasted_ns if ns is not None]
        parts = [f"{units.duration(sum(ended_ns))} in all"] if ended_ns else []
        parts += ["to the end of the recording"] if len(ended_ns) < len(lasted_ns) else []
        why = (
            f"The program paused it with toggle_collection_dynamic(): {', and once '.join(parts)}. What started then "
            "is missing; the times are in `info`, as `pauses`."
        )
        losses.append(Loss.of("collection_paused", len(of_activity), where=activity, why=why))
    return losses


def sampled_losses(info: Mapping[str, Any]) -> list[Loss]:
    """The loss of a recording in which only some steps were recorded, in place of its pauses; none of another one."""
    recorded, pauses = recorded_share(info), info.get("pauses")
    if not recorded or not isinstance(pauses, list) or not pauses:
        return []
    why = f"kinetoscope.leave_on recorded {recorded}, to keep to its budget: sums over the recording are not those of the job."
    return [Loss.of("sampled_steps", len(pauses), why=why)]


def loss_columns(losses: Iterable[Loss]) -> dict[str, list[Any]]:
    """Losses as the columns of the table."""
    return as_columns(_COLUMNS, map(astuple, losses))


def losses_of(columns: Mapping[str, Any] | Columns) -> list[Loss]:
    """The rows of a table `losses` that has all its columns."""
    rows = zip(*(columns[name] for name in _COLUMNS), strict=True)
    return [Loss(lost, int(count), where, why, code) for lost, count, where, why, code in rows]


def _lasted_ns(pause: Mapping[str, Any]) -> int | None:
    begin_ns, end_ns = pause.get("from_realtime_ns"), pause.get("to_realtime_ns")
    return max(0, end_ns - begin_ns) if isinstance(begin_ns, int) and isinstance(end_ns, int) else None
