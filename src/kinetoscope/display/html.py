"""HTML for notebooks: tables with escaped text, in the colors of the surrounding page.

Notebooks have light and dark themes and no common way to detect them. So nothing here sets a text color, and lines and bars
are half transparent, to be visible on both.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetoscope.display.blocks import ERROR, WARNING, Block, Chart, Heading, TableBlock
from kinetoscope.display.sentence import printable
from kinetoscope.model import units

if TYPE_CHECKING:
    import pyarrow

LONGEST = 80
_LONGEST_TITLE = 2000

STYLE = (
    "<style>"
    ".kinetoscope{font-size:13px;line-height:1.4;margin:4px 0}.kinetoscope .s{overflow-x:auto}"
    ".kinetoscope table{border-collapse:collapse;margin:6px 0;border:0;background:transparent;color:inherit;font-size:inherit}"
    ".kinetoscope caption{text-align:left;font-weight:600;padding:2px 8px 4px 0;color:inherit;caption-side:top}"
    ".kinetoscope th,.kinetoscope td{padding:2px 8px;border:0;border-bottom:1px solid rgba(128,128,128,.3);white-space:pre;"
    "text-align:right;vertical-align:top;color:inherit;font-variant-numeric:tabular-nums}"
    ".kinetoscope th{font-weight:600;opacity:.75}"
    ".kinetoscope th.l,.kinetoscope td.l{text-align:left}"
    ".kinetoscope .m{opacity:.7}.kinetoscope .w{font-weight:600;border-left:3px solid rgba(230,140,0,.9);padding-left:6px}"
    ".kinetoscope .h{font-weight:600}"
    ".kinetoscope svg{vertical-align:middle}"
    "</style>"
)
_BAR = "rgba(66,133,244,.35)"
# Without these classes, MathJax typesets text between dollar signs as a formula.
_TEXT_ONLY = "tex2jax_ignore mathjax_ignore"


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: The text.
        title: The tooltip; by default the full text if `text` is shortened.
        share: The length of the bar behind the text, from 0 to 1.
        begin: Where the bar begins, likewise.
    """

    text: str
    title: str = ""
    share: float = 0.0
    begin: float = 0.0

    def html(self, *, left: bool) -> str:
        """Return the cell as HTML."""
        title = self.title or (self.text if len(self.text) > LONGEST else "")
        attributes = ' class="l"' if left else ""
        if title:
            attributes += f' title="{safe(title, _LONGEST_TITLE)}"'
        if self.share > 0:
            begin, end = (f"{100 * min(1.0, edge):.1f}%" for edge in (self.begin, self.begin + self.share))
            drawn = f"{_BAR} {end},transparent {end}"
            drawn = drawn if not self.begin else f"transparent {begin},{_BAR} {begin},{drawn}"
            attributes += f' style="background:linear-gradient(to right,{drawn})"'
        return f"<td{attributes}>{safe(self.text)}</td>"


def safe(text: str, longest: int = LONGEST) -> str:
    """Shorten and escape a text for HTML, without control characters."""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return html.escape(printable(text))


def page(*parts: str) -> str:
    """Join parts to one notebook output."""
    return f'<div class="kinetoscope {_TEXT_ONLY}">{STYLE}{"".join(parts)}</div>'


def as_html(blocks: Sequence[Block], rows: int | None = None) -> str:
    """Blocks as one notebook output, with so many rows of each table; None for all."""
    return page(*(_as_html(block, rows) for block in blocks))


def _as_html(block: Block, most: int | None) -> str:
    if isinstance(block, Heading):
        return f'<div class="h">{safe(block.text, _LONGEST_TITLE)}</div>'
    if isinstance(block, Chart):
        text = block.written
        return f"<div>{columns_chart(block.values, text)}</div>{note(text)}"
    if not isinstance(block, TableBlock):
        label = block.label if block.label is None or block.label.endswith(".") else f"{block.label}:"
        text = " ".join(filter(None, ((label or "").removeprefix(":"), block.written)))
        return "".join(note(line, warns=block.tone in (WARNING, ERROR)) for line in text.split("\n") if line)
    numbers = block.largest(most)
    rows = [
        [_cell(block, row, column, text) for column, text in enumerate(block.texts(row))] for row in numbers
    ]
    left = [index for index, column in enumerate(block.columns) if column.is_text]
    headings = [
        Cell(heading, column.meaning)
        for heading, column in zip(block.headings(len(block.rows)), block.columns, strict=True)
    ]
    rest = [text for text in (block.rest, block.left_out(len(numbers))) if text]
    drawn = table(headings, rows, left=left, caption=block.title) if rows else ""
    return "".join([drawn, *map(note, rest)])


