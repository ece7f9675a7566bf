"""Attributes the kernels of compiled graphs to the program's lines and modules.

A compiler calls its kernels from a generated module, so the Python stack of a call ends in a line of that module. For each such line, the
compiler knows which graph nodes the kernel computes. A node has a line and a module of the program, relative to the compiled frame and to the
module whose call was compiled; the span says which these were.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.combine.extend import GrowingTable, Origins, extend
from kinetoscope.model.kinds import is_call
from kinetoscope.model.losses import Loss
from kinetoscope.model.names import COMPILED_GRAPH
from kinetoscope.model.nesting import depths_of
from kinetoscope.model.schema import SCOPE_FUSED
from kinetoscope.model.strings import StringTable
from kinetoscope.model.trace_data import AnyTrace, TraceData
from kinetoscope.storage.appended_rows import AppendedRows
from kinetoscope.tables.costs.call import UNKNOWN, Cost
from kinetoscope.tables.costs.evaluate import cost_of, dtype_of, recorded_names
from kinetoscope.tables.host import compiling


@dataclass(frozen=True)
class SourceFrame:
    """A frame of the program: its file, line and the qualified name of its function."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class ModuleFrame:
    """A module around a node.

    Attributes:
        path: How the compiler reached it, such as `L['self'].blocks.0`.
        class_name: Its class.
        address: Its identity in the process that compiled; 0 if that was another process.
    """

    path: str
    class_name: str
    address: int = 0


@dataclass(frozen=True)
class Node:
    """A node of a compiled graph.

    Attributes:
        name: Its name in the graph.
        operator: The operator that it calls.
        frames: The program's frames that made it, from the compiled one inwards.
        modules: The modules around it, from the outermost inwards.
        elements: How many elements it computes, or reads if these are more; 0 for a view.
        inputs: The texts that a row of `shapes` would have for its arguments; None where a size changes between calls.
    """

    name: str
    operator: str
    frames: tuple[SourceFrame, ...]
    modules: tuple[ModuleFrame, ...]
    elements: int = 0
    inputs: tuple[str, str, str] | None = None

    @property
    def cost(self) -> Cost:
        """Its floating-point operations, and what it reads and writes."""
        name, overload = recorded_names(self.operator)
        return UNKNOWN if self.inputs is None or not name else cost_of(name, overload, self.inputs)

    @property
    def dtype(self) -> str:
        """The element type of its first tensor; empty where unknown."""
        return "" if self.inputs is None else dtype_of(self.inputs)


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel in a generated module.

    Attributes:
        line: The line of the call.
        kernel: The name of the kernel there.
        fused: Whether the compiler generated the kernel, too.
        nodes: What it computes.
        bytes: How much it reads and writes; -1 where unknown.
        exact: Whether these are its nodes, with their modules; else only lines are known.
    """

    line: int
    kernel: str
    fused: bool
    nodes: tuple[Node, ...]
    bytes: int = -1
    exact: bool = True


KERNELS = "compiled_kernels"
"""The table of a recording with the kernel calls of each generated file, as JSON."""
_SUFFIX = ".kinetoscope.json"
_VERSION = 2


def notes_of(file: str) -> Path:
    """The file with the notes on a generated file."""
    return Path(f"{file.removesuffix('.py')}{_SUFFIX}")


def notes(calls: Sequence[KernelCall]) -> bytes:
    """The stored notes on the kernels that a generated file calls."""
    return json.dumps({"version": _VERSION, "calls": [asdict(call) for call in calls]}).encode()


def stored_calls(file: str) -> tuple[KernelCall, ...] | None:
    """Read the notes on a generated file, without addresses of modules, which are another process's; None if there are none."""
    if not file.endswith(".py"):
        return None
    try:
        stored = json.loads(notes_of(file).read_bytes())
        return tuple(map(_stored_call, stored["calls"])) if stored["version"] == _VERSION else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stored_call(call: dict[str, Any], *, keeps_addresses: bool = False) -> KernelCall:
    """Parse a call; `keeps_addresses` if the addresses are of the process that recorded the trace."""
    without: dict[str, Any] = {} if keeps_addresses else {"address": 0}
    nodes = []
    for node in call["nodes"]:
        parts = {
            "frames": tuple(SourceFrame(**frame) for frame in node["frames"]),
            "modules": tuple(ModuleFrame(**module | without) for module in node["modules"]),
            "inputs": None if node["inputs"] is None else tuple(node["inputs"]),
        }
        nodes.append(Node(**node | parts))
    return KernelCall(**call | {"nodes": tuple(nodes)})


