"""The table `origins`: the operators that a kernel computes, as groups of rows that spans refer to by their first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.schema import STORED
from kinetoscope.model.strings import StringTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kinetoscope.model.trace_data import TraceData

_COLUMNS = STORED["origins"].columns


class Origins:
    """The table `origins` of a trace while groups are added to it.

    Attributes:
        columns: Its columns, those of the trace first.
        texts: The strings of the trace, with those of the table.
        strings: Rows of `texts`, added as needed.
    """

    def __init__(self, trace: TraceData) -> None:
        """Begin with the groups that the trace has."""
        own = trace.columns("origins")
        self.columns: dict[str, list[Any]] = {
            column.name: np.asarray(own[column.name]).tolist() for column in _COLUMNS
        }
        self.texts = list(trace.strings)
        self.strings = StringTable(self.texts)

    def add(self, kernel: str, operators: Sequence[Mapping[str, Any]]) -> int:
        """Add a group.

        Args:
            kernel: The name of the kernel; empty where it is not known.
            operators: For each operator its values, without those of the whole group. The one that stands for all comes first.

        Returns:
            The first row of the group; -1 without operators.
        """
        first = len(self.columns["first"])
        group = {"first": first, "kernel": self.strings.row(kernel)}
        for operator in operators:
            values = {**operator, **group}
            for column in _COLUMNS:
                self.columns[column.name].append(values.get(column.name, column.default))
        return first if operators else -1
