"""Whether a run stayed within its limits and, where not, which operators, modules and source lines exceeded them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope._errors import StateError
from kinetoscope.analyses.loop import Loop
from kinetoscope.comparison.limits import WARMUP, Limits
from kinetoscope.comparison.measures import in_scope
from kinetoscope.display.printable import printable
from kinetoscope.display.text_table import text_table
from kinetoscope.model import units
from kinetoscope.model.hierarchy import host_work
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.names import device_name
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.steps import OPTIMIZER
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.host.source_lines import line_text
from kinetoscope.tables.host.stacks import user_stacks
from kinetoscope.tables.memory.peak import look_up, requesting_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from kinetoscope.comparison.measures import Scope
    from kinetoscope.model.trace_data import TraceData

    Rows = NDArray[np.intp]


MOST_PLACES = 6
_WIDEST_NAME = 44
_MOST_STORED = 2000


@dataclass
class Verdict:
    """What came of looking at a trace with limits in mind.

    Attributes:
        text: What exceeded what, and where; empty where nothing did.
        measured: What was measured for each limit that is set.
        lost: What is missing from the trace, so that less was counted than happened; empty where nothing is.
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
    verdict = Verdict(lost="; ".join(f"{loss['count']:,} x {loss['what']}" for loss in trace.losses))
    told: list[str] = []
    for name, allowed in limits.allowed.items():
        measured = _MEASURES[name](trace, limits, ran_ns)
        verdict.measured[name.removeprefix("max_")] = measured.value
        if measured.value > allowed:
            places = measured.where()
            rows = [
                (*measured.headings, "module", "line"),
                *((one.value, one.name, one.module, one.line) for one in places),
            ]
            told.append(f"{name}={allowed:,g}: {measured.sentence(allowed)}")
            told += text_table(rows, "><<<") if places else []
            told += filter(None, [measured.remark()])
    if told:
        more = [f"(the trace is not complete, so it was even more: {verdict.lost})"] if verdict.lost else []
        verdict.text = "\n".join([*told, *more])
    return verdict


def places_of(
    trace: TraceData, count: str, scope: Scope | None = None, known: Mapping[str, int] | None = None
) -> list[Where]:
    """Where a trace has most of a count, or where it has more of it than before.

    Args:
        trace: The trace.
        count: `operators`, `kernels`, `allocations` or `peak_bytes`; of any other there are no places.
        scope: A module or operator, of which the operators are shown, whatever is counted.
        known: Where operators ran before, from `operator_places`; only places with more operators are then shown.

    Returns:
        The places with most of it first.
    """
    if known and (scope is not None or count == "operators") and (added := _added(trace, scope, known)):
        return added
    if scope is not None:
        spans = trace.columns("spans")
        rows = np.flatnonzero(in_scope(trace, scope) & is_operator(spans["kind"]))
        return _places(trace, np.ones(len(rows), np.int64), spans["name"][rows], rows, "{:,.0f}".format)
    measure = _MEASURES.get(f"max_{count}")
    return [] if measure is None else measure(trace, Limits({}, 0, {}), 0).where()


def operator_places(trace: TraceData) -> dict[str, int]:
    """How often operators run at each place in the step with most of them, so that later ones can be told from these.

    Args:
        trace: The trace.

    Returns:
        The number of operators by a short text: hashes of operator, module and function, and of the line's text. Empty where there
        are too many places to store.
    """
    counts: Counter[str] = Counter()
    for group in _operator_groups(trace, None):
        counts[group.key] += group.count
    return dict(sorted(counts.items())) if len(counts) <= _MOST_STORED else {}


@dataclass(frozen=True)
class _Group:
    """The operators of one name, module and line in a step."""

    function: str
    line: str
    count: int
    where: Where

    @property
    def key(self) -> str:
        """What it is stored as."""
        return f"{self.function}.{self.line}"


def _operator_groups(trace: TraceData, scope: Scope | None) -> list[_Group]:
    """The operators in the step with most of them, by place."""
    loop = Loop(trace)
    spans, strings = trace.columns("spans"), trace.strings
    rows = np.flatnonzero(is_operator(spans["kind"]))
    step = loop.step_of(rows)
    rows, step = rows[step >= 0], step[step >= 0]
    if len(rows) == 0:
        return []
    per_step = np.bincount(step)
    # The first one may do what is done once.
    first = 1 if len(per_step) > 2 else 0
    rows = rows[step == first + np.argmax(per_step[first:])]
    if scope is not None:
        rows = rows[in_scope(trace, scope)[rows]]
    module = spans["module"][rows]
    frame = look_up(look_up(spans["stack"][rows], user_stacks(trace)), trace.column("stacks", "frame"))
    group_of, begin = _core.group([spans["name"][rows].astype(np.int32), module, frame])
    counts = np.bincount(group_of, minlength=len(begin))
    groups = []
    for group, at in enumerate(begin.tolist()):
        name = strings[spans["name"][rows[at]]]
        path = str(trace.column("modules", "path")[module[at]]) if module[at] >= 0 else "-"
        file, number, text = _line(trace, int(frame[at]))
        function, line = "", ""
        if frame[at] >= 0:
            frames = trace.columns("frames")
            full, called = (strings[frames[column][frame[at]]] for column in ("file", "function"))
            function, line = f"{os.path.basename(full)}:{called}", line_text(trace, full, number)
        place = Where(f"{counts[group]:,}", _cut(name), _cut(path), text, file, number)
        groups.append(_Group(_hash(name, path, function), _hash(line), int(counts[group]), place))
    return groups


