"""The terminal, or what stands in for it."""

from __future__ import annotations

import os

from rich.console import Console

# Without a terminal nothing has to fit: a pipe gets whole lines.
UNLIMITED = 100_000


def console(*, stderr: bool = False) -> Console:
    """Make a console: as wide as the terminal, without colours where `NO_COLOR` is set or nobody would see them."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(stderr=stderr, highlight=False, emoji=False, width=UNLIMITED)
    return made
