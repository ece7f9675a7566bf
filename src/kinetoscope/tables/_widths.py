"""How wide the columns of a text table must be, found from one event of each sort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables.function_event import FunctionEvent
from kinetoscope.trace._naming import frame_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

_COLUMN = {"key": "name", "overload_name": "overload", "input_shapes": "shapes", "stack": "stack"}


def widest(trace: Trace, rows: NDArray[Any], part: str, frames: int | None = None) -> int:
    """Return the length of the longest text of some events.

    Args:
        trace: The trace.
        rows: The rows of the events.
        part: `key`, `overload_name`, `input_shapes` or `stack` (the longest entry).
        frames: Only this many innermost frames of each stack.
    """
    values = trace.column("spans", _COLUMN[part])[rows]
    if part == "stack" and frames is None:
        return max(map(len, frame_texts(trace)), default=0) if (values >= 0).any() else 0
    _, places = np.unique(values, return_index=True)
    events = (FunctionEvent(trace, row) for row in rows[places].tolist())
    if part == "stack":
        return max((len(entry) for event in events for entry in event.innermost(frames)), default=0)
    return max((len(str(getattr(event, part))) for event in events), default=0)
