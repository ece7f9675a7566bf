"""Whether a run stayed within its limits and, where not, which operators, modules and source lines exceeded them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import StateError
from kinetoscope.analyses.loop import Loop
from kinetoscope.comparison.limits import WARMUP, Limits
from kinetoscope.comparison.measures import BYTE_COUNTS, in_scope
from kinetoscope.display.lines import text_table
from kinetoscope.display.printable import printable
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import host_work
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.losses import inexact
from kinetoscope.model.names import device_name
from kinetoscope.model.rows import look_up
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.steps import OPTIMIZER
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.host.source_lines import line_text
from kinetoscope.tables.memory.peak import requesting_operators
from kinetoscope.tables.stacks import user_stacks
from kinetoscope.tables.step_extents import step_extents

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from kinetoscope.comparison.measures import Scope
    from kinetoscope.model.trace_data import TraceData

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

    def to_dict(self) -> dict[str, Any]:
        """The place as values that JSON has."""
        return asdict(self)


@dataclass(frozen=True)
class _Measured:
    """One limit: what was measured, and how to say where."""

    value: float
    sentence: Callable[[float], str]
    where: Callable[[], list[Where]]
    headings: tuple[str, str]
    remark: Callable[[], str] = str


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
    for name, allowed in limits.allowed.items():
        measured = _MEASURES[name](trace, limits, ran_ns)
        verdict.measured[name.removeprefix("max_")] = measured.value
        if measured.value > allowed:
            wheres = measured.where()
            rows = [
                (*measured.headings, "module", "line"),
                *((where.value, where.name, where.module, where.line) for where in wheres),
            ]
            lines.append(f"{name}={allowed:,g}: {measured.sentence(allowed)}")
            lines += text_table(rows, "><<<") if wheres else []
            lines += filter(None, [measured.remark()])
    if lines:
        more = [f"({verdict.lost})"] if verdict.lost else []
        verdict.text = "\n".join([*lines, *more])
    return verdict


def places_of(
    trace: TraceData,
    count: str,
    scope: Scope | None = None,
    known: Mapping[str, Mapping[str, int]] | None = None,
) -> list[Where]:
    """Where a trace has most of a count, or where it has more of it than before.

    Args:
        trace: The trace.
        count: One of `PLACED`; of any other there are no places.
        scope: A module or operator; where nothing was stored of this count, its operators are shown, whatever is counted.
        known: How much there was at each place before, from `stored_places`; only places with more are then shown.

    Returns:
        The places with most of it first.
    """
    if (before := (known or {}).get(count)) and (added := _added(trace, count, scope, before)):
        return added
    if scope is not None:
        spans = trace.columns("spans")
        rows = np.flatnonzero(in_scope(trace, scope) & is_operator(spans["kind"]))
        return _places(trace, np.ones(len(rows), np.int64), spans["name"][rows], rows, "{:,.0f}".format)
    measure = _MEASURES.get(f"max_{count}")
    if measure is None and count == "allocated_bytes":
        blocks = trace.columns("allocations")
        rows = np.flatnonzero(blocks["bytes"] > 0)
        return _memory_places(trace, blocks["bytes"][rows], rows, units.size)
    return [] if measure is None else measure(trace, Limits({}, 0, {}), 0).where()


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
    """What there is of a count at one place: an operator or kernel, module and line."""

    function: str
    line: str
    amount: int
    where: Where

    @property
    def key(self) -> str:
        """Its key in the `[places]` of a budget."""
        return f"{self.function}.{self.line}"


@dataclass(frozen=True)
class _Counted:
    """What is counted: a row for each span or block of memory.

    Attributes:
        span: The operator that it is of, -1 without.
        name: The name to show, as a row of the strings.
        stack: The stack that called it, -1 without.
        step: The step in which it counts, among those of the loop; -1 outside.
        amount: How much it counts for.
    """

    span: NDArray[np.integer[Any]]
    name: NDArray[np.integer[Any]]
    stack: NDArray[np.integer[Any]]
    step: NDArray[np.integer[Any]]
    amount: NDArray[np.integer[Any]]


def _counted_rows(trace: TraceData, count: str) -> _Counted:
    loop, spans = Loop(trace), trace.columns("spans")
    if count in ("operators", "kernels"):
        kind = spans["kind"]
        rows = np.flatnonzero(is_operator(kind) if count == "operators" else kind == SpanKind.KERNEL)
        caller = _launching(trace, rows.astype(np.int32)) if count == "kernels" else rows
        step = loop.step_of(_launches(trace, rows) if count == "kernels" else rows)
        stack, amount = spans["stack"][caller], np.ones(len(rows), dtype=np.int64)
        return _Counted(caller, spans["name"][rows], stack, step, amount)
    blocks = trace.columns("allocations")
    if count == "peak_bytes":
        rows = _held_at_peak(trace).rows
        step = np.zeros(len(rows), dtype=np.int64)
    else:
        thread = np.append(trace.column("threads", "process_row"), -1)[blocks["thread"]]
        rows = np.flatnonzero((blocks["bytes"] > 0) & (thread == loop.process))
        step = loop.step_at(blocks["time_ns"][rows], blocks["thread"][rows])
    span = requesting_operators(trace, blocks["span"][rows])
    stack = look_up(span, spans["stack"])
    amount = np.ones(len(rows), dtype=np.int64) if count == "allocations" else blocks["bytes"][rows]
    stack = np.where(stack >= 0, stack, blocks["stack"][rows])
    return _Counted(span, look_up(span, spans["name"]), stack, step, amount.astype(np.int64))


def _launches(trace: TraceData, rows: Rows) -> Rows:
    """The call that launched each kernel or, where it is unknown, the kernel."""
    launched = starters(trace).call[rows]
    return np.where(launched >= 0, launched, rows)


def _groups(trace: TraceData, count: str, scope: Scope | None) -> list[_Group]:
    """What there is of a count at each place, in the step with most of it."""
    spans, strings = trace.columns("spans"), trace.strings
    counted = _counted_rows(trace, count)
    inside = counted.step >= 0
    if not inside.any():
        return []
    per_step = Groups(counted.step, int(counted.step.max()) + 1).sums(counted.amount)
    # The first one may do what is done once.
    first = 1 if len(per_step) > 2 else 0
    inside &= counted.step == first + np.argmax(per_step[first:])
    if scope is not None:
        inside &= np.append(in_scope(trace, scope), False)[counted.span]
    rows = np.flatnonzero(inside)
    span, called = counted.span[rows].astype(np.int32), counted.name[rows].astype(np.int32)
    module = look_up(span, spans["module"])
    operator = look_up(span, spans["name"])
    frame = look_up(
        look_up(counted.stack[rows].astype(np.int32), user_stacks(trace)), trace.column("stacks", "frame")
    )
    by_place = Groups.by([called, operator, module, frame])
    sums = by_place.sums(counted.amount[rows])
    in_words = units.size if count in BYTE_COUNTS else "{:,.0f}".format
    groups = []
    for group, row in enumerate(by_place.first.tolist()):
        name = strings[called[row]] if called[row] >= 0 else _OUTSIDE
        # A kernel of one name is several where several operators launch it.
        caller = strings[operator[row]] if operator[row] >= 0 and operator[row] != called[row] else ""
        path = str(trace.column("modules", "path")[module[row]]) if module[row] >= 0 else "-"
        file, number, text = _line(trace, int(frame[row]))
        function, line = "", ""
        if frame[row] >= 0:
            frames = trace.columns("frames")
            full, definition = (strings[frames[column][frame[row]]] for column in ("file", "function"))
            function, line = f"{os.path.basename(full)}:{definition}", line_text(trace, full, number)
        amount = int(sums[group])
        where = Where(in_words(amount), _cut(name), _cut(path), text, file, number)
        of_function = _hash(*filter(None, (caller,)), name, path, function)
        groups.append(_Group(of_function, _hash(line), amount, where))
    return groups


def _hash(*texts: str) -> str:
    """Eight hexadecimal digits that stand for the texts in a budget."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()


