"""The cycles of a recording: the windows in which a session recorded, numbered over its whole life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.steps import step_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kinetoscope.model.columns import Columns


def one_cycle(info: Mapping[str, Any], duration_ns: int) -> dict[str, list[int]]:
    """The table `cycles` of a recording that holds one, whose number the session wrote into the metadata."""
    known = info.get("cycle")
    number = known.get("number") if isinstance(known, dict) else 0
    if not isinstance(number, int) or not 0 <= number < 2**62:
        number = 0
    return {"number": [int(number)], "start_ns": [0], "duration_ns": [max(0, duration_ns)]}


def cycle_of_spans(start_ns: NDArray[np.int64], table: Columns) -> NDArray[np.int32]:
    """The row of the cycle each span began in: the only one there is or, among several, by its time."""
    if len(table) == 1:
        return np.zeros(len(start_ns), dtype=np.int32)
    return step_at(start_ns, table["start_ns"], table["duration_ns"])
