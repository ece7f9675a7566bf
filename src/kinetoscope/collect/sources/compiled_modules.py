"""The modules of code that `torch.compile` made: their kernels, and what each of them computes."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import math
import operator
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kinetoscope._after_import import AfterImport
from kinetoscope.collect.recorder.library import ready_recorder
from kinetoscope.collect.recorder.stream import STREAM
from kinetoscope.collect.sources.observed_kernels import COMPILER, OBSERVED_KERNELS
from kinetoscope.combine.compiled import (
    KERNELS,
    KernelCall,
    ModuleFrame,
    Node,
    SourceFrame,
    notes,
    notes_of,
    stored_calls,
)
from kinetoscope.storage.appended_rows import KeptRows
from kinetoscope.storage.atomic_write import open_atomically
from kinetoscope.tables.costs.call import SCALAR_TYPES

# A call takes one or two KB.
_CALLS_IN_A_ROW = 500
_NOTES_KERNELS = "set_kernel_post_grad_provenance_tracing"
# The compiler collects what it needs for this level only, and nothing that takes time: any other than 0 and 1 is "basic".
_BASIC_PROVENANCE = 2


class CompiledModules:
    """What this process knows of the modules that the compiler generated."""

    def __init__(self) -> None:
        """Begin without any; nothing of torch is touched."""
        self._lock = threading.Lock()
        self._calls: dict[str, tuple[KernelCall, ...]] = {}
        self._noting = threading.local()
        self._hook: AfterImport | None = None
        # Rows of the table for each file, as JSON: made once, and written into every recording.
        self._rows: dict[str, list[str]] = {}
        self._recording = 0
        self._written: set[str] = set()
        self.failures: dict[str, int] = {}

    def watch(self) -> None:
        """Note what is compiled from now on; a second call does nothing."""
        with self._lock:
            if self._hook is None:
                self._hook = AfterImport(COMPILER, lambda: self._safely(self._compiler_is_imported))
                self._hook.wait()

    def calls_of(self, file: str) -> Sequence[KernelCall] | None:
        """Return the kernels that a file calls: as noted in this process or stored by another, else by the compiler's own lines.

        Returns:
            The calls; None if the file is not one that the compiler generated.
        """
        known = self._calls.get(file)
        if known is None and (known := stored_calls(file)) is not None:
            self._calls[file] = known
        if known is None and COMPILER in sys.modules:
            from torch._inductor.codecache import PyCodeCache

            if file in PyCodeCache.linemaps:
                # A graph without any of the program's lines has an empty list.
                lines, traces = PyCodeCache.linemaps[file] or ((), ())
                known = _by_lines(Path(file).read_text(encoding="utf-8"), lines, traces)
                self._calls[file] = known
        return known

    def recording_began(self) -> None:
        """Write what is known into a native recording that has just begun; one that another session began before has it."""
        with self._lock:
            if self._recording != STREAM.recordings:
                self._recording, self._written = STREAM.recordings, set()
            files = [*self._calls]
        for file in files:
            self._write(file)

    def module_is_loaded(self, file: str) -> None:
        """A generated module came from the compiler's cache, or was just generated: write what is stored of it."""
        self._safely(functools.partial(self._write_stored, file))

    def _write_stored(self, file: str) -> None:
        if file not in self._calls and (stored := stored_calls(file)) is not None:
            self._calls[file] = stored
        if file in self._calls:
            self._write(file)

    def recording_ends(self, kept: KeptRows | None = None) -> None:
        """Write what only the compiler itself knew, or everything into rows that are kept in memory; and what went wrong."""
        if COMPILER in sys.modules:
            from torch._inductor.codecache import PyCodeCache

            for module in [*PyCodeCache.modules]:
                file = getattr(module, "__file__", None)
                if file is not None and file not in self._calls:
                    self._safely(functools.partial(self.calls_of, file))
        for file in [*self._calls]:
            self._write(file, kept)

    def _write(self, file: str, kept: KeptRows | None = None) -> None:
        """Write the calls of a file where they are to be kept, or into the running recording unless it has them."""
        if kept is not None:
            for text in self._rows_of(file):
                kept.append_text(KERNELS, 1, text)
            return
        if STREAM.is_ring and stored_calls(file) is not None:
            # They would push other rows out of a ring, and are found beside the file, too.
            return
        recorder = ready_recorder()
        if recorder is None or not recorder.is_recording or STREAM.recordings != self._recording:
            return
        with self._lock:
            if file in self._written:
                return
            self._written.add(file)
        for text in self._rows_of(file):
            recorder.append_text(KERNELS, 1, text)

    def _rows_of(self, file: str) -> list[str]:
        """The rows of a file, none longer than the recorder takes."""
        rows = self._rows.get(file)
        if rows is None:
            calls = [asdict(call) for call in self._calls[file]]
            parts = [
                calls[first : first + _CALLS_IN_A_ROW] for first in range(0, len(calls), _CALLS_IN_A_ROW)
            ]
            rows = [json.dumps({"file": [file], "calls": [part]}) for part in parts or [[]]]
            self._rows[file] = rows
        return rows

    def _compiler_is_imported(self) -> None:
        """Have the compiler tell what it generates."""
        OBSERVED_KERNELS.compiler_is_imported()
        from torch._inductor import config, debug
        from torch._inductor.graph import GraphLowering

        # torch 2.7 and 2.8 do not have this setting, and note kernels only while they write files for debugging.
        if getattr(config.trace, "provenance_tracking_level", None) == 0:
            config.trace.provenance_tracking_level = _BASIC_PROVENANCE
        notes, compiles = (
            getattr(debug, _NOTES_KERNELS, None),
            getattr(GraphLowering, "compile_to_module", None),
        )
        if notes is None or compiles is None:
            return
        noting = self._noting

        def note(schedule: Any, kernel_name: str, *arguments: Any, **keywords: Any) -> Any:
            begun = getattr(noting, "begun", None)
            if begun is not None:
                self._safely(lambda: begun.append((kernel_name, *_described(schedule))))
            return notes(schedule, kernel_name, *arguments, **keywords)

        def compile_to_module(lowering: Any, *arguments: Any, **keywords: Any) -> Any:
            around, noting.begun = getattr(noting, "begun", None), []
            try:
                module = compiles(lowering, *arguments, **keywords)
                begun = noting.begun
            finally:
                noting.begun = around
            self._safely(lambda: self._store(module.__file__, begun))
            return module

        for module in [*sys.modules.values()]:
            # Modules of the compiler that are loaded already have a name of their own for it.
            if (
                getattr(module, "__name__", "").startswith("torch._inductor")
                and vars(module).get(_NOTES_KERNELS) is notes
            ):
                setattr(module, _NOTES_KERNELS, note)
        GraphLowering.compile_to_module = compile_to_module

    def _store(self, file: str, begun: list[tuple[str, tuple[Node, ...], int]]) -> None:
        """Find the lines of the noted calls in a generated file, and store them beside it."""
        text = Path(file).read_text(encoding="utf-8")
        calls = _placed(text, begun)
        self._calls[file] = calls
        self._write(file)
        with open_atomically(notes_of(file)) as out:
            out.write(notes(calls))

    def _safely(self, do: Callable[[], object]) -> None:
        """Do something of ours within the compiler; a failure is counted, and the job goes on."""
        try:
            do()
        except Exception as error:  # noqa: BLE001  (whatever it is, the job goes on)
            why = f"{type(error).__name__}: {error}"
            self.failures[why] = self.failures.get(why, 0) + 1


