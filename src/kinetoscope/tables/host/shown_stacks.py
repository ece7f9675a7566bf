"""Python stacks as a slice shows them: short enough that a trace of a million operators stays a file one can open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.model.trace_data import calls_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

# Between a module's caller and its forward() there are always these two: they say nothing and are half of the text.
_CALL_FRAMES = frozenset({"Module._wrapped_call_impl", "Module._call_impl"})
_CALL_FILE = "torch/nn/modules/module.py"
_MODULE_CALL = "Module._wrapped_call_impl"
_INSTALLED = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True)
class ShownFrames:
    """A trace's stacks without the frames that only pass a call on, and the files of installed packages in short.

    Attributes:
        row: For each stack, and behind them for -1, the stack that is shown in its place, -1 for none.
        parent: For each stack the row of its caller, -1 for the outermost.
        strings: The trace's strings, with the short file names behind them.
        file: For each frame the string id of its file.
        module_calls: The frames that are calls of modules.
    """

    row: NDArray[np.int32]
    parent: NDArray[np.int32]
    strings: list[str]
    file: NDArray[np.int32]
    module_calls: frozenset[int]


@dataclass(frozen=True)
class ShownStacks(ShownFrames):
    """The same, and which spans show their stack.

    Attributes:
        of_span: For each span the row of the stack to show, -1 for none.
    """

    of_span: NDArray[np.int32]


def shown_frames(trace: TraceData) -> ShownFrames:
    """What to show of a trace's stacks."""
    stacks, frames = trace.columns("stacks"), trace.columns("frames")
    strings = list(trace.strings)
    passes_on = np.array(
        [
            strings[function] in _CALL_FRAMES and strings[file].endswith(_CALL_FILE)
            for function, file in zip(frames["function"].tolist(), frames["file"].tolist(), strict=True)
        ],
        np.bool_,
    )
    parent = stacks["parent"].tolist()
    # The last entry stands for the row -1.
    shown = [-1] * (len(parent) + 1)
    for row, frame in enumerate(stacks["frame"].tolist()):
        # A caller's row is below its callee's, so it is settled by now.
        parent[row] = shown[parent[row]]
        shown[row] = parent[row] if frame >= 0 and passes_on[frame] else row
    short: dict[int, int] = {}
    told = trace.info.get("import_folders")
    folders = [f"{folder}/" for folder in told if isinstance(folder, str)] if isinstance(told, list) else []
    for file in set(frames["file"].tolist()):
        text = strings[file]
        rest = next((text[len(folder) :] for folder in folders if text.startswith(folder)), "")
        for folder in _INSTALLED:
            rest = rest or text.rpartition(folder)[2] * (folder in text)
        if rest:
            short[file] = len(strings)
            strings.append(rest)
    return ShownFrames(
        row=np.array(shown, np.int32),
        parent=np.array(parent, np.int32),
        strings=strings,
        file=np.array([short.get(file, file) for file in frames["file"].tolist()], np.int32),
        module_calls=frozenset(
            row
            for row, function in enumerate(frames["function"].tolist())
            if passes_on[row] and strings[function] == _MODULE_CALL
        ),
    )


def shown_stacks(trace: TraceData) -> ShownStacks:
    """The same for each span; nothing where the spans around a span show the same."""
    frames, spans = shown_frames(trace), trace.columns("spans")
    stack, around = spans["stack"], spans["parent"]
    repeated = (around >= 0) & (stack == stack[around])
    if calls_of(trace) is not None:
        # The calls around a span show its stack already; not so the stack of a forward operator in backward.
        repeated |= spans["forward_stack"] < 0
    return ShownStacks(
        frames.row,
        frames.parent,
        frames.strings,
        frames.file,
        frames.module_calls,
        of_span=np.where(repeated, np.int32(-1), frames.row[stack]),
    )
