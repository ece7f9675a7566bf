"""Frames, stacks, modules and devices in words."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.rows import FrameRow, StackRow
from kinetoscope.model.schema import DeviceType
from kinetoscope.model.steps import MARK
from kinetoscope.model.trace_data import TraceData, derived

STACK_SEPARATOR = ";"
_DEVICE_TYPES = frozenset(DeviceType)
# How torch names the ranges around compiled code, and around a compiled graph in it; both go on behind a blank.
COMPILED_REGION = "Torch-Compiled Region"
COMPILED_GRAPH = "## Call CompiledFxGraph"
_REGION = re.compile(rf"{COMPILED_REGION}: (\S+)")
# Bookkeeping operators that torch leaves out of its event lists.
HIDDEN_NAMES = frozenset(
    {
        "[memory]",
        "[OutOfMemory]",
        "profiler::_record_function_enter",
        "profiler::_record_function_enter_new",
        "profiler::_record_function_exit",
        "aten::is_leaf",
        "aten::output_nr",
        "aten::_version",
    }
)


def region_id(name: str) -> str:
    """The id of the compilation that made a compiled region, from the name of its range; empty for other names, and where torch has no id."""
    match = _REGION.match(name)
    return match[1] if match else ""


def device_name(kind: int, index: int) -> str:
    """A device as torch writes it, such as `cuda:0`.

    Args:
        kind: torch's number of the device type; a `DeviceType`, or one of a newer torch.
        index: The index among the devices of this type; below 0 for the host, which has none.
    """
    kind_name = DeviceType(kind).name.lower() if kind in _DEVICE_TYPES else f"device{kind}"
    return f"{kind_name}:{index}" if index >= 0 else kind_name


# Words at the head of a kernel's template arguments that do not tell it from others.
_GENERIC = re.compile(
    r"(?:bool|char|short|int|long|float|double|half|unsigned|void|const|true|false|decltype|ul|ull|ll|lambda|at|c10|std|native|detail|internal)$"
    r"|gpu_kernel_impl|unrolled_|.*_t$"
)
_QUALIFIED = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")


def short_kernel_name(name: str) -> str:
    """Shorten the name that a compiler gave a kernel: its function, and in angle brackets what tells it from others of that function."""
    text = name.replace("(anonymous namespace)", "anonymous").removeprefix("void ")
    head, _, arguments = text.partition("<")
    base = head.partition("(")[0].rpartition("::")[2] or text
    words = (word.rpartition("::")[2] for word in _QUALIFIED.findall(arguments))
    telling = next((word for word in words if word != base and not _GENERIC.match(word)), "")
    if not telling:
        return base
    # CUTLASS gives all its kernels one name.
    return telling if re.fullmatch(r"[Kk]ernel\d*", base) else f"{base} ‹{telling}›"


@derived
def source_line(trace: TraceData, frame: int) -> tuple[str, int, str]:
    """The file, the number and the function of a source line, a row of `frames`; nothing for the row -1."""
    if frame < 0:
        return "", 0, ""
    frames, strings = trace.columns("frames"), trace.strings
    return strings[frames["file"][frame]], int(frames["line"][frame]), strings[frames["function"][frame]]


def frame_texts(trace: TraceData) -> list[str]:
    """Return `file(line): function` for every frame."""
    frames, strings = trace.columns("frames"), trace.strings
    files, functions, lines = (frames[name].tolist() for name in ("file", "function", "line"))
    return [
        f"{strings[file]}({line}): {strings[function]}"
        for file, line, function in zip(files, lines, functions, strict=True)
    ]


def stack_frames(trace: TraceData, stack: StackRow, limit: int | None = None) -> list[FrameRow]:
    """Return the frame rows of a stack, innermost first, at most `limit`; none for stack -1."""
    stacks = trace.columns("stacks")
    parents, frames = stacks["parent"], stacks["frame"]
    frame_rows: list[FrameRow] = []
    while stack >= 0 and (limit is None or len(frame_rows) < limit):
        frame_rows.append(FrameRow(int(frames[stack])))
        above = int(parents[stack])
        # Parents come first in every honest file; anything else would be a circle.
        stack = StackRow(above if above < stack else -1)
    return [frame for frame in frame_rows if frame >= 0]


@derived
def stack_texts(trace: TraceData) -> list[str]:
    """Return every stack as one string, root first, the frames joined by `;`."""
    stacks, frames = trace.columns("stacks"), frame_texts(trace)
    texts: list[str] = []
    for row, (parent, frame) in enumerate(
        zip(stacks["parent"].tolist(), stacks["frame"].tolist(), strict=True)
    ):
        text = frames[frame] if 0 <= frame < len(frames) else ""
        texts.append(f"{texts[parent]}{STACK_SEPARATOR}{text}" if 0 <= parent < row else text)
    return texts


def module_classes(trace: TraceData) -> list[str]:
    """Return the class name of every module."""
    strings = trace.strings
    return [strings[name] for name in trace.column("modules", "class").tolist()]


@derived
def event_names(trace: TraceData) -> NDArray[np.int32]:
    """For each span a row of strings that is equal where events have the same name: all marks of steps share one."""
    names: NDArray[np.int32] = trace.column("spans", "name")
    marks = [row for row, text in enumerate(trace.strings) if text.startswith(MARK)]
    if len(marks) < 2:
        return names
    shared = np.arange(len(trace.strings), dtype=np.int32)
    shared[marks] = marks[0]
    return shared[names]