def _placed(text: str, begun: list[tuple[str, tuple[Node, ...], int]]) -> tuple[KernelCall, ...]:
    """Find the line of each noted call: the calls of a kernel are written in the order in which they were noted."""
    noted: dict[str, list[tuple[tuple[Node, ...], int]]] = {}
    for kernel, nodes, size in begun:
        noted.setdefault(kernel, []).append((nodes, size))
    if not noted:
        return ()
    lines: dict[str, list[int]] = {}
    for line, kernel in _calls_in(text, "|".join(sorted(map(re.escape, noted), key=len, reverse=True))):
        lines.setdefault(kernel, []).append(line)
    generated = _generated_kernels(text)
    # A kernel that reads one of several results of an operator outside of it is said to compute that, too.
    outside = {nodes[0] for kernel, nodes, _ in begun if kernel not in generated and len(nodes) == 1}
    return tuple(
        KernelCall(
            line,
            kernel,
            kernel in generated,
            _without(nodes, outside) if kernel in generated else nodes,
            size,
        )
        for kernel, places in lines.items()
        if len(places) == len(noted[kernel])
        for line, (nodes, size) in zip(places, noted[kernel], strict=True)
    )


def _without(nodes: tuple[Node, ...], others: set[Node]) -> tuple[Node, ...]:
    """The nodes that are none of some others; all of them if there are only such."""
    return tuple(node for node in nodes if node not in others) or nodes


