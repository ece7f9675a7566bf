"""The named tables of a recording, to which sources append rows while it runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.losses import Loss
from kinetoscope.model.pauses import TOGGLES, Pauses
from kinetoscope.model.strings import StringTable

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from kinetoscope.model.pauses import Pause

_INT64 = range(-(1 << 63), 1 << 63)


class AppendedRows:
    """What `_core.read_recording` returns as "rows": for each table the parts that were written at once.

    Attributes:
        damaged: How many of the parts that were read so far are left out, because they are not what their table has.
    """

    def __init__(self, parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Keep the parts; each is read when its table is."""
        self._parts = parts
        self.damaged = 0

    def columns(self, table: str, types: Mapping[str, type]) -> tuple[dict[str, list[Any]], list[int]]:
        """The rows of a table, in the order in which they were written.

        Args:
            table: The name of the table.
            types: Its columns, and the type of the values of each.

        Returns:
            For each column its values; and for each row when it was written, in nanoseconds since the recording began.
        """
        columns: dict[str, list[Any]] = {name: [] for name in types}
        written_ns: list[int] = []
        for part in self._parts.get(table, ()):
            values = _values(part, types)
            if values is None:
                self.damaged += 1
                continue
            for name, column in columns.items():
                column.extend(values[name])
            written_ns.extend([part["time_ns"]] * part["rows"])
        return columns, written_ns

    def unwritten(self) -> list[Loss]:
        """One loss for each table of which a recording that was not stopped may lack the last second."""
        buffered = [name for name, parts in self._parts.items() if any(part["buffered"] for part in parts)]
        return [Loss.of("last_second", where=name) for name in buffered]


def _values(part: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, list[Any]] | None:
    """The columns of a part; None if one is missing or is not as long as the part, or a value has another type."""
    try:
        found = json.loads(part["json"])
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    for name, kind in types.items():
        values = found.get(name)
        if not isinstance(values, list) or len(values) != part["rows"]:
            return None
        if not all(type(value) is kind and (kind is not int or value in _INT64) for value in values):
            return None
    return found


def read_pauses(rows: AppendedRows, start_realtime_ns: int) -> list[Pause]:
    """When each activity was off, as the metadata `pauses` has it."""
    columns, written_ns = rows.columns(TOGGLES, {"activity": str, "enabled": bool})
    pauses = Pauses()
    for activity, enabled, time_ns in zip(columns["activity"], columns["enabled"], written_ns, strict=True):
        pauses.toggle(enabled, (activity,), start_realtime_ns + time_ns)
    return pauses.as_list()


def add_counters(
    tables: MutableMapping[str, Any], rows: AppendedRows, strings: list[str], start_monotonic_ns: int
) -> list[str]:
    """Add the table `counters`, if the recording has samples of counters.

    What was sampled last before the recording began holds when it begins.

    Args:
        tables: The delivered columns of a trace; changed in place.
        rows: What was appended to the recording.
        strings: The string table.
        start_monotonic_ns: The start of the trace by the monotonic clock; below 0 if it is not known. Then samples are placed
            where they were written.

    Returns:
        The string table with the names of the counters appended.
    """
    columns, written_ns = rows.columns("counters", {"monotonic_ns": int, "name": str, "value": float})
    if not written_ns:
        return strings
    texts = list(strings)
    table = StringTable(texts)
    names = np.array([table.row(name) for name in columns["name"]], dtype=np.int32)
    if start_monotonic_ns < 0:
        time_ns = np.array(written_ns, dtype=np.int64)
    else:
        time_ns = np.array(columns["monotonic_ns"], dtype=np.int64) - start_monotonic_ns
    order = np.argsort(time_ns, kind="stable")
    last_before = {int(names[row]): row for row in order if time_ns[row] < 0}
    kept = time_ns >= 0
    kept[list(last_before.values())] = True
    order = order[kept[order]]
    tables["counters"] = {
        "time_ns": np.maximum(time_ns[order], 0),
        "name": names[order],
        "value": np.array(columns["value"], dtype=np.float64)[order],
    }
    return texts
