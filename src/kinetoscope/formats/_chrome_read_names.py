"""What the names of spans say of them; each distinct name is looked at once."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.formats._chrome_read_calls import MODULE_MARK
from kinetoscope.trace._assemble import ENGINE_WRAPPER
from kinetoscope.trace._schema import TRANSFER_MARKS
from kinetoscope.trace._steps import MARK as STEP_MARK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Backward functions that torch's own code generator names, and those that accumulate gradients.
_BACKWARD = re.compile(r"(?:[A-Za-z_]\w*Backward\d+|torch::autograd::\w+)")
_MTIA_COPY, _MTIA_WAIT = "dma_request", "event_wait"
# Ranges that torch itself marks, which its releases before 1.9 wrote as operators.
_RANGES = ("Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")


class NameClass(IntEnum):
    """What a name says: one thing at most."""

    NOTHING = 0
    STEP = 1
    TRANSFER = 2
    MODULE = 3
    WRAPPER = 4
    BACKWARD = 5
    MTIA_COPY = 6
    RANGE = 7
    MTIA_WAIT = 8


def classify(strings: Sequence[str]) -> NDArray[np.uint8]:
    """The `NameClass` of each string.

    What stands behind autograd's wrapper is a backward function, whatever it is called; without wrappers, as in torch
    1.8, it is told by its name.
    """
    found = np.zeros(len(strings), np.uint8)
    wrapped: set[str] = set()
    for row, text in enumerate(strings):
        if text.startswith(ENGINE_WRAPPER):
            found[row] = NameClass.WRAPPER
            wrapped.add(text[len(ENGINE_WRAPPER) :])
        elif text.startswith(STEP_MARK):
            found[row] = NameClass.STEP
        elif text.startswith(TRANSFER_MARKS):
            found[row] = NameClass.TRANSFER
        elif text.startswith(MODULE_MARK):
            found[row] = NameClass.MODULE
        elif text.startswith(_RANGES):
            found[row] = NameClass.RANGE
        elif text == _MTIA_COPY:
            found[row] = NameClass.MTIA_COPY
        elif text == _MTIA_WAIT:
            found[row] = NameClass.MTIA_WAIT
        elif _BACKWARD.fullmatch(text):
            found[row] = NameClass.BACKWARD
    for row, text in enumerate(strings):
        if text in wrapped and not found[row]:
            found[row] = NameClass.BACKWARD
    return found
