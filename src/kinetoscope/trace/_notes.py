"""What a recording notes beside its spans: memory blocks, torch's number of the call, facts of collectives, keywords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# NoteKind in native/core/recording_format.h.
_OPERAND, _GRADIENT, _RECORD_FUNCTION, _BETWEEN_RANKS, _ARGUMENTS = 1, 2, 3, 4, 5


def add_notes(tables: dict[str, Mapping[str, Any]], notes: Mapping[str, Any], strings: Sequence[str]) -> None:
    """Put a recording's notes into the tables `operands`, `collectives` and `arguments`, and into columns of `spans`.

    Args:
        tables: The delivered columns of a trace; changed.
        notes: The columns that `_core.read_recording` returns as "notes"; may be empty.
        strings: What notes that are texts point into.
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
    given = kind == _ARGUMENTS
    if given.any():
        texts, row = np.unique(notes["value"][given].astype(np.int64), return_inverse=True)
        arguments = np.full(len(tables["spans"]["start_ns"]), -1, dtype=np.int32)
        arguments[notes["span"][given]] = row.reshape(-1)
        tables["spans"] = {**tables["spans"], "arguments": arguments}
        tables["arguments"] = {
            "json": [strings[text] if text < len(strings) else "{}" for text in texts.tolist()]
        }
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
