"""The terminal, or what stands in for it."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.text import Text

# Without a terminal nothing has to fit: a pipe gets whole lines.
UNLIMITED = 100_000


def console(*, stderr: bool = False) -> Console:
    """Make a console: as wide as the terminal, without colours where `NO_COLOR` is set or nobody would see them."""
    # The stream of now: a program that is run may put another in its place.
    stream = sys.stderr if stderr else sys.stdout
    made = Console(file=stream, highlight=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(file=stream, highlight=False, emoji=False, width=UNLIMITED)
    return made


def print_fact(printer: Console, label: str, value: str, label_width: int, style: str = "") -> None:
    """Print a labelled fact, folded under itself where the terminal is narrow."""
    folded = Text(value, style=style).wrap(printer, max(20, printer.width - label_width))
    for place, line in enumerate(folded):
        line.rstrip()
        printer.print(Text(f"{label if place == 0 else '':{label_width}}", style="bold"), line, sep="")
