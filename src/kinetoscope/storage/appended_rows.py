"""The named tables of a recording, to which sources append rows while it runs.

The recorder's own data are records of fixed size; all other data are rows: pauses, tensor storages, counters, compilations, batches of
DataLoader workers, and losses. Readers get each table here, whether an engine wrote the rows to a file or kept them in memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.losses import CODES, Loss
from kinetoscope.model.pauses import TOGGLES, Pause, Pauses
from kinetoscope.model.strings import parsed_json

# Tables of sources.
LOSSES = "losses"
CLOCKS = "clocks"
# The values of each column, or the JSON text of one row.
RowColumns = Mapping[str, Sequence[Any]] | str
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class AppendedRows:
    """The "rows" of `_core.read_recording`: for each table the parts, each written at once.

    Attributes:
        damaged: How many parts so far were left out because they do not have the columns of their table.
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
        parts = self._parts.get(table, ())
        for part, values in zip(parts, _read_json(parts), strict=True):
            rows = part["rows"]
            if not _has_columns(values, rows, types):
                self.damaged += 1
                continue
            for name, column in columns.items():
                column += values[name]
            written_ns += [part["time_ns"]] * rows
        return columns, written_ns

    def has(self, table: str) -> bool:
        """Whether anything was appended to a table, even an empty part."""
        return table in self._parts

    def without(self, *tables: str) -> AppendedRows:
        """The rows of all other tables."""
        return AppendedRows({name: parts for name, parts in self._parts.items() if name not in tables})

    def unwritten(self) -> list[Loss]:
        """One loss for each table whose last second may be missing, because the recording was not stopped."""
        buffered = [name for name, parts in self._parts.items() if any(part["buffered"] for part in parts)]
        return [Loss.of("last_second", where=name) for name in buffered]


class KeptRows:
    """Keeps in memory what sources append, for a recording that has no file they can write to."""

    def __init__(self) -> None:
        """Start without rows, and read the clocks."""
        self._parts: dict[str, list[dict[str, Any]]] = {}
        self(CLOCKS, {"monotonic_ns": [time.monotonic_ns()], "realtime_ns": [time.time_ns()]})

    def __call__(self, table: str, columns: RowColumns, *, buffered: bool = False) -> bool:
        """Append rows, as `AppendRows` says."""
        rows, text = counted_json(columns)
        part = {"rows": rows, "time_ns": 0, "buffered": False, "json": text}
        self._parts.setdefault(table, []).append(part)
        return True

    def rows(self) -> AppendedRows:
        """Return what was appended to each table until now, in order."""
        return AppendedRows({table: list(parts) for table, parts in list(self._parts.items())})


def counted_json(columns: RowColumns) -> tuple[int, str]:
    """How many rows are appended, and their columns as JSON text."""
    if isinstance(columns, str):
        return 1, columns
    return len(next(iter(columns.values()), ())), json.dumps(columns, separators=(",", ":"))


def _read_json(parts: Sequence[Mapping[str, Any]]) -> list[Any]:
    # Bytes in a file, text in memory.
    texts = [part["json"] for part in parts]
    with suppress(ValueError, RecursionError):
        joined = b",".join(texts) if texts and isinstance(texts[0], bytes) else ",".join(texts).encode()
        values: list[Any] = json.loads(b"[" + joined + b"]")
        # Damaged parts may be JSON only together.
        if len(values) == len(parts):
            return values
    return [parsed_json(text) for text in texts]


def _has_columns(part: Any, rows: int, types: Mapping[str, type]) -> bool:
    if not isinstance(part, dict):
        return False
    for name, kind in types.items():
        values = part.get(name)
        if not isinstance(values, list) or len(values) != rows:
            return False
        for value in values:
            if type(value) is not kind or (isinstance(value, int) and not _LEAST <= value <= _MOST):
                return False
    return True


def read_pauses(rows: AppendedRows, start_realtime_ns: int) -> list[Pause]:
    """When each activity was off, as the metadata `pauses` has it."""
    columns, written_ns = rows.columns(TOGGLES, {"activity": str, "enabled": bool})
    pauses = Pauses()
    for activity, enabled, time_ns in zip(columns["activity"], columns["enabled"], written_ns, strict=True):
        pauses.toggle(enabled, (activity,), start_realtime_ns + time_ns)
    return pauses.as_list()


def read_counters(
    recordings: Sequence[AppendedRows], start_monotonic_ns: int
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """The samples of each counter: their times from the start of the trace, ascending, and their values.

    The last sample before the start of the trace becomes the one at its start.

    Args:
        recordings: The rows appended to the recordings of the trace.
        start_monotonic_ns: The start of the trace by the monotonic clock; below 0 if it is not known. Then samples are placed
            where they were written.
    """
    samples_of: dict[str, list[tuple[int, float]]] = {}
    for rows in recordings:
        columns, written_ns = rows.columns("counters", {"monotonic_ns": int, "name": str, "value": float})
        times = written_ns
        if start_monotonic_ns >= 0:
            times = [time_ns - start_monotonic_ns for time_ns in columns["monotonic_ns"]]
        for time_ns, name, value in zip(times, columns["name"], columns["value"], strict=True):
            samples_of.setdefault(name, []).append((time_ns, value))
    counters = {}
    for name, samples in samples_of.items():
        sampled_ns = np.array([time_ns for time_ns, _ in samples], dtype=np.int64)
        before = int(np.count_nonzero(sampled_ns < 0))
        order = np.argsort(sampled_ns, kind="stable")[max(before - 1, 0) :]
        values = np.array([value for _, value in samples], dtype=np.float64)
        counters[name] = np.maximum(sampled_ns[order], 0), values[order]
    return counters


def read_losses(rows: AppendedRows) -> list[Loss]:
    """The losses that sources report; of the same loss with the same reason the last count is used."""
    columns, _ = rows.columns(LOSSES, {"code": str, "count": int, "why": str})
    counts = {}
    for code, count, why in zip(columns["code"], columns["count"], columns["why"], strict=True):
        counts[code, why] = count
    return [
        Loss.of(code, count, why=why) for (code, why), count in counts.items() if code in CODES and count > 0
    ]


def read_clocks(rows: AppendedRows) -> tuple[int, int] | None:
    """The monotonic and the real-time clock at the same moment, in nanoseconds; None if that was not noted."""
    columns, written_ns = rows.columns(CLOCKS, {"monotonic_ns": int, "realtime_ns": int})
    return (columns["monotonic_ns"][0], columns["realtime_ns"][0]) if written_ns else None
