"""Operators whose result existed already: which earlier call computed the same, by the storages and versions of tensors.

Two calls have the same result if the operator, its other arguments and the contents of its tensors are the same. The storage and its last writer identify the
contents: they get a number, and equal calls share the numbers of their results (value numbering, as compilers do for common subexpressions). Whatever is
uncertain gets a unique number, so that no claim follows from it: memory that code outside torch may write, versions that changed without a known operator,
random operators, operators from outside torch, incomplete records. Small tensors that no operator made, such as those from Python lists, are compared by value.

Writes to torch's memory without an operator stay unseen: through `data_ptr()`, DLPack or the methods of a storage. If compiled kernels ran or a device was used,
nothing is claimed: their kernels may run without an operator, as in a graph replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import nearest_of, outermost_operators
from kinetoscope.model.rows import Mask, Rows, ShapesRow, begins_run, hashed, mask_of
from kinetoscope.model.schema import Phase
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.evaluate import is_generated, is_made_of_others, parsed_inputs, rule_of
from kinetoscope.tables.costs.operator_names import names
from kinetoscope.tables.deep_steps import twins


@dataclass(frozen=True, eq=False)
class Repeats:
    """For each span, the row of the span that it repeats or that overwrites it; -1 for none.

    Attributes:
        same_step: The earlier call in the same step with the same result, if no call in the previous step had it.
        earlier_step: The call in the previous step with the same result.
        overwritten_by: For a fill, the operator that overwrote all of it before anything read it.
    """

    same_step: Rows
    earlier_step: Rows
    overwritten_by: Rows


_RANDOM = (
    "rand", "normal_", "aten::normal", "uniform", "bernoulli", "dropout", "multinomial", "exponential", "poisson", "cauchy", "geometric", "rrelu",
    "binomial", "gamma", "dirichlet",
)  # fmt: skip
# Their results are uninitialized memory, or they replace a tensor's storage.
_UNDEFINED = names("aten::set_ aten::set aten::resize_ aten::resize_as_ aten::item aten::_local_scalar_dense")
_UNDEFINED_PREFIXES = tuple(
    names("aten::empty aten::new_empty aten::_empty aten::resize aten::is_ aten::_assert")
)
_FILLS = names(
    "aten::zeros aten::zeros_like aten::ones aten::ones_like aten::full aten::full_like aten::new_zeros aten::new_ones aten::new_full aten::zero_"
    " aten::fill_"
)
# These overwrite all of their first argument.
_OVERWRITES = names("aten::copy_ aten::zero_ aten::fill_ aten::normal_ aten::uniform_")
# In training these update running statistics, which their schema does not show.
_RUNNING_STATISTICS = names(
    "aten::batch_norm aten::native_batch_norm aten::cudnn_batch_norm aten::miopen_batch_norm aten::instance_norm aten::_batch_norm_impl_index"
)
_TRAINING = 5
# Attention drops elements at random where this argument is not 0.
_ATTENTION, _DROPOUT = "scaled_dot_product", 4
_COLLECTIVES = ("c10d::", "_c10d_functional::")
# Longer lists are recorded in part.
_MOST_ELEMENTS = 64
# What was not recorded may have written to anything.
_LOST = names(
    "dropped_notes ring_dropped_notes recycled_notes unmatched_notes collection_paused dropped_spans"
)


def is_random(name: str) -> bool:
    """Whether an operator draws random numbers, by its name."""
    return any(word in name for word in _RANDOM)


@derived
def repeats_of(trace: TraceData) -> Repeats:
    """Find operators that repeat earlier work, once per trace; none without recorded tensor versions."""
    spans, versions = trace.columns("spans"), trace.columns("tensor_versions")
    before, overwritten_by = (np.full(len(spans) + 1, -1, np.int64) for _ in range(2))
    if len(versions) == 0 or has_unknown_readers(trace) or _uses_devices(trace):
        return Repeats(before, before, overwritten_by)
    row, repeated = _follow(trace)
    # Translate call numbers of `_follow` into span rows; -1 stays -1.
    rows = np.append(row, -1)
    before[row], overwritten_by[row] = rows[repeated["before"]], rows[repeated["overwritten_by"]]
    step = np.append(spans["step"], -1)
    in_forward = np.append(spans["phase"] == Phase.FORWARD, False) & (before >= 0)
    distance = step - step[before]
    same = np.where(in_forward & (distance == 0), before, -1)
    earlier = np.where(in_forward & (distance == 1), before, -1)
    # A call that repeats a repetition of the previous step repeats the previous step, too.
    rows = np.flatnonzero(same >= 0)
    first = same.copy()
    while len(rows):
        rows = rows[same[first[rows]] >= 0]
        first[rows] = same[first[rows]]
    rows = np.flatnonzero((same >= 0) & (earlier[first] >= 0))
    earlier[rows], same[rows] = earlier[first[rows]], -1
    for repeats, in_pairs in ((same, False), (earlier, True), (overwritten_by, False)):
        twin = twins(trace, in_pairs)
        rows = np.flatnonzero(twin >= 0)
        repeats[rows] = repeats[twin[rows]]
    return Repeats(same, earlier, overwritten_by)


@derived
def has_unknown_readers(trace: TraceData) -> bool:
    """Whether tensors may have been read or written unseen: records were lost, or compiled kernels ran."""
    is_lost = any(loss["code"] in _LOST for loss in trace.losses)
    return is_lost or any(is_generated(text) for text in trace.strings)


def _uses_devices(trace: TraceData) -> bool:
    runs = (trace.run_info, *trace.run_info.processes)
    return len(trace.columns("streams")) > 0 or any(
        device.type != "cpu" for run in runs for device in run.devices
    )


# The flags of calls and of tensors, as `_core.find_repeats` defines them.
_TORCHS, _DETERMINED, _WRITES, _IS_FILL, _OVERWRITES_ALL, _HAS_STATISTICS, _WRITES_UNKNOWN = (
    1 << bit for bit in range(7)
)
_RESULT, _SHARED, _WHOLE, _IS_NUMBER = (1 << bit for bit in range(4))


def _follow(trace: TraceData) -> tuple[Rows, dict[str, Rows]]:
    """Pass all operators with recorded tensors to `_core.find_repeats`, in order of time; return their rows and its results."""
    spans, versions = trace.columns("spans"), trace.columns("tensor_versions")
    span = versions["span"].astype(np.int64)
    order = np.lexsort((span, spans["start_ns"][span]))
    span = span[order]
    first = np.flatnonzero(begins_run(span))
    row = span[first]
    process = np.append(trace.column("threads", "process_row"), -1)[spans["thread"][span]]
    storage, number = versions["storage"][order], versions["number"][order] != 0
    # Storage numbers are unique per process only. A Python number is identified by its bits and never changes.
    storage_key = np.where((storage > 0) & ~number, storage + ((process.astype(np.int64) + 1) << 44), 0)
    flag_of = {"result": _RESULT, "shared": _SHARED, "whole": _WHOLE}
    tensor_flags = np.where(number, _IS_NUMBER, 0)
    for name, flag in flag_of.items():
        tensor_flags |= np.where(versions[name][order] != 0, flag, 0)
    random, inside = _inside(trace)
    kinds = [spans[name][row] for name in ("name", "overload", "shapes")]
    kind = Groups.by([*kinds, inside[row].view(np.int64)]).of_row
    # An operator without recorded versions may have changed anything.
    unknown = outermost_operators(trace, spans["phase"] == Phase.FORWARD)
    unknown_ns = np.sort(spans["start_ns"][unknown[~np.isin(unknown, row)]])
    cycle = Groups.by([spans["cycle"][row], np.searchsorted(unknown_ns, spans["start_ns"][row])]).of_row
    flags = _flags(trace, kinds)
    flags[random[row]] &= ~_DETERMINED
    return row, _core.find_repeats(
        kind=kind,
        cycle=cycle.astype(np.int32),
        flags=flags.astype(np.uint8),
        first=np.append(first, len(span)),
        argument=versions["argument"][order].astype(np.int32),
        storage=storage_key,
        version=versions["version"][order].astype(np.int64),
        offset=np.where(number, storage, versions["offset_bytes"][order]),
        tensor_flags=tensor_flags.astype(np.uint8),
        content=versions["content"][order],
    )


def _flags(trace: TraceData, kinds: list[NDArray[np.int32]]) -> Rows:
    """The flags of each call for `_core.find_repeats`, from its name, overload and shapes."""
    groups = Groups.by(kinds)
    names, overloads, shapes = (key[groups.first].tolist() for key in kinds)
    flags = [
        _flags_of(trace, trace.strings[name], trace.strings[overload], row)
        for name, overload, row in zip(names, overloads, shapes, strict=True)
    ]
    return np.array(flags, np.int64)[groups.of_row]


def _flags_of(trace: TraceData, name: str, overload: str, shapes: int) -> int:
    of_torch, writes = name.startswith("aten::"), name.endswith("_") or "out" in overload
    is_known = rule_of(name) is not None or is_made_of_others(name)
    is_defined = name not in _UNDEFINED and not name.startswith(_UNDEFINED_PREFIXES) and not is_random(name)
    flags = {
        _TORCHS: of_torch,
        _DETERMINED: of_torch and is_known and is_defined and _is_usable(trace, shapes, name),
        _WRITES: writes,
        _IS_FILL: name in _FILLS,
        _OVERWRITES_ALL: name in _OVERWRITES,
        _HAS_STATISTICS: name in _RUNNING_STATISTICS,
        # All tensors of a collective are recorded; only its group is not.
        _WRITES_UNKNOWN: (writes or not of_torch) and not name.startswith(_COLLECTIVES),
    }
    return sum(flag for flag, is_set in flags.items() if is_set)


def _inside(trace: TraceData) -> tuple[Mask, NDArray[np.uint64]]:
    """Whether an operator or one inside it is random, and a hash of the operators inside it.

    Settings that are not arguments, such as autocast or the choice of a kernel, change the operators inside.
    """
    spans = trace.columns("spans")
    is_drawn = np.array([is_random(text) for text in trace.strings], dtype=bool).take(spans["name"])
    around = nearest_of(trace, trace.column("tensor_versions", "span"))[:-1]
    random = mask_of(around[is_drawn], len(spans) + 1)
    inside = Groups(around, len(spans)).sums(hashed(spans["name"], spans["shapes"]).view(np.int64))
    return random[:-1], inside.view(np.uint64)


def _is_usable(trace: TraceData, shapes: int, name: str) -> bool:
    """Whether all arguments of a call are known and rule out randomness and updates of statistics."""
    inputs = parsed_inputs(trace, ShapesRow(shapes)) if shapes >= 0 else None
    if inputs is None:
        return False
    sizes = (*inputs.values, *inputs.shapes)
    if any(isinstance(value, list) and len(value) > _MOST_ELEMENTS for value in sizes):
        return False
    values = [*inputs.values, *([None] * (_TRAINING + 1))]
    if name in _RUNNING_STATISTICS:
        return values[_TRAINING] is False
    return _ATTENTION not in name or values[_DROPOUT] == 0
