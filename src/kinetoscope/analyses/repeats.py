"""Work whose result existed already, by the storages and versions of tensors: which operator computed the same before.

Two calls have the same result if the operator, its other arguments and the contents of its tensors are the same. Contents are known by the storage and
by what wrote it last: a number for each, which the results of the same call share (value numbering, as compilers do it for common subexpressions). What
is not certain has a number that nothing else has, and so no claim follows from it: memory that others than torch may write, versions that changed without an
operator that is known, operators that are random, that are not torch's own, or of which something is not recorded.

Not seen is a write to torch's memory without an operator: through `data_ptr()`, DLPack or the methods of a storage. Where compiled kernels ran, or a device
was used, whose kernels may run without an operator (such as those of a graph that is replayed), nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.rows import ShapesRow
from kinetoscope.model.schema import Phase
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.costs.evaluate import is_generated, is_made_of_others, parsed_inputs, rule_of
from kinetoscope.tables.costs.operator_names import names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

    Rows = NDArray[np.int64]
    Tensor = tuple[int, int, int, bool, bool, bool]
    """Its storage, version and offset, whether others may write to it, whether it has the whole storage, and whether it is a number of Python; such a one
    has its bits in place of the offset."""


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
_UNDEFINED_PREFIXES = (
    "aten::empty",
    "aten::new_empty",
    "aten::_empty",
    "aten::resize",
    "aten::is_",
    "aten::_assert",
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
_STATISTICS, _TRAINING = (3, 4), 5
# Attention drops elements at random where this argument is not 0.
_ATTENTION, _DROPOUT = "scaled_dot_product", 4
# What a number of Python has in place of the number of its contents.
_NUMBER = -1
_COLLECTIVES = ("c10d::", "_c10d_functional::")
# Longer lists are recorded in part.
_MOST_ELEMENTS = 64
# What was not recorded may have written to anything.
_LOST = (
    "dropped_notes",
    "ring_dropped_notes",
    "recycled_notes",
    "unmatched_notes",
    "collection_paused",
    "dropped_spans",
)


class _Operator(NamedTuple):
    """What a name says of an operator."""

    is_torchs: bool
    is_determined: bool
    writes: bool
    fills: bool
    overwrites: bool
    has_statistics: bool
    is_attention: bool
    writes_unknown: bool


def is_random(name: str) -> bool:
    """Whether an operator has another result each time."""
    return any(word in name for word in _RANDOM)


def _operator(name: str, overload: str) -> _Operator:
    own = name.startswith("aten::")
    writes = name.endswith("_") or "out" in overload
    known = rule_of(name) is not None or is_made_of_others(name)
    defined = name not in _UNDEFINED and not name.startswith(_UNDEFINED_PREFIXES)
    return _Operator(
        own,
        own and known and defined and not is_random(name),
        writes,
        name in _FILLS,
        name in _OVERWRITES,
        name in _RUNNING_STATISTICS,
        _ATTENTION in name,
        # The tensors of collectives are all known; what is not, is their group.
        (writes or not own) and not name.startswith(_COLLECTIVES),
    )


@derived
def repeats_of(trace: TraceData) -> Repeats:
    """Find what repeats earlier work, once for a trace; nothing where the versions of tensors were not recorded."""
    spans, given = trace.columns("spans"), trace.columns("tensor_versions")
    before, overwritten_by = (np.full(len(spans) + 1, -1, np.int64) for _ in range(2))
    unseen = any(loss["code"] in _LOST for loss in trace.losses) or _uses_devices(trace)
    if len(given) and not unseen and not any(is_generated(text) for text in trace.strings):
        _Contents(trace, before, overwritten_by).follow()
    step = np.append(spans["step"], -1)
    own = np.append(spans["phase"] == Phase.FORWARD, False) & (before >= 0)
    distance = step - step[before]
    same = np.where(own & (distance == 0), before, -1)
    earlier = np.where(own & (distance == 1), before, -1)
    # What repeats a call that repeats one of the step before, does so, too.
    rows = np.flatnonzero(same >= 0)
    for row in rows[np.argsort(spans["start_ns"][rows], kind="stable")].tolist():
        if earlier[same[row]] >= 0:
            earlier[row], same[row] = earlier[same[row]], -1
    return Repeats(same, earlier, overwritten_by)


def _uses_devices(trace: TraceData) -> bool:
    """Whether the program used a device."""
    runs = (trace.run_info, *trace.run_info.processes)
    return len(trace.columns("streams")) > 0 or any(one.type != "cpu" for run in runs for one in run.devices)


class _Contents:
    """The contents of storages, by number, as operators change them one after the other."""

    def __init__(self, trace: TraceData, before: Rows, overwritten_by: Rows) -> None:
        self.trace, self.before, self.overwritten_by = trace, before, overwritten_by
        spans = trace.columns("spans")
        self.name, self.overload = spans["name"].tolist(), spans["overload"].tolist()
        self.shapes = spans["shapes"].tolist()
        self.random, self.inside = (each.tolist() for each in self._inside())
        self.operators: dict[tuple[int, int], _Operator] = {}
        self.usable: dict[tuple[int, int, int], bool] = {}
        self.last = 0
        self.of: dict[int, tuple[int, int]] = {}  # of a storage: its number, and its version then
        self.numbers: dict[tuple[object, ...], int] = {}
        self.calls: dict[tuple[int, ...], int] = {}
        # The calls that made and changed a storage, and the fill of it that nothing has read.
        self.makers: dict[int, list[int]] = {}
        self.unread_fill: dict[int, int] = {}

    def _inside(self) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
        """Whether an operator is random, or one inside it is; and which operators are inside, as a hash.

        What is inside depends on settings that are no arguments, such as autocast or the choice of a kernel.
        """
        spans = self.trace.columns("spans")
        own = np.array([is_random(text) for text in self.trace.strings], dtype=bool)[spans["name"]]
        noted = np.zeros(len(spans), bool)
        noted[self.trace.column("tensor_versions", "span")] = True
        around = _core.nearest_marked(spans["parent"], spans["depth"], noted)
        found = np.zeros(len(spans) + 1, bool)
        found[around[own]] = True
        mixed = (spans["name"].astype(np.uint64) << np.uint64(32)) + spans["shapes"].astype(np.uint32)
        mixed = (mixed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        inside = np.zeros(len(spans) + 1, np.uint64)
        np.add.at(inside, around, mixed * mixed)
        return found[:-1], inside[:-1]

    def follow(self) -> None:
        """Follow all operators in order of time."""
        spans, given = self.trace.columns("spans"), self.trace.columns("tensor_versions")
        span = given["span"].astype(np.int64)
        process = np.append(self.trace.column("threads", "process_row"), -1)[spans["thread"][span]]
        # The numbers of storages are those of a process.
        own = (given["storage"] > 0) & (given["number"] == 0)
        storage = np.where(own, given["storage"] + ((process.astype(np.int64) + 1) << 44), 0)
        # A number of Python is known by its bits, and nothing changes it.
        bits = np.where(given["number"] != 0, given["storage"], -1)
        order = np.lexsort((np.arange(len(span)), span, spans["start_ns"][span]))
        columns = [
            storage,
            given["version"],
            given["offset_bytes"],
            given["shared"] != 0,
            given["whole"] != 0,
            given["number"] != 0,
        ]
        columns[2] = np.where(given["number"] != 0, bits, columns[2])
        tensors = list(zip(*(column[order].tolist() for column in columns), strict=True))
        result, argument = (given[name][order].tolist() for name in ("result", "argument"))
        span = span[order]
        first = np.flatnonzero(np.append(True, span[1:] != span[:-1])[: len(span)])
        cycle, now = spans["cycle"][span[first]].tolist(), None
        ends = np.append(first[1:], len(span)).tolist()
        for begin, end, row, one_cycle in zip(first.tolist(), ends, span[first].tolist(), cycle, strict=True):
            if one_cycle != now:
                # What ran in between was not recorded.
                now = one_cycle
                self.of.clear()
                self.unread_fill.clear()
                self.makers.clear()
            place = range(begin, end)
            self._call(
                row,
                [(argument[at], tensors[at]) for at in place if not result[at]],
                [(argument[at], tensors[at]) for at in place if result[at]],
            )

    def _fresh(self) -> int:
        """A number that nothing else has."""
        self.last += 1
        return self.last

    def _call(self, row: int, arguments: list[tuple[int, Tensor]], results: list[tuple[int, Tensor]]) -> None:
        """Follow one operator: whether it repeats an earlier one, and what it changes."""
        names_ = (self.name[row], self.overload[row])
        operator = self.operators.get(names_)
        if operator is None:
            operator = self.operators[names_] = _operator(*(self.trace.strings[one] for one in names_))
        determined = operator.is_determined and not self.random[row] and self._is_usable(row, operator)
        key = [*names_, self.shapes[row], self.inside[row]]
        given: dict[int, int] = {}
        for argument, (storage, version, offset, shared, whole, is_number) in arguments:
            if is_number:
                key += (argument, _NUMBER, offset)
                continue
            given[storage] = version
            if storage == 0 and operator.writes_unknown:
                self._forget()
            number = self._number(storage, version)
            if storage == 0 or shared:
                determined = False
                self._changed(storage)
            elif operator.overwrites and argument == 0 and whole:
                fill = self.unread_fill.pop(storage, -1)
                if fill >= 0 and all(other[0] != storage for place, other in arguments if place != argument):
                    self.overwritten_by[fill] = row
            elif not (any(one[0] == storage for _, one in results) and not operator.writes):
                self.unread_fill.pop(storage, None)
            key += (argument, number, offset)
        made = [(place, one) for place, one in results if one[0] and self._is_written(operator, one, given)]
        writes_statistics = operator.has_statistics and not determined
        if not operator.is_torchs or (operator.writes and not made) or writes_statistics:
            for argument, (storage, *_) in arguments:
                if not writes_statistics or argument in _STATISTICS:
                    self._changed(storage)
        call = tuple(key)
        earlier = self.calls.get(call, -1) if determined and made else -1
        if determined and made:
            self.calls[call] = row
        self.before[row] = earlier
        for place, (storage, version, offset, shared, whole, _) in made:
            if storage in given and earlier < 0:
                self._revoke(storage)
            self.makers.setdefault(storage, []).append(row)
            number = self.numbers.setdefault((call, place, offset), -1) if determined else self._fresh()
            if number < 0:
                number = self.numbers[call, place, offset] = self._fresh()
            self.of[storage] = (number, version)
            if operator.fills and whole and not shared:
                self.unread_fill[storage] = row
            else:
                self.unread_fill.pop(storage, None)

    @staticmethod
    def _is_written(operator: _Operator, result: Tensor, given: dict[int, int]) -> bool:
        """Whether an operator made or changed the storage of a result: else the result is a view of an argument."""
        storage, version = result[:2]
        return storage not in given or operator.writes or version != given[storage]

    def _number(self, storage: int, version: int) -> int:
        """The number of what is in a storage, where an argument has this version of it."""
        known = self.of.get(storage)
        if known is None or known[1] != version:
            if known is not None:
                self._changed(storage)
            known = self.of[storage] = (self._fresh(), version)
        return known[0]

    def _changed(self, storage: int) -> None:
        """Something unknown may have written to a storage."""
        self.of.pop(storage, None)
        self.unread_fill.pop(storage, None)
        self._revoke(storage)

    def _forget(self) -> None:
        """Something unknown may have written to any storage."""
        for storage in list(self.makers):
            self._revoke(storage)
        self.of.clear()
        self.unread_fill.clear()

    def _revoke(self, storage: int) -> None:
        """What is in a storage is changed later: whoever made it needed memory of its own for that."""
        for row in self.makers.pop(storage, ()):
            self.before[row] = -1

    def _is_usable(self, row: int, operator: _Operator) -> bool:
        """Whether all other arguments of a call are known, and say that it has no other effects."""
        key = (self.shapes[row], operator.has_statistics, operator.is_attention)
        found = self.usable.get(key)
        if found is None:
            found = self.usable[key] = self._look(self.shapes[row], operator)
        return found

    def _look(self, shapes: int, operator: _Operator) -> bool:
        inputs = parsed_inputs(self.trace, ShapesRow(shapes)) if shapes >= 0 else None
        if inputs is None:
            return False
        sizes = (*inputs.values, *inputs.shapes)
        if any(isinstance(one, list) and len(one) > _MOST_ELEMENTS for one in sizes):
            return False
        values = [*inputs.values, *([None] * (_TRAINING + 1))]
        if operator.has_statistics:
            return values[_TRAINING] is False
        return not operator.is_attention or values[_DROPOUT] == 0
