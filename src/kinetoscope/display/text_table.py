"""Rows of texts in columns, with bars, and plain lines for messages and reports."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from kinetoscope.display.printable import printable
from kinetoscope.display.terminal import UNLIMITED

_BAR = 10
# Below this width of the terminal, a table has no bars.
_WIDE_ENOUGH_FOR_BARS = 72
_NARROWEST_NAME = 24
GAP = 2


def text_table(
    rows: Sequence[Sequence[str]],
    alignment: str,
    indent: str = "  ",
    *,
    width: int = UNLIMITED,
    dispensable: Sequence[int] = (),
) -> list[str]:
    """Align the cells of a table, and fit it to a width.

    Args:
        rows: The rows. The first one has the headings if columns may be left out.
        alignment: `<` (left) or `>` (right) for each column.
        indent: What each line begins with.
        width: The width of all lines. Left-aligned columns are cut down to 24 characters first, then columns are left out.
        dispensable: The columns to leave out if the table is too wide, in this order.

    Returns:
        A line for each row, without spaces at its end, and a last line that names the columns left out, if there are any.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [_widest(rows, column) for column in range(len(alignment))]
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
    if left_out:
        lines.append(f"{indent}columns that do not fit: {', '.join(left_out)}")
    return [line.rstrip() for line in lines]


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


def bar_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int, sizes: Sequence[float], whole: float
) -> list[Text]:
    """Lay out a table with a bar in each row.

    Args:
        header: The headings.
        rows: The rows: a name, which takes the remaining width, and numbers. If the name has too little room, the last
            numbers are left out.
        width: The width of all lines.
        sizes: What the bar of each row shows.
        whole: What a full bar stands for.
    """
    bar = _BAR if width >= _WIDE_ENOUGH_FOR_BARS else 0
    count = len(header)
    while True:
        widths = [_widest([header, *rows], column) for column in range(1, count)]
        name_width = width - sum(widths) - GAP * len(widths) - (bar + GAP if bar else 0)
        if name_width >= _NARROWEST_NAME or count <= 3:
            break
        count -= 1
    lines = []
    for row in [header, *rows]:
        cells = [cut(row[0], name_width), *row[1:count]]
        lines.append(Text(_aligned(cells, [name_width, *widths], "<" + ">" * len(widths))))
    lines[0].stylize("bold")
    if bar:
        for line, size in zip(lines[1:], sizes, strict=True):
            line.append("  ").append(_bar(size / whole if whole else 0, bar), style="cyan")
    return lines


def cut(text: str, width: int) -> str:
    """Shorten a text to a width, and replace characters that a terminal would interpret."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[: max(0, min(len(text) - 1, width - 1))]
    return text + "…"


def _widest(rows: Sequence[Sequence[str]], column: int) -> int:
    """The width of a column."""
    return max((cell_len(row[column]) for row in rows), default=0)


def _aligned(cells: Sequence[str], widths: Sequence[int], alignment: Sequence[str]) -> str:
    """Cells with the widths of their columns, two spaces apart."""
    padded = []
    for cell, width, side in zip(cells, widths, alignment, strict=True):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if side == ">" else cell + space)
    return (" " * GAP).join(padded)


def _bar(share: float, width: int) -> str:
    """Draw a share as a bar, in eighths of a cell."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
