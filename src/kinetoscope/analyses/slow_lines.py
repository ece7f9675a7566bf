"""Slow lines: a line of the program takes much time above what its operators need, and no other finding names it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.hot_lines import OF_CALLS, operator_of_cells
from kinetoscope.analyses.line_tree import line_nodes, stacks_of_cells
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule import Match, Rule
from kinetoscope.analyses.rules.python_bound import calls_at
from kinetoscope.ledger.ledger import Cells, ProcessLedger, ledger_of_process, raw_ledger
from kinetoscope.model.groups import Groups
from kinetoscope.model.names import source_line
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.time_spent import Cause, Entry
from kinetoscope.tables.host.lines import line_groups
from kinetoscope.tables.stacks import in_user_code

SLOW_LINE = Rule(
    "slow-line",
    "{place} runs Python for {share} of {time}{called}{calls}",
    "Do it with fewer calls: once for many items or on whole tensors, once instead of in each step, or in another process.",
    finds=(
        "a line of the program, or a few that follow each other, takes long above what its operators need, whatever the cause: the function or the operator that it "
        "calls most is named"
    ),
    source="twins of the programs in `benchmarks`",
    also="where no other finding names the line, and the step takes 1.5 times its floor",
    least=10.0,
    of_kinds=False,
)
_OF_OPERATORS = "{place} takes {share} of {time} above what its operators need: {count:call} of {operator}, {mean:ns} each{calls}"
# Findings that say why Python takes long at all lines.
_OF_ALL_PYTHON = ("gil-contention", "profiler-cost")
LEAST_TIMES_FLOOR = 1.5
MOST_LINES = 3
NEARBY = 3
"""Lines of a function that are so close to each other are one place, where none of them is one by itself."""
LEAST_TIMES_LINE = 1.5
"""Lines that are a place only together take so many times what one line must: those of a short step have little in common."""
LEAST_CALLS = 20
"""An operator that a line calls less often in a step may just not reach the best rates."""
LEAST_TIMES_BEST = 3.0
"""The same of operators that are less than so many times slower, for what they do, than where they are fastest in the trace."""


def slow_lines(loop: Loop, others: Sequence[Finding]) -> list[Finding]:
    """The lines with most time above the floor of their operators, torch's Python left out, that none of the other findings names."""
    ledger = ledger_of_process(raw_ledger(loop.trace), loop.process)
    if ledger is None:
        return []
    cells = ledger.cells
    counted = ledger.counted[cells.step] & (cells.cause != Cause.PROCESSOR)
    spent_ns, needed_ns = int(cells.time_ns[counted].sum()), int(cells.needed_ns[counted].sum())
    if spent_ns < LEAST_TIMES_FLOOR * needed_ns:
        return []
    with_python = all(other.code not in _OF_ALL_PYTHON for other in others)
    rows, line_of_row, is_fault = _rows_above_floor(loop, ledger, with_python=with_python)
    step = ledger.counted_step[cells.step]
    above_ns = cells.time_ns - cells.needed_ns
    least_ns = SLOW_LINE.least / 100 * spent_ns
    findings = []
    for at_lines, lines in _blocks(loop, line_of_row[is_fault], above_ns[rows[is_fault]], least_ns)[
        :MOST_LINES
    ]:
        of_lines = rows[np.isin(line_of_row, lines)]
        usual_ns = loop.usual_sum(step[of_lines], above_ns[of_lines])
        named_ns = [other.gain_ns or 0 for other in others if overlap(at_lines, other.place)]
        if usual_ns < least_ns or 2 * max(named_ns, default=0) >= usual_ns:
            continue
        values, text = _words(loop, cells, of_lines, above_ns[of_lines])
        if loop.per_step(values.get("count", LEAST_CALLS * len(loop.work))) < LEAST_CALLS:
            continue
        values["calls"] = calls_at(loop, loop.place_of_frame(int(line_groups(loop.trace)[1][lines[0]])))
        calls = np.flatnonzero(_are_calls(cells, of_lines)) if text else np.zeros(0, np.int64)
        gain_ns = usual_ns + loop.usual_sum(step[calls], cells.time_ns[calls]) - sum(named_ns)
        if gain_ns <= 0:
            continue
        share = 100 * usual_ns / max(spent_ns, 1)
        match = Match(
            time_ns=usual_ns, values=values, gain_ns=gain_ns, text=text, place=at_lines, share_percent=share
        )
        findings.append(SLOW_LINE.finding(loop, match))
    return findings


