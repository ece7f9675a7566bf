"""The frames of this command at the bottom of every recorded stack: not the program's, and taken out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

_OURS = (
    os.path.dirname(__file__) + os.sep,
    str(Path(__file__).parents[1] / "__main__.py"),
    os.path.dirname(click.__file__) + os.sep,
    "<frozen runpy>",
)
_SCRIPT_NAMES = ("kinetoscope", "__main__.py")


def forget_launcher(trace: Trace) -> None:
    """Let the stacks of a fresh trace begin where the program begins, as if Python had been started on it."""
    strings = trace.strings
    is_ours = np.array(
        [text.startswith(_OURS) or os.path.basename(text) in _SCRIPT_NAMES for text in strings],
        dtype=bool,
    )
    stacks = trace.columns("stacks")
    parents, frames = stacks["parent"], stacks["frame"]
    if len(parents) == 0 or not parents.flags.writeable:
        return
    ours = np.append(is_ours[trace.column("frames", "file")], False)[frames]
    # A frame is the launcher's only when all below it are: the program may well use click itself.
    while True:
        below = (parents < 0) | ours[parents]
        if not (ours & ~below).any():
            break
        ours &= below
    parents[(parents >= 0) & ours[parents] & ~ours] = -1
