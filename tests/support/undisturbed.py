"""The trace of a loop by a clock that other programs cannot slow down.

A recording of some steps of a real program has all that rules look at, but its times are those of a machine that may do something else.
Here everything that was recorded stays as it was, its order too: operators, stacks, shapes, blocks of memory, samples, calls. Only the clock is
another one. Between two events of the loop's thread it runs for as long as the same part of the loop took when it took least, over all steps.
What other programs do to a step makes it longer, never shorter, so that a part has its own length as soon as one of its steps was left alone.

    events      step|linear|addmm|      |addmm end|linear end|
    recorded         3     2     50 ...             4             a step in which another program had the processor
    recorded         3     2     12 ...             4             another step
    by this clock    3     2     12 ...             4             both
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.kinds import is_operator
from kinetoscope.model.schema import FLAG_ASYNC, STORED, SpanKind
from kinetoscope.model.steps import step_at
from kinetoscope.tables.processor_waits import processor_waits
from kinetoscope.trace import Trace

Rows = NDArray[np.int64]

LEAST_TIMES = 4
"""A part that ran less often has the length that was recorded, without what its thread waited for a processor."""
SHORTEST = 0.1
"""The length of a part is that which so many of its times were shorter than: the very shortest of thousands are errors of the clock."""
_STEP = -2
_NUMBERS = re.compile(r"\d+")


def undisturbed(trace: Trace) -> Trace:
    """Copy a trace, with times as if nothing else had run on the machine.

    Args:
        trace: The trace of one process, whose steps are marked.

    Returns:
        The same rows at other times; no thread has waited for a processor.
    """
    parts = _Parts(trace)
    clock = _Clock(trace, parts.at_ns, parts.lengths())
    tables = {}
    for name in STORED:
        columns = trace.columns(name)
        # What follows from times is derived again.
        kept = {
            column.name: columns[column.name]
            for column in columns.table.columns
            if column.name in columns.given and (not column.derived or column.name == "kind")
        }
        tables[name] = _at_other_times(name, kept, clock)
    return Trace.from_columns(tables, strings=trace.strings, info=trace.info)


class _Parts:
    """The parts of the loop: the time of its thread from each beginning or end of a span to the next one.

    Attributes:
        at_ns: When spans of the thread begin or end; parts lie between them.
        step: The step of each part.
        key: What each part is: parts with the same key do the same.
        bytes: What the operator that a part lies in allocated; 0 for less than nothing, and for what is no operator.
        kind: The same as the key, whatever the number of bytes.
    """

    def __init__(self, trace: Trace) -> None:
        spans = trace.columns("spans")
        marks = np.flatnonzero((spans["kind"] == SpanKind.STEP) & (spans["stream"] < 0))
        assert len(marks), "a loop without marked steps has no parts that come again"
        rows = np.flatnonzero(
            (spans["thread"] == spans["thread"][marks[0]])
            & (spans["stream"] < 0)
            & ((spans["flags"] & FLAG_ASYNC) == 0)
            & (spans["lane"] == 0)
        )
        start = spans["start_ns"][rows].astype(np.int64)
        end = start + spans["duration_ns"][rows]
        self.at_ns: Rows = np.unique(np.concatenate((start, end)))
        # Where steps follow each other, one ends as the next one begins; the first and the last one are like the others.
        own = np.where(spans["kind"][rows] == SpanKind.STEP, _STEP, _identities(trace, rows))
        allocated = np.where(is_operator(spans["kind"][rows]), np.maximum(spans["bytes"][rows], 0), 0)

        numbers: dict[Any, int] = {}
        inside, here = [], []  # for each moment the innermost span from then on, and what begins and ends
        open_spans: list[int] = []
        paths = [-1] * len(rows)
        place = 0
        starts, ends, owns = start.tolist(), end.tolist(), own.tolist()
        for moment in self.at_ns.tolist():
            ended, begun = [], []
            while open_spans and ends[open_spans[-1]] <= moment:
                ended.append(owns[open_spans.pop()])
            while place < len(rows) and starts[place] == moment:
                begun.append(owns[place])
                if ends[place] > moment:
                    path = (paths[open_spans[-1]] if open_spans else -1, owns[place])
                    paths[place] = numbers.setdefault(path, len(numbers))
                    open_spans.append(place)
                place += 1
            inside.append(open_spans[-1] if open_spans else -1)
            if _STEP in ended and _STEP in begun:
                ended.remove(_STEP)
            events = [(one, one != _STEP) for one in ended] + [(one, False) for one in begun]
            here.append(numbers.setdefault(tuple(events), len(numbers)))
        innermost = np.array(inside[:-1], dtype=np.int64)
        path_of = np.append(np.array(paths, dtype=np.int64), -1)[innermost]
        event = np.array(here, dtype=np.int64)
        self.bytes: Rows = np.append(allocated, 0)[innermost].astype(np.int64)
        self.kind = _numbered(path_of, event[:-1], event[1:])
        self.key = _numbered(self.kind, self.bytes)
        waits = processor_waits(trace, int(spans["thread"][marks[0]]))
        self._waited_ns = waits.within(self.at_ns[:-1], self.at_ns[1:])
        first, length = spans["start_ns"][marks].astype(np.int64), spans["duration_ns"][marks]
        self.step = step_at(self.at_ns[:-1], first, length).astype(np.int64)

    def lengths(self) -> Rows:
        """How long each part takes where nothing else runs."""
        recorded = np.diff(self.at_ns)
        found = recorded - self._waited_ns
        # Where a size comes once, as of a tensor that grows, each byte takes as long as in the fastest of these parts.
        sized = self.bytes > 0
        pace = np.where(sized, _least(self.kind, recorded / np.maximum(self.bytes, 1), sized), np.nan)
        known = ~np.isnan(pace)
        found[known] = np.round(pace[known] * self.bytes[known]).astype(np.int64)
        # The same part, and better the same time in the step: calls of one line may have other inputs.
        time_in_step = _counted(_numbered(self.key, self.step))
        for key in (self.key, _numbered(self.key, time_in_step)):
            least = _least(key, recorded.astype(np.float64), np.ones(len(key), dtype=bool))
            known = ~np.isnan(least)
            found[known] = least[known].astype(np.int64)
        return np.maximum(found, 1)


class _Clock:
    """The time of a trace as another time, in order."""

    def __init__(self, trace: Trace, at_ns: Rows, lengths_ns: Rows) -> None:
        """Let it run for `lengths_ns` between some moments, and as before outside of them; no two moments of spans become one."""
        spans = trace.columns("spans")
        start = spans["start_ns"].astype(np.int64)
        moments = np.unique(np.concatenate((at_ns, start, start + spans["duration_ns"])))
        until = at_ns[0] + np.append(0, np.cumsum(lengths_ns))
        shown = _between(moments, at_ns, until)
        order = np.arange(len(moments))
        self._at_ns, self._shown_ns = moments, np.maximum.accumulate(shown - order) + order

    def __call__(self, time_ns: Any) -> Rows:
        """What the clock shows at some moments."""
        return _between(np.asarray(time_ns, dtype=np.int64), self._at_ns, self._shown_ns)


def _between(time_ns: Rows, at_ns: Rows, shown_ns: Rows) -> Rows:
    """What a clock shows at some moments that shows `shown_ns` at `at_ns`: evenly between, and in real time before and after."""
    place = np.clip(np.searchsorted(at_ns, time_ns, side="right") - 1, 0, len(at_ns) - 1)
    after = time_ns - at_ns[place]
    length = np.append(np.diff(at_ns), 1)[place]
    shown = np.append(np.diff(shown_ns), 1)[place]
    return np.asarray(shown_ns[place] + np.where(after < 0, after, after * shown // length), dtype=np.int64)


def _at_other_times(table: str, columns: dict[str, Any], clock: _Clock) -> dict[str, Any]:
    """The columns of a table at other times."""
    moved = dict(columns)
    if table == "samples" and "time_ns" in columns:
        end = columns["time_ns"].astype(np.int64)
        moved["time_ns"] = clock(end)
        moved["period_ns"] = np.maximum(moved["time_ns"] - clock(end - columns["period_ns"]), 1)
        if "waited_ns" in columns:
            moved["waited_ns"] = np.minimum(columns["waited_ns"], 0)
        return moved
    for name in ("time_ns", "start_ns"):
        if name in columns:
            moved[name] = clock(columns[name])
    if "start_ns" not in columns or "duration_ns" not in columns:
        return moved
    start, length = columns["start_ns"].astype(np.int64), columns["duration_ns"].astype(np.int64)
    moved["duration_ns"] = np.where(length < 0, length, clock(start + length) - moved["start_ns"])
    for name, values in columns.items():
        # What a compilation spends in its stages.
        if name.endswith("_ns") and name not in ("start_ns", "duration_ns"):
            part = values.astype(np.int64)
            scaled = part * moved["duration_ns"] // np.maximum(length, 1)
            moved[name] = np.where((part < 0) | (length <= 0), part, scaled)
    return moved


def _identities(trace: Trace, rows: Rows) -> Rows:
    """What each of some spans is: the same number for spans of the same name, line and module."""
    spans, stacks, frames = (trace.columns(name) for name in ("spans", "stacks", "frames"))
    lines: dict[Any, int] = {}
    # Parents come first.
    stack_of = [-1] * (len(stacks) + 1)
    names = [frames[name].tolist() for name in ("file", "function", "line")] if len(frames) else [[], [], []]
    frame_of = list(zip(*names, strict=True))
    for stack, (parent, frame) in enumerate(
        zip(stacks["parent"].tolist(), stacks["frame"].tolist(), strict=True)
    ):
        stack_of[stack] = lines.setdefault((stack_of[parent], frame_of[frame]), len(lines))
    kinds: dict[str, int] = {}
    # Steps and compiled regions have a number in their name.
    name_of = [kinds.setdefault(_NUMBERS.sub("#", text), len(kinds)) for text in trace.strings]
    return _numbered(
        np.array(name_of, dtype=np.int64)[spans["name"][rows]],
        np.array(stack_of, dtype=np.int64)[spans["stack"][rows]],
        spans["module"][rows],
    )


def _numbered(*keys: Any) -> Rows:
    """A number for each distinct combination of some keys."""
    found = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        _, place = np.unique(np.asarray(key, dtype=np.int64), return_inverse=True)
        _, found = np.unique(found * (int(place.max(initial=0)) + 1) + place, return_inverse=True)
    return found


def _counted(keys: Rows) -> Rows:
    """How many earlier ones of the same key there are of each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.searchsorted(ordered, ordered)
    found = np.empty(len(keys), dtype=np.int64)
    found[order] = np.arange(len(keys)) - first
    return found


def _least(keys: Rows, values: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each the value that hardly any of its key is below; NaN where the key comes too seldom."""
    found = np.full(len(keys), np.nan)
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((values[rows], keys[rows]))]
    ordered = keys[rows]
    first = np.searchsorted(ordered, ordered)
    count = np.searchsorted(ordered, ordered, side="right") - first
    usual = values[rows[first + (SHORTEST * count).astype(np.int64)]]
    found[rows] = np.where(count >= LEAST_TIMES, usual, np.nan)
    return found
