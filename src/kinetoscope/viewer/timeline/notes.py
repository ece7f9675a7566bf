"""The notes on a trace, which the timeline shows and in which a person writes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kinetoscope.storage.notes import notes_path, parse_notes, read_notes, write_notes

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (("notes", {}),)
"""What a report includes."""

MOST_BYTES = 8 << 20
"""The size of the largest request that stores notes."""


def notes(trace: Trace, query: Query) -> dict[str, Any]:
    """Return the notes on a trace, and the name of their file; null if the trace is not a file of this machine.

    Raises:
        FormatError: The file beside the trace does not contain notes.
        OSError: It cannot be read.
    """
    del query
    path = notes_path(trace.path)
    return {"notes": [asdict(note) for note in read_notes(trace.path)], "file": path and path.name}


def store(trace: Trace, text: bytes) -> dict[str, Any]:
    """Store the notes of a page, in place of the previous ones; return what `notes` returns then.

    Raises:
        ArgumentError: These are not notes, or the trace is not a file.
        OSError: The file beside the trace cannot be written.
    """
    write_notes(trace.path, parse_notes(text))
    return notes(trace, {})
