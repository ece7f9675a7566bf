"""What a recording lost, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    "unfinished_spans": (
        "spans without an end",
        "spans",
        "They were still running when the recording ended, and are cut at that time.",
    ),
}


def loss_rows(losses: Mapping[str, int], *, stopped: bool) -> dict[str, list[Any]]:
    """Turn the reader's counts into the columns of the `losses` table.

    Args:
        losses: Counts by the reader's names; zeros are left out.
        stopped: False when the recording was never stopped, which is a row of its own.

    Returns:
        The columns `what`, `count`, `where` and `why`.
    """
    rows: list[tuple[str, int, str, str]] = []
    if not stopped:
        why = "The process ended, or still runs, without stop(): what it had recorded by then is all here."
        rows.append(("recording not stopped", 1, "recording", why))
    for name, count in losses.items():
        if count > 0:
            what, where, why = _WORDS.get(
                name, (name.replace("_", " "), "recording", "The reader counted it.")
            )
            rows.append((what, int(count), where, why))
    return {
        name: [row[place] for row in rows] for place, name in enumerate(("what", "count", "where", "why"))
    }