_EXTERN = r"extern_kernels\.\w+|torch\.ops\.[\w.]+|aten\.[\w.]+"


def _by_lines(text: str, lines: Sequence[int], traces: Sequence[str | None]) -> tuple[KernelCall, ...]:
    """The calls of a generated file by the compiler's own list of the program's lines, which has no modules.

    The list says from which line of the file on a node's code was written. A fused kernel's call is written when the next kernel
    of another kind begins, so the last node before it may belong to that one.
    """
    generated = _generated_kernels(text)
    calls = _calls_in(text, "|".join([*map(re.escape, sorted(generated, key=len, reverse=True)), _EXTERN]))
    marks = sorted((line, trace) for line, trace in zip(lines, traces, strict=True) if trace)
    made: list[KernelCall] = []
    begun: list[str] = []
    at = 0
    for place, (line, kernel) in enumerate(calls):
        while at < len(marks) and marks[at][0] <= line:
            begun.append(marks[at][1])
            at += 1
        after = calls[place + 1] if place + 1 < len(calls) else None
        next_begun = at < len(marks) and after is not None and marks[at][0] <= after[0]
        later = (
            begun[-1:]
            if after is not None and after[1] not in generated and not next_begun and len(begun) > 1
            else []
        )
        own = begun[: len(begun) - len(later)]
        nodes = tuple(Node("", "", _frames(trace), ()) for trace in dict.fromkeys(own))
        made.append(KernelCall(line, kernel, kernel in generated, nodes, exact=False))
        begun = later
    return tuple(made)


def _calls_in(text: str, names: str) -> list[tuple[int, str]]:
    """The lines of a generated file that call a kernel, with its name; `names` is a pattern of them."""
    call = re.compile(rf"(?<![\w.])({names})(?:\.run)?\(")
    found: list[tuple[int, str]] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        # Before, kernels are defined.
        inside = inside or line.startswith("async_compile.wait(")
        if inside and not line.lstrip().startswith(("#", "def ")):
            found.extend((number, one[1]) for one in call.finditer(line))
    return found


def _generated_kernels(text: str) -> set[str]:
    """The names of the kernels that a generated file defines."""
    return set(re.findall(r"^(\w+) = async_compile\.", text, re.MULTILINE))


def _described(schedule: Any) -> tuple[tuple[Node, ...], int]:
    """The nodes that a kernel computes, and how many bytes it reads and writes."""
    if not isinstance(schedule, (list, tuple)):
        origin, operator_called = (
            getattr(schedule, "origin_node", None),
            getattr(schedule, "op_overload", None),
        )
        # What its inputs were made of is among its origins.
        called = [one for one in schedule.origins if one.target is operator_called]
        origins, size = [origin] if origin is not None else called or list(schedule.origins), -1
    else:
        parts = [part for part in schedule if getattr(part, "node", None) is not None]
        origins, size = [origin for part in parts for origin in part.node.origins], _bytes(parts)
    # Taking one result of several is nothing that a kernel computes.
    distinct = {
        origin.name: origin
        for origin in origins
        if origin.op == "call_function" and origin.target is not operator.getitem
    }
    return tuple(map(_node, distinct.values())) or tuple(map(_copy, dict.fromkeys(origins))), size


def _copy(origin: Any) -> Node:
    """Describe the copy of a graph's input into the layout that an operator needs, which belongs to that operator."""
    user, value = _node(next(iter(origin.users), origin)), origin.meta.get("val")
    inputs, shape = None, list(getattr(value, "shape", ()))
    if all(isinstance(size, int) for size in shape):
        dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
        inputs = json.dumps([shape]), json.dumps([dtype]), '[""]'
    return Node(origin.name, "aten.clone.default", user.frames, user.modules, _count(value), inputs)


