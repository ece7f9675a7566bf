"""The tables of a trace, and the functions that make them."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from kinetoscope import analyses, ledger, model, tables
from kinetoscope._errors import ArgumentError, ArgumentTypeError
from kinetoscope._import_aside import import_aside
from kinetoscope.formats import execution_trace
from kinetoscope.model.arrow import ArrowTable, array_of_any
from kinetoscope.tables import device, host, memory

Make = Callable[..., ArrowTable]


def checked_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Check that the table `name` has some options.

    Raises:
        ArgumentTypeError: It does not have one of them.
    """
    _, *allowed = inspect.signature(maker(name)).parameters
    for option in options:
        if option not in allowed:
            text = (
                f"its options are {', '.join([*allowed, 'where'])}" if allowed else "its only option is where"
            )
            raise ArgumentTypeError(f"the table {name!r} has no option {option[:50]!r}: {text}")
    return options


def rows_where(table: ArrowTable, where: Mapping[str, object]) -> ArrowTable:
    """Return the rows of a table that have some values.

    Args:
        table: The table.
        where: For each column a value, or several allowed values; None is null.

    Raises:
        ArgumentError: There is no such column, or a value that it cannot have.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(where, Mapping):
        raise ArgumentTypeError(f"where={where!r} is not valid: use a mapping such as {{'name': 'aten::mm'}}")
    for name, value in where.items():
        if name not in table.column_names:
            listed = ", ".join(table.column_names)
            raise ArgumentError(
                f"where={{{name!r}: ...}} is not valid: the columns of the table are {listed}"
            )
        column = table[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
        try:
            wanted = array_of_any(values, column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ArgumentError(
                f"where={{{name!r}: {value!r}}} is not valid: the column has values of type {column.type}"
            ) from error
        table = table.filter(pc.is_in(column, value_set=wanted))
    return table


@functools.cache
def maker(name: str) -> Make:
    """Return what makes the table `name`: a function of the trace and the table's own options.

    Raises:
        KeyError: There is no such table.
    """
    path = TABLES[name]
    import_aside()
    make: Make = getattr(importlib.import_module(path), name)
    return make


# Each room knows its tables; their order is that of the documentation.
_ROOMS = (host, ledger, tables, memory, device, analyses, execution_trace, model)
TABLES: dict[str, str] = {
    name: f"{room.__name__}.{module}" for room in _ROOMS for name, module in room.TABLES.items()
}
"""For each table the module that makes it, which is imported when the table is first used."""
