"""Consoles for any terminal, pipe or encoding."""

from __future__ import annotations

import codecs
import json
import os
import sys
import unicodedata
from typing import TYPE_CHECKING, Any

from kinetoscope.display.sentence import printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

# A smaller terminal scrolls.
_FEWEST_ROWS = 10
# Lines are not wrapped or cut for a pipe or file.
UNLIMITED = 100_000


# Replacements for output encodings without these characters. Bars are rounded to whole cells.
_ASCII = str.maketrans({
    "▏": "", "▎": "", "▍": "", "▌": "#", "▋": "#", "▊": "#", "▉": "#",
    "▁": "_", "▂": ".", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%",
    "├": "|", "└": "`", "←": "<-", "‹": "<", "›": ">", "μ": "u", "°": " degrees", "ß": "ss", "ø": "o", "æ": "ae",
    "µ": "u", "–": "-", "—": "-", "…": "...", "×": "x", "✓": "ok", "✗": "no", "→": "->", "·": "*", "≤": "<=", "≥": ">=",
    "─": "-", "━": "-", "│": "|", "┃": "|", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "█": "#", "“": '"', "”": '"', "’": "'",
})  # fmt: skip
_ERROR_HANDLER = "kinetoscope"


def _transliterate(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_ASCII)
    return "".join(map(_in_ascii, text)), error.end


def _in_ascii(character: str) -> str:
    """Drop a character's accents or else escape it; with question marks all such names would look alike."""
    if character.isascii():
        return character
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode("ascii")
    return plain or character.encode("unicode_escape").decode("ascii")


codecs.register_error(_ERROR_HANDLER, _transliterate)


def allow_any_text() -> None:
    """Let standard output and error accept any text, even if their encoding is ASCII, as with `LC_ALL=C`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_ERROR_HANDLER)


class _AnyText:
    """Wrap a stream so that it accepts any text, without changing the stream, which belongs to the recorded program."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> Any:
        """Write a text, with replacements for what the stream cannot encode."""
        encoding = getattr(self._stream, "encoding", None)
        if encoding:
            text = text.encode(encoding, _ERROR_HANDLER).decode(encoding)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream."""
        return getattr(self._stream, name)


def console(*, stderr: bool = False) -> Console:
    """Return a rich console as wide as the terminal; without colors for `NO_COLOR`, pipes and files.

    Control characters in what it prints, which could come from names in a trace, are written as escapes.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Printable(Console):
        """A console on which only its own styles are control sequences."""

        def render(self, *arguments: Any, **options: Any) -> Any:
            """Yield the segments of something to print."""
            for segment in super().render(*arguments, **options):
                is_safe = segment.control or segment.text.isprintable()
                yield segment if is_safe else Segment(printable_lines(segment.text), segment.style)

        def on_broken_pipe(self) -> None:
            """Let the caller decide: rich would end the process, and lose the recording."""
            raise BrokenPipeError

    # Looked up at each call, because the recorded program may replace sys.stdout and sys.stderr.
    stream: Any = _AnyText(sys.stderr if stderr else sys.stdout)
    printer = Printable(file=stream, highlight=False, emoji=False)
    if not printer.is_terminal and "COLUMNS" not in os.environ:
        printer = Printable(file=stream, highlight=False, emoji=False, width=UNLIMITED)
    return printer


def rows_in_view(printer: Console, default: int) -> int:
    """How many rows of a table fill a terminal, with its headings and the prompt below; `default` elsewhere."""
    return max(_FEWEST_ROWS, printer.height - 5) if printer.is_terminal else default


def echo(text: str, *, err: bool = False) -> None:
    """Print a text or JSON to standard output or error, with its control characters, apart from line breaks, as escapes."""
    import click

    if not text.isprintable():
        text = "".join(
            character if character == "\n" or character.isprintable() else json.dumps(character)[1:-1]
            for character in text
        )
    click.echo(text, err=err)


def complain(message: str) -> None:
    """Print an error message on one line of standard error."""
    allow_any_text()
    import click

    click.echo(f"kinetoscope: error: {printable(' '.join(message.split()))}", err=True)


def reading_width(printer: Console) -> int:
    """The width of a line of text for reading: 100 characters, or fewer on a narrower terminal."""
    return 100 if printer.width >= UNLIMITED else max(40, min(100, printer.width))
