"""The Arrow tables of a trace as HTML: units said, exact numbers where they are pointed at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetoscope.display import units
from kinetoscope.display.html import Cell, note, page, table

if TYPE_CHECKING:
    import pyarrow

ROWS = 20
_NAME = "name"
# Columns without a unit whose numbers are names: nobody reads a process as 12,345.
_NUMBERS_THAT_NAME = frozenset((
    "address", "correlation", "depth", "group_rank", "line", "node", "number", "parent", "parent_node", "peer", "process",
    "rank", "sequence", "step", "storage", "stream", "tensor", "thread", "worker",
))  # fmt: skip


def table_html(found: pyarrow.Table) -> str | None:
    """Return HTML of a table that `Trace.table` made; None for any other, which shows itself as it always did.

    Args:
        found: An Arrow table.

    Returns:
        Its first rows; the heading of each column explains it when it is pointed at.
    """
    own = found.schema.metadata or {}
    if b"table" not in own or b"row" not in own:
        return None
    units_of, headings, left = [], [], []
    for place, column in enumerate(found.schema):
        said = {key.decode(): value.decode() for key, value in (column.metadata or {}).items()}
        named = column.name in _NUMBERS_THAT_NAME and not said.get("unit")
        units_of.append(_NAME if named else said.get("unit", ""))
        headings.append(Cell(column.name, said.get("meaning", "")))
        if str(column.type).startswith(("string", "dictionary", "large_string")):
            left.append(place)
    # Column by column, since nobody keeps a program from naming two alike.
    columns = [column.to_pylist() for column in found.slice(0, ROWS).columns]
    rows = [
        [_cell(value, unit) for value, unit in zip(row, units_of, strict=True)]
        for row in zip(*columns, strict=True)
    ]
    shown = (
        f"the first {len(rows)} of {found.num_rows:,} rows"
        if found.num_rows > len(rows)
        else units.count(len(rows), "row")
    )
    return page(note(f"{own[b'table'].decode()}: {shown}"), table(headings, rows, left=left))


def _cell(value: Any, unit: str) -> Cell:
    """One value in its unit."""
    if value is None:
        return Cell("–")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(str(value))
    if unit == _NAME or unit.startswith("row of "):
        return Cell(str(value))
    if unit == "ns":
        return Cell(units.duration(value), f"{value:,} ns")
    if unit == "bytes":
        return Cell(units.size(value), f"{value:,} bytes")
    if unit == "%":
        return Cell(units.percent(value), f"{value} %", value / 100)
    return Cell(units.number(value), str(value) if isinstance(value, float) else "")
