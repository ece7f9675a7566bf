"""The category of each block of memory: the rules, as one pure function over columns, and the facts that they need.

The rules are applied in order; the first that matches decides. `BlockFacts` has the facts about each block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model import schema
from kinetoscope.model.columns import Columns
from kinetoscope.model.hierarchy import nearest_of
from kinetoscope.model.kinds import is_call
from kinetoscope.model.rows import look_up, mask_of
from kinetoscope.model.schema import ColumnCode, Phase, SpanKind, StorageRole
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.memory.blocks import NEVER_NS, Blocks, blocks_of, keys_of

Flags = NDArray[np.bool_]
Rows = NDArray[np.int32]


class MemoryCategory(ColumnCode):
    """The category of a block. The numbers are the positions of the categories in torch's memory timelines."""

    PARAMETER = 0
    OPTIMIZER_STATE = 1
    INPUT = 2
    TEMPORARY = 3
    ACTIVATION = 4
    GRADIENT = 5
    AUTOGRAD_DETAIL = 6
    UNKNOWN = 7


CATEGORY_NAMES: tuple[str, ...] = tuple(
    category.name.lower().replace("_", " ") for category in MemoryCategory
)
NO_ROLE = 255


@dataclass(frozen=True)
class BlockFacts:
    """The facts for the rules, one entry per block.

    Attributes:
        role: The `StorageRole` of a tensor in it, `NO_ROLE` for none.
        phase: The `Phase` in which it was allocated.
        recorded: Whether its allocation was recorded; if not, its origin is unknown.
        is_gradient: Whether autograd put it into a parameter's `grad`.
        gone_with_operator: Whether it was freed before the outermost operator that allocated it had ended; in backward, the
            backward function.
        gone_with_step: Whether it was freed before the optimizer's step that allocated it had ended.
        in_module: Whether it was allocated in the forward of a module, recomputation in backward included.
        computed: Whether it was allocated in forward by an operator with a backward, or computed from an activation.
        fed: Whether it, or something computed from it, was the input of a forward operator that is in a module or has a
            backward. If inputs are unknown: whether it was live when such an operator began.
        stepped: Whether it was the input of an optimizer's operator.
        freed: Whether its free was recorded.
    """

    role: NDArray[np.uint8]
    phase: NDArray[np.uint8]
    recorded: Flags
    is_gradient: Flags
    gone_with_operator: Flags
    gone_with_step: Flags
    in_module: Flags
    computed: Flags
    fed: Flags
    stepped: Flags
    freed: Flags


def categorise(facts: BlockFacts) -> NDArray[np.uint8]:
    """Return the `MemoryCategory` of each block.

    1. Parameter: a module holds it as a parameter or buffer, or an optimizer in its parameter groups.
    2. Optimizer state: an optimizer holds it in its state.
    3. Gradient: it became or was a parameter's `grad`.
    4. Temporary: it was freed within the outermost operator (in backward: the backward function) that allocated it.
    5. Optimizer state if an optimizer step allocated it and it outlived the step; temporary if it did not.
    6. Autograd detail: backward allocated it, unless backward recomputed a module's forward.
    7. Activation: it was allocated in a module's forward, computed from an activation, or the output of an operator
       with a backward.
    8. Of the rest: parameter, if operators of both the model and the optimizer received it (its module did not live
       long enough to show it); optimizer state, if only the optimizer did; input, if the model received it or a
       tensor computed from it.
    9. Temporary if it was allocated and freed; otherwise unknown.
    """
    role, phase, recorded = facts.role, facts.phase, facts.recorded
    forward = recorded & ((phase == Phase.FORWARD) | facts.in_module)
    rules: list[tuple[Flags, MemoryCategory]] = [
        ((role == StorageRole.PARAMETER) | (role == StorageRole.BUFFER), MemoryCategory.PARAMETER),
        (role == StorageRole.OPTIMIZER_STATE, MemoryCategory.OPTIMIZER_STATE),
        ((role == StorageRole.GRADIENT) | facts.is_gradient, MemoryCategory.GRADIENT),
        (recorded & facts.gone_with_operator, MemoryCategory.TEMPORARY),
        (recorded & (phase == Phase.OPTIMIZER) & facts.gone_with_step, MemoryCategory.TEMPORARY),
        (recorded & (phase == Phase.OPTIMIZER), MemoryCategory.OPTIMIZER_STATE),
        (recorded & (phase == Phase.BACKWARD) & ~facts.in_module, MemoryCategory.AUTOGRAD_DETAIL),
        (forward & (facts.in_module | facts.computed), MemoryCategory.ACTIVATION),
        (facts.stepped & facts.fed, MemoryCategory.PARAMETER),
        (facts.stepped, MemoryCategory.OPTIMIZER_STATE),
        (facts.fed, MemoryCategory.INPUT),
        (recorded & facts.freed, MemoryCategory.TEMPORARY),
    ]
    return np.select(
        [fits for fits, _ in rules], [np.uint8(category) for _, category in rules], MemoryCategory.UNKNOWN
    ).astype(np.uint8)


