"""Rebuild Python calls from the stacks of operators, for traces that did not record the calls themselves.

A rebuilt call lasts from its first operator to its last; a function that runs no operator has none. Separate calls become
separate slices: for each operator the recorder notes how many of the calls around it continued since the previous operator
(`spans.kept`). A slice that may be one call or several says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.columns import Columns
from kinetoscope.model.hierarchy import garbage_collections, requested_calls
from kinetoscope.model.kinds import is_call, is_range
from kinetoscope.model.rows import Mask, ModuleRow, Rows, StackRow
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.strings import StringTable
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.stacks import working_stacks

# Every module call passes through these two frames: hide them.
_CALL_FRAMES = frozenset({"Module._wrapped_call_impl", "Module._call_impl"})
_CALL_FILE = "torch/nn/modules/module.py"
_MODULE_CALL = "Module._wrapped_call_impl"
_INSTALLED = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True)
class ShownFrames:
    """A trace's stacks without frames that only pass a call on, and with short names for files of installed packages.

    Attributes:
        row: For each stack the stack shown instead, -1 for none; the last entry stands for row -1.
        parent: For each stack the row of its caller, -1 for the outermost.
        strings: The trace's strings, followed by the short file names.
        file: For each frame the string id of its file.
        module_calls: The frames that are module calls.
    """

    row: NDArray[np.int32]
    parent: NDArray[np.int32]
    strings: list[str]
    file: NDArray[np.int32]
    module_calls: frozenset[int]


def shown_frames(trace: TraceData) -> ShownFrames:
    """Return the shown part of a trace's stacks."""
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
    visible = [-1] * (len(parent) + 1)
    for row, frame in enumerate(stacks["frame"].tolist()):
        # A caller's row is lower than its callee's, so it is already resolved.
        parent[row] = visible[parent[row]]
        visible[row] = parent[row] if frame >= 0 and passes_on[frame] else row
    short: dict[int, int] = {}
    folders = [f"{folder}/" for folder in trace.run_info.import_folders]
    for file in set(frames["file"].tolist()):
        text = strings[file]
        rest = next((text[len(folder) :] for folder in folders if text.startswith(folder)), "")
        for folder in _INSTALLED:
            rest = rest or text.rpartition(folder)[2] * (folder in text)
        if rest:
            short[file] = len(strings)
            strings.append(rest)
    return ShownFrames(
        row=np.array(visible, np.int32),
        parent=np.array(parent, np.int32),
        strings=strings,
        file=np.array([short.get(file, file) for file in frames["file"].tolist()], np.int32),
        module_calls=frozenset(
            row
            for row, function in enumerate(frames["function"].tolist())
            if passes_on[row] and strings[function] == _MODULE_CALL
        ),
    )


def stacks_of_spans(trace: TraceData, shown: ShownFrames) -> NDArray[np.int32]:
    """Return for each span the row of the stack to show; -1 for none, or if the spans around it already show it."""
    spans = trace.columns("spans")
    stack, around = spans["stack"], spans["parent"]
    repeated = (around >= 0) & (stack == stack[around])
    if requested_calls(trace).any():
        # The calls around a span already show its stack, except for a forward operator's stack in backward.
        repeated |= spans["forward_stack"] < 0
    return np.where(repeated, np.int32(-1), shown.row[stack])


# The bits of `spans.kept` that hold the count.
_KEPT = 0x3FF

# They hold modules and are never called.
_LISTS = frozenset({"ModuleList", "ModuleDict"})


@dataclass(frozen=True)
class RebuiltCalls:
    """Rebuilt calls as columns, unsorted.

    Attributes:
        thread: The row of the thread.
        start_ns: The start of its first operator.
        duration_ns: The time from there to the end of its last operator.
        stack: The row of the stack with the call as innermost frame; for a module call, the stack of its caller.
        depth: The number of calls around it.
        module: The row of the module, -1 for a function call.
        kind: `SpanKind.MODULE` for a module call, else `SpanKind.PYTHON`.
        name: The row of strings with the name of the function or of the module's class.
        unsure: Whether it may be several calls.
    """

    thread: NDArray[np.int32]
    start_ns: Rows
    duration_ns: Rows
    stack: NDArray[np.int32]
    depth: NDArray[np.int32]
    module: NDArray[np.int32]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    unsure: Mask


