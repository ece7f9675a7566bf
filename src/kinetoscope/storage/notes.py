"""Notes on a trace: what people wrote about moments of it, in a JSON file beside the trace, which itself is never changed.

The notes on `run.ktrace` are in `run.ktrace.notes.json`: `{"notes": [{"start_ns": 0, "end_ns": 5, "span": null, "text": "..."}]}`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from kinetoscope._errors import ArgumentError, FormatError
from kinetoscope.storage.atomic_write import open_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUFFIX = ".notes.json"
MOST_NOTES = 1_000
MOST_LETTERS = 2_000
# Times of a trace in nanoseconds are below this.
_LARGEST_NS = 2**62


@dataclass(frozen=True)
class Note:
    """A text about a moment, or a stretch of time, of a trace.

    Attributes:
        start_ns: Where it begins, in nanoseconds from the start of the trace.
        end_ns: Where it ends; the same as `start_ns` for a moment.
        text: The text, at most 2,000 letters.
        span: The id of the span that it is about, if it is about one.
    """

    start_ns: int
    end_ns: int
    text: str
    span: int | None = None


def notes_path(trace_path: Path | None) -> Path | None:
    """Return where the notes on a trace are stored; None for a trace that is not a file, or folder, of this machine."""
    if trace_path is None or not trace_path.exists():
        return None
    return trace_path.with_name(trace_path.name + SUFFIX)


def read_notes(trace_path: Path | None) -> list[Note]:
    """Read the notes on the trace at a path, in order of time.

    Returns:
        The notes; none if there is no file of them.

    Raises:
        FormatError: The file beside the trace does not contain notes.
        OSError: It cannot be read.
    """
    path = notes_path(trace_path)
    if path is None:
        return []
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    try:
        return parse_notes(text)
    except ArgumentError as error:
        raise FormatError(f"{path}: {error}; move the file away to write new notes") from error


def write_notes(trace_path: Path | None, notes: Sequence[Note]) -> Path:
    """Write all notes on the trace at a path, in place of the previous ones; without notes, there is no file.

    Raises:
        ArgumentError: The trace is not a file of this machine.
        OSError: The file cannot be written.
    """
    path = notes_path(trace_path)
    if path is None:
        raise ArgumentError(
            "notes are stored beside the file of a trace, and this trace has none on this machine: save it first, with "
            "`trace.save()` or `kinetoscope convert`"
        )
    if not notes:
        path.unlink(missing_ok=True)
        return path
    with open_atomically(path) as file:
        file.write(json.dumps({"notes": [asdict(note) for note in notes]}, indent=1).encode())
    return path


def parse_notes(text: bytes) -> list[Note]:
    """Parse and check the JSON text of notes.

    Returns:
        The notes, in order of time.

    Raises:
        ArgumentError: It is not JSON of notes, or there are more than 1,000, or a text is longer than 2,000 letters.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"the notes are not JSON ({error})") from error
    listed = found.get("notes") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ArgumentError('the notes must be an object with a list "notes"')
    if len(listed) > MOST_NOTES:
        raise ArgumentError(f"a trace can have {MOST_NOTES:,} notes, not {len(listed):,}")
    return sorted((_note(one) for one in listed), key=lambda note: (note.start_ns, note.end_ns))


def _note(found: Any) -> Note:
    """Check one note."""
    if not isinstance(found, dict):
        raise ArgumentError(f"a note must be an object, not {str(found)[:50]!r}")
    start, end, text, span = (found.get(key) for key in ("start_ns", "end_ns", "text", "span"))
    if not (_is_integer(start) and _is_integer(end) and -_LARGEST_NS < start <= end < _LARGEST_NS):
        raise ArgumentError(f"start_ns={str(start)[:50]}, end_ns={str(end)[:50]} of a note are not times")
    if not isinstance(text, str) or not text.strip() or len(text) > MOST_LETTERS:
        raise ArgumentError(f"the text of a note must have 1 to {MOST_LETTERS:,} letters")
    if span is not None and not (_is_integer(span) and 0 <= span < _LARGEST_NS):
        raise ArgumentError(f"span={str(span)[:50]} of a note is not the id of a span")
    return Note(start, end, text.strip(), span)


def _is_integer(value: Any) -> TypeGuard[int]:
    """Whether a JSON value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
