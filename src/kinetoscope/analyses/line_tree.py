"""The program's own lines with all that runs under them, as a tree: what the unit of work spends, by the line that is responsible.

A line is the program's own if its file lies in the folder of the script or in the working directory, outside of installed packages. A trace without such
lines has those of all code that is neither torch's nor Python's. Backward counts for the line of its forward operators. What an installed package does
counts for the line that called it.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from kinetoscope.analyses.loop import SourceLine
from kinetoscope.ledger.ledger import ProcessLedger, raw_ledger
from kinetoscope.ledger.parts import REQUEST_PARTS, part_of_cells
from kinetoscope.model.groups import Groups
from kinetoscope.model.names import source_line
from kinetoscope.model.processes import thread_processes
from kinetoscope.model.rows import Rows
from kinetoscope.model.time_spent import Cause, Entry
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.device.collectives import collectives
from kinetoscope.tables.host.data_loading import loading_spans
from kinetoscope.tables.host.lines import line_groups
from kinetoscope.tables.stacks import (
    installed_package,
    is_library_file,
    project_frames,
    span_stacks,
)

MOST_LINES = 10
LEAST_PERCENT = 1.0
ALL_OF_IT = 0.95
"""A line of which another one under it has this part of the time only leads there, and is left out."""
MOSTLY = 0.5
"""A package is named from this part of a line's time on."""
_OPERATORS = (Entry.NEEDED, Entry.SLOW, Entry.NOT_NEEDED)


@dataclass(frozen=True)
class LineTime:
    """A line of the program, with all that runs under it in the units that count.

    Attributes:
        file: The file.
        line: Its number.
        function: The qualified name of the function.
        depth: How many of the lines in the list it is under.
        time_ns: All of its time.
        operators_ns: Time of operators and of devices' work.
        python_ns: Time of Python between them.
        waiting_ns: The rest: waits, garbage collection, compilation.
        package: The installed package in which most of it is; empty without.
    """

    file: str
    line: int
    function: str
    depth: int
    time_ns: int
    operators_ns: int
    python_ns: int
    waiting_ns: int
    package: str = ""


@dataclass(eq=False)
class _Node:
    """A line below the line that called it."""

    line: int
    caller: int
    children: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LineTree:
    """The lines of the process whose units took longest.

    Attributes:
        lines: The lines with most time, each below the one that it is under.
        total: How many lines have at least `LEAST_PERCENT`.
        whole_ns: The time of all units, without waits for a CPU core, which say nothing of the program.
    """

    lines: tuple[LineTime, ...]
    total: int
    whole_ns: int


@derived
def line_tree(trace: TraceData, most: int = MOST_LINES) -> LineTree:
    """The lines of the program that are responsible for most of its time, in steps or else in requests or all that was recorded."""
    ledger = max(
        raw_ledger(trace), key=lambda ledger: int(ledger.duration_ns[ledger.counted].sum()), default=None
    )
    if ledger is None:
        return LineTree((), 0, 0)
    is_without_core = ledger.counted[ledger.cells.step] & (ledger.cells.cause == Cause.PROCESSOR)
    whole_ns = int(ledger.duration_ns[ledger.counted].sum() - ledger.cells.time_ns[is_without_core].sum())
    nodes, node_of_stack = line_nodes(trace)
    rows, stack_of_row = stacks_of_cells(ledger)
    packages = _packages(ledger, rows, stack_of_row, node_of_stack)
    times_ns = _times(ledger, rows, stack_of_row, nodes, node_of_stack)
    _, first = line_groups(trace)
    lines = []
    listed, total = _largest(nodes, times_ns.sum(axis=1).tolist(), whole_ns, most)
    for number, depth in listed:
        operators_ns, python_ns, waiting_ns = times_ns[number].tolist()
        lines.append(
            LineTime(
                *source_line(trace, int(first[nodes[number].line])),
                depth,
                operators_ns + python_ns + waiting_ns,
                operators_ns,
                python_ns,
                waiting_ns,
                packages.get(number, ""),
            )
        )
    return LineTree(tuple(lines), total, whole_ns)


@derived
def line_nodes(trace: TraceData) -> tuple[list[_Node], list[int]]:
    """The lines of the program by the lines that called them, callers first after the root, and for each stack and for no stack its innermost one."""
    stacks = trace.columns("stacks")
    line_of_frame, _ = line_groups(trace)
    is_own = np.append(project_frames(trace), False)[stacks["frame"]]
    line = np.append(line_of_frame, -1)[stacks["frame"]].tolist()
    nodes = [_Node(-1, 0)]
    node_of_stack = [0] * (len(stacks) + 1)
    for stack, (parent, is_program) in enumerate(
        zip(stacks["parent"].tolist(), is_own.tolist(), strict=True)
    ):
        around = node_of_stack[parent] if 0 <= parent < stack else 0
        if is_program:
            around = nodes[around].children.get(line[stack]) or _below(nodes, around, line[stack])
        node_of_stack[stack] = around
    return nodes, node_of_stack


