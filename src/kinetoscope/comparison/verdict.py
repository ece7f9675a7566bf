"""Whether a run stayed within its limits and, where not, which operators, modules and source lines exceeded them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import StateError
from kinetoscope.analyses.loop import Loop
from kinetoscope.comparison.limits import WARMUP, Limits
from kinetoscope.comparison.measures import BYTE_COUNTS, Scope, in_scope, steps_of_blocks
from kinetoscope.display.lines import cut, text_table
from kinetoscope.display.sentence import printable
from kinetoscope.display.terminal import UNLIMITED
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import host_work
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.losses import inexact
from kinetoscope.model.names import device_name, source_line
from kinetoscope.model.rows import look_up
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.steps import OPTIMIZER
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.host.source_lines import line_text
from kinetoscope.tables.memory.peak import requesting_operators
from kinetoscope.tables.stacks import user_stacks
from kinetoscope.tables.step_extents import step_extents

Rows = NDArray[np.intp]


MOST_PLACES = 6
_WIDEST_NAME = 44
_MOST_STORED = 2000
_OUTSIDE = "(outside all)"

PLACED = ("operators", "kernels", "allocations", "allocated_bytes", "peak_bytes")
"""The counts of a budget whose places are known."""


@dataclass
class Verdict:
    """What came of looking at a trace with limits in mind.

    Attributes:
        text: What exceeded what, and where; empty where nothing did.
        measured: What was measured for each limit that is set.
        lost: Which numbers of the trace are not exact, and why; empty if all are.
    """

    text: str = ""
    measured: dict[str, float] = field(default_factory=dict)
    lost: str = ""


@dataclass(frozen=True)
class Where:
    """One place of the program, and how much of something it has.

    Attributes:
        value: How much, as a person reads it.
        name: The operator or kernel.
        module: The path of its module; `-` outside all.
        line: The source line with its function, such as `train.py:12 in main`; `-` where it is unknown.
        file: The file of the line; empty where it is unknown.
        number: The number of the line.
    """

    value: str
    name: str
    module: str = ""
    line: str = ""
    file: str = ""
    number: int = 0


def lines_of_places(places: Sequence[Where], headings: tuple[str, str], width: int = UNLIMITED) -> list[str]:
    """Places as the lines of a table, with the headings of how much there is and of what; none without places."""
    rows = ((place.value, place.name, place.module, place.line) for place in places)
    return text_table([(*headings, "module", "line"), *rows], "><<<", width=width) if places else []


def judge(trace: TraceData, limits: Limits, ran_ns: int) -> Verdict:
    """Measure what is limited.

    Args:
        trace: The trace of a test.
        limits: Its limits.
        ran_ns: How long the test ran, which is its one step where it has no others.

    Returns:
        What was measured and, for each limit that was exceeded, by how much and by what.

    Raises:
        StateError: `warmup_steps` leaves no step to be looked at.
    """
    verdict = Verdict(lost=inexact(trace.losses))
    lines: list[str] = []
    for limit, allowed in limits.allowed.items():
        name = limit.removeprefix("max_")
        if name == "step_ms":
            verdict.measured[name], excess = _step_ms(trace, limits.warmup_steps, ran_ns, allowed)
        else:
            verdict.measured[name], excess = _amount(trace, name, allowed)
        if excess:
            lines += [f"{limit}={allowed:,g}: {excess[0]}", *excess[1:]]
    if lines:
        more = [f"({verdict.lost})"] if verdict.lost else []
        verdict.text = "\n".join([*lines, *more])
    return verdict


def places_of(
    trace: TraceData,
    count: str,
    scope: Scope | None = None,
    stored: Mapping[str, Mapping[str, int]] | None = None,
) -> list[Where]:
    """Where a trace has most of a count, or where it has more of it than before.

    Args:
        trace: The trace.
        count: One of `PLACED`; of any other there are no places.
        scope: A module or operator; where nothing was stored of this count, its operators are shown, whatever is counted.
        stored: How much there was at each place before, from `stored_places`; only places with more are then shown.

    Returns:
        The places with most of it first.
    """
    if (before := (stored or {}).get(count)) and (added := _added(trace, count, scope, before)):
        return added
    if scope is not None:
        operators = _counted(trace, "operators")
        inside = np.flatnonzero(in_scope(trace, scope)[operators.rows])
        return _places(trace, operators.only(inside), _in_words("operators"))
    return _places(trace, _counted(trace, count), _in_words(count)) if count in PLACED else []


def stored_places(trace: TraceData) -> dict[str, dict[str, int]]:
    """How much of each count there is at each place, so that what is added later can be told from it.

    Args:
        trace: The trace.

    Returns:
        For each of `PLACED` that was recorded the number in the step with most of it, or at the peak, by a short text: hashes of
        operator, module and function, and of the line's text. A count with too many places to store is left out.
    """
    stored = {}
    for count in PLACED:
        sums: Counter[str] = Counter()
        for group in _groups(trace, count, None):
            sums[group.key] += group.amount
        if 0 < len(sums) <= _MOST_STORED:
            stored[count] = dict(sorted(sums.items()))
    return stored


@dataclass(frozen=True)
class _Group:
    """What there is of a count at one place: an operator or kernel, module and line.

    Attributes:
        function: What stands for the place without its line.
        key: What stands for the place in the `[places]` of a budget.
        amount: How much there is.
        where: The place.
    """

    function: str
    key: str
    amount: int
    where: Where


@dataclass(frozen=True)
class _Counted:
    """What is counted: a row for each span or block of memory.

    Attributes:
        rows: Its row of `spans` or `allocations`.
        span: The operator that it is of, -1 without.
        name: The name to show, as a row of the strings; -1 without.
        frame: The innermost line of the program that called it, as a row of `frames`; -1 without.
        amount: How much it counts for.
    """

    rows: Rows
    span: NDArray[np.int32]
    name: NDArray[np.int32]
    frame: NDArray[np.int32]
    amount: NDArray[np.int64]

    def only(self, rows: Rows) -> _Counted:
        """Some of the rows."""
        return _Counted(*(column[rows] for column in vars(self).values()))


def _in_words(count: str) -> Callable[[float], str]:
    return units.size if count in BYTE_COUNTS else "{:,.0f}".format


def _rows_of(trace: TraceData, count: str) -> Rows:
    if count in ("operators", "kernels"):
        kind = trace.column("spans", "kind")
        return np.flatnonzero(is_operator(kind) if count == "operators" else kind == SpanKind.KERNEL)
    if count == "peak_bytes":
        return _held_at_peak(trace).rows
    return np.flatnonzero(trace.column("allocations", "bytes") > 0)


def _counted(trace: TraceData, count: str) -> _Counted:
    spans, blocks, rows = trace.columns("spans"), trace.columns("allocations"), _rows_of(trace, count)
    if count in ("operators", "kernels"):
        return _counted_spans(trace, rows, np.ones(len(rows), np.int64))
    span = requesting_operators(trace)[blocks["span"][rows]]
    stack = look_up(span, spans["stack"])
    return _Counted(
        rows,
        span,
        look_up(span, spans["name"]),
        _frames(trace, np.where(stack >= 0, stack, blocks["stack"][rows])),
        np.ones(len(rows), np.int64) if count == "allocations" else blocks["bytes"][rows].astype(np.int64),
    )


def _counted_spans(trace: TraceData, rows: Rows, amount: NDArray[np.int64]) -> _Counted:
    """Spans as what is counted; of device work the operator that started it says where."""
    spans, starter = trace.columns("spans"), starters(trace).operator[rows]
    span = np.where(starter >= 0, starter, rows).astype(np.int32)
    return _Counted(rows, span, spans["name"][rows], _frames(trace, spans["stack"][span]), amount)


def _frames(trace: TraceData, stack: NDArray[Any]) -> NDArray[np.int32]:
    of_program = look_up(stack.astype(np.int32), user_stacks(trace))
    return look_up(of_program, trace.column("stacks", "frame"))


def _steps_of(trace: TraceData, count: str, rows: Rows) -> NDArray[np.int64]:
    """The step in which each row of a count is, among those of the loop; -1 outside."""
    loop = Loop(trace)
    if count in ("operators", "kernels"):
        call = starters(trace).call[rows]
        return loop.step_of(np.where(call >= 0, call, rows))
    return np.zeros(len(rows), np.int64) if count == "peak_bytes" else steps_of_blocks(loop, rows)


def _groups(trace: TraceData, count: str, scope: Scope | None) -> list[_Group]:
    """What there is of a count at each place, in the step with most of it."""
    counted = _counted(trace, count)
    step = _steps_of(trace, count, counted.rows)
    inside = step >= 0
    if not inside.any():
        return []
    per_step = Groups(step, int(step.max()) + 1).sums(counted.amount)
    # The first one may do what is done once.
    first = 1 if len(per_step) > 2 else 0
    inside &= step == first + np.argmax(per_step[first:])
    if scope is not None:
        inside &= np.append(in_scope(trace, scope), False)[counted.span]
    counted = counted.only(np.flatnonzero(inside))
    strings, operator = trace.strings, look_up(counted.span, trace.column("spans", "name"))
    groups = []
    for row, amount in _sums_by_place(trace, counted, operator):
        name, module = _name_and_module(trace, counted, row)
        # A kernel of one name is several where several operators launch it.
        is_called = operator[row] >= 0 and operator[row] != counted.name[row]
        caller = [strings[operator[row]]] if is_called and strings[operator[row]] else []
        file, number, definition = source_line(trace, int(counted.frame[row]))
        function = f"{os.path.basename(file)}:{definition}" if file else ""
        line = line_text(trace, file, number)
        where = _where(trace, counted, row, _in_words(count)(amount))
        function_hash = _hash(*caller, name, module, function)
        groups.append(_Group(function_hash, f"{function_hash}.{_hash(line)}", amount, where))
    return groups


def _hash(*texts: str) -> str:
    """Eight hexadecimal digits that stand for the texts in a budget."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()


