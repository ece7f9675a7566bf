"""The terminal, or what stands in for it."""

from __future__ import annotations

import codecs
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Without a terminal nothing has to fit: a pipe gets whole lines.
UNLIMITED = 100_000


# What an output says that can hold only few characters.
_PLAIN = str.maketrans({
    "µ": "u", "–": "-", "—": "-", "…": "...", "×": "x", "✓": "ok", "✗": "no", "→": "->", "·": "*", "≤": "<=", "≥": ">=",
    "─": "-", "━": "-", "│": "|", "┃": "|", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "█": "#", "“": '"', "”": '"', "’": "'",
})  # fmt: skip
_REPLACING = "kinetoscope"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Spell what an encoding cannot hold in the characters that every one has."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(letter if letter.isascii() else "?" for letter in text), error.end


codecs.register_error(_REPLACING, _replaced)


def allow_any_text() -> None:
    """Have standard output and error take any text, whatever their encoding is: `LC_ALL=C` may leave them ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_REPLACING)


class _AnyText:
    """A stream of a program that is run, which stays as it is, and takes any text of ours."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> Any:
        """Write what the stream can hold of a text."""
        encoding = getattr(self._stream, "encoding", None)
        if encoding:
            text = text.encode(encoding, _REPLACING).decode(encoding)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's."""
        return getattr(self._stream, name)


def console(*, stderr: bool = False) -> Console:
    """Make a console: as wide as the terminal, without colours where `NO_COLOR` is set or nobody would see them."""
    from rich.console import Console

    # The stream of now: a program that is run may put another in its place.
    stream: Any = _AnyText(sys.stderr if stderr else sys.stdout)
    made = Console(file=stream, highlight=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(file=stream, highlight=False, emoji=False, width=UNLIMITED)
    return made


def print_fact(printer: Console, label: str, value: str, label_width: int, style: str = "") -> None:
    """Print a labelled fact, folded under itself where the terminal is narrow."""
    from rich.text import Text

    folded = Text(value, style=style).wrap(printer, max(20, printer.width - label_width))
    for place, line in enumerate(folded):
        line.rstrip()
        printer.print(Text(f"{label if place == 0 else '':{label_width}}", style="bold"), line, sep="")


def complain(message: str) -> None:
    """Print an error as one line."""
    allow_any_text()
    import click

    click.echo(f"kinetoscope: error: {' '.join(message.split())}", err=True)