def _below(nodes: list[_Node], around: int, line: int) -> int:
    """The line below another one, made if it is not there; in a recursion the line that began it."""
    outer = around
    while outer and nodes[outer].line != line:
        outer = nodes[outer].caller
    if outer:
        return outer
    nodes[around].children[line] = len(nodes)
    nodes.append(_Node(line, around))
    return len(nodes) - 1


def stacks_of_cells(ledger: ProcessLedger) -> tuple[Rows, Rows]:
    """The cells of units that count, and the stack of each: that of the span that shows it where it has none itself; -1 for none."""
    cells = ledger.cells
    rows = np.flatnonzero(ledger.counted[cells.step])
    of_span = np.append(span_stacks(ledger.trace), -1)[cells.span[rows]]
    return rows, np.where(cells.stack[rows] >= 0, cells.stack[rows], of_span)


def _times(
    ledger: ProcessLedger, rows: Rows, stack_of_row: Rows, nodes: list[_Node], node_of_stack: list[int]
) -> Rows:
    """For each line the time of operators, of Python and of all else that is spent at it, and under it."""
    cells = ledger.cells
    entry, _ = cells.whole_parts(rows)
    part = np.where(
        (cells.name[rows] >= 0) | np.isin(entry, _OPERATORS), 0, np.where(entry == Entry.PYTHON, 1, 2)
    )
    by_node = Groups.cells(np.array(node_of_stack)[stack_of_row], part, (len(nodes), 3))
    times_ns = np.array(by_node.sums(cells.time_ns[rows]))
    _add_waits(ledger, times_ns[:, 2], times_ns[:, 2], node_of_stack)
    # What is called comes after its callers.
    for number in range(len(nodes) - 1, 0, -1):
        times_ns[nodes[number].caller] += times_ns[number]
    return times_ns


def _loading_stacks(ledger: ProcessLedger) -> tuple[Rows, Rows]:
    """The stacks in which the thread waits for data, with their parts of it: those of samples or, without any, of the lines that ask loaders for batches."""
    trace = ledger.trace
    spans, samples = trace.columns("spans"), trace.columns("samples")
    sampled = np.flatnonzero((samples["thread"] == ledger.thread) & (samples["stack"] >= 0))
    sampled_ns = samples["time_ns"][sampled].astype(np.int64)
    sampled = sampled[ledger.activity.host.loading.within(sampled_ns, sampled_ns + 1) > 0]
    if len(sampled):
        return samples["stack"][sampled], np.ones(len(sampled), np.int64)
    waits = loading_spans(trace).waits
    waits = waits[spans["thread"][waits] == ledger.thread]
    return span_stacks(trace)[waits], spans["duration_ns"][waits].astype(np.int64)


def _collective_stacks(ledger: ProcessLedger) -> tuple[Rows, Rows]:
    """The stacks that call collectives, and how long these last."""
    trace = ledger.trace
    # Not by Arrow's functions, which take longer to load than a small trace.
    columns = (collectives(trace)[name].to_pylist() for name in ("span", "transfer_ns"))
    span, transfer_ns = (np.array([value or 0 for value in values], np.int64) for values in columns)
    of_process = thread_processes(trace)[trace.column("spans", "thread")[span]] == max(ledger.process, 0)
    span, transfer_ns = span[of_process], transfer_ns[of_process]
    return span_stacks(trace)[span], np.maximum(transfer_ns, trace.column("spans", "duration_ns")[span])


def _add_waits(ledger: ProcessLedger, data_ns: Rows, collectives_ns: Rows, node_of_stack: list[int]) -> None:
    """Add to the times of lines what they wait for data, and for collectives whose wait is no operator's."""
    cells, line_of_stack = ledger.cells, np.array(node_of_stack)
    for line_ns, is_waiting, stacks_of in (
        (data_ns, cells.cause == Cause.DATA, _loading_stacks),
        (collectives_ns, (cells.cause == Cause.COLLECTIVE) & (cells.span < 0), _collective_stacks),
    ):
        waits_ns = int(cells.time_ns[is_waiting & ledger.counted[cells.step]].sum())
        if waits_ns == 0:
            continue
        stack, part = stacks_of(ledger)
        by_line = Groups(line_of_stack[stack], len(line_ns)).sums(part)
        line_ns += (waits_ns / max(int(part.sum()), 1) * by_line).astype(np.int64)