def _added(trace: TraceData, count: str, scope: Scope | None, stored: Mapping[str, int]) -> list[Where]:
    """The places with more of a count than before, in functions that have more; empty where there is none."""
    before: Counter[str] = Counter()
    for key, amount in stored.items():
        before[key.partition(".")[0]] += amount
    groups = _groups(trace, count, scope)
    now: Counter[str] = Counter()
    for group in groups:
        now[group.function] += group.amount
    left = Counter(stored)
    additions = []
    for group in sorted(groups, key=lambda group: (group.where.file, group.where.number)):
        more = group.amount - left[group.key]
        # Two lines may have one text: what the first one uses up, the second one cannot.
        left[group.key] = max(0, left[group.key] - group.amount)
        if now[group.function] > before[group.function] and more > 0:
            additions.append((min(more, now[group.function] - before[group.function]), group.where))
    additions.sort(key=lambda addition: -addition[0])
    in_words = _in_words(count)
    return [replace(where, value=f"+{in_words(amount)}") for amount, where in additions[:MOST_PLACES]]


def _amount(trace: TraceData, count: str, allowed: float) -> tuple[float, list[str]]:
    """How much of a count there is and, where that is too much, by how much and its places as lines."""
    rows, noun = _rows_of(trace, count), count.removesuffix("s")
    peak = _held_at_peak(trace) if count == "peak_bytes" else None
    value = len(rows) if peak is None else peak.bytes
    if value <= allowed:
        return value, []
    too_many = f"{_in_words(count)(value - allowed)} too many"
    text = f"{units.count(value, noun)} ran, {too_many}"
    if count == "allocations":
        size = units.size(int(trace.column("allocations", "bytes")[rows].sum()))
        text = f"{units.count(value, 'block')} allocated, {size} together, {too_many}"
    elif peak is not None:
        # A limit is in bytes: the exact number is what to set it to.
        exact = f"{units.size(value)} ({value:,} bytes) held at once on {peak.device}"
        text = f"{exact}, {too_many}, {units.duration(peak.time_ns)} after the start"
    headings = {
        "allocations": ("blocks", "operator"),
        "peak_bytes": ("bytes", "operator"),
    }.get(count, ("calls", noun))
    return value, [text, *lines_of_places(places_of(trace, count), headings)]