def _hash(*texts: str) -> str:
    """A short text for texts."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()


def _added(trace: TraceData, scope: Scope | None, known: Mapping[str, int]) -> list[Where]:
    """The places with more operators than before, in functions that have more; empty where there is none."""
    before: Counter[str] = Counter()
    for key, count in known.items():
        before[key.partition(".")[0]] += count
    groups = _operator_groups(trace, scope)
    now: Counter[str] = Counter()
    for group in groups:
        now[group.function] += group.count
    left = Counter(known)
    found = []
    for group in sorted(groups, key=lambda one: (one.where.file, one.where.number)):
        more = group.count - left[group.key]
        # Two lines may have one text: what the first one uses up, the second one cannot.
        left[group.key] = max(0, left[group.key] - group.count)
        if now[group.function] > before[group.function] and more > 0:
            found.append((min(more, now[group.function] - before[group.function]), group.where))
    found.sort(key=lambda one: -one[0])
    return [replace(where, value=f"+{count:,}") for count, where in found[:MOST_PLACES]]


# ---------------------------------------------------------------------------------------------------------- measures


def _operators(trace: TraceData, limits: Limits, whole_ns: int) -> _Measured:
    """How many operators ran."""
    spans = trace.columns("spans")
    return _counted(trace, np.flatnonzero(is_operator(spans["kind"])), "operator")


def _kernels(trace: TraceData, limits: Limits, whole_ns: int) -> _Measured:
    """How many kernels ran on devices."""
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
    own = trace.columns("steps")
    first = limits.warmup_steps
    if len(own) == 0 and first == 0:
        duration_ns = np.array([whole_ns], dtype=np.int64)
    else:
        duration_ns = own["duration_ns"][first:]
    if len(duration_ns) == 0:
        raise StateError(
            f"{WARMUP}={first} leaves no step to be looked at: the trace has {units.count(len(own), 'step')}"
        )
    worst = int(np.argmax(duration_ns))
    took_ns = int(duration_ns[worst])

    def sentence(allowed: float) -> str:
        over = f"took {units.duration(took_ns)}, {units.duration(took_ns - allowed * 1e6)} too long"
        if len(own) == 0:
            return f"the test, which marks no steps, {over}"
        late = int((duration_ns > allowed * 1e6).sum())
        others = f"; the median of {units.count(len(duration_ns), 'step')} is {units.duration(np.median(duration_ns))}, {late:,} of them too long"
        if len(duration_ns) > 1:
            over += others
        if first + worst == 0 and own["source"][0] == OPTIMIZER:
            over += f"; no mark says where this first step begins, so it holds what came before: {WARMUP}=1 leaves it out"
        return f"step {int(own['number'][first + worst])} {over}"

    def rows() -> Rows:
        within = host_work(trace, with_steps=False).mask.copy()
        if len(own):
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
    """Count the blocks of memory allocated on the host and on all devices."""
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


def _peak_bytes(trace: TraceData, limits: Limits, whole_ns: int) -> _Measured:
    """The most memory that blocks allocated while recording held at once, on the device on which that was most."""
    blocks = trace.columns("allocations")
    devices = blocks["device_type"].astype(np.int32) * 256 + blocks["device_index"] + 1
    best, moment, place = 0, -1, 0
    for device in np.unique(devices).tolist():
        rows = np.flatnonzero(devices == device)
        top = int(rows[np.argmax(blocks["total_bytes"][rows])])
        if int(blocks["total_bytes"][top]) > best:
            best, moment, place = int(blocks["total_bytes"][top]), top, device

    def sentence(allowed: float) -> str:
        kind, index = divmod(place, 256)
        when = f"{units.duration(int(blocks['time_ns'][moment]))} after the start"
        # A limit is in bytes: the exact number is what to set it to.
        device = device_name(kind, index - 1)
        return f"{units.size(best)} ({best:,} bytes) held at once on {device}, {units.size(best - allowed)} too many, {when}"

    def where() -> list[Where]:
        rows = np.arange(len(blocks))
        freed = blocks["match"]
        live = (
            (devices == place) & (blocks["bytes"] > 0) & (rows <= moment) & ((freed < 0) | (freed > moment))
        )
        held = np.flatnonzero(live)
        return _memory_places(trace, blocks["bytes"][held], held, units.size)

    return _Measured(best, sentence, where, ("bytes", "operator"))


_MEASURES: dict[str, Callable[[TraceData, Limits, int], _Measured]] = {
    "max_step_ms": _step_ms,
    "max_operators": _operators,
    "max_allocations": _allocations,
    "max_peak_bytes": _peak_bytes,
    "max_kernels": _kernels,
}

# ------------------------------------------------------------------------------------------------------------- places


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
    shown: Callable[[int], str],
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
    group_of, first = _core.group([names.astype(np.int32), module, frame])
    sums = _core.group_sums(group_of, len(first), values.astype(np.int64))
    order = np.argsort(-sums, kind="stable")
    places = []
    for group in order[:MOST_PLACES].tolist():
        row = int(first[group])
        name = trace.strings[names[row]] if names[row] >= 0 else "(outside all)"
        path = str(trace.column("modules", "path")[module[row]]) if module[row] >= 0 else "-"
        file, number, text = _line(trace, int(frame[row]))
        places.append(Where(shown(int(sums[group])), _cut(name), _cut(path), text, file, number))
    if len(order) > MOST_PLACES:
        rest = order[MOST_PLACES:]
        places.append(Where(shown(int(sums[rest].sum())), f"in {units.count(len(rest), 'other place')}"))
    return places


def _launching(trace: TraceData, spans: NDArray[np.int32]) -> NDArray[np.int32]:
    """For work of a device the operator of the host that started it, whose module and line tell where; else the span."""
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
