"""Slow lines: Python at a line of the program takes much time, and no other finding names it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.line_tree import line_nodes
from kinetoscope.analyses.rule import Match, Rule
from kinetoscope.analyses.rules import RULES
from kinetoscope.ledger.ledger import ledger_of_process, raw_ledger
from kinetoscope.model.groups import Groups
from kinetoscope.model.time_spent import Cause, Entry
from kinetoscope.tables.host.lines import line_groups
from kinetoscope.tables.stacks import in_user_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetoscope.analyses.finding import Finding
    from kinetoscope.analyses.loop import Loop, Rows, SourceLine
    from kinetoscope.ledger.ledger import Cells

SLOW_LINE = Rule(
    "slow-line",
    "{place} runs Python for {share} of {time}{called}",
    "Do it with fewer calls: once for many items or on whole tensors, once instead of in each step, or in another process.",
    finds="Python at a line of the program takes long, whatever the cause: the function that it calls most is named",
    source="twins of the programs in `benchmarks`",
    also="where no other finding names the line, and the step takes 1.5 times its floor",
    least=10.0,
    of_kinds=False,
)
LEAST_TIMES_FLOOR = 1.5
MOST_LINES = 3


def slow_lines(loop: Loop, others: Sequence[Finding]) -> list[Finding]:
    """The lines with most Python under them, torch's left out, that none of the other findings names."""
    ledger = ledger_of_process(raw_ledger(loop.trace), loop.process)
    if ledger is None or any(map(_explains_python, others)):
        return []
    cells = ledger.cells
    counted = ledger.counted[cells.step] & (cells.cause != Cause.PROCESSOR)
    spent_ns = int(cells.time_ns[counted].sum())
    if spent_ns < LEAST_TIMES_FLOOR * int(cells.needed_ns[counted].sum()):
        return []
    nodes, node_of_stack = line_nodes(loop.trace)
    line_of_stack = np.array([nodes[node].line for node in node_of_stack])
    # Also a library's frames that torch called; no stack is not torch's.
    is_torchs = np.append(~in_user_code(loop.trace), False)
    rows = np.flatnonzero(
        counted & (cells.entry == Entry.PYTHON) & (line_of_stack[cells.stack] >= 0) & ~is_torchs[cells.stack]
    )
    line_of_row = line_of_stack[cells.stack[rows]]
    step = ledger.counted_step[cells.step[rows]]
    _, first = line_groups(loop.trace)
    took_ns = Groups(line_of_row, len(first)).sums(cells.time_ns[rows])
    findings = []
    for line in np.argsort(-took_ns, kind="stable")[:MOST_LINES].tolist():
        of_line = line_of_row == line
        usual_ns = min(loop.usual_sum(step[of_line], cells.time_ns[rows[of_line]]), int(took_ns[line]))
        at_line = loop.place_of_frame(int(first[line]))
        is_named = any(
            _is_at(at_line, other.place) and 2 * (other.gain_ns or 0) >= usual_ns for other in others
        )
        if 100 * usual_ns < SLOW_LINE.least * spent_ns or is_named:
            continue
        match = Match(
            time_ns=usual_ns,
            values={"called": _called(loop, cells, rows[of_line])},
            place=at_line,
            share_percent=100 * usual_ns / max(spent_ns, 1),
        )
        findings.append(SLOW_LINE.finding(loop, match))
    return findings


def _explains_python(finding: Finding) -> bool:
    """Whether a finding says why Python takes long, such as waits for the global lock."""
    rule = RULES.get(finding.code)
    return finding.code == "profiler-cost" or (rule is not None and "python-bound" in rule.explains)


def _is_at(line: SourceLine, other: SourceLine) -> bool:
    return line.file == other.file and other.line <= line.line <= max(other.until, other.line)


def _called(loop: Loop, cells: Cells, rows: Rows) -> str:
    """The function that a line calls for most of the time of some cells; empty where it is its own Python."""
    trace = loop.trace
    _, node_of_stack = line_nodes(trace)
    parent, frame = (trace.column("stacks", name).tolist() for name in ("parent", "frame"))
    frames, strings = trace.columns("frames"), trace.strings
    time_of: dict[tuple[str, str], int] = {}
    for stack, time_ns in zip(cells.stack[rows].tolist(), cells.time_ns[rows].tolist(), strict=True):
        called = -1
        while parent[stack] >= 0 and node_of_stack[parent[stack]] == node_of_stack[stack]:
            called, stack = stack, parent[stack]
        row = frame[called] if called >= 0 else -1
        key = (strings[frames["function"][row]], strings[frames["file"][row]]) if row >= 0 else ("", "")
        time_of[key] = time_of.get(key, 0) + time_ns
    function, file = max(time_of, key=lambda key: time_of[key], default=("", ""))
    return f", most of it in {function} ({os.path.basename(file)})" if function else ""
