"""Texts in columns and in lines of a width, and bars: how all tables and sentences of a terminal are laid out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from kinetoscope.display.printable import printable
from kinetoscope.display.terminal import UNLIMITED

_NARROWEST_NAME = 24
GAP = 2


def text_table(
    rows: Sequence[Sequence[str]],
    alignment: str,
    indent: str = "  ",
    *,
    width: int = UNLIMITED,
    dispensable: Sequence[int] = (),
    fills: bool = False,
) -> list[str]:
    """Align the cells of a table, and fit it to a width.

    Args:
        rows: The rows. The first one has the headings if columns may be left out.
        alignment: `<` (left) or `>` (right) for each column.
        indent: What each line begins with.
        width: The width of all lines. Left-aligned columns are cut down to 24 characters first, then columns are left out.
        dispensable: The columns to leave out if the table is too wide, in this order.
        fills: The first column takes the width that is left, and nothing is said of columns that are left out.

    Returns:
        A line for each row, without spaces at its end, and a last line that names the columns left out, if there are any.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max((cell_len(row[column]) for row in rows), default=0) for column in range(len(alignment))]
    least = [
        min(wide, _NARROWEST_NAME) if side == "<" else wide
        for wide, side in zip(widths, alignment, strict=True)
    ]
    kept = list(range(len(alignment)))

    def excess(sizes: Sequence[int]) -> int:
        return len(indent) + sum(sizes[column] + GAP for column in kept) - GAP - width

    for column in dispensable:
        if excess(least) <= 0:
            break
        kept.remove(column)
    for _ in range(excess(widths)):
        widest = max(kept, key=lambda column: widths[column] - least[column])
        widths[widest] = max(widths[widest] - 1, least[widest])
    if fills and width < UNLIMITED:
        widths[0] = max(widths[0] - excess(widths), 1)
    lines = [
        indent
        + _aligned(
            [cut(row[column], widths[column]) for column in kept],
            [widths[column] for column in kept],
            [alignment[column] for column in kept],
        )
        for row in rows
    ]
    left_out = [rows[0][column] for column in range(len(alignment)) if column not in kept]
    if left_out and not fills:
        lines.append(f"{indent}columns that do not fit: {', '.join(left_out)}")
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


def _aligned(cells: Sequence[str], widths: Sequence[int], alignment: Sequence[str]) -> str:
    """Cells with the widths of their columns, two spaces apart."""
    padded = []
    for cell, width, side in zip(cells, widths, alignment, strict=True):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if side == ">" else cell + space)
    return (" " * GAP).join(padded)


def bar_drawn(begin: float, length: float, width: int) -> str:
    """Draw a bar in a width, in eighths of a cell: where it begins and how long it is are shares of the width."""
    first = min(round(min(1.0, max(0.0, begin)) * width), width - 1)
    eighths = max(round(min(1.0, max(0.0, length)) * width * 8), 1 if begin and length else 0)
    drawn = " " * first + "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
    return drawn[:width]
