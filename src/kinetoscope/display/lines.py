"""Blocks as lines of a terminal or of plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text as Line

from kinetoscope.display.blocks import FAINT, STRONG, WARNING, Chart, Heading, Table, Text
from kinetoscope.display.printable import printable_lines
from kinetoscope.display.terminal import UNLIMITED
from kinetoscope.display.text_table import GAP, bar_drawn, cut, folded, text_table
from kinetoscope.model import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kinetoscope.display.blocks import Block

_STYLES = {"": "", STRONG: "bold", FAINT: "dim", WARNING: "yellow", "error": "bold red"}
_SPARKS, _FEWEST_SPARKS = 32, 8
# Bars that begin where others end are longer. Below this width, a table has none.
_BAR, _LONG_BAR, _WIDE_ENOUGH_FOR_BARS = 10, 30, 72


def print_blocks(printer: Console, blocks: Sequence[Block], width: int) -> None:
    """Print blocks in lines of a width."""
    for line in lines_of(blocks, width):
        printer.print(line, soft_wrap=True)


def plain_lines(blocks: Sequence[Block], width: int = UNLIMITED) -> list[str]:
    """Blocks as lines of plain text."""
    return [line.plain for line in lines_of(blocks, width)]


def lines_of(
    blocks: Sequence[Block], width: int, rows: int | None = None, most_lines: int | None = None
) -> list[Line]:
    """Blocks as lines.

    Args:
        blocks: What they say.
        width: None is wider than so many cells.
        rows: The most rows of each table; None for all.
        most_lines: Tables have fewer rows where there would be more lines, and what is still too much is left out at the end.
    """
    labels = (block.label for block in blocks if isinstance(block, Text) and block.label)
    # Numbers stand closer to their texts than words do.
    label = max((cell_len(one) + 1 + (not one.endswith(".")) for one in labels), default=0)
    texts = [None if isinstance(one, Table) else _text_lines(one, width, label) for one in blocks]
    while True:
        lines: list[Line] = []
        for block, text in zip(blocks, texts, strict=True):
            drawn = _table_lines(block, width, rows) if isinstance(block, Table) else text or []
            apart = isinstance(block, Table) and drawn and lines and lines[-1].plain
            lines += [*([Line()] if apart else []), *drawn]
        if most_lines is None or len(lines) <= most_lines or not rows:
            return lines[:most_lines]
        rows -= 1


def _text_lines(block: Heading | Text | Chart, width: int, label: int) -> list[Line]:
    """A heading, a paragraph, or a chart."""
    if isinstance(block, Heading):
        name = cut(block.text, width - 19)
        rule = "━" * (min(width, UNLIMITED // 1000) - cell_len(name) - 16)
        return [
            Line.assemble(
                ("━━ ", "cyan"), ("kinetoscope", "bold cyan"), " ", (name, "bold"), (f" {rule}", "cyan")
            )
        ]
    if isinstance(block, Chart):
        lines = _text_lines(block.caption, width, label)
        room = width - lines[-1].cell_len - 3
        if room < _FEWEST_SPARKS:
            return [*lines, Line(units.sparkline(block.values, min(width, _SPARKS)), style="green")]
        lines[-1].append("   ").append(units.sparkline(block.values, min(room, _SPARKS)), style="green")
        return lines
    indent = 0 if block.label is None else label
    parts = [
        part for text in printable_lines(block.written).split("\n") for part in folded(text, width - indent)
    ]
    return [
        Line.assemble(
            ((block.label or "" if place == 0 else "").ljust(indent), "bold"),
            (cut(part, width - indent), _STYLES[block.tone]),
        )
        for place, part in enumerate(parts[: block.most_lines or None])
    ]


def _table_lines(table: Table, width: int, most: int | None) -> list[Line]:
    """A table with its title and what is said below it; nothing where no row is shown."""
    places = table.largest(None if most is None else min(most, table.most_rows or most))
    if not places and not table.rest:
        return []
    rows = [table.headings(len(places)), *(table.texts(place) for place in places)]
    alignment = "".join("<" if column.is_text else ">" for column in table.columns)
    bars = [table.bars[place] for place in places] if table.bars and width >= _WIDE_ENOUGH_FOR_BARS else []
    cells = (_LONG_BAR if any(begin for begin, _ in bars) else _BAR) if bars else 0
    drawn = text_table(
        rows,
        alignment,
        "  " if table.title else "",
        width=width - (cells + GAP if cells else 0),
        dispensable=table.dispensable or range(len(table.columns) - 1, 2, -1),
        fills=bool(table.bars),
    )
    lines = [Line(line) for line in drawn] if places else []
    if lines and any(rows[0]):
        lines[0].stylize("bold")
    elif lines:
        lines.pop(0)
    for line, (begin, length) in zip(lines[len(lines) - len(bars) :], bars, strict=True):
        line.append(" " * GAP).append(bar_drawn(begin, length, cells), style="cyan")
    rest = [Line(text, style="dim") for text in folded(table.rest, width, "  ")] if table.rest else []
    return [*([Line(table.title, style="bold")] if table.title else []), *lines, *rest]