def _bytes(parts: Sequence[Any]) -> int:
    """What a kernel reads and writes: each buffer once, those that never leave the kernel not at all; -1 where a size changes."""
    from torch._inductor.virtualized import V

    written = {one.name: one for part in parts for one in part.read_writes.writes}
    read = {one.name: one for part in parts for one in part.read_writes.reads if one.name not in written}
    left_out = V.graph.removed_buffers
    moved = [one for one in (*written.values(), *read.values()) if one.name not in left_out]
    reached = [_reached(one) for one in moved]
    if any(getattr(count, "free_symbols", ()) for count in reached):
        return -1
    return sum(
        int(one.numbytes_hint()) * int(count) // max(int(one.get_numel()), 1)
        for one, count in zip(moved, reached, strict=True)
    )


def _reached(access: Any) -> Any:
    """How many elements of a buffer an access reaches; where it computes their places, these need not be all."""
    whole = access.get_numel()
    if not hasattr(access, "is_indirect") or not access.is_indirect():
        return whole
    reached = math.prod(access.size)
    return reached if getattr(reached, "free_symbols", ()) else min(whole, reached)


def _node(origin: Any) -> Node:
    """Describe a node of the compiler's graph."""
    return Node(
        origin.name,
        str(origin.target),
        _frames(origin.meta.get("stack_trace") or ""),
        _modules_of(origin),
        _elements(origin),
        _inputs(origin),
    )


def _modules(origin: Any) -> tuple[ModuleFrame, ...]:
    """The modules that the compiler knows around a node, in backward those of the forward, from the outermost inwards."""
    modules = origin.meta.get("nn_module_stack") or origin.meta.get("fwd_nn_module_stack") or {}
    return tuple(
        ModuleFrame(
            str(path),
            getattr(kind, "__name__", str(kind).rpartition(".")[2]),
            int(key) if str(key).isdecimal() else 0,
        )
        for key, (path, kind) in modules.items()
    )


_FARTHEST = 6


def _modules_of(origin: Any) -> tuple[ModuleFrame, ...]:
    """The modules of a node, also of one that the compiler made in place of a pattern, or as a sum of gradients.

    In place of a product and a sum there is one node, which has the modules of the sum, or none: those of its weight tell more.
    Without a weight, a node that the compiler made is in the innermost module that has all nodes from which its inputs come, else all
    that use it.
    """
    own = _modules(origin)
    if not _is_made(origin):
        return own
    weights = _common(_modules(one) for one in origin.all_input_nodes if _is_weight(one))
    if weights[: len(own)] == own and weights:
        return weights
    return own or _common(_nearest(origin, "all_input_nodes")) or _common(_nearest(origin, "users"))


def _is_made(origin: Any) -> bool:
    """Whether the compiler made a node that the program, or the backward of one of its operators, does not have.

    In a module that was compiled itself, the program's own nodes have no modules either.
    """
    meta = origin.meta
    if "fwd_nn_module_stack" in meta:
        return False
    if "backward" in str(meta.get("partitioner_tag", "")):
        return True
    return meta.get("seq_nr") is None and (bool(_modules(origin)) or not meta.get("source_fn_stack"))


def _common(found: Iterable[tuple[ModuleFrame, ...]]) -> tuple[ModuleFrame, ...]:
    """The modules that all of some nodes are in."""
    levels = zip(*found, strict=False)
    return tuple(each[0] for each in itertools.takewhile(lambda level: len(set(level)) == 1, levels))


def _is_weight(node: Any) -> bool:
    """Whether a node is nothing but a view of an input of its graph."""
    seen = 0
    while getattr(node.target, "is_view", False) and seen < _FARTHEST:
        node, seen = next(iter(node.all_input_nodes), node), seen + 1
    return seen > 0 and bool(node.op == "placeholder")


def _nearest(origin: Any, side: str) -> list[tuple[ModuleFrame, ...]]:
    """The modules of the nearest nodes on a side of a node that the compiler did not make itself."""
    found: list[tuple[ModuleFrame, ...]] = []
    seen, reached = {origin}, [origin]
    for _ in range(_FARTHEST):
        beside = dict.fromkeys(one for node in reached for one in getattr(node, side))
        new = [one for one in beside if one not in seen and one.op == "call_function"]
        seen.update(new)
        found += [_modules(one) for one in new if not _is_made(one)]
        reached = [one for one in new if _is_made(one)]
    return found


_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