def _cell(block: TableBlock, row: int, at: int, text: str) -> Cell:
    """A cell with the exact number as its tooltip and a bar: that of the row or, in tables without bars, of a share."""
    value, unit = block.rows[row][at], block.columns[at].unit
    if not isinstance(value, int | float):
        return Cell(text)
    exact = ""
    if isinstance(value, float):
        exact = f"{value} {unit}".strip()
    elif unit in ("ns", "bytes"):
        exact = f"{value:,} ns" if unit == "ns" else units.count(value, "byte")
    if block.bars:
        return Cell(text, exact, *(block.bars[row][::-1] if at == 1 else ()))
    return Cell(text, exact, value / 100 if unit == "%" else 0.0)


def note(text: str, *, warns: bool = False) -> str:
    """Return a line of text as HTML."""
    return f'<div class="{"w" if warns else "m"}">{safe(text, 1000)}</div>'


def table(
    headings: Sequence[Cell | str],
    rows: Iterable[Sequence[Cell | str]],
    *,
    left: Sequence[int] = (0,),
    caption: str = "",
) -> str:
    """Return a table as HTML.

    Args:
        headings: The headings; their titles explain the columns.
        rows: The rows.
        left: The indices of left-aligned columns.
        caption: The caption above the table.
    """
    out = ['<div class="s"><table>', f"<caption>{safe(caption)}</caption>" if caption else "", "<thead><tr>"]
    for index, heading in enumerate(headings):
        cell = heading if isinstance(heading, Cell) else Cell(heading)
        out.append(cell.html(left=index in left).replace("<td", "<th", 1).replace("</td>", "</th>"))
    out.append("</tr></thead><tbody>")
    for row in rows:
        cells = (cell if isinstance(cell, Cell) else Cell(cell) for cell in row)
        out += ["<tr>", *(cell.html(left=index in left) for index, cell in enumerate(cells)), "</tr>"]
    out.append("</tbody></table></div>")
    return "".join(out)


def columns_chart(values: Sequence[float], title: str, *, most: int = 120, height: int = 28) -> str:
    """Draw a bar chart in the text's color; more than `most` values are grouped, with the largest of each group shown."""
    top = max(values, default=0)
    if top <= 0:
        return ""
    group = -(-len(values) // most)
    largest = [max(values[start : start + group]) for start in range(0, len(values), group)]
    width = max(2, min(8, 480 // len(largest)))
    bars = "".join(
        f'<rect x="{index * width}" y="{height - size:.1f}" width="{width - 1}" height="{size:.1f}"/>'
        for index, value in enumerate(largest)
        if (size := max(0.5, height * value / top))
    )
    return (
        f'<svg width="{width * len(largest)}" height="{height}" fill="currentColor" fill-opacity="0.6" role="img">'
        f"<title>{safe(title)}</title>{bars}</svg>"
    )


ROWS = 20


def table_html(table: pyarrow.Table) -> str | None:
    """Return a table of `Trace.table` as HTML with units; None for any other Arrow table, which keeps its own display.

    Args:
        table: An Arrow table.

    Returns:
        The first rows, with exact numbers and the meaning of each column as tooltips.
    """
    from kinetoscope.display.arrow_text import block_of

    about = table.schema.metadata or {}
    if b"table" not in about or b"row" not in about:
        return None
    rows = table.num_rows
    extent = f"the first {ROWS} of {rows:,} rows" if rows > ROWS else units.count(rows, "row")
    return page(note(f"{about[b'table'].decode()}: {extent}"), _as_html(block_of(table.slice(0, ROWS)), None))
