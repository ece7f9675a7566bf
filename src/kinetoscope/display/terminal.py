"""Consoles for any terminal, pipe or encoding."""

from __future__ import annotations

import codecs
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Lines are not wrapped or cut for a pipe or file.
UNLIMITED = 100_000


# Replacements for output encodings without these characters.
_ASCII = str.maketrans({
    "µ": "u", "–": "-", "—": "-", "…": "...", "×": "x", "✓": "ok", "✗": "no", "→": "->", "·": "*", "≤": "<=", "≥": ">=",
    "─": "-", "━": "-", "│": "|", "┃": "|", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "█": "#", "“": '"', "”": '"', "’": "'",
})  # fmt: skip
_ERROR_HANDLER = "kinetoscope"


def _transliterate(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by similar ASCII ones."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_ASCII)
    return "".join(letter if letter.isascii() else "?" for letter in text), error.end


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
    """Return a rich console as wide as the terminal; without colors for `NO_COLOR`, pipes and files."""
    from rich.console import Console

    # Looked up at each call, because the recorded program may replace sys.stdout and sys.stderr.
    stream: Any = _AnyText(sys.stderr if stderr else sys.stdout)
    made = Console(file=stream, highlight=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(file=stream, highlight=False, emoji=False, width=UNLIMITED)
    return made


def print_fact(printer: Console, label: str, value: str, label_width: int, style: str = "") -> None:
    """Print a labeled fact, with wrapped lines indented by `label_width`."""
    from rich.text import Text

    folded = Text(value, style=style).wrap(printer, max(20, printer.width - label_width))
    for place, line in enumerate(folded):
        line.rstrip()
        printer.print(Text(f"{label if place == 0 else '':{label_width}}", style="bold"), line, sep="")


def complain(message: str) -> None:
    """Print an error message on one line of standard error."""
    allow_any_text()
    import click

    click.echo(f"kinetoscope: error: {' '.join(message.split())}", err=True)


def reading_width(printer: Console) -> int:
    """How many characters a line of text has: as many as are read with ease, or fewer where the terminal is narrower."""
    return 100 if printer.width >= UNLIMITED else max(40, min(100, printer.width))
