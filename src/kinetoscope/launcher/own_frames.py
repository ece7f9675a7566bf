"""Removes the frames of this command from the bottom of recorded stacks."""

from __future__ import annotations

import os
from pathlib import Path

import click
import numpy as np

from kinetoscope.combine.extend import extend
from kinetoscope.launcher.program import OUR_FOLDERS
from kinetoscope.trace import Trace

_OURS = (
    *OUR_FOLDERS,
    str(Path(__file__).parents[1] / "__main__.py"),
    os.path.dirname(click.__file__) + os.sep,
    "<frozen runpy>",
)
_SCRIPT_NAMES = ("kinetoscope", "__main__.py")


def without_launcher(trace: Trace) -> Trace:
    """Return the trace with stacks that begin with the program; the given one if there is nothing to remove."""
    strings = trace.strings
    is_ours = np.array(
        [text.startswith(_OURS) or os.path.basename(text) in _SCRIPT_NAMES for text in strings],
        dtype=bool,
    )
    stacks = trace.columns("stacks")
    parents, frames = stacks["parent"].copy(), stacks["frame"]
    ours = np.append(is_ours[trace.column("frames", "file")], False)[frames]
    # A frame is ours only if all below it are: the program may use click, too.
    while True:
        below = (parents < 0) | np.append(ours, False)[parents]
        if not (ours & ~below).any():
            break
        ours &= below
    first = (parents >= 0) & np.append(ours, False)[parents] & ~ours
    if not first.any():
        return trace
    parents[first] = -1
    return extend(
        trace, tables={"stacks": {name: stacks[name] for name in stacks.given} | {"parent": parents}}
    )