def rebuilt_calls(trace: TraceData, shown: ShownFrames) -> RebuiltCalls | None:
    """Rebuild the calls of a trace recorded `with_stack`, or only module calls if it was recorded `with_modules` alone.

    Args:
        trace: The trace.
        shown: Its stacks without hidden frames.

    Returns:
        The calls; None without these flags, without stacks, or if calls were recorded.
    """
    spans = trace.columns("spans")
    kind = spans["kind"]
    functions = bool(trace.run_info.with_stack)
    modules = (functions or bool(trace.run_info.with_modules)) and not (kind == SpanKind.MODULE).any()
    if not (functions or modules) or ((kind == SpanKind.PYTHON) & requested_calls(trace)).any():
        return None
    stack, module, parent = spans["own_stack"], spans["own_module"], spans["parent"]
    # A range outlives the call that entered it: it belongs to that call's caller.
    ranges = np.flatnonzero(is_range(kind))
    if len(ranges):
        stack = stack.copy()
        stack[ranges] = np.append(working_stacks(trace), -1)[stack[ranges]]
    shared_frames = spans["kept"]
    inside = (
        (parent >= 0) & (shared_frames & _KEPT == 0) & (stack == stack[parent]) & (module == module[parent])
    )
    # The stack of a garbage collection ends in the recorder's own call.
    is_event = ~inside & ~garbage_collections(trace)
    events = np.flatnonzero((shown.row[stack] >= 0) & (spans["lane"] == 0) & is_event)
    if len(events) == 0:
        return None
    # Row -1, outside of modules, comes first.
    pairs = stack[events].astype(np.int64) * (len(trace.columns("modules")) + 1) + module[events] + 1
    distinct, path = np.unique(pairs, return_inverse=True)
    path_of = _paths(trace, shown, functions, modules)
    begins, steps = [0], list[_Step]()
    for stack_row, of_module in zip(*np.divmod(distinct, len(trace.columns("modules")) + 1), strict=True):
        steps += path_of(StackRow(int(stack_row)), ModuleRow(int(of_module) - 1))
        begins.append(len(steps))
    keys: dict[tuple[int, int, int], int] = {}
    rebuilt = _core.rebuild_calls(
        spans["thread"][events],
        spans["start_ns"][events],
        # A step may end in another call than it began in, and belongs to neither.
        np.where(kind[events] == SpanKind.STEP, -1, spans["duration_ns"][events]),
        path.reshape(-1).astype(np.int32),
        shared_frames[events],
        np.array(begins, np.int32),
        np.array([keys.setdefault(step.key, len(keys)) for step in steps], np.int32),
        np.array([step.frames for step in steps], np.int32),
    )
    step = rebuilt["step"]
    if len(step) == 0:
        return None
    of_stack = np.array([step.stack for step in steps], np.int32)[step]
    of_module = np.array([step.module for step in steps], np.int32)[step]
    is_module = of_module >= 0
    function = np.append(trace.columns("frames")["function"], 0)[
        np.append(trace.columns("stacks")["frame"], -1)[of_stack]
    ]
    class_name = np.append(trace.columns("modules")["class"], 0)[of_module]
    return RebuiltCalls(
        rebuilt["thread"],
        rebuilt["start_ns"],
        rebuilt["duration_ns"],
        of_stack,
        rebuilt["depth"],
        of_module,
        kind=np.where(is_module, np.uint8(SpanKind.MODULE), np.uint8(SpanKind.PYTHON)),
        name=np.where(is_module, class_name, function).astype(np.int32),
        unsure=rebuilt["unsure"].astype(np.bool_),
    )


