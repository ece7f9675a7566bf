"""What a shell suggests for the names of tables; of files it knows itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    import click


def tables(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of tables that begin so."""
    from kinetoscope.trace.tables import TABLES

    return [CompletionItem(name) for name in TABLES if name.startswith(incomplete)]
