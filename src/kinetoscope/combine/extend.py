"""Extending a trace with counters, metadata, losses and tables that its recording does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kinetoscope.model.losses import Loss, loss_columns, losses_of
from kinetoscope.model.schema import STORED
from kinetoscope.model.strings import StringTable
from kinetoscope.model.trace_data import AnyTrace, TraceData


def extend(
    trace: AnyTrace,
    *,
    counters: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    info: Mapping[str, Any] | None = None,
    losses: Sequence[Loss] = (),
    without_losses: Sequence[str] = (),
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    spans: Mapping[str, Any] | None = None,
    strings: Sequence[str] | None = None,
) -> AnyTrace:
    """Return a copy of a trace with more counters, metadata, losses or tables.

    Args:
        trace: The trace; it is unchanged and shares its columns with the copy.
        counters: For each counter its times in nanoseconds from the start of the trace, and its values.
        info: Metadata to add; replaces that of the same name.
        losses: Losses to add.
        without_losses: Codes of the losses to remove.
        tables: Stored tables by name, as columns, which replace those of the trace.
        spans: Columns of spans that replace those of the trace.
        strings: All strings, if `tables` have more than the trace; those of the trace come first.

    Returns:
        The copy. Closing it closes the given trace.

    Raises:
        ArgumentError: A counter has a different number of times and values.
        StateError: The trace was closed.
    """
    stored = trace.recorded_columns()
    stored |= {name: dict(columns) for name, columns in (tables or {}).items()}
    stored["spans"] = stored.get("spans", {}) | dict(spans or {})
    texts = list(trace.strings if strings is None else strings)
    if counters:
        stored["counters"] = _joined_counters(trace, texts, counters)
    if losses or without_losses:
        remaining = [loss for loss in losses_of(trace.columns("losses")) if loss.code not in without_losses]
        stored["losses"] = loss_columns([*remaining, *losses])
    copy = trace.from_columns(stored, strings=texts, info={**trace.info, **(info or {})}, path=trace.path)
    copy.on_close(trace.close)
    return copy


def _joined_counters(
    trace: TraceData, strings: list[str], more: Mapping[str, tuple[ArrayLike, ArrayLike]]
) -> dict[str, Any]:
    table = StringTable(strings)
    trace_counters = trace.columns("counters")
    parts = [(trace_counters["time_ns"], trace_counters["name"], trace_counters["value"])]
    for name, (times, values) in more.items():
        time_ns = np.asarray(times, dtype=np.int64)
        rows = np.full(len(time_ns), table.row(name), dtype=np.int32)
        parts.append((time_ns, rows, np.asarray(values, dtype=np.float64)))
    time_ns, names, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(time_ns, kind="stable")
    return {"time_ns": time_ns[order], "name": names[order], "value": values[order]}


class GrowingTable:
    """A stored table of a trace to which rows are added.

    Attributes:
        name: Its name.
        columns: Its columns that do not follow from others.
        row_of: The first row of each identity.
    """

    def __init__(self, trace: TraceData, name: str, identity: Sequence[str]) -> None:
        """Begin with the rows that the trace has; `identity` are the columns that tell its rows apart."""
        self.name, self._identity, stored = name, identity, trace.columns(name)
        self.columns = {
            column.name: np.asarray(stored[column.name], object).tolist()
            for column in STORED[name].columns
            if not column.derived or column.name in stored.given
        }
        self.row_of: dict[tuple[Any, ...], int] = {}
        for row, key in enumerate(zip(*(self.columns[column] for column in identity), strict=True)):
            self.row_of.setdefault(key, row)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.columns[self._identity[0]])

    def row(self, key: tuple[Any, ...], **other_values: Any) -> int:
        """The row with this identity; a new one also gets `other_values`."""
        row = self.row_of.get(key)
        return self.add(key, **other_values) if row is None else row

    def add(self, key: tuple[Any, ...], **other_values: Any) -> int:
        """Add a row, whose identity need not be unique."""
        added = len(self)
        self.row_of.setdefault(key, added)
        values = dict(zip(self._identity, key, strict=True)) | other_values
        for column, stored_values in self.columns.items():
            stored_values.append(values.get(column, STORED[self.name].column(column).default))
        return added


class Origins(GrowingTable):
    """The table `origins` of a trace, to which groups are added: the operators that a kernel computes. Spans refer to the first row of a group.

    Attributes:
        texts: The strings of the trace, with those of the table.
        strings: Rows of `texts`, added as needed.
    """

    def __init__(self, trace: TraceData) -> None:
        """Begin with the groups that the trace has."""
        super().__init__(trace, "origins", ("first", "kernel"))
        self.texts = list(trace.strings)
        self.strings = StringTable(self.texts)

    def add_group(self, kernel: str, operators: Sequence[Mapping[str, Any]]) -> int:
        """Add a group.

        Args:
            kernel: The name of the kernel; empty where it is not known.
            operators: The values of each operator, without those of the whole group. The first one represents the group.

        Returns:
            The first row of the group; -1 without operators.
        """
        first, kernel_row = len(self), self.strings.row(kernel)
        for operator in operators:
            self.add((first, kernel_row), **operator)
        return first if operators else -1
