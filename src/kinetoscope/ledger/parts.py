"""What units of work spend their time on, in parts that add up to each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.ledger.steps import STEP_PARTS, step_parts
from kinetoscope.model.time_spent import part_words
from kinetoscope.tables.host.requests import PARTS, parts_of_requests
from kinetoscope.tables.host.units_of_work import Unit, UnitsOfWork

if TYPE_CHECKING:
    from numpy.typing import NDArray


def parts_of_units(work: UnitsOfWork) -> dict[str, NDArray[np.int64]]:
    """For each part, in words, how long each unit spends on it: together its duration; no parts of a recording."""
    names, parts_of = {
        Unit.STEP: (STEP_PARTS, step_parts),
        Unit.REQUEST: (PARTS, parts_of_requests),
        Unit.RECORDING: ((), lambda _: {}),
    }[work.unit]
    times = parts_of(work.trace)
    return {part_words(name): times[name][work.row] for name in names}
