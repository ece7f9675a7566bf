"""Where a step of an optimizer runs a closure: forward and backward inside `optimizer.step(closure)`.

Some optimizers evaluate the loss themselves, once (SAM twice, L-BFGS as often as its line search asks), and Lightning hands such a closure
to every optimizer. What runs there is no work of the optimizer, though the range of its step is around it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.columns import Columns
from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_call
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.schema import ENGINE_WRAPPER, OPTIMIZER_STEP, SCOPE_BACKWARD, ZERO_GRAD, SpanKind
from kinetoscope.model.steps import stretch_at

_OWN, _FORWARD, _BACKWARD = 0, 1, 2


class Closures(NamedTuple):
    """The stretches of time in which closures ran, in order of thread and time, none overlapping another of its thread.

    Attributes:
        thread: The thread that ran each.
        start_ns: When each began.
        end_ns: When each ended.
    """

    thread: Rows
    start_ns: Rows
    end_ns: Rows

    def hold(self, thread: NDArray[np.int32], start_ns: Rows, end_ns: Rows) -> Mask:
        """Tell which of some spans lie in one of the stretches."""
        stretch = stretch_at(thread, start_ns, self.thread, self.start_ns, self.end_ns)
        return (stretch >= 0) & (end_ns <= np.append(self.end_ns, 0)[stretch])


def find_closures(spans: Columns, strings: list[str]) -> Closures:
    """Find the closures in the steps of optimizers.

    A step runs a closure if an operator in it belongs to a module, or backward runs in it. The closure begins with the first operator of
    forward (of a module, or one that autograd records) or with `zero_grad`, and ends with backward; where the step begins with it, it
    begins with the step.

    Args:
        spans: The spans.
        strings: The string table.

    Returns:
        The closures.
    """
    step_stretches: list[tuple[int, int, int]] = []
    names = spans["name"]
    step_names, zero_names, engine_names = (
        np.array([text.startswith(prefix) for text in strings], dtype=np.bool_)
        for prefix in (OPTIMIZER_STEP, ZERO_GRAD, ENGINE_WRAPPER)
    )
    if not step_names.any():
        return _closures(step_stretches)
    is_step = step_names[names] & (spans["stream"] < 0)
    thread, start = spans["thread"], spans["start_ns"]
    end = start + spans["duration_ns"]
    first = np.flatnonzero(is_step)
    # Spans are in order of thread and start, so that what is in a range follows it.
    last = np.empty_like(first)
    for number in np.unique(thread[first]).tolist():
        low, high = np.searchsorted(thread, (number, number + 1))
        on_thread = thread[first] == number
        last[on_thread] = low + np.searchsorted(start[low:high], end[first[on_thread]])
    reach = np.maximum.accumulate(np.append(0, last))[:-1]
    outer = first >= reach
    backward = (spans["scope"] == SCOPE_BACKWARD) | engine_names[names]
    elsewhere = np.flatnonzero(backward & (spans["forward"] >= 0))
    elsewhere = elsewhere[thread[spans["forward"][elsewhere]] != thread[elsewhere]]
    elsewhere = elsewhere[np.argsort(spans["forward"][elsewhere], kind="stable")]
    caused = spans["forward"][elsewhere]
    kind, module, sequence = spans["kind"], spans["own_module"], spans["sequence"]
    for low, high in zip(first[outer].tolist(), last[outer].tolist(), strict=True):
        rows = np.arange(low + 1, high)
        rows = rows[~is_call(kind[rows])]
        remote = elsewhere[slice(*np.searchsorted(caused, (low, high)))]
        runs_backward = bool(backward[rows].any()) or len(remote) > 0
        if not runs_backward and not (module[rows] >= 0).any():
            continue
        zeroing = zero_names[names[rows]]
        forward = (module[rows] >= 0) | zeroing | ((sequence[rows] >= 0) & runs_backward)
        part = np.where(backward[rows], _BACKWARD, np.where(forward, _FORWARD, _OWN))
        ranges = (kind[rows] == SpanKind.USER_ANNOTATION) & ~zeroing & ~backward[rows]
        part[ranges] = _OWN
        ops = np.flatnonzero(~ranges)
        # Whole operators: each with the spans after it that end before it does.
        until = end[rows[ops]]
        top = ops[np.append(True, until[1:] > np.maximum.accumulate(until)[:-1])] if len(ops) else ops
        parts = Groups.beginning_at(top, len(part)).maxima(part)
        begin = np.concatenate((start[rows[top]], start[remote]))
        finish = np.concatenate((end[rows[top]], end[remote]))
        parts = np.append(parts, np.full(len(remote), _BACKWARD))
        order = np.lexsort((parts, finish, begin))
        belongs = _of_closures(parts[order])
        op_starts = begin[order[~belongs]]
        begin, finish = begin[order[belongs]], finish[order[belongs]]
        if not len(begin):
            continue
        if len(op_starts) == 0 or op_starts[0] > begin[0]:
            begin, finish = np.append(start[low], begin), np.append(begin[0], finish)
        # A range of the program around nothing but parts of a closure is one, too.
        in_ranges = rows[ranges & ~is_step[rows]]
        windows = start[in_ranges], end[in_ranges]
        ops_inside, parts_inside = (
            np.diff(np.searchsorted(np.sort(times), windows), axis=0)[0] for times in (op_starts, begin)
        )
        of_closure = in_ranges[(ops_inside == 0) & (parts_inside > 0)]
        begin, finish = np.append(begin, start[of_closure]), np.append(finish, end[of_closure])
        joined = (moments.tolist() for moments in _joined(begin, finish, op_starts))
        step_stretches += [(int(thread[low]), *stretch) for stretch in zip(*joined, strict=True)]
    return _closures(step_stretches)


def _of_closures(parts: NDArray[np.int64]) -> Mask:
    """Which of the operators of a step belong to closures, by what each is, in order of time.

    What is neither forward nor backward belongs to a closure between two operators of forward, from forward to backward, and between two
    backward functions; behind backward it is the optimizer's.
    """
    is_marked, count = parts != _OWN, len(parts)
    number = np.arange(count)
    before = np.maximum.accumulate(np.where(is_marked, number, -1))
    after = np.minimum.accumulate(np.where(is_marked, number, count)[::-1])[::-1]
    between = np.append(parts, _OWN)
    is_behind = (between[before] == _BACKWARD) & (between[after] == _FORWARD)
    belongs: Mask = is_marked | ((before >= 0) & (after < count) & ~is_behind)
    return belongs


def _joined(begin: Rows, finish: Rows, op_starts: Rows) -> tuple[Rows, Rows]:
    """Put stretches together between which the optimizer did nothing of its own."""
    order = np.lexsort((finish, begin))
    begin, until = begin[order], np.maximum.accumulate(finish[order])
    ops_before = np.searchsorted(op_starts, until[:-1])
    touches = begin[1:] <= until[:-1]
    touches |= ops_before == np.searchsorted(op_starts, begin[1:], side="right")
    first = np.flatnonzero(np.append(True, ~touches))
    return begin[first], until[np.append(first[1:] - 1, len(until) - 1)]


def _closures(stretches: list[tuple[int, int, int]]) -> Closures:
    columns = np.array(sorted(stretches), dtype=np.int64).reshape(-1, 3)
    return Closures(columns[:, 0], columns[:, 1], columns[:, 2])