# If tensors with several roles share a block, the latest role in this list wins.
_BY_WEIGHT = (
    StorageRole.TENSOR, StorageRole.BUFFER, StorageRole.GRADIENT, StorageRole.OPTIMIZER_STATE, StorageRole.PARAMETER,
)  # fmt: skip
_OPERATORS = (SpanKind.OPERATOR, SpanKind.BACKWARD, SpanKind.COLLECTIVE, SpanKind.FUSED_KERNEL)
# Inputs and loss of a model are outside of all modules: they are attributed by the time at which the model ran.
_AROUND_A_MODEL = (MemoryCategory.INPUT, MemoryCategory.ACTIVATION, MemoryCategory.AUTOGRAD_DETAIL)
# Chains of operators outside all modules are followed this far.
_LONGEST_CHAIN = 200


@dataclass(frozen=True)
class Judged:
    """The blocks of a trace with their category and owner.

    Attributes:
        blocks: The blocks.
        category: The `MemoryCategory` of each.
        module: Its row of `modules`, -1 for none. A parameter, its gradient and its optimizer state belong to the module
            that holds the parameter. Input belongs to the first module that received it or, if unknown, to the model
            that ran next after its allocation. All else belongs to the module in which it was allocated (in backward:
            in whose forward), or outside of modules, as for the loss, to the model that ran last before it.
        stack: The row of `stacks` of the Python code that allocated it, -1 for none.
    """

    blocks: Blocks
    category: NDArray[np.uint8]
    module: Rows
    stack: Rows


@derived
def judged_blocks(trace: TraceData) -> Judged:
    """Return the blocks of a trace with their categories."""
    return _Inquiry(trace).judge()


