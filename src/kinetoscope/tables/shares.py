"""Shares of a whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def percent(part: NDArray[np.int64], whole: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """Shares of one whole, or each of its own, in percent; null if the whole is 0."""
    return np.asarray(100.0 * part / np.where(whole == 0, np.nan, whole))
