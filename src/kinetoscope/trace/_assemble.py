"""From what a source delivers to the columns of a trace: what is derived, and from what.

Nothing here runs until a column is asked for, and then it runs once, over whole columns.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope.trace import _cycles, _module_paths, _steps
from kinetoscope.trace._calls import attribute_beside_calls, call_mask, nest_beside_calls
from kinetoscope.trace._columns import Columns
from kinetoscope.trace._device_time import calls_runtime, device_self_ns
from kinetoscope.trace._recompute import recomputing_stacks
from kinetoscope.trace._schema import (
    SCOPE_BACKWARD,
    SCOPE_MODULE,
    SCOPE_PYTHON,
    SCOPE_USER,
    STORED,
    TRANSFER_MARKS,
    Phase,
    SpanKind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]
    Strings = list[str] | Callable[[], list[str]]

# The operator that autograd's engine wraps around each backward function it runs.
ENGINE_WRAPPER = "autograd::engine::evaluate_function: "
OPTIMIZER_STEP = "Optimizer.step#"


def assemble(
    tables: Mapping[str, Mapping[str, Any]],
    strings: Strings,
    rows: Mapping[str, int | Callable[[], int]] | None = None,
) -> dict[str, Columns]:
    """Make the columns of every table from those delivered, and tell each derived column how to compute itself.

    Args:
        tables: For each table name the delivered columns by name. Spans must be sorted by thread, then start, with
            an enclosing span before what it encloses; allocations by time. A column may be a function that loads it.
        strings: The string table that name columns point into; entry 0 is the empty string. It may be a
            function that loads it.
        rows: The number of rows of tables whose first column is a function, or a function that finds it.

    Returns:
        The columns of every table that a trace has.
    """
    lock = threading.RLock()
    made: dict[str, Columns] = {}
    for name, table in STORED.items():
        delivered = tables.get(name, {})
        if name == "steps":
            continue
        first = next(iter(delivered.values()), ())
        length = (rows or {}).get(name, 0 if callable(first) else len(first))
        made[name] = Columns(table, length, delivered, lock)
    derivation = _Derivation(made, strings)
    spans = made["spans"]
    spans.source(("kind",), derivation.kind)
    spans.source(("parent", "depth", "lane", "self_ns"), derivation.nesting)
    spans.source(("caller",), derivation.caller)
    spans.source(("forward",), derivation.forward)
    spans.source(("module", "forward_stack"), derivation.inheritance)
    spans.source(("stack",), derivation.stack)
    spans.source(("phase",), derivation.phase)
    spans.source(("recompute",), derivation.recompute)
    spans.source(("step",), derivation.step)
    spans.source(("cycle",), derivation.cycle)
    spans.source(("bytes", "self_bytes"), derivation.host_bytes)
    spans.source(("device_bytes", "device_self_bytes"), derivation.device_bytes)
    spans.source(("device_ns", "device_self_ns"), derivation.device_time)
    made["allocations"].source(("span", "match", "total_bytes"), derivation.allocations)
    made["modules"].source(("path", "depth", "holder"), derivation.module_paths)
    # A part of a trace hands its steps over: they were found in the whole.
    given = tables.get("steps", {})
    known = rows.get("steps", 0) if rows is not None else len(next(iter(given.values()), ()))
    found = known if given else lambda: len(derivation.steps()["number"])
    made["steps"] = Columns(STORED["steps"], found, given, lock)
    if not given:
        made["steps"].source(STORED["steps"].column_names, derivation.steps)
    return made


def sums_below(
    parent: NDArray[np.int32], depth: NDArray[np.int32], own: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Add to each row the values of all rows below it, level by level from the deepest."""
    total = own.astype(np.int64)
    by_depth = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    for level in range(len(edges) - 2, 0, -1):
        rows = by_depth[edges[level] : edges[level + 1]]
        held = rows[parent[rows] >= 0]
        np.add.at(total, parent[held], total[held])
    return total