def order_with_calls(
    spans: Mapping[str, NDArray[Any]] | Columns, calls: RebuiltCalls
) -> tuple[Rows, NDArray[np.int32]]:
    """Sort spans and the calls rebuilt from them by thread and start.

    Of two that start at the same time, the longer one comes first; at equal length, a call precedes the spans in it.

    Args:
        spans: The columns `thread`, `start_ns` and `duration_ns`.
        calls: The calls.

    Returns:
        The order of spans followed by calls, and the new row of each span, with -1 at the end for row -1.
    """
    count, more = len(spans["start_ns"]), len(calls.start_ns)
    order = np.lexsort(
        (
            np.append(np.arange(count, dtype=np.int64) + more, calls.depth.astype(np.int64)),
            -np.append(spans["duration_ns"], calls.duration_ns),
            np.append(spans["start_ns"], calls.start_ns),
            np.append(spans["thread"], calls.thread),
        )
    )
    moved = np.full(count + more, -1, np.int32)
    moved[order] = np.arange(count + more, dtype=np.int32)
    return order, np.append(moved[:count], np.int32(-1))


def call_names(
    trace: TraceData,
    shown: ShownFrames,
    spans: Mapping[str, NDArray[Any]],
    own_stack: NDArray[np.int32],
    strings: list[str],
) -> NDArray[np.int32]:
    """The names of spans, with calls named as Kineto names them: `file(line): function`, and `nn.Module: Class_0`.

    Foreign traces may use these names already; a call whose name is not that of its function keeps it.

    Args:
        trace: The trace of the spans.
        shown: Its stacks without hidden frames.
        spans: The columns `name`, `kind`, `module` and `start_ns` of the spans.
        own_stack: For each span the stack with the span as innermost frame.
        strings: The strings that names refer to; extended in place, without duplicates.

    Returns:
        A new column of names.
    """
    kind, module = spans["kind"], spans["module"]
    name = spans["name"].copy()
    stacks, frames, modules = (trace.columns(table) for table in ("stacks", "frames", "modules"))
    table = StringTable(strings)
    if (calls := np.flatnonzero(kind == SpanKind.PYTHON)).size:
        frame = np.append(stacks["frame"], -1)[own_stack[calls]]
        function = np.append(frames["function"], -1)[frame]
        # Kineto writes only the name of a built-in function, which has no file.
        in_file = np.array([bool(shown.strings[file]) for file in shown.file.tolist()] + [False], np.bool_)
        plain = (function == name[calls]) & in_file[frame]
        begins = np.where(frames["first_line"] > 0, frames["first_line"], frames["line"])
        files, functions = shown.file.tolist(), frames["function"].tolist()
        named = np.full(len(frames) + 1, -1, np.int32)
        for frame_row in np.unique(frame[plain]).tolist():
            called = shown.strings[functions[frame_row]].rpartition(".")[2]
            named[frame_row] = table.row(f"{shown.strings[files[frame_row]]}({begins[frame_row]}): {called}")
        name[calls[plain]] = named[frame[plain]]
    if (calls := np.flatnonzero(kind == SpanKind.MODULE)).size:
        plain = np.append(modules["class"], -1)[module[calls]] == name[calls]
        of_class = modules["class"].tolist()
        count_of: dict[int, int] = {}
        # Numbered in the order of their first calls.
        name_of = np.full(len(of_class), -1, np.int32)
        for row in module[calls[plain][np.argsort(spans["start_ns"][calls[plain]], kind="stable")]].tolist():
            if name_of[row] < 0:
                number = count_of[of_class[row]] = count_of.get(of_class[row], -1) + 1
                name_of[row] = table.row(f"nn.Module: {strings[of_class[row]]}_{number}")
        name[calls[plain]] = name_of[module[calls[plain]]]
    return name


