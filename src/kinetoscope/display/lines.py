"""Renders blocks as lines of a terminal or of plain text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text as Line

from kinetoscope.display.blocks import STYLES, Block, Chart, Heading, Paragraph, TableBlock
from kinetoscope.display.sentence import printable, printable_lines
from kinetoscope.display.terminal import UNLIMITED

if TYPE_CHECKING:
    from rich.console import Console

_SPARKS, _FEWEST_SPARKS = 32, 8
# Bars that begin where others end are longer. Narrower tables have no bars.
_BAR, _LONG_BAR, _WIDE_ENOUGH_FOR_BARS = 10, 30, 72
_GAP = 2
_HEIGHTS = "▁▂▃▄▅▆▇█"


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
        blocks: The blocks.
        width: The width of a line, in cells.
        rows: The most rows of each table; None for all.
        most_lines: The most lines. To fit, tables get fewer rows, down to one; then the last tables without `least_rows` are left out; then the
            others get fewer rows, and the last lines are cut.
    """
    written = [_written(block) for block in blocks]
    labels = (block.label for block in blocks if isinstance(block, Paragraph) and block.label)
    # Numbers are closer to their texts than words.
    label_width = max((cell_len(label) + 1 + (not label.endswith(".")) for label in labels), default=0)
    remaining = list(zip(blocks, written, strict=True))
    fewer = 0
    while True:
        lines: list[Line] = []
        for block, texts in remaining:
            if isinstance(block, TableBlock):
                most = None if rows is None else max(rows, block.least_rows - fewer)
                drawn = _table_lines(block, texts, width, most)
                lines += [Line()] if drawn and lines and lines[-1].plain else []
            else:
                drawn = _text_lines(block, texts[0][0], width, label_width)
            lines += drawn
        if most_lines is None or rows is None or len(lines) <= most_lines:
            return lines[:most_lines]
        tables = [
            index
            for index, (block, _) in enumerate(remaining)
            if isinstance(block, TableBlock) and not block.least_rows
        ]
        if rows > 1:
            rows -= 1
        elif tables:
            del remaining[tables[-1]]
        elif fewer < max((block.least_rows for block in blocks if isinstance(block, TableBlock)), default=0):
            fewer += 1
        else:
            return lines[:most_lines]


def _written(block: Block) -> list[list[str]]:
    if isinstance(block, TableBlock):
        return [block.texts(row) for row in range(len(block.rows))]
    return [[block.text if isinstance(block, Heading) else block.written]]


