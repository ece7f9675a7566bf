"""Python stacks with the time spent in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.hierarchy import host_work
from kinetoscope.model.names import frame_texts, stack_texts
from kinetoscope.model.nesting import sums_below
from kinetoscope.model.schema import Column, Phase, Table
from kinetoscope.tables.host.ops import percent

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.tables.breakdown import HostShares


# Which source line a person would look at: the innermost frame of a stack that is not torch's or ours.

# Any of these files shows the location of a torch package, installed or not.
_KNOWN_FILES = (
    "/torch/nn/modules/module.py",
    "/torch/utils/_contextlib.py",
    "/torch/_tensor.py",
    "/torch/autograd/__init__.py",
    "/torch/autograd/graph.py",
    "/torch/optim/optimizer.py",
    "/torch/_dynamo/eval_frame.py",
)
_PACKAGES = ("torch", "torchgen", "functorch", "torchvision", "torchaudio", "kinetoscope")
_INSTALLED = ("/site-packages/", "/dist-packages/")
# The package's own examples are programs like any other.
_OWN_PROGRAMS = ("/kinetoscope/examples/", "/kinetoscope/demo/")
_OWN_ROOMS = tuple(
    f"/kinetoscope/{part}"
    for part in ("cli/", "collect/", "integrations/", "trace/", "tables/", "formats/", "__main__.py")
)


def user_frames(trace: TraceData) -> NDArray[np.bool_]:
    """Return for each frame whether it is the user's: not in torch, not in this package, not in Python's import system."""

    def make() -> NDArray[np.bool_]:
        files = trace.column("frames", "file")
        texts = {number: trace.strings[number].replace("\\", "/") for number in np.unique(files).tolist()}
        roots = _torch_roots(list(texts.values()))
        is_user = {number: not _is_library(text, roots) for number, text in texts.items()}
        return np.array([is_user[number] for number in files.tolist()], dtype=bool)

    return trace.cached("user_frames", make)


def user_stacks(trace: TraceData) -> NDArray[np.int32]:
    """Return for each stack the stack whose last frame is the innermost user frame; itself where no frame is one."""

    def make() -> NDArray[np.int32]:
        is_user = user_frames(trace)
        stacks = trace.columns("stacks")
        parents, frames = stacks["parent"].tolist(), stacks["frame"].tolist()
        found: list[int] = []
        for row, (parent, frame) in enumerate(zip(parents, frames, strict=True)):
            if frame >= 0 and is_user[frame]:
                found.append(row)
            else:
                found.append(found[parent] if 0 <= parent < row else -1)
        chosen = np.array(found, dtype=np.int32)
        return np.where(chosen >= 0, chosen, np.arange(len(chosen), dtype=np.int32))

    return trace.cached("user_stacks", make)


def working_stacks(trace: TraceData) -> NDArray[np.int32]:
    """Return for each stack the one in which what it started ran: without the frames that only enter a range.

    A range begins inside of the `__enter__` of its context manager, which has returned when what is in the range runs.
    """

    def make() -> NDArray[np.int32]:
        frames, stacks, strings = trace.columns("frames"), trace.columns("stacks"), trace.strings
        files, functions = frames["file"].tolist(), frames["function"].tolist()
        enters = [
            strings[function].endswith("__enter__")
            and strings[file].replace("\\", "/").endswith("torch/autograd/profiler.py")
            for file, function in zip(files, functions, strict=True)
        ]
        found = np.arange(len(stacks), dtype=np.int32)
        if not any(enters):
            return found
        inside = [False] * len(stacks)
        for row, (parent, frame) in enumerate(
            zip(stacks["parent"].tolist(), stacks["frame"].tolist(), strict=True)
        ):
            if not 0 <= parent < row:
                continue
            inside[row] = inside[parent] or (frame >= 0 and enters[frame])
            if inside[row]:
                found[row] = found[parent]
        return found

    return trace.cached("working_stacks", make)


def _torch_roots(files: list[str]) -> tuple[str, ...]:
    """Find where torch lies, also when it is not installed but built in place."""
    return tuple(
        {file[: -len(known)] + "/torch/" for file in files for known in _KNOWN_FILES if file.endswith(known)}
    )


def _is_library(file: str, roots: tuple[str, ...]) -> bool:
    """Whether a file belongs to torch or to this package; built-in functions have none."""
    if not file or file.startswith("<frozen") or file.startswith(roots):
        return True
    if any(place in f"/{file}" for place in _OWN_PROGRAMS):
        return False
    # torch's own collector cuts the folder off in which a package is installed.
    if file.split("/", 1)[0] in _PACKAGES:
        return True
    if any(place in file for place in _OWN_ROOMS):
        return True
    for place in _INSTALLED:
        _, found, inside = file.rpartition(place)
        if found and inside.split("/", 1)[0] in _PACKAGES:
            return True
    return False


STACKS_SCHEMA = Table(
    "stacks",
    "A Python call stack: the stack of its parent with one more frame.",
    (
        Column("id", "int32", "row of stacks", "The row, which `parent` refers to."),
        Column("parent", "int32", "row of stacks", "The stack of the caller; null at the root."),
        Column("depth", "int32", "", "How many frames enclose the innermost one.", 0),
        Column("frame", "category", "", "The innermost frame, as `file(line): function`."),
        Column("stack", "string", "", "All frames, root first, joined by `;`."),
        Column("self_ns", "int64", "ns", "Self time of spans with exactly this stack, without the ranges that mark "
                                         "steps; in backward the stack is that of the forward operator."),
        Column("total_ns", "int64", "ns", "The same, including stacks that begin with this one."),
        Column("count", "int64", "", "How many spans have exactly this stack."),
        Column("device_self_ns", "int64", "ns", "Device time of what spans with exactly this stack launched."),
        Column("device_ns", "int64", "ns", "The same, including stacks that begin with this one."),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class StackSums:
    """What ran with each stack; the totals include the stacks that begin with it."""

    depth: NDArray[np.int32]
    self_ns: NDArray[np.int64]
    backward_ns: NDArray[np.int64]
    total_ns: NDArray[np.int64]
    count: NDArray[np.int64]
    device_self_ns: NDArray[np.int64]
    device_ns: NDArray[np.int64]


def span_stacks(trace: TraceData) -> NDArray[np.int32]:
    """For each span the stack that its time counts for, -1 without: a range is not spent in what entered it."""
    stacks: NDArray[np.int32] = np.append(working_stacks(trace), np.int32(-1))[trace.column("spans", "stack")]
    return stacks


def stack_sums(trace: TraceData) -> StackSums:
    """Add up the spans by stack, once for a trace."""

    def make() -> StackSums:
        spans, stacks = trace.columns("spans"), trace.columns("stacks")
        stack, self_ns, phase = span_stacks(trace), spans["self_ns"], spans["phase"]
        known = np.flatnonzero((stack >= 0) & host_work(trace, with_steps=False).mask)
        own = np.zeros(len(stacks), dtype=np.int64)
        np.add.at(own, stack[known], self_ns[known])
        backward = np.zeros(len(stacks), dtype=np.int64)
        behind = known[phase[known] == Phase.BACKWARD]
        np.add.at(backward, stack[behind], self_ns[behind])
        count = np.bincount(stack[known], minlength=len(stacks)).astype(np.int64)
        depth = _depths(stacks["parent"])
        on_device = np.zeros(len(stacks), dtype=np.int64)
        if len(trace.columns("launches")):
            launched = spans["device_self_ns"]
            starts = np.flatnonzero((stack >= 0) & (launched > 0))
            np.add.at(on_device, stack[starts], launched[starts])
        total, device_total = (sums_below(stacks["parent"], depth, values) for values in (own, on_device))
        return StackSums(depth, own, backward, total, count, on_device, device_total)

    return trace.cached("stack_sums", make)


def stacks(trace: TraceData) -> pyarrow.Table:
    """Return the `stacks` table: one row for each stack, callers first.

    Args:
        trace: The trace.

    Returns:
        The table; the meaning of its columns is in `STACKS_SCHEMA`.
    """
    own, sums = trace.columns("stacks"), stack_sums(trace)
    columns: dict[str, Any] = {
        "id": np.arange(len(own), dtype=np.int32),
        "parent": own["parent"],
        "depth": sums.depth,
        "frame": Labels(own["frame"], frame_texts(trace)),
        "stack": stack_texts(trace),
        "self_ns": sums.self_ns,
        "total_ns": sums.total_ns,
        "count": sums.count,
        "device_self_ns": sums.device_self_ns,
        "device_ns": sums.device_ns,
    }
    return to_arrow(STACKS_SCHEMA, columns)


def _depths(parents: NDArray[np.int32]) -> NDArray[np.int32]:
    """How many stacks are below each; parents come first."""
    depths: list[int] = []
    for row, parent in enumerate(parents.tolist()):
        depths.append(depths[parent] + 1 if 0 <= parent < row else 0)
    return np.array(depths, dtype=np.int32)


# The source lines in which the time goes.

LINES_SCHEMA = Table(
    "lines",
    "A line of the user's source code. Operators are attributed to the innermost frame outside torch and this package, "
    "backward operators to the line of their forward operator. Largest self time first.",
    (
        Column("file", "category", "", "The file."),
        Column("line", "int32", "", "The line that was executed.", 0),
        Column("function", "category", "", "The qualified name of the function."),
        Column("self_ns", "int64", "ns", "Time of what this line started itself, code in torch included."),
        Column("total_ns", "int64", "ns", "The same, including user code called from this line."),
        Column("backward_self_ns", "int64", "ns", "The part of `self_ns` that ran in backward."),
        Column("self_percent", "float64", "%", "Share of all self time of the trace."),
        Column("total_percent", "float64", "%", "Share of all self time of the trace; at most 100."),
        Column("count", "int64", "", "How many spans this line started itself."),
        Column(
            "device_self_ns",
            "int64",
            "ns",
            "Device time of what this line launched itself, code in torch included.",
        ),
        Column("device_ns", "int64", "ns", "The same, including user code called from this line."),
    ),
)


def lines(trace: TraceData) -> pyarrow.Table:
    """Return the `lines` table: one row for each line that some operator was started from.

    Args:
        trace: The trace.

    Returns:
        The table; the meaning of its columns is in `LINES_SCHEMA`.
    """
    stacks, frames = trace.columns("stacks"), trace.columns("frames")
    sums = stack_sums(trace)
    # What torch's own frames did counts for the user frame that called them.
    shown = user_stacks(trace)
    self_ns, backward_ns, count, launched_ns = (
        _moved(values, shown) for values in (sums.self_ns, sums.backward_ns, sums.count, sums.device_self_ns)
    )
    line_of, first = _line_groups(trace)
    total_ns = sums.total_ns
    line_of_stack = np.append(line_of, -1)[stacks["frame"]].astype(np.int32)
    is_user = np.append(user_frames(trace), False)[stacks["frame"]] | (self_ns > 0) | (count > 0)
    is_user |= launched_ns > 0
    rows = np.where(is_user, line_of_stack, -1).astype(np.int32)
    inner = _core.descends_from_same(stacks["parent"], line_of_stack)
    groups = len(first)
    own = _core.group_sums(rows, groups, self_ns)
    total = _core.group_sums(rows, groups, total_ns, inner)
    everything = host_work(trace).total_self_ns
    columns: dict[str, Any] = {
        "file": Labels(frames["file"][first], trace.strings),
        "line": frames["line"][first],
        "function": Labels(frames["function"][first], trace.strings),
        "self_ns": own,
        "total_ns": total,
        "backward_self_ns": _core.group_sums(rows, groups, backward_ns),
        "self_percent": percent(own, everything),
        "total_percent": percent(total, everything),
        "count": _core.group_sums(rows, groups, count),
        "device_self_ns": _core.group_sums(rows, groups, launched_ns),
        "device_ns": _core.group_sums(rows, groups, sums.device_ns, inner),
    }
    seen = np.flatnonzero((total > 0) | (columns["count"] > 0) | (columns["device_ns"] > 0))
    order = seen[np.lexsort((-total[seen], -own[seen]))]
    return to_arrow(LINES_SCHEMA, columns).take(order)


def lines_in(trace: TraceData, shares: HostShares) -> list[dict[str, Any]]:
    """The lines that started anything in the part of a trace that shares are of, those with most time first.

    Returns:
        For each its `file`, `line`, `function`, `count` of spans and `self_ns`.
    """
    spans, frames, strings = trace.columns("spans"), trace.columns("frames"), trace.strings
    line_of, first = _line_groups(trace)
    of_stack = np.append(line_of, np.int32(-1))[trace.column("stacks", "frame")]
    stack = np.append(user_stacks(trace), np.int32(-1))[spans["stack"]]
    of_span = np.where(shares.counts, np.append(of_stack, np.int32(-1))[stack], -1).astype(np.int32)
    own = _core.group_sums(of_span, len(first), shares.own_ns)
    count = _core.group_counts(of_span, len(first))
    file, line, function = (frames[name][first].tolist() for name in ("file", "line", "function"))
    return [
        {
            "file": strings[file[row]],
            "line": line[row],
            "function": strings[function[row]],
            "count": int(count[row]),
            "self_ns": int(own[row]),
        }
        for row in np.argsort(-own, kind="stable").tolist()
        if count[row]
    ]


def _line_groups(trace: TraceData) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Put frames of one file, line and function together."""
    frames = trace.columns("frames")
    if len(frames) == 0:
        nothing = np.zeros(0, dtype=np.int32)
        return nothing, nothing
    return _core.group([frames[name] for name in ("file", "line", "function")])


def _moved(values: NDArray[np.int64], to: NDArray[np.int32]) -> NDArray[np.int64]:
    """Add each value to the row it moves to."""
    moved = np.zeros_like(values)
    np.add.at(moved, to, values)
    return moved