def noted_calls(recordings: Sequence[AppendedRows]) -> dict[str, tuple[KernelCall, ...]]:
    """The kernel calls in each generated file, from the notes in recordings; damaged ones are left out."""
    calls_of_file: dict[str, tuple[KernelCall, ...]] = {}
    for rows in recordings:
        columns, _ = rows.columns(KERNELS, {"file": str, "calls": list})
        recorded_calls: dict[str, tuple[KernelCall, ...]] = {}
        for file, calls in zip(columns["file"], columns["calls"], strict=True):
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                # A long file has several rows.
                more = tuple(_stored_call(call, keeps_addresses=True) for call in calls)
                recorded_calls[file] = recorded_calls.get(file, ()) + more
        calls_of_file |= recorded_calls
    return calls_of_file


def attribute_recording(trace: AnyTrace, recordings: Sequence[AppendedRows] = ()) -> AnyTrace:
    """Attribute the kernels of compiled programs, and describe compilations; kernels without notes become a loss.

    Args:
        trace: The trace; it is unchanged and shares its columns with the new one.
        recordings: The appended rows of its recordings; further notes are next to the compiler's files.
    """
    noted = noted_calls(recordings)
    if not noted and not any(text.startswith(COMPILED_GRAPH) for text in trace.strings):
        return describe_compilations(trace)

    def calls_of(file: str) -> Sequence[KernelCall] | None:
        file_calls = noted.get(file)
        return stored_calls(file) if file_calls is None else file_calls

    attributed = describe_compilations(attribute_kernels(trace, calls_of))
    spans = attributed.columns("spans")
    kernels = [row for row, text in enumerate(attributed.strings) if text.startswith(_CPU_KERNEL)]
    unknown = int(np.count_nonzero(np.isin(spans["name"], kernels) & (spans["origin"] < 0)))
    if not unknown:
        return attributed
    return extend(attributed, losses=[Loss.of("unknown_kernels", unknown, why=_NOT_STORED)])


# How Inductor names its kernels for the CPU.
_CPU_KERNEL = "cpp_fused_"
_NOT_STORED = "Neither the recording nor the compiler's cache has notes on what these kernels compute."


def attribute_kernels(
    trace: AnyTrace,
    calls_of: Callable[[str], Sequence[KernelCall] | None],
) -> AnyTrace:
    """Return a trace whose kernels of compiled graphs have the lines and modules of the program.

    Args:
        trace: The trace; it is unchanged and shares its columns with the new one.
        calls_of: Returns the calls of kernels in a file; None if no compiler generated the file.

    Returns:
        The trace with the table `origins`; the given one if it has no stacks that end in generated files.
    """
    sites = _Sites(trace, calls_of)
    if not sites.calls:
        return trace
    spans = trace.columns("spans")
    site = np.append(sites.of_stack, np.int32(-1))[spans["own_stack"]]
    site[is_call(spans["kind"])] = -1
    rows = np.flatnonzero(site >= 0)
    origins = _KernelOrigins(trace, sites)
    origin = np.full(len(spans), -1, dtype=np.int32)
    keys = np.stack([spans[name][rows] for name in ("own_stack", "forward_stack", "module")], axis=1)
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    firsts = [
        origins.add_kernel(int(sites.of_stack[stack]), stack, forward, module)
        for stack, forward, module in distinct.tolist()
    ]
    origin[rows] = np.array(firsts, dtype=np.int32)[group.reshape(-1)]
    scope, arguments = spans["scope"].copy(), spans["arguments"].copy()
    fused = np.array([call.fused for call in sites.calls], dtype=bool)
    kernel = np.array([origins.strings.row(call.kernel) for call in sites.calls], dtype=np.int64)
    fused_rows = rows[fused[site[rows]] & (kernel[site[rows]] == spans["name"][rows])]
    scope[fused_rows] = SCOPE_FUSED
    bare = fused_rows[arguments[fused_rows] < 0]
    arguments[bare] = [origins.described(origin_row) for origin_row in origin[bare].tolist()]
    unknown = sum(not sites.calls[call].exact for call in site[rows].tolist())
    losses = [Loss.of("unknown_kernels", unknown)] if unknown else []
    return cast("AnyTrace", origins.trace({"origin": origin, "scope": scope, "arguments": arguments}, losses))