def _rows_above_floor(loop: Loop, ledger: ProcessLedger, *, with_python: bool) -> tuple[Rows, Rows, Mask]:
    """The cells above the floor at lines of the program, the line of each, and which may be faults: those of a line with a slow operator belong to it."""
    cells = ledger.cells
    rows, stack = stacks_of_cells(ledger)
    nodes, node_of_stack = line_nodes(loop.trace)
    line = np.array([nodes[node].line for node in node_of_stack])[stack]
    # Also a library's frames that torch called; no stack is not torch's.
    is_torchs = np.append(~in_user_code(loop.trace), False)[cells.stack[rows]]
    entry = cells.entry[rows]
    is_operator = np.isin(entry, (Entry.NEEDED, Entry.SLOW))
    by_call = Groups.by([line, cells.name[rows]], is_operator & (line >= 0))
    took_ns, needed_ns = by_call.sums(cells.time_ns[rows]), by_call.sums(cells.needed_ns[rows])
    name = cells.name[rows[by_call.first]]
    best = Groups(name, len(loop.trace.strings)).maxima(needed_ns / np.maximum(took_ns, 1))[name]
    # Other programs make all operators slow, and of a device only launches are known here.
    tells = not loop.machine_is_busy and loop.device is None
    is_far_slower = np.append((took_ns * best >= LEAST_TIMES_BEST * needed_ns) & tells, False)[by_call.of_row]
    # What a whole call does is said of that call.
    belongs = (line >= 0) & ~np.isin(cells.cause[rows], (Cause.PROCESSOR, Cause.LAUNCH, *OF_CALLS))
    is_slow = belongs & (entry == Entry.SLOW)
    is_fault = (is_slow & is_far_slower) | (entry == Entry.NOT_NEEDED)
    imports = np.append(loop.importing, False)[cells.stack[rows]]
    is_fault |= (entry == Entry.PYTHON) & ~is_torchs & ~imports & with_python
    of_slow_line = is_slow & np.isin(line, line[is_slow & is_far_slower])
    counts = belongs & (is_fault | of_slow_line)
    return rows[counts], line[counts], is_fault[counts]


def _blocks(
    loop: Loop, line_of_row: Rows, above_ns: Rows, least_ns: float
) -> list[tuple[SourceLine, list[int]]]:
    """Lines, and a few together that follow each other in a function, with at least so much time: each with its lines, those with most time first."""
    _, first = line_groups(loop.trace)
    line_ns = Groups(line_of_row, len(first)).sums(above_ns)
    long_lines = np.flatnonzero(line_ns >= least_ns).tolist()
    blocks = [(loop.place_of_frame(int(first[line])), [line]) for line in long_lines]
    of_function: dict[tuple[str, str], list[tuple[SourceLine, int]]] = defaultdict(list)
    for line in np.flatnonzero((line_ns > 0) & (line_ns < least_ns)).tolist():
        at_line = loop.place_of_frame(int(first[line]))
        of_function[at_line.file, at_line.function].append((at_line, line))
    for lines in of_function.values():
        ordered = sorted(lines, key=lambda line: line[0].line)
        apart = [
            index
            for index in range(1, len(ordered))
            if ordered[index][0].line - ordered[index - 1][0].line > NEARBY
        ]
        for begin, end in zip([0, *apart], [*apart, len(ordered)], strict=True):
            block = ordered[begin:end]
            if sum(line_ns[line] for _, line in block) >= LEAST_TIMES_LINE * least_ns:
                by_time = sorted((line for _, line in block), key=lambda line: -line_ns[line])
                blocks.append((replace(block[0][0], until=block[-1][0].line), by_time))
    return sorted(blocks, key=lambda block: -sum(line_ns[line] for line in block[1]))


def _words(loop: Loop, cells: Cells, rows: Rows, above_ns: Rows) -> tuple[dict[str, Any], str]:
    """What is said of some cells: the function that is called most or, where Python is less than half of them, the operator."""
    is_python = cells.entry[rows] == Entry.PYTHON
    if 2 * above_ns[is_python].sum() >= above_ns.sum():
        return {"called": _called(loop, cells, rows[is_python])}, ""
    name, count = operator_of_cells(loop.trace, cells, rows)
    is_call = (cells.name == name) & np.isin(cells.stack, cells.stack[rows])
    values = {
        "operator": loop.trace.strings[name],
        "count": count,
        "mean": int(cells.time_ns[is_call].sum()) / max(count, 1),
    }
    return values, _OF_OPERATORS


def _are_calls(cells: Cells, rows: Rows) -> Mask:
    """Which cells are the cost of calls, which fewer of them would save, of operators that ran where some cells did."""
    is_call = (cells.entry == Entry.NEEDED) & (cells.cause == Cause.CALL)
    return np.asarray(is_call & np.isin(cells.stack, cells.stack[rows]))


def overlap(place: SourceLine, other: SourceLine) -> bool:
    """Whether two places have lines in common."""
    return (
        place.file == other.file
        and place.line <= max(other.until, other.line)
        and other.line <= max(place.until, place.line)
    )


def _called(loop: Loop, cells: Cells, rows: Rows) -> str:
    """The function that a line calls for most of the time of some cells; empty where it is its own Python."""
    trace = loop.trace
    _, node_of_stack = line_nodes(trace)
    parent, frame = (trace.column("stacks", name).tolist() for name in ("parent", "frame"))
    time_of: dict[tuple[str, str], int] = {}
    for stack, time_ns in zip(cells.stack[rows].tolist(), cells.time_ns[rows].tolist(), strict=True):
        called = -1
        while parent[stack] >= 0 and node_of_stack[parent[stack]] == node_of_stack[stack]:
            called, stack = stack, parent[stack]
        file, _, function = source_line(trace, frame[called] if called >= 0 else -1)
        time_of[function, file] = time_of.get((function, file), 0) + time_ns
    function, file = max(time_of, key=lambda key: time_of[key], default=("", ""))
    return f", most of it in {function} ({os.path.basename(file)})" if function else ""
