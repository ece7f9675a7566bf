"""What a recording notes beside its spans: blocks of memory, torch's number of the call, facts of calls between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

# NoteKind in native/core/recording_format.h.
_OPERAND, _GRADIENT, _RECORD_FUNCTION, _BETWEEN_RANKS = 1, 2, 3, 4


def add_notes(tables: dict[str, Mapping[str, Any]], notes: Mapping[str, Any]) -> None:
    """Put a recording's notes where they belong: the tables `operands` and `collectives`, and a column of `spans`.

    Args:
        tables: The delivered columns of a trace; changed.
        notes: The columns that `_core.read_recording` returns as "notes"; may be empty.
    """
    kind = notes.get("kind", ())
    if len(kind) == 0:
        return
    numbered = kind == _RECORD_FUNCTION
    if numbered.any():
        numbers = np.full(len(tables["spans"]["start_ns"]), -1, dtype=np.int64)
        numbers[notes["span"][numbered]] = notes["value"][numbered].astype(np.int64)
        tables["spans"] = {**tables["spans"], "record_function": numbers}
    told = kind == _BETWEEN_RANKS
    if told.any():
        tables["collectives"] = {"span": notes["span"][told], "facts": notes["value"][told].astype(np.int32)}
    blocks = (kind == _OPERAND) | (kind == _GRADIENT)
    if blocks.any():
        tables["operands"] = {
            "span": notes["span"][blocks],
            "argument": np.where(kind == _OPERAND, notes["argument"], np.int32(-1))[blocks],
            "address": notes["value"][blocks],
            "bytes": notes["bytes"][blocks],
            "parameter": notes["parameter"][blocks],
            "device_type": notes["device_type"][blocks],
            "device_index": notes["device_index"][blocks],
        }