class _Inquiry:
    """The analysis of a trace's spans, operands and storages; arrays have one entry per block or span."""

    def __init__(self, trace: TraceData) -> None:
        self.trace = trace
        self.spans: Columns = trace.columns("spans")
        self.operands: Columns = trace.columns("operands")
        self.parameters: Columns = trace.columns("parameters")
        self.wrapper_names = np.array([text.startswith(schema.ENGINE_WRAPPER) for text in trace.strings])
        self.add_names = np.array([text == "aten::add_" for text in trace.strings])
        self.blocks = blocks_of(trace)
        self.outer, self.again = self._outermost()

    def judge(self) -> Judged:
        """Collect the facts, and apply the rules."""
        blocks, spans = self.blocks, self.spans
        recorded = blocks.recorded
        span = blocks.span
        outer = look_up(span, self.outer)
        phase = look_up(span, spans["phase"], Phase.FORWARD).astype(np.uint8)
        own_module = look_up(span, spans["module"])
        role, holder = self._roles()
        is_gradient, gradient_of = self._gradients(outer)
        differentiated = self._differentiated()
        again = look_up(span, self.again, False).astype(bool)
        forward = (spans["phase"] == Phase.FORWARD) & ~is_call(spans["kind"])
        of_model = forward & (
            (spans["module"] >= 0) | look_up(self.outer, differentiated, False).astype(bool)
        )
        candidates = (own_module < 0) & (phase == Phase.FORWARD)
        computed = candidates & look_up(outer, differentiated, False).astype(bool)
        made_by_model = computed | ((own_module >= 0) & (phase == Phase.FORWARD))
        if (self.operands["argument"] >= 0).any():
            computed, fed, first_module = self._flows(of_model, outer, candidates, made_by_model)
        else:
            fed, first_module = self._there(of_model, candidates & ~computed), np.full_like(own_module, -1)
        facts = BlockFacts(
            role=role,
            phase=phase,
            recorded=recorded,
            is_gradient=is_gradient,
            gone_with_operator=(outer >= 0) & (blocks.end_ns <= self._end_of(outer)),
            gone_with_step=blocks.end_ns <= self._end_of(self._step_of(span)),
            in_module=(own_module >= 0) & ((phase == Phase.FORWARD) | again),
            computed=computed,
            fed=fed,
            stepped=self._stepped(),
            freed=blocks.end_ns < NEVER_NS,
        )
        category = categorise(facts)
        module = np.where(holder >= 0, holder, np.where(gradient_of >= 0, gradient_of, own_module))
        module = np.where((category == MemoryCategory.INPUT) & (module < 0), first_module, module)
        outside = (module < 0) & np.isin(category, _AROUND_A_MODEL)
        module = np.where(outside, self._model_around(of_model, category), module).astype(np.int32)
        taken = np.append(self.trace.column("allocations", "stack"), -1).take(blocks.allocation)
        stack = np.where(taken >= 0, taken, look_up(span, spans["stack"])).astype(np.int32)
        return Judged(blocks, category, module, stack)

    def _outermost(self) -> tuple[Rows, Flags]:
        """For each span the outermost operator around it, and whether it recomputes a forward in backward.

        User ranges, Python calls and the wrapper of autograd's engine contain operators but are none. A backward function is an
        operator, and so is each operator that reruns a module's Python code inside one.
        """
        spans = self.spans
        parent, scope, phase, own = (spans[name] for name in ("parent", "scope", "phase", "own_module"))
        inside, above = parent >= 0, np.maximum(parent, 0)
        backward, function = phase == Phase.BACKWARD, scope == schema.SCOPE_BACKWARD
        # A module's forward may call backward(): that module is no sign of recomputation.
        first = backward & ~(inside & backward.take(above))
        caller = look_up(nearest_of(self.trace, first)[:-1], own)
        again = backward & ~function & (own >= 0) & (own != caller)
        bare = ~np.isin(spans["kind"], _OPERATORS) | self.wrapper_names.take(spans["name"])
        starts = ~bare & (~inside | bare.take(above) | function | (again & ~again.take(above)))
        return nearest_of(self.trace, starts)[:-1], again

    def _end_of(self, rows: Rows) -> NDArray[np.int64]:
        """The end of each span; earlier than everything for row -1."""
        ends = self.spans["start_ns"] + self.spans["duration_ns"]
        return look_up(rows, ends, -2)

    def _step_of(self, rows: Rows) -> Rows:
        """For each span the optimizer step around it, -1 for none."""
        stepping = self.spans["phase"] == Phase.OPTIMIZER
        first = stepping & ~np.append(stepping, False).take(self.spans["parent"])
        return nearest_of(self.trace, first)[rows]

    def _roles(self) -> tuple[NDArray[np.uint8], Rows]:
        held = self.trace.columns("storages")
        role = np.full(len(self.blocks), NO_ROLE, dtype=np.uint8)
        module = np.full(len(self.blocks), -1, dtype=np.int32)
        block = self.blocks.at(keys_of(self.trace, "storages"), held["time_ns"])
        for weight in _BY_WEIGHT:
            rows = np.flatnonzero((block >= 0) & (held["role"] == weight))
            role[block[rows]] = weight
            named = rows[held["module"][rows] >= 0]
            module[block[named]] = held["module"][named]
        return role, module

    def _gradients(self, outer: Rows) -> tuple[Flags, Rows]:
        """Whether each block became a parameter's gradient, and the module of the parameter.

        In `AccumulateGrad`, autograd keeps the block that it receives, which then outlives it, allocates a new one, or
        adds to the existing one, the first operand of `add_`.
        """
        blocks, spans, operands = self.blocks, self.spans, self.operands
        of_span = look_up(spans["parameter"], self.parameters["module"])
        accumulates = spans["parameter"] >= 0
        is_gradient = look_up(outer, accumulates, False).astype(bool) & (blocks.end_ns > self._end_of(outer))
        module = np.where(is_gradient, look_up(outer, of_span), -1).astype(np.int32)
        rows = np.flatnonzero(operands["parameter"] >= 0)
        block = self._given(rows)
        outlives = (block >= 0) & (blocks.end_ns[block] > self._end_of(operands["span"][rows]))
        is_gradient[block[outlives]] = True
        module[block[outlives]] = self.parameters["module"][operands["parameter"][rows[outlives]]]
        above = spans["parent"][operands["span"]]
        rows = np.flatnonzero(
            (operands["argument"] == 0)
            & self.add_names[spans["name"][operands["span"]]]
            & look_up(above, accumulates, False).astype(bool)
        )
        block = self._given(rows)
        rows, block = rows[block >= 0], block[block >= 0]
        is_gradient[block] = True
        module[block] = of_span[above[rows]]
        return is_gradient, module

    def _given(self, rows: NDArray[np.intp]) -> Rows:
        operands = self.operands
        return self.blocks.at(
            keys_of(self.trace, "operands", rows), self.spans["start_ns"][operands["span"][rows]]
        )

    def _differentiated(self) -> Flags:
        """Mark the outermost forward operators that have a backward function."""
        forward = self.spans["forward"]
        return mask_of(self.outer[forward[forward >= 0]], len(self.spans) + 1)[:-1]

    def _stepped(self) -> Flags:
        stepping = self.spans["phase"][self.operands["span"]] == Phase.OPTIMIZER
        return mask_of(self._given(np.flatnonzero(stepping)), len(self.blocks) + 1)[:-1]

    def _model_around(self, of_model: Flags, category: NDArray[np.uint8]) -> Rows:
        """The outermost module of the model that ran last before each block or, for input, next after it."""
        spans = self.spans
        rows = np.flatnonzero(of_model & (spans["module"] >= 0))
        rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
        holder, depth = (self.trace.column("modules", name) for name in ("holder", "depth"))
        root = _core.nearest_marked(holder, depth, holder < 0)[spans["module"][rows]]
        position = np.searchsorted(spans["start_ns"][rows], self.blocks.start_ns)
        position = np.where(category == MemoryCategory.INPUT, position, position - 1)
        return look_up(np.where(position < len(rows), position, -1), root)

    def _there(self, of_model: Flags, candidates: Flags) -> Flags:
        """Candidates that were live when an operator of the model began."""
        starts = np.sort(self.spans["start_ns"][of_model])
        following = np.append(starts, NEVER_NS)[np.searchsorted(starts, self.blocks.start_ns)]
        return np.asarray(candidates & (following < self.blocks.end_ns))

    def _flows(
        self, of_model: Flags, outer: Rows, candidates: Flags, made_by_model: Flags
    ) -> tuple[Flags, Flags, Rows]:
        """Of the candidates: the blocks computed from the model's results, its inputs, and the module of each input."""
        spans, operands = self.spans, self.operands
        span_outer = self.outer[operands["span"]]
        wanted = mask_of(outer[candidates & (outer >= 0)], len(spans))
        rows = np.flatnonzero((span_outer >= 0) & wanted[span_outer])
        source = self._given(rows)
        operator, source = span_outer[rows[source >= 0]], source[source >= 0]
        computed = _reached(made_by_model, source, operator, outer, candidates, len(spans))
        keys = keys_of(self.trace, "operands")
        candidate_keys = np.unique(self.blocks.key[candidates])
        rows = np.flatnonzero(
            of_model[operands["span"]] & (operands["argument"] >= 0) & np.isin(keys, candidate_keys)
        )
        block = self._given(rows)
        rows, block = rows[block >= 0], block[block >= 0]
        fed = mask_of(block, len(self.blocks))
        # Latest first, so that the earliest is assigned last.
        late = np.argsort(-spans["start_ns"][operands["span"][rows]], kind="stable")
        module = spans["module"][operands["span"][rows[late]]]
        place = np.full(len(self.blocks), -1, dtype=np.int32)
        place[block[late][module >= 0]] = module[module >= 0]
        fed, place = _traced_back(fed & candidates & ~computed, place, source, operator, outer, len(spans))
        return computed, fed & candidates, place


def _reached(marked: Flags, source: Rows, operator: Rows, outer: Rows, may: Flags, spans: int) -> Flags:
    """Mark the outputs of operators with a marked input, transitively, within the blocks in `may`."""
    reached = marked.copy()
    for _ in range(_LONGEST_CHAIN):
        active = mask_of(operator[reached[source]], spans + 1)
        fresh = may & active[outer] & ~reached
        if not fresh.any():
            break
        reached |= fresh
    return reached & may


def _traced_back(
    marked: Flags, place: Rows, source: Rows, operator: Rows, outer: Rows, spans: int
) -> tuple[Flags, Rows]:
    """Mark the inputs of operators with a marked output, transitively, and pass its `place` on."""
    reached, place = marked.copy(), place.copy()
    for _ in range(_LONGEST_CHAIN):
        active = np.full(spans + 1, -2, dtype=np.int32)
        makers = np.flatnonzero(reached & (outer >= 0))
        active[outer[makers]] = place[makers]
        fresh = np.flatnonzero((active[operator] > -2) & ~reached[source])
        if len(fresh) == 0:
            break
        reached[source[fresh]] = True
        place[source[fresh]] = active[operator[fresh]]
    return reached, place