def _frames(stack_trace: str) -> tuple[SourceFrame, ...]:
    """The frames of a node's stack trace, outermost first."""
    return tuple(
        SourceFrame(file, int(line), _qualified(file, int(line), function))
        for file, line, function in _FRAME.findall(stack_trace)
    )


# Operators that read as much of their first input as they return.
_GATHERING = [["embedding"], ["gather"], ["index"], ["index_select"], ["take"], ["_unsafe_index"]]


def _elements(origin: Any) -> int:
    """How many elements a node computes, or reads if these are more; 0 for a view."""
    if getattr(origin.target, "is_view", False):
        return 0
    values = [origin.meta.get("val")]
    if str(origin.target).split(".")[1:2] not in _GATHERING:
        values += [one.meta.get("val") for one in origin.all_input_nodes]
    return max((_count(value) for value in values), default=0)


def _inputs(origin: Any) -> tuple[str, str, str] | None:
    """The arguments of a node in the order of its schema, as the recorder writes those of an operator; None where a size changes."""
    schema = getattr(origin.target, "_schema", None)
    if schema is None:
        return None
    dims: list[Any] = []
    types: list[str] = []
    values: list[str] = []
    for place, argument in enumerate(schema.arguments):
        given = origin.args[place] if place < len(origin.args) else origin.kwargs.get(argument.name)
        if given is None and argument.has_default_value():
            given = argument.default_value
        listed = isinstance(given, (list, tuple))
        parts = [getattr(one, "meta", {}).get("val", one) for one in (given if listed else (given,))]
        if any(type(one).__name__.startswith("Sym") for one in parts):
            return None
        shapes = [list(one.shape) for one in parts if hasattr(one, "shape")]
        if not all(isinstance(size, int) for shape in shapes for size in shape):
            return None
        tensors = bool(shapes)
        dims.append((shapes if listed else shapes[0]) if tensors else [])
        if tensors:
            dtype = next(str(one.dtype).removeprefix("torch.") for one in parts if hasattr(one, "shape"))
            types.append("TensorList" if listed else dtype)
            values.append("")
        else:
            written = [_written(one) for one in parts]
            types.append("ScalarList" if listed else "Scalar" if written[0] else "")
            values.append(f"[{', '.join(written)}]" if listed else written[0])
    return json.dumps(dims), json.dumps(types), json.dumps(values)


def _written(value: Any) -> str:
    """A scalar argument as the recorder writes it: an element type by its number, and nothing for None."""
    named = str(value).removeprefix("torch.")
    number = next((number for number, dtype in SCALAR_TYPES.items() if dtype == named), None)
    return "" if value is None else named if number is None or isinstance(value, str) else str(number)


def _count(value: Any) -> int:
    """The elements of a tensor, or of some; sizes that change count as they were when it was compiled."""
    if isinstance(value, (list, tuple)):
        return sum(_count(one) for one in value)
    count = 1
    for size in getattr(value, "shape", (0,)):
        count *= size if isinstance(size, int) else int(size.node.hint or 1)
    return count


_functions: dict[str, list[tuple[int, int, str]]] = {}


def _qualified(file: str, line: int, function: str) -> str:
    """The qualified name of the function around a line, as Python calls it; the given name if the file does not say."""
    if file not in _functions:
        _functions[file] = []
        import linecache

        try:
            tree = ast.parse("".join(linecache.getlines(file)))
        except (SyntaxError, ValueError):
            return function
        _collect(tree, "", _functions[file])
    # The innermost comes last.
    found = [name for first, last, name in _functions[file] if first <= line <= last]
    return found[-1] if found and found[-1].rpartition(".")[2] == function else function


def _collect(tree: ast.AST, prefix: str, into: list[tuple[int, int, str]]) -> None:
    """Collect the first and last line of every function, with its qualified name; an enclosing one first."""
    for one in ast.iter_child_nodes(tree):
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            into.append((one.lineno, one.end_lineno or one.lineno, prefix + one.name))
            _collect(one, f"{prefix}{one.name}.<locals>.", into)
        else:
            _collect(one, f"{prefix}{one.name}." if isinstance(one, ast.ClassDef) else prefix, into)


COMPILED_MODULES = CompiledModules()
OBSERVED_KERNELS.module_is_loaded = COMPILED_MODULES.module_is_loaded
