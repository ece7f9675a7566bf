"""Arrow tables in a terminal: which columns and rows are printed, and how."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from rich.console import Console

from kinetoscope._errors import ArgumentError
from kinetoscope.display.blocks import BlockColumn, TableBlock
from kinetoscope.display.lines import cut, print_blocks
from kinetoscope.display.terminal import UNLIMITED, console, echo, rows_in_view
from kinetoscope.model import units
from kinetoscope.model.arrow import text_array

WIDEST_TEXT = 60
_ROWS_AT_ONCE = 4096
_UNITS = ("ns", "bytes", "%")
_ID = "id"
# The last words of the names of columns of ids, which are shown without thousands separators.
_IDS = frozenset((
    "address", "correlation", "cycle", "depth", "index", "kind", "line", "node", "number", "parent", "peer", "process",
    "rank", "request", "sequence", "step", "storage", "stream", "tensor", "thread", "tid", "worker",
))  # fmt: skip
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
    # Imported here: it loads longer than the rest of a command takes, and few commands sort.
    import pyarrow.compute as pc

    name = _column(table, name)
    column = _flat(table.column(name))
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    order = "ascending" if is_text else "descending"
    return table.take(pc.array_sort_indices(column, order=order))


def print_rows(
    table: pa.Table, limit: int | None, otherwise: int, hint: str, *, as_csv: bool, as_json: bool
) -> None:
    """Print the rows of a table as a command's options say.

    Args:
        table: The table.
        limit: The most rows to print; 0 for all; None for as many as fit the terminal, or all as CSV or JSON.
        otherwise: The most rows if the size of the terminal is unknown.
        hint: How the user can see columns that are hidden.
        as_csv: Print them as CSV.
        as_json: Print them as JSON.

    Raises:
        ArgumentError: Both CSV and JSON are asked for.
    """
    if as_csv and as_json:
        raise ArgumentError("--csv and --json cannot be combined: choose one.")
    if as_csv or as_json:
        rows = table.slice(0, min(limit, table.num_rows)) if limit else table
        (print_csv if as_csv else print_json)(rows)
        return
    printer = console()
    print_table(printer, table, rows_in_view(printer, otherwise) if limit is None else limit, hint)


def print_csv(table: pa.Table) -> None:
    """Write all rows to standard output as CSV, with unformatted numbers."""
    import pyarrow.csv

    plain = pa.Table.from_arrays(
        [_flat(table.column(index)) for index in range(table.num_columns)], names=_distinct_names(table)
    )
    sys.stdout.flush()
    pyarrow.csv.write_csv(plain, sys.stdout.buffer)


def print_json(table: pa.Table) -> None:
    """Write all rows to standard output as a JSON list, one row as an object on each line, with unformatted numbers."""
    echo("[")
    for number, row in enumerate(json_rows(table), 1):
        echo(json.dumps(row, ensure_ascii=False) + ("," if number < table.num_rows else ""))
    echo("]")


def json_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows as objects that JSON can express: infinite numbers and NaN are null, decimals whole numbers or floats."""
    names = _distinct_names(table)
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        columns = [[_json_value(value) for value in column.to_pylist()] for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield dict(zip(names, row, strict=True))


def _json_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return str(value)


def _distinct_names(table: pa.Table) -> list[str]:
    names: list[str] = table.column_names
    if len(set(names)) == len(names):
        return names
    return [f"{name}_{index}" for index, name in enumerate(names)]


def print_table(console: Console, table: pa.Table, limit: int, hint: str) -> None:
    """Print the columns that fit the console, with units, and list what is hidden.

    Args:
        console: The console.
        table: The table.
        limit: The most rows to print; 0 for all.
        hint: How the user can see the hidden columns.
    """
    block = block_of(table.slice(0, min(limit, table.num_rows)) if limit else table)
    if console.width >= UNLIMITED:
        block = replace(block, rows=tuple(tuple(map(_short, row)) for row in block.rows))
    left_out = table.num_rows - len(block.rows)
    rest = f"{units.count(left_out, 'more row')} (--limit 0 for all)" if left_out else ""
    block = replace(
        block,
        narrowest=WIDEST_TEXT,
        dispensable=tuple(range(len(block.columns) - 1, 0, -1)),
        hint=f" ({hint})",
        rest="no rows" if table.num_rows == 0 else rest,
    )
    print_blocks(console, [block], console.width)


def block_of(table: pa.Table) -> TableBlock:
    """All rows of an Arrow table with their units, which metadata or the names of columns say, and the meanings of columns."""
    columns, values = [], []
    # By position, because a query may give two columns the same name.
    for index, field in enumerate(table.schema):
        about = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        is_text, unit = not _is_number(field.type), about.get("unit", "")
        if unit not in _UNITS:
            unit = _unit_by_name(field.name) or (_ID if unit.startswith("row of ") else "")
        columns.append(BlockColumn(field.name, "" if is_text else unit, is_text, about.get("meaning", "")))
        values.append([_cell(value) for value in table.column(index).to_pylist()])
    return TableBlock(tuple(columns), tuple(zip(*values, strict=True)))


def _unit_by_name(name: str) -> str:
    last = name.rpartition("_")[2]
    return _ID if name == "id" or last in _IDS else {"percent": "%"}.get(last, last if last in _UNITS else "")


def _cell(value: object) -> float | str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    if value is None or isinstance(value, int | float | str):
        return value
    return json.dumps(value, default=str)


def _short(value: float | str | None) -> float | str | None:
    return cut(value, WIDEST_TEXT) if isinstance(value, str) else value


def _column(table: pa.Table, name: str) -> str:
    for candidate in (name, f"{name}_ns", f"{name}_bytes"):
        if candidate in table.column_names:
            return candidate
    raise ArgumentError(f"there is no column {name!r}; choose one of: {', '.join(table.column_names)}.")


def _flat(column: pa.ChunkedArray) -> Any:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        return text_array(
            None if value is None else json.dumps(value, default=str) for value in column.to_pylist()
        )
    return column


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
