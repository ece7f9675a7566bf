"""Shares of a whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def percent(part: NDArray[np.int64], whole: int) -> NDArray[np.float64]:
    """Shares in percent; null if the whole is 0."""
    if whole == 0:
        return np.full(len(part), np.nan)
    return np.asarray(part * np.float64(100.0 / whole))
