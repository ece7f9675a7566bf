"""Columns of one table, which are computed on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.model.dictionary import Column, Table

Values = NDArray[Any] | list[str]
Source = Callable[[], Mapping[str, Values]]
Length = int | Callable[[], int] | None


class Columns:
    """The columns of one table, each a numpy array (or a list of strings) of the same length.

    A column is given, or computed by a source: a function that returns one or more columns at once and runs at most
    once, whichever thread needs it first. Other columns have the default of their definition in every row.
    """

    def __init__(self, table: Table, length: Length, given: Mapping[str, Any], lock: threading.RLock) -> None:
        """Keep the `given` columns of `table`: values, or functions that load them when they are first needed.

        `length` may be a function where only a source knows it; None is that of the first given column. `lock` is held while a source runs: all that makes
        one another has the same one, or two threads could wait for each other.
        """
        self.table = table
        self._length = length
        self.lock = lock
        self._ready: dict[str, Values] = {}
        self._sources: dict[str, Source] = {}
        self._given = dict.fromkeys(given)
        self._closed = False
        for name, values in given.items():
            definition = _definition(table, name)
            if callable(values):
                self._sources[name] = _loading(name, values)
            else:
                self._ready[name] = _checked(self.table, definition, values, length)

    def __len__(self) -> int:
        """The number of rows."""
        if self._length is None:
            self._length = len(self[next(iter(self._given))])
        elif not isinstance(self._length, int):
            self._length = self._length()
        return self._length

    def __getitem__(self, name: str) -> Any:
        """Return the values of one column, computing them when this is the first request."""
        try:
            return self._ready[name]
        except KeyError:
            return self._compute(name)

    def __iter__(self) -> Iterator[str]:
        """The names of all columns of the table, in the order of its definition."""
        return iter(self.table.column_names)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the columns that cannot be computed again: those a file has to keep."""
        return tuple(name for name in self.table.column_names if name in self._given)

    def source(self, names: Sequence[str], function: Source) -> None:
        """Let `function` make the columns `names`, unless they were given."""
        for name in names:
            _definition(self.table, name)
            if name not in self._given:
                self._sources[name] = function

    def forget(self, names: Sequence[str]) -> None:
        """Compute the columns `names` again when they are next used, unless they were given."""
        with self.lock:
            for name in names:
                if name not in self._given:
                    self._ready.pop(name, None)

    def close(self) -> None:
        """Forget how columns are computed. Sources refer back to columns: without this, memory waits for the garbage collector."""
        with self.lock:
            self._sources.clear()
            self._closed = True
            if not isinstance(self._length, int):
                self._length = _refuse

    def _compute(self, name: str) -> Values:
        definition = _definition(self.table, name)
        with self.lock:
            if name in self._ready:
                return self._ready[name]
            if self._closed:
                _refuse()
            function = self._sources.get(name)
            computed = {name: default_values(definition, len(self))} if function is None else function()
            if self._length is None:
                self._length = len(computed[name])
            for key, values in computed.items():
                if key not in self._ready:
                    self._ready[key] = _checked(self.table, _definition(self.table, key), values, len(self))
            return self._ready[name]


def _refuse() -> NoReturn:
    raise StateError("the trace was closed; open it again to read more of it")


def default_values(column: Column, length: int) -> Values:
    """The column for a source that knows nothing of it."""
    if column.type == "text":
        return [""] * length
    return np.full(length, column.default, column.type)


def _loading(name: str, load: Callable[[], Values]) -> Source:
    return lambda: {name: load()}


def _definition(table: Table, name: str) -> Column:
    """Find the definition of a column, or say which ones there are."""
    try:
        return table.column(name)
    except KeyError:
        names = ", ".join(table.column_names)
        raise ArgumentError(
            f"table {table.name!r} has no column {name!r}; its columns are: {names}"
        ) from None


def _checked(table: Table, column: Column, values: Any, length: Length) -> Values:
    if column.type == "text":
        result: Values = values if isinstance(values, list) else list(values)
    else:
        result = np.ascontiguousarray(values, dtype=column.type)
        if result.ndim != 1:
            raise ArgumentError(
                f"column {table.name}.{column.name} must have one dimension, not {result.ndim}"
            )
    if isinstance(length, int) and len(result) != length:
        raise ArgumentError(
            f"column {table.name}.{column.name} has {len(result)} values, but the table has {length} rows"
        )
    return result
