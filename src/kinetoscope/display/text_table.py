"""Tables as text: Arrow tables for a terminal or as CSV, rows with bars, and plain lines for messages and reports."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from kinetoscope._errors import ArgumentError
from kinetoscope.display.printable import printable
from kinetoscope.display.terminal import UNLIMITED
from kinetoscope.model import units
from kinetoscope.model.arrow import text_array

# Rows of texts.

_BAR = 10
# Below this width of the terminal, a table has no bars.
_WIDE_ENOUGH_FOR_BARS = 72
_NARROWEST_NAME = 24
_GAP = 2


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
        return len(indent) + sum(sizes[column] + _GAP for column in kept) - _GAP - width

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
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [indent.rstrip()]


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
        name_width = width - sum(widths) - _GAP * len(widths) - (bar + _GAP if bar else 0)
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
    return (" " * _GAP).join(padded)


def _bar(share: float, width: int) -> str:
    """Draw a share as a bar, in eighths of a cell."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


# Arrow tables.

WIDEST_TEXT = 60
# Columns of counts, printed with thousands separators.
_COUNTS = frozenset({"blocks", "calls", "count", "operators", "spans", "total_operators"})
# The columns to print first, for tables whose own order is different.
_LEADING = {
    "modules": (
        "path",
        "class",
        "total_ns",
        "total_percent",
        "forward_ns",
        "backward_ns",
        "bytes",
        "self_ns",
    ),
    "spans": ("id", "name", "module", "start_ns", "duration_ns", "self_ns", "step", "kind", "bytes"),
    "lines": (
        "file",
        "line",
        "function",
        "self_ns",
        "python_self_ns",
        "blocked_self_ns",
        "total_ns",
        "count",
    ),
    "ops": ("name", "self_ns", "self_percent", "count", "mean_ns", "total_ns", "self_bytes"),
    "allocations": ("id", "time_ns", "bytes", "lifetime_ns", "total_bytes", "operator", "module"),
}


def choose_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the named columns, in that order.

    Raises:
        ArgumentError: There is no such column.
    """
    return table.select([_column(table, name) for name in names])


def put_first(table: pa.Table, name: str) -> pa.Table:
    """Move the most important columns of a table to the front, and drop columns without values."""
    filled = [column for column in table.column_names if table.column(column).null_count < table.num_rows]
    leading = [column for column in _LEADING.get(name, ()) if column in filled]
    ordered = [*leading, *(column for column in filled if column not in leading)]
    return table.select(ordered or table.column_names)


def sort_rows(table: pa.Table, name: str) -> pa.Table:
    """Sort by one column: numbers descending, text ascending, nulls last.

    Raises:
        ArgumentError: There is no such column.
    """
    # Loads for longer than the rest of a command takes, and few commands sort.
    import pyarrow.compute as pc

    name = _column(table, name)
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    order = "ascending" if _is_text(column.type) else "descending"
    return table.take(pc.array_sort_indices(column, order=order))


def print_csv(table: pa.Table) -> None:
    """Write all rows to standard output as CSV, with unformatted numbers."""
    import pyarrow.csv

    names = table.column_names
    if len(set(names)) < len(names):
        names = [f"{name}_{place}" for place, name in enumerate(names)]
    plain = pa.Table.from_arrays(
        [_flat(table.column(place)) for place in range(table.num_columns)], names=names
    )
    sys.stdout.flush()
    pyarrow.csv.write_csv(plain, sys.stdout.buffer)


def print_table(console: Console, table: pa.Table, limit: int, hint: str) -> None:
    """Print the columns that fit the console, with units, and list what is hidden.

    Args:
        console: The console.
        table: The table.
        limit: The most rows to print; 0 for all.
        hint: How the user can see the hidden columns.
    """
    rows = table.slice(0, min(limit, table.num_rows)) if limit else table
    columns = [_cells(field.name, rows.column(place)) for place, field in enumerate(rows.schema)]
    numeric = [_is_number(field.type) for field in rows.schema]
    widths = [
        min(WIDEST_TEXT, max([len(name), *(Text(cell).cell_len for cell in cells)]))
        for name, cells in zip(rows.column_names, columns, strict=True)
    ]
    shown = _fitting(widths, console.width)
    _widen(widths, columns, shown, console.width)
    grid = Grid(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for place in shown:
        grid.add_column(
            Text(rows.column_names[place]),
            justify="right" if numeric[place] else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=min(widths[place], console.width),
        )
    for row in zip(*(columns[place] for place in shown), strict=True):
        grid.add_row(*(Text(cell) for cell in row))
    if rows.num_columns:
        console.print(grid)
    notes = []
    if rows.num_rows < table.num_rows:
        notes.append(f"{units.count(table.num_rows - rows.num_rows, 'more row')} (--limit 0 for all)")
    if table.num_rows == 0:
        notes.append("no rows")
    hidden = [name for place, name in enumerate(rows.column_names) if place not in shown]
    if hidden:
        notes.append(f"columns that do not fit: {', '.join(hidden)} ({hint})")
    for note in notes:
        console.print(Text(note, style="dim"))


def _fitting(widths: list[int], available: int) -> list[int]:
    """Return the leading columns that fit, at least one."""
    shown: list[int] = []
    for place, width in enumerate(widths):
        available -= width + (_GAP if shown else 0)
        if available < 0 and shown:
            break
        shown.append(place)
    return shown


def _widen(widths: list[int], columns: list[list[str]], shown: list[int], available: int) -> None:
    """Give texts that would be cut the width that a terminal has left; a pipe has no width."""
    if available >= UNLIMITED:
        return
    left = available - sum(widths[place] + _GAP for place in shown) + _GAP
    for place in shown:
        more = min(left, max(0, *(cell_len(cell) for cell in columns[place]), 0) - widths[place])
        if more > 0:
            widths[place] += more
            left -= more


def _cells(name: str, column: pa.ChunkedArray) -> list[str]:
    """Format the values of a column."""
    values = column.to_pylist()
    if _is_number(column.type):
        values = [
            int(value) if isinstance(value, Decimal) and value == int(value) else value for value in values
        ]
        if name.endswith("_ns"):
            return ["" if value is None else units.duration(value) for value in values]
        if name == "bytes" or name.endswith("_bytes"):
            return ["" if value is None else units.size(value) for value in values]
        if name.endswith("_percent"):
            return ["" if value is None else units.percent(value) for value in values]
        if name in _COUNTS:
            return ["" if value is None else units.number(value) for value in values]
    return [_cell(value) for value in values]


def _cell(value: object) -> str:
    """Format one value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, float):
        return units.number(value)
    return printable(value if isinstance(value, str) else json.dumps(value, default=str))


def _column(table: pa.Table, name: str) -> str:
    """Find a column by its name, with or without the unit suffix."""
    for candidate in (name, f"{name}_ns", f"{name}_bytes"):
        if candidate in table.column_names:
            return candidate
    raise ArgumentError(f"there is no column {name!r}; choose one of: {', '.join(table.column_names)}.")


def _flat(column: pa.ChunkedArray) -> Any:
    """Convert a column to a type that CSV supports."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        return text_array(
            None if value is None else json.dumps(value, default=str) for value in column.to_pylist()
        )
    return column


def _is_number(kind: pa.DataType) -> bool:
    """Return whether a type is numeric."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