def spread_down(
    parent: NDArray[np.int32], depth: NDArray[np.int32], own: NDArray[Any], none: int
) -> NDArray[Any]:
    """Give each row that has the value `none` the value of its nearest ancestor that has another."""
    spread = own.copy()
    by_depth = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    for level in range(1, len(edges) - 1):
        rows = by_depth[edges[level] : edges[level + 1]]
        bare = rows[(spread[rows] == none) & (parent[rows] >= 0)]
        spread[bare] = spread[parent[bare]]
    return spread


class _Derivation:
    """How each derived column follows from the others."""

    def __init__(self, tables: dict[str, Columns], strings: Strings) -> None:
        self._tables = tables
        self._spans = tables["spans"]
        self._given_strings = strings
        self._steps: Arrays | None = None
        self._memory: dict[bool, Arrays] = {}
        self._caller: NDArray[np.int32] | None = None
        self._work: tuple[NDArray[np.int64] | None] | None = None

    @property
    def _strings(self) -> list[str]:
        """The string table."""
        strings = self._given_strings
        return strings if isinstance(strings, list) else strings()

    def names_starting(
        self, prefix: str | tuple[str, ...], rows: NDArray[np.int64] | None = None
    ) -> NDArray[np.bool_]:
        """Mark the spans (among `rows`) whose name starts with `prefix`; each distinct name is looked at once."""
        names = self._spans["name"]
        found = np.zeros(len(names), dtype=bool)
        looked_at = names if rows is None else names[rows]
        strings = self._strings
        seen = np.zeros(len(strings), dtype=bool)
        seen[looked_at] = True
        starts = np.zeros(len(strings), dtype=bool)
        for string in np.flatnonzero(seen).tolist():
            starts[string] = strings[string].startswith(prefix)
        if starts.any():
            found[slice(None) if rows is None else rows] = starts[looked_at]
        return found

    def kind(self) -> Arrays:
        """Kinds follow from the record scope, and for steps and transfers between ranks from the name."""
        scope = self._spans["scope"]
        # Comparing whole columns is several times cheaper than looking up each scope in a table.
        kind = (scope == SCOPE_BACKWARD).view(np.uint8) * np.uint8(SpanKind.BACKWARD)
        kind[scope == SCOPE_PYTHON] = SpanKind.PYTHON
        kind[scope == SCOPE_MODULE] = SpanKind.MODULE
        users = np.flatnonzero(scope == SCOPE_USER)
        if len(users):
            kind[users] = SpanKind.USER_ANNOTATION
            kind[self.names_starting(_steps.MARK, users)] = SpanKind.STEP
            kind[self.names_starting(TRANSFER_MARKS, users)] = SpanKind.COLLECTIVE
        return {"kind": kind}

    def work(self) -> NDArray[np.int64] | None:
        """The spans that are no calls; None when all are."""
        if self._work is None:
            calls = call_mask(self._spans["kind"])
            self._work = (np.flatnonzero(~calls) if calls.any() else None,)
        return self._work[0]

    def nesting(self) -> Arrays:
        """Parents, depths, lanes and self times, natively."""
        spans = self._spans
        if (work := self.work()) is None:
            return dict(_core.nest(spans["thread"], spans["start_ns"], spans["duration_ns"]))  # type: ignore[arg-type]
        made = nest_beside_calls(spans, work)
        self._caller = made.pop("caller")
        return made

    def caller(self) -> Arrays:
        """The innermost call around each span, which falls out of the nesting."""
        self._spans["parent"]
        if self._caller is None:
            self._caller = np.full(len(self._spans), -1, dtype=np.int32)
        return {"caller": self._caller}

    def forward(self) -> Arrays:
        """Each backward function's forward operator, through autograd's sequence numbers."""
        spans = self._spans
        made = _core.link_backward(
            spans["thread"], spans["start_ns"], spans["scope"], spans["sequence"], spans["forward_thread"]
        )
        return {"forward": made}

    def inheritance(self) -> Arrays:
        """Modules and forward stacks that backward spans take over from their forward operators."""
        spans, work = self._spans, self.work()
        names = ("parent", "own_module", "own_stack", "forward", "parameter", "scope")
        parent, module, stack, forward, parameter, scope = (spans[name] for name in names)
        if work is not None:
            moved = np.full(len(spans) + 1, -1, dtype=np.int32)
            moved[work] = np.arange(len(work))
            parent, forward = moved[parent[work]], moved[forward[work]]
            module, stack, parameter, scope = module[work], stack[work], parameter[work], scope[work]
        made = _core.inherit_modules(
            parent, module, stack, forward, parameter, self._tables["parameters"]["module"], scope
        )
        if work is None:
            return {"module": made["module"], "forward_stack": made["forward_stack"]}
        forward_stack = np.full(len(spans), -1, dtype=np.int32)
        forward_stack[work] = made["forward_stack"]
        own = spans["own_module"].copy()
        own[work] = made["module"]
        return {
            "module": spread_down(spans["parent"], spans["depth"], own, -1),
            "forward_stack": forward_stack,
        }

    def stack(self) -> Arrays:
        """The stack a person wants to see: in backward the line of the forward pass that caused the work."""
        spans = self._spans
        forward, own = spans["forward_stack"], spans["own_stack"]
        # torch 1.8 to 1.13 told the stacks of operators alone, not of the calls of the runtime in them.
        bare = calls_runtime(spans["kind"]) & (own < 0) & (spans["parent"] >= 0)
        if bare.any():
            own = np.where(bare, spread_down(spans["parent"], spans["depth"], own, -1), own)
        return {"stack": np.where(forward >= 0, forward, own)}

    def phase(self) -> Arrays:
        """Backward is what runs in or below a backward function; optimizer what runs inside an optimizer's step."""
        spans = self._spans
        none = len(Phase)
        own = np.full(len(spans), none, dtype=np.uint8)
        own[self.names_starting(OPTIMIZER_STEP)] = Phase.OPTIMIZER
        own[spans["scope"] == SCOPE_BACKWARD] = Phase.BACKWARD
        own[self.names_starting(ENGINE_WRAPPER)] = Phase.BACKWARD
        spread = spread_down(spans["parent"], spans["depth"], own, none)
        spread[spread == none] = Phase.FORWARD
        return {"phase": spread}

    def recompute(self) -> Arrays:
        """Forward operators that run again, by the Python stack that started them."""
        spans, again = self._spans, np.zeros(len(self._spans), dtype=np.uint8)
        marked = recomputing_stacks(self._tables["stacks"], self._tables["frames"], self._strings)
        if marked is not None:
            again[marked[spans["own_stack"]]] = 1
            again[spans["scope"] == SCOPE_BACKWARD] = 0
            again[call_mask(spans["kind"])] = 0
        return {"recompute": again}

    def steps(self) -> Arrays:
        """The steps of the training loop, marked or found from the optimizer."""
        if self._steps is None:
            spans = self._spans
            # A range is repeated on the streams that what ran in it was launched on.
            optimizer = self.names_starting(OPTIMIZER_STEP) & (spans["stream"] < 0)
            cycles = self._tables["cycles"]
            begun = cycles["start_ns"][spans["cycle"]] if len(cycles) > 1 else None
            self._steps = _steps.find_steps(spans, optimizer, self._strings, begun)
        return self._steps

    def step(self) -> Arrays:
        """The step in which each span begins."""
        steps = self._tables["steps"]
        return {"step": _steps.step_at(self._spans["start_ns"], steps["start_ns"], steps["duration_ns"])}

    def cycle(self) -> Arrays:
        """The cycle of the session in which each span was recorded."""
        return {"cycle": _cycles.cycle_of_spans(self._spans["start_ns"], self._tables["cycles"])}

    def _attributed(self, device: bool) -> Arrays:
        """Attribute the allocations of the host, or of all devices, to spans."""
        if device not in self._memory:
            allocations = self._tables["allocations"]
            kind = allocations["device_type"]
            rows = np.flatnonzero((kind != 0) == device).astype(np.int32)
            made: Arrays = {
                "rows": rows,
                "span": np.full(len(rows), -1, dtype=np.int32),
                "match": np.full(len(rows), -1, dtype=np.int32),
                "total_bytes": np.zeros(len(rows), dtype=np.int64),
                "span_bytes": np.zeros(len(self._spans), dtype=np.int64),
                "span_self_bytes": np.zeros(len(self._spans), dtype=np.int64),
            }
            # Each device hands out addresses of its own, and to each process.
            number = kind[rows] * np.int64(256) + (allocations["device_index"][rows] if device else 0)
            if len(self._tables["processes"]):
                of_thread = self._tables["threads"]["process_row"].astype(np.int64)
                number += (np.append(of_thread, -1)[allocations["thread"][rows]] + 1) << 32
            for one in np.unique(number).tolist():
                mine = np.flatnonzero(number == one)
                part = self._attributed_blocks(rows[mine])
                for name in ("span", "match", "total_bytes"):
                    made[name][mine] = part[name]
                for name in ("span_bytes", "span_self_bytes"):
                    made[name] += part[name]
            self._memory[device] = made
        return self._memory[device]

    def _attributed_blocks(self, rows: NDArray[np.int32]) -> Arrays:
        """Attribute the allocations of one device, given by their rows."""
        spans, allocations, work = self._spans, self._tables["allocations"], self.work()
        of_spans = tuple(spans[name] for name in ("thread", "start_ns", "duration_ns", "parent", "lane"))
        of_blocks = tuple(
            allocations[name][rows] for name in ("time_ns", "thread", "address", "bytes", "freed_bytes")
        )
        if work is None:
            made: Arrays = dict(_core.attribute_allocations(*of_spans, *of_blocks))  # type: ignore[arg-type]
        else:
            made = attribute_beside_calls(of_spans, of_blocks, work)
        match = made["match"]
        made["match"] = np.where(match >= 0, rows[match], -1)
        return made

    def allocations(self) -> Arrays:
        """For each allocation its span, its free, and the live bytes after it."""
        length = len(self._tables["allocations"])
        made: Arrays = {
            "span": np.full(length, -1, dtype=np.int32),
            "match": np.full(length, -1, dtype=np.int32),
            "total_bytes": np.zeros(length, dtype=np.int64),
        }
        for device in (False, True):
            part = self._attributed(device)
            for name, values in made.items():
                values[part["rows"]] = part[name]
        return made

    def host_bytes(self) -> Arrays:
        """Net host bytes of each span."""
        part = self._attributed(device=False)
        return {"bytes": part["span_bytes"], "self_bytes": part["span_self_bytes"]}

    def device_bytes(self) -> Arrays:
        """Net device bytes of each span."""
        part = self._attributed(device=True)
        return {"device_bytes": part["span_bytes"], "device_self_bytes": part["span_self_bytes"]}

    def device_time(self) -> Arrays:
        """Device time of each host span: that of what it launched, and of what the spans inside it launched."""
        spans, launches = self._spans, self._tables["launches"]
        if len(launches) == 0:
            own = np.zeros(len(spans), dtype=np.int64)
            return {"device_ns": own, "device_self_ns": own}
        own = device_self_ns(spans, launches)
        total = sums_below(spans["parent"], spans["depth"], own)
        if (work := self.work()) is not None:
            nested = _core.nest(spans["thread"], spans["start_ns"], spans["duration_ns"])
            of_calls = sums_below(nested["parent"], nested["depth"], own)
            of_calls[work] = total[work]
            total = of_calls
        return {"device_ns": total, "device_self_ns": own}

    def module_paths(self) -> dict[str, Any]:
        """Dotted paths, depths and holders of the modules."""
        return _module_paths.module_paths(self._tables["modules"], self._strings)