def _added(trace: TraceData, count: str, scope: Scope | None, known: Mapping[str, int]) -> list[Where]:
    """The places with more of a count than before, in functions that have more; empty where there is none."""
    before: Counter[str] = Counter()
    for key, amount in known.items():
        before[key.partition(".")[0]] += amount
    groups = _groups(trace, count, scope)
    now: Counter[str] = Counter()
    for group in groups:
        now[group.function] += group.amount
    left = Counter(known)
    additions = []
    for group in sorted(groups, key=lambda group: (group.where.file, group.where.number)):
        more = group.amount - left[group.key]
        # Two lines may have one text: what the first one uses up, the second one cannot.
        left[group.key] = max(0, left[group.key] - group.amount)
        if now[group.function] > before[group.function] and more > 0:
            additions.append((min(more, now[group.function] - before[group.function]), group.where))
    additions.sort(key=lambda addition: -addition[0])
    in_words = units.size if count in BYTE_COUNTS else "{:,.0f}".format
    return [replace(where, value=f"+{in_words(amount)}") for amount, where in additions[:MOST_PLACES]]


def _operators(trace: TraceData, limits: Limits, whole_ns: int) -> _Measured:
    spans = trace.columns("spans")
    return _counted(trace, np.flatnonzero(is_operator(spans["kind"])), "operator")


