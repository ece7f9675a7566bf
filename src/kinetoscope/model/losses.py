"""What a recording lost, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Row = tuple[str, int, str, str]

# Counts that stand among the metadata of a recording.
TOLD_AT_STOP = ("recorder_faults", "call_threads_lost")
NOT_STOPPED = "recording not stopped"
_WORDS: dict[str, tuple[str, str, str]] = {
    "dropped_spans": ("spans not written", "spans", "The file could not grow, most likely a full disk."),
    "dropped_allocations": (
        "allocations not written",
        "allocations",
        "The file could not grow, most likely a full disk.",
    ),
    "recycled_spans": (
        "oldest spans overwritten",
        "spans",
        "The ring of fixed size was full; a larger ring keeps more.",
    ),
    "recycled_allocations": (
        "oldest allocations overwritten",
        "allocations",
        "The ring of fixed size was full; a larger ring keeps more.",
    ),
    "ring_dropped_spans": (
        "spans not written",
        "spans",
        "Other threads were using all of the ring; a larger ring_bytes has room for more threads.",
    ),
    "ring_dropped_allocations": (
        "allocations not written",
        "allocations",
        "Other threads were using all of the ring; a larger ring_bytes has room for more threads.",
    ),
    "ring_dropped_notes": (
        "notes on operands or ids not written",
        "operands",
        "Other threads were using all of the ring; a larger ring_bytes has room for more threads.",
    ),
    "limited_dictionary": (
        "lookups of names, stacks or shapes that were not kept",
        "dictionary",
        "There were more different ones than the recording's dictionary has room for (half of ring_bytes, or 256 MiB).",
    ),
    "damaged_header": (
        "damaged header of the file",
        "file",
        "The file was changed after recording: times and counts may be wrong.",
    ),
    "dropped_notes": (
        "notes on operands or ids not written",
        "operands",
        "The file could not grow, most likely a full disk.",
    ),
    "recycled_notes": (
        "oldest notes on operands or ids overwritten",
        "operands",
        "The ring of fixed size was full; a larger ring keeps more.",
    ),
    "unmatched_notes": (
        "notes on operands or ids without their span",
        "operands",
        "The span they belong to was overwritten or damaged.",
    ),
    "truncated_strings": (
        "long strings cut",
        "strings",
        "A name or shape was longer than the recorder keeps.",
    ),
    "dropped_dictionary": (
        "names, stacks or modules not written",
        "dictionary",
        "The file could not grow, so some spans have no name, stack or module.",
    ),
    "damaged_chunks": (
        "damaged parts of the file skipped",
        "file",
        "The file was cut short or changed after recording.",
    ),
    "skipped_storages": (
        "tensors whose memory could not be looked at",
        "storages",
        "They are of a class that does not tell where its data lies; their blocks may lack a category.",
    ),
    "recorder_faults": (
        "operators or calls that failed to be recorded",
        "spans",
        "Memory was out, or torch held something that the recorder does not know.",
    ),
    "call_threads_lost": (
        "threads whose Python calls are missing in part",
        "spans",
        "Another profile function took the place of ours while recording.",
    ),
    "unfinished_spans": (
        "spans without an end",
        "spans",
        "They were still running when the recording ended, and are cut at that time.",
    ),
}


def loss_rows(losses: Mapping[str, int], *, stopped: bool, pauses: object = None) -> dict[str, list[Any]]:
    """Turn the reader's counts into the columns of the `losses` table.

    Args:
        losses: Counts by the reader's names; zeros are left out.
        stopped: False when the recording was never stopped, which is a row of its own.
        pauses: The metadata of that name: when collection was switched off, as the session noted it.

    Returns:
        The columns `what`, `count`, `where` and `why`.
    """
    rows: list[Row] = []
    if not stopped:
        why = "The process ended, or still runs, without stop(): what it had recorded by then is all here."
        rows.append((NOT_STOPPED, 1, "recording", why))
    for name, count in losses.items():
        if count > 0:
            what, where, why = _WORDS.get(
                name, (name.replace("_", " "), "recording", "The reader counted it.")
            )
            rows.append((what, int(count), where, why))
    return _columns(rows + _pause_rows(pauses))


def pause_losses(pauses: object) -> dict[str, list[Any]]:
    """The columns of the `losses` table for a recording of which only its pauses are known to be missing."""
    return _columns(_pause_rows(pauses))


def _pause_rows(pauses: object) -> list[Row]:
    """One row for each activity that was off: how often, and for how long in all."""
    known = [pause for pause in pauses if isinstance(pause, dict)] if isinstance(pauses, list) else []
    rows: list[Row] = []
    for activity in sorted({str(pause.get("activity")) for pause in known}):
        of_activity = [pause for pause in known if str(pause.get("activity")) == activity]
        lasted_ns = [_lasted_ns(pause) for pause in of_activity]
        ended_ns = [ns for ns in lasted_ns if ns is not None]
        parts = [f"{sum(ended_ns) / 1e6:,.3f} ms in all"] if ended_ns else []
        parts += ["to the end of the recording"] if len(ended_ns) < len(lasted_ns) else []
        why = (
            f"The program switched it off by toggle_collection_dynamic(): {', and once '.join(parts)}. What began then ran, "
            "but is not here; `info` has the times as `pauses`."
        )
        rows.append(("collection switched off by the program", len(of_activity), activity, why))
    return rows


def _lasted_ns(pause: Mapping[str, Any]) -> int | None:
    """How long a pause lasted; None when it had no end."""
    begin_ns, end_ns = pause.get("from_realtime_ns"), pause.get("to_realtime_ns")
    return max(0, end_ns - begin_ns) if isinstance(begin_ns, int) and isinstance(end_ns, int) else None


def _columns(rows: list[Row]) -> dict[str, list[Any]]:
    """Rows as the columns of the table."""
    return {
        name: [row[place] for row in rows] for place, name in enumerate(("what", "count", "where", "why"))
    }
