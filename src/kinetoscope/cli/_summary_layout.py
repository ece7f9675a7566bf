"""How the summary is laid out: tables with bars, labelled sentences, texts that fit."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

LABEL = 10
_BAR = 10


def table(
    header: tuple[str, ...], rows: Sequence[tuple[str, ...]], width: int, sizes: list[int], whole: int
) -> list[Text]:
    """Lay out rows: a name as wide as there is room, numbers to the right, a bar for the share."""
    count = len(header)
    while True:
        widths = [
            max([len(header[place]), *(cell_len(row[place]) for row in rows)]) for place in range(1, count)
        ]
        bar = _BAR if width >= 72 else 0
        name_width = width - sum(widths) - 2 * len(widths) - (bar + 2 if bar else 0)
        if name_width >= 24 or count <= 3:
            break
        count -= 1
    lines = [_row(header[:count], widths, name_width, "bold")]
    for row, size in zip(rows, sizes, strict=True):
        line = _row(row[:count], widths, name_width, "")
        if bar:
            line.append("  ").append(_bar(size / whole if whole else 0, bar), style="cyan")
        lines.append(line)
    return lines


def _row(cells: tuple[str, ...], widths: list[int], name_width: int, style: str) -> Text:
    """Lay out one row."""
    name = cut(cells[0], name_width)
    text = name + " " * (name_width - cell_len(name))
    text += "".join(
        "  " + " " * (width - cell_len(cell)) + cell for cell, width in zip(cells[1:], widths, strict=True)
    )
    return Text(text, style=style)


def _bar(share: float, width: int) -> str:
    """Draw a share as a bar, in eighths of a cell."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def fold(label: str, text: str, width: int, style: str = "", indent: int | None = None) -> list[Text]:
    """Fold a sentence under its label."""
    indent = (LABEL if label else 0) if indent is None else indent
    lines, line = [], ""
    for word in text.split():
        if line and cell_len(line) + 1 + cell_len(word) > width - indent:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return [
        Text.assemble(
            (label.ljust(indent) if place == 0 else " " * indent, "bold"), (cut(part, width - indent), style)
        )
        for place, part in enumerate(lines)
    ]


def cut(text: str, width: int) -> str:
    """Shorten a text to a width, and keep what would disturb a terminal out of it."""
    text = "".join(character if character.isprintable() else "·" for character in text)
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[: max(0, min(len(text) - 1, width - 1))]
    return text + "…"