def _text_lines(block: Heading | Paragraph, text: str, width: int, label_width: int) -> list[Line]:
    if isinstance(block, Heading):
        name = cut(text, width - 19)
        rule = "━" * (min(width, UNLIMITED // 1000) - cell_len(name) - 16)
        return [
            Line.assemble(
                ("━━ ", "cyan"), ("kinetoscope", "bold cyan"), " ", (name, "bold"), (f" {rule}", "cyan")
            )
        ]
    label = block.label or ""
    indent = 0 if block.label is None else label_width
    parts = [part for line in printable_lines(text).split("\n") for part in folded(line, width - indent)]
    lines = [
        Line.assemble(
            ((label if index == 0 else "").ljust(indent), "bold"),
            (cut(part, width - indent), STYLES[block.tone]),
        )
        for index, part in enumerate(parts[: block.most_lines or None])
    ]
    if isinstance(block, Chart):
        room = width - lines[-1].cell_len - 3
        if room < _FEWEST_SPARKS:
            return [*lines, Line(sparkline(block.values, min(width, _SPARKS)), style="green")]
        lines[-1].append("   ").append(sparkline(block.values, min(room, _SPARKS)), style="green")
    return lines


def _table_lines(table: TableBlock, cells: list[list[str]], width: int, most: int | None) -> list[Line]:
    shown_rows = table.largest(None if most is None else min(most, table.most_rows or most))
    if not shown_rows and not table.rest:
        return []
    rows = [table.headings(len(shown_rows)), *(cells[row] for row in shown_rows)]
    alignment = "".join("<" if column.is_text else ">" for column in table.columns)
    bars = [table.bars[row] for row in shown_rows] if table.bars and width >= _WIDE_ENOUGH_FOR_BARS else []
    bar_width = (_LONG_BAR if any(begin for begin, _ in bars) else _BAR) if bars else 0
    drawn = text_table(
        rows,
        alignment,
        "  " if table.title else "",
        width=width - (bar_width + _GAP if bar_width else 0),
        dispensable=table.dispensable or range(len(table.columns) - 1, 2, -1),
        fills=bool(table.bars),
        narrowest=table.narrowest,
        hint=table.hint,
    )
    lines = [Line(line) for line in drawn] if shown_rows else []
    if lines and any(rows[0]):
        lines[0].stylize("bold")
    elif lines:
        lines.pop(0)
    for line, (begin, length) in zip(lines[len(lines) - len(bars) :], bars, strict=True):
        line.append(" " * _GAP).append(bar_drawn(begin, length, bar_width), style="cyan")
    rest = [Line(text, style="dim") for text in folded(table.rest, width, "  ")] if table.rest else []
    return [*([Line(table.title, style="bold")] if table.title else []), *lines, *rest]


def text_table(
    rows: Sequence[Sequence[str]],
    alignment: str,
    indent: str = "  ",
    *,
    width: int = UNLIMITED,
    dispensable: Sequence[int] = (),
    fills: bool = False,
    narrowest: int = 24,
    hint: str = "",
) -> list[str]:
    """Align the cells of a table, and fit it to a width.

    Args:
        rows: The rows. The first one has the headings if columns may be left out.
        alignment: `<` (left) or `>` (right) for each column.
        indent: The beginning of each line.
        width: The width of all lines. Left-aligned columns are shortened first, then columns are left out.
        dispensable: The columns to leave out if the table is too wide, in this order.
        fills: The first column takes the remaining width, and omitted columns are not listed.
        narrowest: The width that left-aligned columns keep.
        hint: A text after the names of omitted columns.

    Returns:
        A line for each row, without trailing spaces, and a last line with the names of omitted columns, if there are any.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max((cell_len(row[column]) for row in rows), default=0) for column in range(len(alignment))]
    least = [
        min(wide, narrowest, width - len(indent)) if side == "<" else wide
        for wide, side in zip(widths, alignment, strict=True)
    ]
    chosen = list(range(len(alignment)))

    def excess(sizes: Sequence[int]) -> int:
        return len(indent) + sum(sizes[column] + _GAP for column in chosen) - _GAP - width

    for column in dispensable:
        if excess(least) <= 0:
            break
        chosen.remove(column)
    for _ in range(excess(widths)):
        widest = max(chosen, key=lambda column: widths[column] - least[column])
        widths[widest] = max(widths[widest] - 1, least[widest])
    if fills and width < UNLIMITED:
        widths[0] = max(widths[0] - excess(widths), 1)
    lines = []
    for row in rows:
        cells = []
        for column in chosen:
            cell = cut(row[column], widths[column])
            space = " " * (widths[column] - cell_len(cell))
            cells.append(space + cell if alignment[column] == ">" else cell + space)
        lines.append(indent + (" " * _GAP).join(cells))
    left_out = [rows[0][column] for column in range(len(alignment)) if column not in chosen]
    if left_out and not fills:
        lines += folded(f"columns that do not fit: {', '.join(left_out)}{hint}", width, indent)
    return lines if fills else [line.rstrip() for line in lines]


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """Break a text into lines of a width, each after an indent; only a longer word makes a longer line."""
    if width >= UNLIMITED:
        return [indent + text]
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and len(indent) + cell_len(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [(indent + line).rstrip() for line in lines]


def cut(text: str, width: int) -> str:
    """Shorten a text to a width, and replace characters that a terminal would interpret."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[: max(0, min(len(text) - 1, width - 1))]
    return text + "…"


def bar_drawn(begin: float, length: float, width: int) -> str:
    """Draw a bar in a width, in eighths of a cell: where it begins and how long it is are shares of the width."""
    first = min(round(min(1.0, max(0.0, begin)) * width), width - 1)
    eighths = max(round(min(1.0, max(0.0, length)) * width * 8), 1 if begin and length else 0)
    drawn = " " * first + "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
    return drawn[:width]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as at most `width` bars that start at zero; a bar shows the largest of its values."""
    if not values or width <= 0:
        return ""
    bars = min(len(values), width)
    edges = [round(bar * len(values) / bars) for bar in range(bars + 1)]
    heights = [max(values[low:high]) for low, high in itertools.pairwise(edges)]
    top = max(heights)
    if top <= 0:
        return _HEIGHTS[0] * bars
    return "".join(_HEIGHTS[min(7, int(8 * max(0.0, height) / top))] for height in heights)