def _kernels(trace: TraceData, limits: Limits, whole_ns: int) -> _Measured:
    return _counted(trace, np.flatnonzero(trace.column("spans", "kind") == SpanKind.KERNEL), "kernel")


def _counted(trace: TraceData, rows: Rows, noun: str) -> _Measured:
    """How many spans there are at some rows."""
    spans = trace.columns("spans")
    ones = np.ones(len(rows), dtype=np.int64)
    return _Measured(
        len(rows),
        lambda allowed: f"{units.count(len(rows), noun)} ran, {len(rows) - allowed:,.0f} too many",
        lambda: _places(trace, ones, spans["name"][rows], rows, "{:,.0f}".format),
        ("calls", noun),
    )


def _step_ms(trace: TraceData, limits: Limits, whole_ns: int) -> _Measured:
    """How long the longest step took; without any step, everything recorded is one."""
    steps = trace.columns("steps")
    first = limits.warmup_steps
    if len(steps) == 0 and first == 0:
        duration_ns = np.array([whole_ns], dtype=np.int64)
    else:
        duration_ns = step_extents(trace).duration_ns[first:]
    if len(duration_ns) == 0:
        raise StateError(
            f"{WARMUP}={first} leaves no step to be looked at: the trace has {units.count(len(steps), 'step')}"
        )
    worst = int(np.argmax(duration_ns))
    took_ns = int(duration_ns[worst])

    def sentence(allowed: float) -> str:
        over = f"took {units.duration(took_ns)}, {units.duration(took_ns - allowed * 1e6)} too long"
        if len(steps) == 0:
            return f"the test, which marks no steps, {over}"
        late = int((duration_ns > allowed * 1e6).sum())
        of_all_steps = f"; the median of {units.count(len(duration_ns), 'step')} is {units.duration(np.median(duration_ns))}, {late:,} of them too long"
        if len(duration_ns) > 1:
            over += of_all_steps
        if first + worst == 0 and steps["source"][0] == OPTIMIZER:
            over += f"; no mark says where this first step begins, so it holds what came before: {WARMUP}=1 leaves it out"
        return f"step {int(steps['number'][first + worst])} {over}"

    def rows() -> Rows:
        within = host_work(trace, with_steps=False).mask.copy()
        if len(steps):
            within &= trace.column("spans", "step") == first + worst
        return np.flatnonzero(within)

    def where() -> list[Where]:
        spans, inside = trace.columns("spans"), rows()
        return _places(trace, spans["self_ns"][inside], spans["name"][inside], inside, units.duration)

    def remark() -> str:
        outside_ns = took_ns - int(trace.column("spans", "self_ns")[rows()].sum())
        return f"  {units.duration(outside_ns)} of it outside all operators" if outside_ns > 0 else ""

    return _Measured(took_ns / 1e6, sentence, where, ("self", "operator"), remark)


def _allocations(trace: TraceData, limits: Limits, whole_ns: int) -> _Measured:
    blocks = trace.columns("allocations")
    rows = np.flatnonzero(blocks["bytes"] > 0)
    total = int(blocks["bytes"][rows].sum())

    def where() -> list[Where]:
        return _memory_places(trace, np.ones(len(rows), dtype=np.int64), rows, "{:,.0f}".format)

    return _Measured(
        len(rows),
        lambda allowed: (
            f"{units.count(len(rows), 'block')} allocated, {units.size(total)} together, {len(rows) - allowed:,.0f} too many"
        ),
        where,
        ("blocks", "operator"),
    )


@dataclass(frozen=True)
class _Peak:
    """The most memory that blocks allocated while recording held at once, on the device on which that was most.

    Attributes:
        bytes: How much; 0 where nothing was allocated.
        device: Which device, as 256 times its type and its index plus 1.
        time_ns: When.
        rows: The rows of `allocations` of the blocks that held it.
    """

    bytes: int
    device: int
    time_ns: int
    rows: Rows


def _held_at_peak(trace: TraceData) -> _Peak:
    blocks = trace.columns("allocations")
    devices = blocks["device_type"].astype(np.int32) * 256 + blocks["device_index"] + 1
    peak_bytes, moment, holder = 0, -1, 0
    for device in np.unique(devices).tolist():
        rows = np.flatnonzero(devices == device)
        top = int(rows[np.argmax(blocks["total_bytes"][rows])])
        if int(blocks["total_bytes"][top]) > peak_bytes:
            peak_bytes, moment, holder = int(blocks["total_bytes"][top]), top, device
    rows = np.arange(len(blocks))
    freed = blocks["match"]
    live = (devices == holder) & (blocks["bytes"] > 0) & (rows <= moment) & ((freed < 0) | (freed > moment))
    time_ns = int(blocks["time_ns"][moment]) if moment >= 0 else 0
    return _Peak(peak_bytes, holder, time_ns, np.flatnonzero(live))


