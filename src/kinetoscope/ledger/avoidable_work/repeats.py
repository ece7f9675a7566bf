"""Work whose result existed already, by the storages and versions of tensors: which operator computed the same before.

Two calls have the same result if the operator, its other arguments and the contents of its tensors are the same. Contents are known by the storage and
by what wrote it last: a number for each, which the results of the same call share (value numbering, as compilers do it for common subexpressions). What
is not certain has a number that nothing else has, and so no claim follows from it: memory that others than torch may write, versions that changed without an
operator that is known, operators that are random, that are not torch's own, or of which something is not recorded. Small tensors that no operator made, such
as those made of Python's lists, are known by their values.

Not seen is a write to torch's memory without an operator: through `data_ptr()`, DLPack or the methods of a storage. Where compiled kernels ran, or a device
was used, whose kernels may run without an operator (such as those of a graph that is replayed), nothing is claimed.
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
    """What each span repeats, by the row of another one; -1 for nothing.

    Attributes:
        same_step: The call before in the same step that had the same result, where none in the step before had it.
        earlier_step: The call in the step before that had the same result.
        overwritten_by: For a fill, what overwrote all of it before anything read it.
    """

    same_step: Rows
    earlier_step: Rows
    overwritten_by: Rows


_RANDOM = (
    "rand", "normal_", "aten::normal", "uniform", "bernoulli", "dropout", "multinomial", "exponential", "poisson", "cauchy", "geometric", "rrelu",
    "binomial", "gamma", "dirichlet",
)  # fmt: skip
# Their results have whatever was in the memory, or they change what a tensor is.
_UNDEFINED = names("aten::set_ aten::set aten::resize_ aten::resize_as_ aten::item aten::_local_scalar_dense")
_UNDEFINED_PREFIXES = tuple(
    names("aten::empty aten::new_empty aten::_empty aten::resize aten::is_ aten::_assert")
)
_FILLS = names(
    "aten::zeros aten::zeros_like aten::ones aten::ones_like aten::full aten::full_like aten::new_zeros aten::new_ones aten::new_full aten::zero_"
    " aten::fill_"
)
# These write all of their first argument, whatever was there.
_OVERWRITES = names("aten::copy_ aten::zero_ aten::fill_ aten::normal_ aten::uniform_")
# In training these write their statistics, without saying so in their schema.
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
    """Whether an operator has another result each time."""
    return any(word in name for word in _RANDOM)


@derived
def repeats_of(trace: TraceData) -> Repeats:
    """Find what repeats earlier work, once for a trace; nothing where the versions of tensors were not recorded."""
    spans, versions = trace.columns("spans"), trace.columns("tensor_versions")
    before, overwritten_by = (np.full(len(spans) + 1, -1, np.int64) for _ in range(2))
    if len(versions) == 0 or has_unknown_readers(trace) or _uses_devices(trace):
        return Repeats(before, before, overwritten_by)
    row, repeated = _follow(trace)
    # Of the calls as they are followed, -1 for none.
    rows = np.append(row, -1)
    before[row], overwritten_by[row] = rows[repeated["before"]], rows[repeated["overwritten_by"]]
    step = np.append(spans["step"], -1)
    in_forward = np.append(spans["phase"] == Phase.FORWARD, False) & (before >= 0)
    distance = step - step[before]
    same = np.where(in_forward & (distance == 0), before, -1)
    earlier = np.where(in_forward & (distance == 1), before, -1)
    # What repeats a call that repeats one of the step before, does so, too.
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
    """Whether something may have read or written tensors unseen: records were lost, or compiled kernels ran."""
    is_lost = any(loss["code"] in _LOST for loss in trace.losses)
    return is_lost or any(is_generated(text) for text in trace.strings)


def _uses_devices(trace: TraceData) -> bool:
    runs = (trace.run_info, *trace.run_info.processes)
    return len(trace.columns("streams")) > 0 or any(
        device.type != "cpu" for run in runs for device in run.devices
    )


# As `_core.find_repeats` has them: of calls, and of tensors.
_TORCHS, _DETERMINED, _WRITES, _IS_FILL, _OVERWRITES_ALL, _HAS_STATISTICS, _WRITES_UNKNOWN = (
    1 << bit for bit in range(7)
)
_RESULT, _SHARED, _WHOLE, _IS_NUMBER = (1 << bit for bit in range(4))


def _follow(trace: TraceData) -> tuple[Rows, dict[str, Rows]]:
    """Follow all operators in order of time: the row of each call, and what `_core.find_repeats` says of these."""
    spans, versions = trace.columns("spans"), trace.columns("tensor_versions")
    span = versions["span"].astype(np.int64)
    order = np.lexsort((span, spans["start_ns"][span]))
    span = span[order]
    first = np.flatnonzero(begins_run(span))
    row = span[first]
    process = np.append(trace.column("threads", "process_row"), -1)[spans["thread"][span]]
    storage, number = versions["storage"][order], versions["number"][order] != 0
    # The numbers of storages are those of a process. A number of Python is known by its bits, and nothing changes it.
    storage_key = np.where((storage > 0) & ~number, storage + ((process.astype(np.int64) + 1) << 44), 0)
    flag_of = {"result": _RESULT, "shared": _SHARED, "whole": _WHOLE}
    tensor_flags = np.where(number, _IS_NUMBER, 0)
    for name, flag in flag_of.items():
        tensor_flags |= np.where(versions[name][order] != 0, flag, 0)
    random, inside = _inside(trace)
    kinds = [spans[name][row] for name in ("name", "overload", "shapes")]
    kind = Groups.by([*kinds, inside[row].view(np.int64)]).of_row
    # What ran where no versions were recorded may have changed anything.
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
    """The flags of each call for `_core.find_repeats`, which depend on its name, overload and shapes."""
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
        # The tensors of collectives are all known; what is not, is their group.
        _WRITES_UNKNOWN: (writes or not of_torch) and not name.startswith(_COLLECTIVES),
    }
    return sum(flag for flag, is_set in flags.items() if is_set)


def _inside(trace: TraceData) -> tuple[Mask, NDArray[np.uint64]]:
    """Whether an operator is random, or one inside it is; and which operators are inside, as a hash.

    What is inside depends on settings that are no arguments, such as autocast or the choice of a kernel.
    """
    spans = trace.columns("spans")
    is_drawn = np.array([is_random(text) for text in trace.strings], dtype=bool).take(spans["name"])
    around = nearest_of(trace, trace.column("tensor_versions", "span"))[:-1]
    random = mask_of(around[is_drawn], len(spans) + 1)
    inside = Groups(around, len(spans)).sums(hashed(spans["name"], spans["shapes"]).view(np.int64))
    return random[:-1], inside.view(np.uint64)


def _is_usable(trace: TraceData, shapes: int, name: str) -> bool:
    """Whether all other arguments of a call are known, and say that it has no other effects."""
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
