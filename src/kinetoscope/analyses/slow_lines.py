"""Slow lines: Python or waits at a line of the program take much time, and no other finding names it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.line_tree import line_nodes
from kinetoscope.analyses.loop import SourceLine
from kinetoscope.analyses.rule import Match, Rule
from kinetoscope.ledger.ledger import ledger_of_process, raw_ledger
from kinetoscope.model.groups import Groups
from kinetoscope.model.time_spent import Cause, Entry
from kinetoscope.tables.host.lines import line_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetoscope.analyses.finding import Finding
    from kinetoscope.analyses.loop import Loop, Rows
    from kinetoscope.ledger.ledger import Cells

SLOW_LINE = Rule(
    "slow-line",
    "{place} takes {share} of {time} above its floor: {parts}",
    "Do it with fewer calls: once for many items or on whole tensors, once instead of in each step, or in another process.",
    finds="Python or waits at a line of the program take long, whatever the cause: the function that it calls most is named",
    source="twins of the programs in `benchmarks`",
    also="where no other finding names the line, and the step takes 1.5 times its floor",
    least=10.0,
    of_kinds=False,
)
LEAST_TIMES_FLOOR = 1.5
LEAST_PART = 0.25
"""A part of the time is named from this share on."""
MOST_LINES = 3


def slow_lines(loop: Loop, others: Sequence[Finding]) -> list[Finding]:
    """The lines with most time above their floor that none of the other findings names."""
    ledger = ledger_of_process(raw_ledger(loop.trace), loop.process)
    if ledger is None:
        return []
    cells = ledger.cells
    counted = ledger.counted[cells.step] & (cells.cause != Cause.PROCESSOR)
    spent_ns = int(cells.time_ns[counted].sum())
    if spent_ns < LEAST_TIMES_FLOOR * int(cells.needed_ns[counted].sum()):
        return []
    nodes, node_of_stack = line_nodes(loop.trace)
    line_of_stack = np.array([nodes[node].line for node in node_of_stack])
    # Operators have findings of their own where a cause is known; slower than the best of its kind is no fault of a line.
    is_above = np.isin(cells.entry, (Entry.PYTHON, Entry.WAITING))
    rows = np.flatnonzero(counted & is_above & (line_of_stack[cells.stack] >= 0))
    _, first = line_groups(loop.trace)
    above_ns = Groups(line_of_stack[cells.stack[rows]], len(first)).sums(cells.time_ns[rows])
    named = [(other.place, other.gain_ns or 0) for other in others]
    findings = []
    for line in np.argsort(-above_ns, kind="stable")[:MOST_LINES].tolist():
        place = _place(loop, int(first[line]))
        if 100 * above_ns[line] < SLOW_LINE.least * spent_ns or any(
            _is_at(place, other) and 2 * gain_ns >= above_ns[line] for other, gain_ns in named
        ):
            continue
        of_line = rows[line_of_stack[cells.stack[rows]] == line]
        spans = cells.span[of_line[np.argsort(-cells.time_ns[of_line], kind="stable")]]
        spans = np.array([*dict.fromkeys(spans[spans >= 0].tolist())], np.int64)
        match = Match(
            spans,
            int(above_ns[line]),
            {"parts": _parts(loop, cells, of_line)},
            place=place,
            module=loop.module_of(int(spans[0]) if len(spans) else -1),
            spans=spans,
            share_percent=100 * above_ns[line] / max(spent_ns, 1),
        )
        findings.append(SLOW_LINE.finding(loop, match))
    return findings


def _place(loop: Loop, frame: int) -> SourceLine:
    frames, strings = loop.trace.columns("frames"), loop.trace.strings
    return SourceLine(
        strings[frames["file"][frame]], int(frames["line"][frame]), strings[frames["function"][frame]]
    )


def _is_at(place: SourceLine, other: SourceLine) -> bool:
    return place.file == other.file and other.line <= place.line <= max(other.until, other.line)


def _parts(loop: Loop, cells: Cells, rows: Rows) -> str:
    """What the time of some cells is, the longest first: Python with what it calls, and waits."""
    time_ns, cause = cells.time_ns[rows], cells.cause[rows]
    is_python = cells.entry[rows] == Entry.PYTHON
    texts = [(int(time_ns[is_python].sum()), _python(loop, cells, rows[is_python]))]
    texts += [
        (int(time_ns[~is_python & (cause == number)].sum()), [*Cause][number].words)
        for number in np.unique(cause[~is_python]).tolist()
    ]
    least_ns = LEAST_PART * time_ns.sum()
    return ", ".join(text for part_ns, text in sorted(texts, reverse=True) if part_ns >= max(least_ns, 1))


def _python(loop: Loop, cells: Cells, rows: Rows) -> str:
    """Python, with the function that the line calls for most of it."""
    trace = loop.trace
    _, node_of_stack = line_nodes(trace)
    parent, frame = (trace.column("stacks", name).tolist() for name in ("parent", "frame"))
    time_of: dict[tuple[str, str], int] = {}
    frames, strings = trace.columns("frames"), trace.strings
    for stack, time_ns in zip(cells.stack[rows].tolist(), cells.time_ns[rows].tolist(), strict=True):
        called = -1
        while parent[stack] >= 0 and node_of_stack[parent[stack]] == node_of_stack[stack]:
            called, stack = stack, parent[stack]
        row = frame[called] if called >= 0 else -1
        key = (strings[frames["function"][row]], strings[frames["file"][row]]) if row >= 0 else ("", "")
        time_of[key] = time_of.get(key, 0) + time_ns
    function, file = max(time_of, key=lambda key: time_of[key], default=("", ""))
    return f"Python in {function} ({os.path.basename(file)})" if function else "Python of its own"