# Columns of `compiles` that the timeline shows of a compilation, in this order.
_DESCRIBED = (
    *("compile_id", "function", "file", "line", "reason", "failure"),
    *(f"{phase}_ns" for phase in ("dynamo", "aot", "inductor", "codegen", "kernel_compile", "autotune")),
    *("cache_hits", "cache_misses", "guards", "operators"),
)


def describe_compilations(trace: AnyTrace) -> AnyTrace:
    """Return a trace whose compilation ranges have the values of `compiles` as arguments, which every viewer shows."""
    spans = trace.columns("spans")
    if len(trace.columns("compiles")) == 0:
        return trace
    arguments, described = GrowingTable(trace, "arguments", ("json",)), spans["arguments"].copy()
    for row in compiling.compiles(trace).to_pylist():
        facts = {name: row[name] for name in _DESCRIBED if row[name] is not None}
        if row["span"] is not None and described[row["span"]] < 0 and "function" in facts:
            described[row["span"]] = arguments.row((json.dumps(facts, ensure_ascii=False),))
    return extend(trace, spans={"arguments": described}, tables={"arguments": arguments.columns})


_NOT_GENERATED = -2


class _Sites:
    """The calls of kernels that the stacks of a trace end in.

    Attributes:
        calls: The calls.
        of_stack: For each stack the call in its innermost frame of a generated file; -1 without.
        entry: For each stack the stack of that frame; -1 without.
    """

    def __init__(self, trace: TraceData, calls_of: Callable[[str], Sequence[KernelCall] | None]) -> None:
        frames, stacks, strings = trace.columns("frames"), trace.columns("stacks"), trace.strings
        self.calls: list[KernelCall] = []
        call_of_line: dict[int, dict[int, int]] = {}
        for file in np.unique(frames["file"]).tolist():
            calls = calls_of(strings[file])
            if calls is not None:
                call_of_line[file] = {call.line: index for index, call in enumerate(calls, len(self.calls))}
                self.calls += calls
        self.of_stack = np.full(len(stacks), -1, dtype=np.int32)
        self.entry = self.of_stack
        if not self.calls:
            return
        of_frame = [
            call_of_line[file].get(line, -1) if file in call_of_line else _NOT_GENERATED
            for file, line in zip(frames["file"].tolist(), frames["line"].tolist(), strict=True)
        ]
        call = np.array([*of_frame, _NOT_GENERATED], dtype=np.int32)[stacks["frame"]]
        innermost = _core.nearest_marked(
            stacks["parent"], depths_of(stacks["parent"]), call != _NOT_GENERATED
        )
        self.of_stack = np.append(np.maximum(call, -1), np.int32(-1))[innermost]
        self.entry = np.where(self.of_stack >= 0, innermost, -1)