def _step_ms(trace: TraceData, first: int, ran_ns: int, allowed: float) -> tuple[float, list[str]]:
    """How long the longest step took, from the step `first` on, and its places as lines; without any step, everything recorded is one."""
    steps = trace.columns("steps")
    if len(steps) == 0 and first == 0:
        duration_ns = np.array([ran_ns], dtype=np.int64)
    else:
        duration_ns = step_extents(trace).duration_ns[first:]
    if len(duration_ns) == 0:
        raise StateError(
            f"{WARMUP}={first} leaves no step to be looked at: the trace has {units.count(len(steps), 'step')}"
        )
    worst = int(np.argmax(duration_ns))
    took_ns = int(duration_ns[worst])
    if took_ns / 1e6 <= allowed:
        return took_ns / 1e6, []
    text = f"took {units.duration(took_ns)}, {units.duration(took_ns - allowed * 1e6)} too long"
    within = host_work(trace, with_steps=False).mask.copy()
    if len(steps) == 0:
        text = f"the test, which marks no steps, {text}"
    else:
        within &= trace.column("spans", "step") == first + worst
        text = f"step {int(steps['number'][first + worst])} {text}"
        late = int((duration_ns > allowed * 1e6).sum())
        if len(duration_ns) > 1:
            text += f"; the median of {units.count(len(duration_ns), 'step')} is {units.duration(np.median(duration_ns))}, {late:,} of them too long"
        if first + worst == 0 and steps["source"][0] == OPTIMIZER:
            text += f"; no mark says where this first step begins, so it holds what came before: {WARMUP}=1 leaves it out"
    rows = np.flatnonzero(within)
    self_ns = trace.column("spans", "self_ns")[rows].astype(np.int64)
    wheres = _places(trace, _counted_spans(trace, rows, self_ns), units.duration)
    outside_ns = took_ns - int(self_ns.sum())
    outside = [f"  {units.duration(outside_ns)} of it outside all operators"] if outside_ns > 0 else []
    return took_ns / 1e6, [text, *lines_of_places(wheres, ("self", "operator")), *outside]