def _peak_bytes(trace: TraceData, limits: Limits, whole_ns: int) -> _Measured:
    peak = _held_at_peak(trace)

    def sentence(allowed: float) -> str:
        kind, index = divmod(peak.device, 256)
        when = f"{units.duration(peak.time_ns)} after the start"
        # A limit is in bytes: the exact number is what to set it to.
        device = device_name(kind, index - 1)
        return f"{units.size(peak.bytes)} ({peak.bytes:,} bytes) held at once on {device}, {units.size(peak.bytes - allowed)} too many, {when}"

    def where() -> list[Where]:
        return _memory_places(trace, trace.column("allocations", "bytes")[peak.rows], peak.rows, units.size)

    return _Measured(peak.bytes, sentence, where, ("bytes", "operator"))


_MEASURES: dict[str, Callable[[TraceData, Limits, int], _Measured]] = {
    "max_step_ms": _step_ms,
    "max_operators": _operators,
    "max_allocations": _allocations,
    "max_peak_bytes": _peak_bytes,
    "max_kernels": _kernels,
}


def _memory_places(
    trace: TraceData,
    values: NDArray[np.int64],
    rows: Rows,
    shown: Callable[[int], str],
) -> list[Where]:
    """The same for rows of `allocations`, by the operator that wanted the memory."""
    blocks = trace.columns("allocations")
    span = requesting_operators(trace, blocks["span"][rows])
    return _places(
        trace,
        values,
        look_up(span, trace.column("spans", "name")),
        span,
        shown,
        blocks["stack"][rows],
    )


def _places(
    trace: TraceData,
    values: NDArray[np.int64],
    names: NDArray[np.int32],
    spans: NDArray[Any],
    in_words: Callable[[int], str],
    stacks: NDArray[np.int32] | None = None,
) -> list[Where]:
    """The operators, modules and source lines with the largest sums of `values`; what is left comes last."""
    if len(values) == 0:
        return []
    spans = _launching(trace, spans.astype(np.int32))
    module, stack = (look_up(spans, trace.column("spans", name)) for name in ("module", "stack"))
    if stacks is not None:
        stack = np.where(stack >= 0, stack, stacks).astype(np.int32)
    frame = look_up(look_up(stack, user_stacks(trace)), trace.column("stacks", "frame"))
    by_place = Groups.by([names, module, frame])
    sums = by_place.sums(values.astype(np.int64))
    order = np.argsort(-sums, kind="stable")
    wheres = []
    for group in order[:MOST_PLACES].tolist():
        row = int(by_place.first[group])
        name = trace.strings[names[row]] if names[row] >= 0 else _OUTSIDE
        path = str(trace.column("modules", "path")[module[row]]) if module[row] >= 0 else "-"
        file, number, text = _line(trace, int(frame[row]))
        wheres.append(Where(in_words(int(sums[group])), _cut(name), _cut(path), text, file, number))
    if len(order) > MOST_PLACES:
        rest = order[MOST_PLACES:]
        wheres.append(Where(in_words(int(sums[rest].sum())), f"in {units.count(len(rest), 'other place')}"))
    return wheres


def _launching(trace: TraceData, spans: NDArray[np.int32]) -> NDArray[np.int32]:
    """For device work the host operator that started it, whose module and line say where; else the span."""
    found = starters(trace).operator[spans]
    return np.where(found >= 0, found, spans).astype(np.int32)


def _line(trace: TraceData, frame: int) -> tuple[str, int, str]:
    """The file and number of a source line, and the line as terminals make a link of it."""
    if frame < 0:
        return "", 0, "-"
    frames, strings = trace.columns("frames"), trace.strings
    file = strings[frames["file"][frame]]
    near = os.path.relpath(file) if os.path.isabs(file) else file
    path = file if near.startswith(os.pardir) else near
    number = int(frames["line"][frame])
    return path, number, printable(f"{path}:{number} in {strings[frames['function'][frame]]}")


def _cut(text: str) -> str:
    """Keep a name short enough for a table."""
    text = printable(text)
    return text if len(text) <= _WIDEST_NAME else text[: _WIDEST_NAME - 3] + "..."