def times_of_lines(ledger: ProcessLedger) -> dict[tuple[SourceLine, str], int]:
    """What each line of the program takes itself in the units that count, without the lines under it: by the line and the part of the unit."""
    nodes, node_of_stack = line_nodes(ledger.trace)
    rows, stack_of_row = stacks_of_cells(ledger)
    by_node = Groups.cells(
        np.array(node_of_stack)[stack_of_row],
        part_of_cells(ledger)[rows],
        (len(nodes), len(REQUEST_PARTS)),
    )
    times_ns = np.array(by_node.sums(ledger.cells.time_ns[rows]))
    data_ns, collectives_ns = (
        times_ns[:, REQUEST_PARTS.index(part)] for part in ("data_wait_ns", "communication_ns")
    )
    _add_waits(ledger, data_ns, collectives_ns, node_of_stack)
    _, first = line_groups(ledger.trace)
    of_lines: dict[tuple[SourceLine, str], int] = defaultdict(int)
    # The first one is what no line of the program has called.
    for number, part in zip(*np.nonzero(times_ns[1:]), strict=True):
        line = SourceLine(*source_line(ledger.trace, int(first[nodes[number + 1].line])))
        of_lines[line, REQUEST_PARTS[part]] += int(times_ns[number + 1, part])
    return of_lines


def _packages(
    ledger: ProcessLedger, rows: Rows, stack_of_row: Rows, node_of_stack: list[int]
) -> dict[int, str]:
    """By line the installed package, called from it, in which most of the time is that it has itself."""
    trace = ledger.trace
    stacks, frames = trace.columns("stacks"), trace.column("frames", "file").tolist()
    named: dict[int, str] = {}
    package = [""] * (len(stacks) + 1)
    for stack, (parent, frame) in enumerate(
        zip(stacks["parent"].tolist(), stacks["frame"].tolist(), strict=True)
    ):
        around = parent if 0 <= parent < stack else -1
        if node_of_stack[stack] == node_of_stack[around] and package[around]:
            package[stack] = package[around]
        elif frame >= 0:
            file = frames[frame]
            if file not in named:
                name = trace.strings[file]
                named[file] = "" if is_library_file(name) else installed_package(name)
            package[stack] = named[file]
    times_ns: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    by_stack = Groups(stack_of_row, len(stacks)).sums(ledger.cells.time_ns[rows])
    for stack in np.flatnonzero(by_stack).tolist():
        times_ns[node_of_stack[stack]][package[stack]] += int(by_stack[stack])
    largest = {
        node: max(of_package, key=lambda name: of_package[name]) for node, of_package in times_ns.items()
    }
    return {
        node: name
        for node, name in largest.items()
        if times_ns[node][name] >= MOSTLY * sum(times_ns[node].values())
    }


def _largest(
    nodes: list[_Node], time_ns: list[int], whole_ns: int, most: int
) -> tuple[list[tuple[int, int]], int]:
    """The lines with most time, each with its depth, in the order of the tree; and how many there are."""
    least_ns = max(LEAST_PERCENT / 100 * whole_ns, 1)

    @cache
    def leads_to(number: int) -> int:
        """The line to list for one: the only one under it that has nearly all of its time, or itself."""
        inner = below(number)
        return inner[0] if len(inner) == 1 and time_ns[inner[0]] >= ALL_OF_IT * time_ns[number] else number

    @cache
    def below(number: int) -> list[int]:
        """The lines under one, in place of those that only lead to another one, unless several lead to the same."""
        children = [child for child in nodes[number].children.values() if time_ns[child] >= least_ns]
        times = Counter(nodes[leads_to(child)].line for child in children)
        lines = [leads_to(child) if times[nodes[leads_to(child)].line] == 1 else child for child in children]
        return sorted(lines, key=lambda child: -time_ns[child])

    root = 0
    while (
        len(inner := below(root)) == 1
        and time_ns[inner[0]] <= sum(time_ns[child] for child in below(inner[0])) / ALL_OF_IT
    ):
        root = inner[0]
    waiting = [(-time_ns[child], child) for child in inner]
    heapq.heapify(waiting)
    chosen: set[int] = set()
    total = len(waiting)
    while waiting:
        _, number = heapq.heappop(waiting)
        if len(chosen) < most:
            chosen.add(number)
        inner = below(leads_to(number))
        total += len(inner)
        for child in inner:
            heapq.heappush(waiting, (-time_ns[child], child))
    listed: list[tuple[int, int]] = []

    def show(lines: list[int], depth: int) -> None:
        for number in lines:
            if number in chosen:
                listed.append((number, depth))
                show(below(leads_to(number)), depth + 1)

    show(below(root), 0)
    return listed, total