class _KernelOrigins(Origins):
    def __init__(self, trace: TraceData, sites: _Sites) -> None:
        super().__init__(trace)
        self._trace, self._sites = trace, sites
        self._frames = GrowingTable(trace, "frames", ("function", "file", "line"))
        self._stacks = GrowingTable(trace, "stacks", ("parent", "frame"))
        self._arguments = GrowingTable(trace, "arguments", ("json",))
        self._modules = _Modules(trace, self.strings)
        self._calls: dict[int, KernelCall] = {}

    def add_kernel(self, site: int, kernel_stack: int, forward: int, module: int) -> int:
        """Add the nodes of a kernel called at a site, by a stack (and, in backward, that of the forward) and in a module; return the first row."""
        call = self._sites.calls[site]
        below = self._below(kernel_stack)
        around = forward if forward >= 0 else kernel_stack
        shares = _shares(call.nodes)
        nodes: list[tuple[float, Node, int, int]] = []
        for node, share in zip(call.nodes, shares, strict=True):
            module_row = self._modules.row(node.modules, module)
            nodes.append((share, node, module_row, self._stack(around, node.frames, below)))
        weight_of: dict[tuple[int, int], float] = {}
        for share, _, module_row, stack in nodes:
            weight_of[module_row, stack] = weight_of.get((module_row, stack), 0.0) + share
        # Of lines with equal weights, one in a module comes first.
        nodes.sort(key=lambda row: (-weight_of[row[2], row[3]], row[2] < 0, row[2], row[3], -row[0]))
        first = self.add_group(
            call.kernel,
            [
                {
                    "node": self.strings.row(node.name),
                    "operator": self.strings.row(node.operator),
                    "module": module_row,
                    "stack": stack,
                    "weight": share,
                    "dtype": self.strings.row(node.dtype),
                    "flops": _known(node.cost.flops),
                    "bytes": call.bytes if call.fused else _known(node.cost.bytes),
                }
                for share, node, module_row, stack in nodes
            ],
        )
        self._calls[first] = call
        return first

    def described(self, first: int) -> int:
        """The row of `arguments` that describes what a kernel computes; -1 without nodes."""
        if first < 0:
            return -1
        nodes = self._calls[first].nodes
        parts: dict[str, float] = {}
        for node, share in zip(nodes, _shares(nodes), strict=True):
            path = ".".join(_parsed(node.modules[-1].path)[1]) if node.modules else ""
            line = f", {os.path.basename(node.frames[-1].file)}:{node.frames[-1].line}" if node.frames else ""
            text = f"{node.operator}{' in ' if path else ''}{path}{line}"
            parts[text] = parts.get(text, 0.0) + share
        order = sorted(parts.items(), key=lambda part: -part[1])
        computes = [f"{100 * share:.0f}% {text}" for text, share in order if share > 0]
        return self._arguments.row((json.dumps({"computes": computes}, ensure_ascii=False),))

    def trace(self, changed: Mapping[str, NDArray[Any]], losses: Sequence[Loss]) -> TraceData:
        """The trace with the rows, with changed columns of spans, and with more losses."""
        grown = (self, self._frames, self._stacks, self._arguments, self._modules.grown)
        tables = {table.name: table.columns for table in grown}
        return extend(self._trace, losses=losses, spans=changed, tables=tables, strings=self.texts)

    def _below(self, stack: int) -> list[int]:
        """The frames of a stack below the generated file's, outermost first."""
        entry, frames = self._sites.entry[stack], []
        while stack != entry:
            frames.append(self._stacks.columns["frame"][stack])
            stack = self._stacks.columns["parent"][stack]
        return frames[::-1]

    def _stack(self, around: int, frames: tuple[SourceFrame, ...], below: list[int]) -> int:
        """The stack of a node: the caller of the compiled function, then the program's frames, then those below the kernel call."""
        stack = self._caller(around, frames)
        for frame in frames:
            file = self.strings.row(frame.file)
            function = self.strings.row(frame.function)
            stack = self._stacks.row((stack, self._frames.row((function, file, frame.line))))
        for row in below:
            stack = self._stacks.row((stack, row))
        return stack

    def _caller(self, around: int, frames: tuple[SourceFrame, ...]) -> int:
        """The stack that called the function in which a node begins; `around` if the function is not on it."""
        if not frames:
            return around
        outer = frames[0]
        name = outer.function.rpartition(".")[2]
        stack = around
        while stack >= 0:
            frame = self._stacks.columns["frame"][stack]
            parent: int = self._stacks.columns["parent"][stack]
            if frame >= 0 and self.texts[self._frames.columns["file"][frame]] == outer.file:
                function = self.texts[self._frames.columns["function"][frame]].rpartition(".")[2]
                if function == name or function.startswith(f"{_RESUMED}{name}_at_"):
                    return parent
            stack = parent
        return around


# What the compiler calls the rest of a function behind a graph break.
_RESUMED = "torch_dynamo_resume_in_"