@dataclass(frozen=True)
class _Peak:
    """The most memory that blocks allocated while recording held at once, on the device on which that was most.

    Attributes:
        bytes: How much; 0 where nothing was allocated.
        device: Which device.
        time_ns: When.
        rows: The rows of `allocations` of the blocks that held it.
    """

    bytes: int
    device: str
    time_ns: int
    rows: Rows


def _held_at_peak(trace: TraceData) -> _Peak:
    blocks = trace.columns("allocations")
    total_bytes, kinds, indices = (blocks[name] for name in ("total_bytes", "device_type", "device_index"))
    # Of two devices with as much, the first one.
    order = np.lexsort((indices, kinds, -total_bytes))
    if len(order) == 0 or total_bytes[order[0]] <= 0:
        return _Peak(0, "", 0, order[:0])
    top = int(order[0])
    live = (kinds == kinds[top]) & (indices == indices[top]) & (blocks["bytes"] > 0)
    live[top + 1 :] = False
    live &= (blocks["match"] < 0) | (blocks["match"] > top)
    device = device_name(int(kinds[top]), int(indices[top]))
    return _Peak(int(total_bytes[top]), device, int(blocks["time_ns"][top]), np.flatnonzero(live))


def _places(trace: TraceData, counted: _Counted, in_words: Callable[[float], str]) -> list[Where]:
    sums = sorted(_sums_by_place(trace, counted), key=lambda place: -place[1])
    wheres = [_where(trace, counted, row, in_words(amount)) for row, amount in sums[:MOST_PLACES]]
    if rest := sums[MOST_PLACES:]:
        amount = sum(amount for _, amount in rest)
        wheres.append(Where(in_words(amount), f"in {units.count(len(rest), 'other place')}"))
    return wheres


def _sums_by_place(trace: TraceData, counted: _Counted, *more_keys: NDArray[Any]) -> list[tuple[int, int]]:
    module = look_up(counted.span, trace.column("spans", "module"))
    by_place = Groups.by([counted.name, *more_keys, module, counted.frame])
    return [*zip(by_place.first.tolist(), by_place.sums(counted.amount).tolist(), strict=True)]


def _name_and_module(trace: TraceData, counted: _Counted, row: int) -> tuple[str, str]:
    span, name = int(counted.span[row]), int(counted.name[row])
    module = int(trace.column("spans", "module")[span]) if span >= 0 else -1
    path = str(trace.column("modules", "path")[module]) if module >= 0 else "-"
    return trace.strings[name] if name >= 0 else _OUTSIDE, path


def _where(trace: TraceData, counted: _Counted, row: int, value: str) -> Where:
    name, module = _name_and_module(trace, counted, row)
    file, number, function = source_line(trace, int(counted.frame[row]))
    near = os.path.relpath(file) if os.path.isabs(file) else file
    path = file if near.startswith(os.pardir) else near
    # As terminals make a link of it.
    line = printable(f"{path}:{number} in {function}") if counted.frame[row] >= 0 else "-"
    return Where(value, cut(name, _WIDEST_NAME), cut(module, _WIDEST_NAME), line, path, number)
