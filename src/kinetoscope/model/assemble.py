"""From what a source delivers to the columns of a trace: what is derived, and from what.

Nothing here runs before a column is used; then it runs once, over whole columns.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model import steps as steps_module
from kinetoscope.model.closures import find_closures
from kinetoscope.model.columns import Columns
from kinetoscope.model.device_time import device_self_ns
from kinetoscope.model.kinds import is_call, is_device_work, is_runtime_call
from kinetoscope.model.nesting import (
    Nesting,
    depths_of,
    nest,
    nest_beside_calls,
    spread_down,
    without_children,
)
from kinetoscope.model.rows import Mask, Rows, outline, places_of
from kinetoscope.model.schema import (
    ENGINE_WRAPPER,
    IMPORTING,
    OPTIMIZER_STEP,
    SCOPE_BACKWARD,
    SCOPE_FUSED,
    SCOPE_MODULE,
    SCOPE_PYTHON,
    SCOPE_USER,
    STORED,
    TRANSFER_MARKS,
    Phase,
    SpanKind,
)

Arrays = dict[str, NDArray[Any]]
Strings = list[str] | Callable[[], list[str]]


# Which operators run a forward pass again, because activation checkpointing kept nothing of the first one.
#
# The Python stack shows it: below the function that calls the checkpointed one again, as far as no backward pass is started
# from there (reentrant checkpointing runs the backward of its segment in the same function). DeepSpeed, Megatron and
# FairScale have functions of the same name for this.

# The functions that call the checkpointed one again. The first occurs in other libraries too; the function around the
# second is called differently in each few releases of torch, so only its end and its file identify it.
_REENTRANT, _NON_REENTRANT = "CheckpointFunction.backward", ".<locals>.recompute_fn"
_CHECKPOINT, _AUTOGRAD, _RANDOM = "torch/utils/checkpoint.py", "torch/autograd/__init__.py", "torch/random.py"
# What such a function also runs: backward, the state of random generators, and the keeping of what was computed.
_OTHERS = {
    "backward": _AUTOGRAD,
    "grad": _AUTOGRAD,
    "detach_variable": _CHECKPOINT,
    "set_device_states": _CHECKPOINT,
    "_recomputation_hook.__init__.<locals>.pack_hook": _CHECKPOINT,
    "_checkpoint_hook.__init__.<locals>.pack_hook": _CHECKPOINT,
    "_checkpoint_hook.__init__.<locals>.unpack_hook": _CHECKPOINT,
    "fork_rng": _RANDOM,
    "get_rng_state": _RANDOM,
    "set_rng_state": _RANDOM,
}


def recomputing_stacks(stacks: Columns, frames: Columns, strings: list[str]) -> Mask | None:
    """Mark the stacks below a function that runs a forward pass again; None without any."""
    columns = (frames["function"].tolist(), frames["file"].tolist())
    named = [(strings[function], strings[file]) for function, file in zip(*columns, strict=True)]
    entry = [
        function == _REENTRANT or (function.endswith(_NON_REENTRANT) and file.endswith(_CHECKPOINT))
        for function, file in named
    ]
    if not any(entry):
        return None
    other = [function in _OTHERS and file.endswith(_OTHERS[function]) for function, file in named]
    # The last entry stands for the row -1, which is in no such function.
    enters, leaves = (np.array(frame)[stacks["frame"]] for frame in ([*entry, False], [*other, True]))
    innermost = _core.nearest_marked(stacks["parent"], depths_of(stacks["parent"]), enters | leaves)
    return np.append(np.append(enters, False)[innermost], False)


def module_paths(modules: Columns, strings: list[str]) -> dict[str, Any]:
    """Return `path`, `depth` and `holder` of every module.

    Below a root the path is the one `root.named_modules()` gives; a root's own is its class name. Where two roots
    would share paths, all paths of these roots begin with the root's name; roots of one class are numbered.

    Args:
        modules: The modules, with parent, caller, name and class.
        strings: The string table.

    Returns:
        The three columns.
    """
    parents, callers = modules["parent"].tolist(), modules["caller"].tolist()
    names = [strings[name] for name in modules["name"].tolist()]
    classes = [strings[name] or "Module" for name in modules["class"].tolist()]
    # A module that no other one registers (in a plain list, say) is shown below the one that called it.
    holders = [parent if parent >= 0 else caller for parent, caller in zip(parents, callers, strict=True)]
    # Holders first. What is in a circle, in a damaged file, or held by one is a root.
    depths = dict(outline(holders, range(len(holders))))
    holders = [holder if depths[row] else -1 for row, holder in enumerate(holders)]
    root = list(range(len(holders)))
    below = [""] * len(holders)
    for row in depths:
        if (holder := holders[row]) >= 0:
            root[row] = root[holder]
            part = names[row] or classes[row]
            below[row] = f"{below[holder]}.{part}" if below[holder] else part
    roots = _root_names(classes, [row for row, holder in enumerate(holders) if holder < 0])
    mixed = _sharing_roots(below, root)
    path = [
        f"{roots[root_row]}.{text}" if root_row in mixed else text
        for root_row, text in zip(root, below, strict=True)
    ]
    for row, name in roots.items():
        path[row] = name
    return {
        "path": path,
        "depth": np.array([depths[row] for row in range(len(holders))], dtype=np.int32),
        "holder": np.array(holders, dtype=np.int32),
    }


def _root_names(classes: list[str], roots: list[int]) -> dict[int, str]:
    """Name each root by its class, with a number from the second of a class on."""
    count: Counter[str] = Counter()
    named: dict[int, str] = {}
    for row in roots:
        count[classes[row]] += 1
        number = count[classes[row]]
        named[row] = classes[row] if number == 1 else f"{classes[row]}#{number}"
    return named


def _sharing_roots(below: list[str], root: list[int]) -> set[int]:
    owner: dict[str, int] = {}
    mixed: set[int] = set()
    for path, root_row in zip(below, root, strict=True):
        if path and owner.setdefault(path, root_row) != root_row:
            mixed.update((owner[path], root_row))
    return mixed


def assemble(
    tables: Mapping[str, Mapping[str, Any]],
    strings: Strings,
    rows: Mapping[str, int] | None = None,
) -> dict[str, Columns]:
    """Make the columns of every table from those delivered, with a source for each derived column.

    Args:
        tables: For each table name the delivered columns by name. Spans must be sorted by thread, then start, with
            an enclosing span before what it encloses; allocations by time. A column may be a function that loads it.
        strings: The string table that name columns point into; entry 0 is the empty string. It may be a
            function that loads it.
        rows: The number of rows of tables whose columns are functions, where that is known.

    Returns:
        The columns of every table that a trace has.
    """
    lock = threading.RLock()
    columns: dict[str, Columns] = {}
    for name, table in STORED.items():
        delivered = tables.get(name, {})
        first = next(iter(delivered.values()), ())
        length = (rows or {}).get(name, None if callable(first) else len(first))
        columns[name] = Columns(table, length, delivered, lock)
    derivation = _Derivation(columns, strings)
    spans = columns["spans"]
    spans.source(("kind",), derivation.kind)
    spans.source(("parent", "depth", "lane", "self_ns"), derivation.nesting)
    spans.source(("caller",), derivation.caller)
    spans.source(("forward",), derivation.forward)
    spans.source(("module", "forward_stack"), derivation.inheritance)
    spans.source(("stack",), derivation.stack)
    spans.source(("phase",), derivation.phase)
    spans.source(("recompute",), derivation.recompute)
    spans.source(("step",), lambda: derivation.step_at(spans["start_ns"]))
    spans.source(("cycle",), derivation.cycle)
    spans.source(("bytes", "self_bytes"), lambda: derivation.bytes_of(device=False))
    spans.source(("device_bytes", "device_self_bytes"), lambda: derivation.bytes_of(device=True))
    spans.source(("device_ns", "device_self_ns"), derivation.device_time)
    columns["allocations"].source(("span", "match", "total_bytes"), derivation.allocations)
    columns["samples"].source(("step",), lambda: derivation.step_at(columns["samples"]["time_ns"]))
    columns["modules"].source(("path", "depth", "holder"), derivation.module_paths)
    # A part of a trace hands its steps over: they were found in the whole.
    if not tables.get("steps"):
        columns["steps"] = Columns(STORED["steps"], lambda: len(derivation.steps["number"]), {}, lock)
        columns["steps"].source(STORED["steps"].column_names, lambda: derivation.steps)
    return columns


# The columns of spans and of allocations by which the latter are attributed to the former.
_NESTED = ("thread", "start_ns", "duration_ns", "parent", "lane")
_BLOCKS = ("time_ns", "thread", "address", "bytes", "freed_bytes")


class _Derivation:
    def __init__(self, tables: dict[str, Columns], strings: Strings) -> None:
        self._tables = tables
        self._spans = tables["spans"]
        self._given_strings = strings
        self._memory: dict[bool, Arrays] = {}
        self._caller: NDArray[np.int32] | None = None

    @property
    def _strings(self) -> list[str]:
        strings = self._given_strings
        return strings if isinstance(strings, list) else strings()

    def names_starting(self, prefix: str | tuple[str, ...], rows: Rows | None = None) -> Mask:
        """Mark the spans (of some rows) whose name starts with `prefix`; each string is looked at once."""
        starts = np.array([text.startswith(prefix) for text in self._strings], dtype=bool)
        names: NDArray[np.int32] = self._spans["name"]
        return starts.take(names if rows is None else names[rows])

    def kind(self) -> Arrays:
        """Kinds follow from the record scope, and for steps and transfers between ranks from the name."""
        scope = self._spans["scope"]
        # Comparing whole columns is several times cheaper than looking up each scope in a table.
        kind = (scope == SCOPE_BACKWARD).view(np.uint8) * np.uint8(SpanKind.BACKWARD)
        kind[scope == SCOPE_PYTHON] = SpanKind.PYTHON
        kind[scope == SCOPE_MODULE] = SpanKind.MODULE
        kind[scope == SCOPE_FUSED] = SpanKind.FUSED_KERNEL
        users = np.flatnonzero(scope == SCOPE_USER)
        kind[users] = SpanKind.USER_ANNOTATION
        kind[users[self.names_starting(steps_module.MARK, users)]] = SpanKind.STEP
        kind[users[self.names_starting(TRANSFER_MARKS, users)]] = SpanKind.COLLECTIVE
        return {"kind": kind}

    @cached_property
    def _work(self) -> Rows | None:
        """The spans that are not calls; None where there are no calls."""
        calls = is_call(self._spans["kind"])
        return np.flatnonzero(~calls) if calls.any() else None

    @cached_property
    def _everything(self) -> Nesting:
        return nest(*(self._spans[name] for name in _NESTED[:3]))

    def nesting(self) -> Arrays:
        """Parents, depths, lanes and self times."""
        spans = self._spans
        if (work := self._work) is None:
            nested: Arrays = dict(vars(nest(*(spans[name] for name in _NESTED[:3]))))
        else:
            nested = nest_beside_calls(spans, work, self._everything)
            self._caller = nested.pop("caller")
        if len(self._tables["streams"]):
            kind = spans["kind"]
            on_device = is_device_work(kind) | (kind == SpanKind.COLLECTIVE)
            without_children(nested, on_device & (spans["stream"] >= 0), spans["duration_ns"])
        return nested

    def caller(self) -> Arrays:
        """The innermost call around each span, which falls out of the nesting."""
        none = np.full(len(self._spans["parent"]), -1, dtype=np.int32)
        return {"caller": none if self._caller is None else self._caller}

    def forward(self) -> Arrays:
        """Each backward function's forward operator, through autograd's sequence numbers."""
        spans = self._spans
        forward = _core.link_backward(
            spans["thread"], spans["start_ns"], spans["scope"], spans["sequence"], spans["forward_thread"]
        )
        return {"forward": forward}

    def inheritance(self) -> Arrays:
        """Modules and forward stacks that backward spans take over from their forward operators."""
        spans, work = self._spans, self._work
        names = ("parent", "own_module", "own_stack", "forward", "parameter", "scope")
        parent, module, stack, forward, parameter, scope = (spans[name] for name in names)
        if work is not None:
            moved = places_of(work, len(spans))
            parent, forward = moved[parent[work]], moved[forward[work]]
            module, stack, parameter, scope = module[work], stack[work], parameter[work], scope[work]
        inherited = _core.inherit_modules(
            parent, module, stack, forward, parameter, self._tables["parameters"]["module"], scope
        )
        if work is None:
            return self._of_graphs(inherited["module"], inherited["forward_stack"])
        forward_stack = np.full(len(spans), -1, dtype=np.int32)
        forward_stack[work] = inherited["forward_stack"]
        modules = spans["own_module"].copy()
        modules[work] = inherited["module"]
        return self._of_graphs(spread_down(spans["parent"], spans["depth"], modules, -1), forward_stack)

    def _of_graphs(self, module: NDArray[np.int32], forward_stack: NDArray[np.int32]) -> Arrays:
        """The same, with those of the graph's nodes for the kernels of compiled graphs."""
        spans, origins = self._spans, self._tables["origins"]
        if len(origins):
            rows = np.flatnonzero(spans["origin"] >= 0)
            origin = spans["origin"][rows]
            module, forward_stack = module.copy(), forward_stack.copy()
            module[rows] = np.where(origins["module"][origin] >= 0, origins["module"][origin], module[rows])
            behind = rows[forward_stack[rows] >= 0]
            forward_stack[behind] = origins["stack"][spans["origin"][behind]]
        return {"module": module, "forward_stack": forward_stack}

    def stack(self) -> Arrays:
        """The stack a person wants to see: in backward the line of the forward pass that caused the work."""
        spans = self._spans
        forward, own_stack = spans["forward_stack"], spans["own_stack"]
        # torch 1.8 to 1.13 recorded stacks of operators only, not of the runtime calls in them.
        bare = is_runtime_call(spans["kind"]) & (own_stack < 0) & (spans["parent"] >= 0)
        if bare.any():
            own_stack = np.where(bare, spread_down(spans["parent"], spans["depth"], own_stack, -1), own_stack)
        stack = np.where(forward >= 0, forward, own_stack)
        if len(origins := self._tables["origins"]):
            rows = np.flatnonzero(spans["origin"] >= 0)
            stack[rows] = origins["stack"][spans["origin"][rows]]
        return {"stack": stack}

    def phase(self) -> Arrays:
        """Backward is what runs in or below a backward function; optimizer what an optimizer's step runs but closures."""
        spans = self._spans
        none = len(Phase)
        phases = np.full(len(spans), none, dtype=np.uint8)
        phases[self.names_starting(OPTIMIZER_STEP)] = Phase.OPTIMIZER
        phases[spans["scope"] == SCOPE_BACKWARD] = Phase.BACKWARD
        phases[self.names_starting(ENGINE_WRAPPER)] = Phase.BACKWARD
        spread = spread_down(spans["parent"], spans["depth"], phases, none)
        if len((closures := find_closures(spans, self._strings)).thread):
            rows = np.flatnonzero(spread == Phase.OPTIMIZER)
            start = spans["start_ns"][rows]
            held = closures.hold(spans["thread"][rows], start, start + spans["duration_ns"][rows])
            spread[rows[held]] = Phase.FORWARD
        spread[spread == none] = Phase.FORWARD
        return {"phase": spread}

    def recompute(self) -> Arrays:
        """Forward operators that run again, by the Python stack that started them."""
        spans, again = self._spans, np.zeros(len(self._spans), dtype=np.uint8)
        marked = recomputing_stacks(self._tables["stacks"], self._tables["frames"], self._strings)
        if marked is not None:
            again[marked.take(spans["own_stack"])] = 1
            again[spans["scope"] == SCOPE_BACKWARD] = 0
            again[is_call(spans["kind"])] = 0
        return {"recompute": again}

    @cached_property
    def steps(self) -> Arrays:
        """The steps of the program, marked or found from the optimizer."""
        spans, cycles = self._spans, self._tables["cycles"]
        # A range is repeated on the streams that what ran in it was launched on.
        optimizer = self.names_starting(OPTIMIZER_STEP) & (spans["stream"] < 0)
        begun = cycles["start_ns"].take(spans["cycle"]) if len(cycles) > 1 else None
        return steps_module.find_steps(spans, optimizer, self._strings, begun, worked_ns=self._worked_ns)

    def _worked_ns(self, thread: int, until_ns: int) -> int:
        """How long samples say that a thread did something else than import modules, up to a moment."""
        samples, stacks = self._tables["samples"], self._tables["stacks"]
        rows = np.flatnonzero((samples["thread"] == thread) & (samples["time_ns"] < until_ns))
        is_import = np.array([text.endswith(IMPORTING) for text in self._strings], np.int8)
        parent = stacks["parent"]
        imports = spread_down(
            parent, depths_of(parent), is_import[self._tables["frames"]["file"][stacks["frame"]]], 0
        )
        worked = rows[np.append(imports, 1)[samples["stack"][rows]] == 0]
        return int(samples["period_ns"][worked].sum())

    def step_at(self, time_ns: Rows) -> Arrays:
        steps = self._tables["steps"]
        return {"step": steps_module.step_at(time_ns, steps["start_ns"], steps["duration_ns"])}

    def cycle(self) -> Arrays:
        """The cycle of the session in which each span was recorded."""
        return {"cycle": steps_module.cycle_of_spans(self._spans["start_ns"], self._tables["cycles"])}

    def _attributed(self, device: bool) -> Arrays:
        """Attribute the allocations of the host, or of all devices, to the spans that are not calls."""
        if device not in self._memory:
            rows = np.flatnonzero((self._tables["allocations"]["device_type"] != 0) == device)
            attributed = self._memory[device] = self._attributed_to(self._nested_work, rows.astype(np.int32))
            if self._work is not None:
                attributed["span"] = np.append(self._work, -1)[attributed["span"]].astype(np.int32)
        return self._memory[device]

    @cached_property
    def _nested_work(self) -> tuple[NDArray[Any], ...]:
        """The columns `_NESTED` of the spans that are not calls, which nest among themselves."""
        columns = tuple(self._spans[name] for name in _NESTED)
        if (work := self._work) is None:
            return columns
        thread, start_ns, duration_ns, parent, lane = (column[work] for column in columns)
        return thread, start_ns, duration_ns, places_of(work, len(self._spans))[parent], lane

    def _attributed_to(self, nested: tuple[NDArray[Any], ...], rows: NDArray[np.int32]) -> Arrays:
        """Attribute allocations to spans.

        Args:
            nested: The columns `_NESTED` of the spans, which nest among themselves.
            rows: The allocations, all of the host or all of devices.

        Returns:
            `rows`, and for each of these `span`, `match` (a row of `allocations`) and `total_bytes`; for each span `span_bytes` and
            `span_self_bytes`.
        """
        allocations = self._tables["allocations"]
        attributed: Arrays = {
            "rows": rows,
            "span": np.full(len(rows), -1, dtype=np.int32),
            "match": np.full(len(rows), -1, dtype=np.int32),
            "total_bytes": np.zeros(len(rows), dtype=np.int64),
            "span_bytes": np.zeros(len(nested[0]), dtype=np.int64),
            "span_self_bytes": np.zeros(len(nested[0]), dtype=np.int64),
        }
        # Each device hands out addresses of its own, and to each process.
        kind = allocations["device_type"][rows]
        number = kind * np.int64(256) + np.where(kind != 0, allocations["device_index"][rows], 0)
        if len(self._tables["processes"]):
            of_thread = self._tables["threads"]["process_row"].astype(np.int64)
            number += (np.append(of_thread, -1)[allocations["thread"][rows]] + 1) << 32
        for group in np.unique(number).tolist():
            group_rows = np.flatnonzero(number == group)
            blocks = (allocations[name][rows[group_rows]] for name in _BLOCKS)
            part: dict[str, Any] = dict(_core.attribute_allocations(*nested, *blocks))
            part["match"] = np.where(part["match"] >= 0, rows[group_rows][part["match"]], -1)
            for name in ("span", "match", "total_bytes"):
                attributed[name][group_rows] = part[name]
            for name in ("span_bytes", "span_self_bytes"):
                attributed[name] += part[name]
        return attributed

    def allocations(self) -> Arrays:
        """For each allocation its span, its free, and the live bytes after it."""
        length = len(self._tables["allocations"])
        columns: Arrays = {
            "span": np.full(length, -1, dtype=np.int32),
            "match": np.full(length, -1, dtype=np.int32),
            "total_bytes": np.zeros(length, dtype=np.int64),
        }
        # Without any, the nesting of spans is not needed.
        for device in (False, True) if length else ():
            part = self._attributed(device)
            for name, values in columns.items():
                values[part["rows"]] = part[name]
        return columns

    def bytes_of(self, device: bool) -> Arrays:
        """Net bytes of each span, of the host or of all devices, with and without those of the spans inside; of a call what was allocated
        during it.
        """
        part, names = self._attributed(device), ("span_bytes", "span_self_bytes")
        of_spans = {name: part[name] for name in names}
        if self._work is not None:
            times, everything = (self._spans[name] for name in _NESTED[:3]), self._everything
            of_spans = self._attributed_to((*times, everything.parent, everything.lane), part["rows"])
            for name in names:
                of_spans[name][self._work] = part[name]
        return {
            name.replace("span", "device") if device else name.removeprefix("span_"): of_spans[name]
            for name in names
        }

    def device_time(self) -> Arrays:
        """Device time of each host span: that of what it launched, and of what the spans inside it launched."""
        spans, launches = self._spans, self._tables["launches"]
        if len(launches) == 0:
            self_ns = np.zeros(len(spans), dtype=np.int64)
            return {"device_ns": self_ns, "device_self_ns": self_ns}
        self_ns = device_self_ns(spans, launches)
        total = _core.sums_below(spans["parent"], spans["depth"], self_ns)
        if (work := self._work) is not None:
            everything = self._everything
            of_calls = _core.sums_below(everything.parent, everything.depth, self_ns)
            of_calls[work] = total[work]
            total = of_calls
        return {"device_ns": total, "device_self_ns": self_ns}

    def module_paths(self) -> dict[str, Any]:
        """Dotted paths, depths and holders of the modules."""
        return module_paths(self._tables["modules"], self._strings)