# How the compiler reaches a module of torch's own, such as Sequential: by this variable of the module that compiling put around it.
_WRAPPED, _WRAPPER = "fn", "OptimizedModule"
_BASE = re.compile(r"[LG]\['([^']*)'\]")
# How the compiler writes an attribute whose name is no identifier, such as a number.
_GETATTR = re.compile(r"getattr\((.*), '([^']*)'\)")
_PART = re.compile(r"\.([^.\[\]]+)|\[['\"]?([^'\"\]]*)['\"]?\]")


class _Modules:
    def __init__(self, trace: TraceData, strings: StringTable) -> None:
        self.grown = GrowingTable(trace, "modules", ("parent", "name", "class"))
        self._strings = strings
        self._child: dict[tuple[int, int], int] = {}
        self._by_address: dict[int, int] = {}
        self._roots: dict[tuple[str, int | str, int], int] = {}
        for row in range(len(self.grown)):
            self._child.setdefault((self.grown.columns["parent"][row], self.grown.columns["name"][row]), row)
            if trace.columns("modules")["address"][row]:
                self._by_address[int(trace.columns("modules")["address"][row])] = row

    def row(self, modules: tuple[ModuleFrame, ...], root: int) -> int:
        """The row of the innermost module; `root` without modules.

        Args:
            modules: The modules around a node, from the outermost inwards.
            root: The module in which the compiled graph ran; -1 without.
        """
        if not modules:
            return root
        inner = modules[-1]
        base, parts = _parsed(inner.path)
        classes = {_parsed(module.path)[1]: module.class_name for module in modules}
        if (
            base == _WRAPPED
            and root >= 0
            and self.grown.columns["class"][root] == self._strings.row(_WRAPPER)
        ):
            wrapped = self._descend(root, ("_orig_mod",), 0, {("_orig_mod",): modules[0].class_name})
            return self._descend(wrapped, parts, 0, classes)
        if base == "self" and root >= 0 and (not parts or (root, self._strings.row(parts[0])) in self._child):
            return self._descend(root, parts, 0, classes)
        with_address = [index for index, module in enumerate(modules) if module.address in self._by_address]
        if with_address:
            outer = modules[with_address[-1]]
            return self._descend(self._by_address[outer.address], parts, len(_parsed(outer.path)[1]), classes)
        if base == "self" and root >= 0:
            return self._descend(root, parts, 0, classes)
        top = modules[0]
        return self._descend(self._apart(top, root), parts, len(_parsed(top.path)[1]), classes)

    def _apart(self, module: ModuleFrame, caller: int) -> int:
        """The row of a module that a compiled function does not reach through the module that called it."""
        key = (module.class_name, module.address or module.path, caller)
        root = self._roots.get(key)
        if root is None:
            row = self.grown.row_of.get((-1, 0, self._strings.row(module.class_name)), -1)
            taken = row < 0 or row in self._roots.values()
            root = self._roots[key] = (
                self.grown.add((-1, 0, self._strings.row(module.class_name)), caller=caller) if taken else row
            )
        return root

    def _descend(
        self, row: int, parts: tuple[str, ...], skipped: int, classes: Mapping[tuple[str, ...], str]
    ) -> int:
        """Follow names from a module, adding those that the trace does not have."""
        for depth in range(skipped, len(parts)):
            name = self._strings.row(parts[depth])
            child = self._child.get((row, name), -1)
            if child < 0:
                kind = self._strings.row(classes.get(parts[: depth + 1], ""))
                child = self.grown.row((row, name, kind), caller=row)
                self._child[row, name] = child
            row = child
        return row


def _parsed(path: str) -> tuple[str, tuple[str, ...]]:
    """The base of a path, and the attribute names that follow; `_modules` is skipped."""
    while (plain := _GETATTR.sub(r"\1.\2", path)) != path:
        path = plain
    match = _BASE.match(path)
    base, rest = (match[1], path[match.end() :]) if match else ("", path)
    parts = tuple(part for groups in _PART.findall(rest) if (part := groups[0] or groups[1]) != "_modules")
    return base, parts


def _known(value: int | None) -> int:
    return -1 if value is None else value


def _shares(nodes: tuple[Node, ...]) -> list[float]:
    """The estimated share of each node in the time of its kernel, by number of elements."""
    total = sum(node.elements for node in nodes)
    return [node.elements / total if total else 1 / len(nodes) for node in nodes]