def numbers_of_calls(kind: NDArray[np.uint8], start_ns: Rows) -> Rows:
    """Number all calls of a trace by start time, from 1; -1 for other spans."""
    numbers = np.full(len(kind), -1, np.int64)
    rows = np.flatnonzero(is_call(kind))
    numbers[rows[np.argsort(start_ns[rows], kind="stable")]] = np.arange(1, len(rows) + 1)
    return numbers


_MODULE_NAME = re.compile(r"nn\.Module: .*_(\d+)", re.DOTALL)


def module_number(name: str) -> int:
    """The number of a module within its class, from the name of a call; -1 if the name has none."""
    match = _MODULE_NAME.fullmatch(name)
    return int(match[1]) if match else -1


def as_module_calls(
    trace: TraceData, shown: ShownFrames, kind: NDArray[np.uint8], name: NDArray[np.int32]
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Turn recorded function calls into module calls by their function, for traces that did not record module calls.

    Args:
        trace: The trace of the spans.
        shown: Its stacks without hidden frames.
        kind: The kinds of the spans.
        name: Their names.

    Returns:
        New columns of kinds and names; a module call has the name of its class.
    """
    spans = trace.columns("spans")
    kind, name = kind.copy(), name.copy()
    if shown.module_calls and not (kind == SpanKind.MODULE).any():
        called = np.flatnonzero((kind == SpanKind.PYTHON) & requested_calls(trace))
        frame = np.append(trace.columns("stacks")["frame"], -1)[spans["own_stack"][called]]
        of_module = called[np.isin(frame, list(shown.module_calls)) & (spans["module"][called] >= 0)]
        kind[of_module] = SpanKind.MODULE
        name[of_module] = trace.columns("modules")["class"][spans["module"][of_module]]
    return kind, name


class _Step(NamedTuple):
    """A call in a stack: its identity, the number of frames around it, and its columns."""

    key: tuple[int, int, int]
    frames: int
    stack: StackRow
    module: ModuleRow


def _callers(trace: TraceData) -> list[ModuleRow]:
    """The module that calls each module; its container if no call was recorded."""
    modules = trace.columns("modules")
    holder = modules["parent"].tolist()
    lists = [trace.strings[name] in _LISTS for name in modules["class"].tolist()]
    calling: list[ModuleRow] = []
    for row, caller in enumerate(modules["caller"].tolist()):
        visited = {row}
        if caller < 0:
            caller = holder[row]
            while caller >= 0 and lists[caller] and caller not in visited:
                visited.add(caller)
                caller = holder[caller]
        calling.append(ModuleRow(caller if caller not in visited else -1))
    return calling


def _paths(
    trace: TraceData, shown: ShownFrames, functions: bool, modules: bool
) -> Callable[[StackRow, ModuleRow], list[_Step]]:
    """Return a function from a stack and the innermost module to the calls around an operator, outermost first."""
    frames, stacks = trace.columns("frames"), trace.columns("stacks")
    function_of, file_of = frames["function"].tolist(), frames["file"].tolist()
    frame_of, parent_of, shown_row = stacks["frame"].tolist(), stacks["parent"].tolist(), shown.row.tolist()
    module_frames = shown.module_calls if modules else frozenset[int]()
    callers = _callers(trace)

    def path_of(row: StackRow, module: ModuleRow) -> list[_Step]:
        rows, modules_of = [], {}
        while row >= 0:
            rows.append(row)
            if frame_of[row] in module_frames and module >= 0:
                modules_of[row] = module
                module = callers[module]
            row = parent_of[row]
        path = []
        around = StackRow(-1)
        for outer, row in enumerate(reversed(rows)):
            frame = frame_of[row]
            if row in modules_of:
                path.append(_Step((around, -1, modules_of[row]), outer, around, modules_of[row]))
            elif shown_row[row] == row:
                if functions:
                    key = (around, function_of[frame], file_of[frame])
                    path.append(_Step(key, outer, row, ModuleRow(-1)))
                around = row
        return path

    return path_of
