"""Dominant lines: most of the time is in operators of one line that are as fast as they can be, and no other finding names it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.hot_lines import operator_of_cells
from kinetoscope.analyses.line_tree import line_nodes, stacks_of_cells
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule import NOWHERE, Match, Rule
from kinetoscope.analyses.rules.python_bound import calls_at
from kinetoscope.analyses.rules.sequences import model_call
from kinetoscope.analyses.slow_lines import overlap
from kinetoscope.ledger.ledger import Cells, ledger_of_process, raw_ledger
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import nearest_of, outermost_operators
from kinetoscope.model.rows import Rows, ShapesRow
from kinetoscope.model.time_spent import Cause
from kinetoscope.tables.costs.evaluate import parsed_inputs
from kinetoscope.tables.deep_steps import shapes_of
from kinetoscope.tables.host.lines import line_groups

DOMINANT_LINE = Rule(
    "dominant-line",
    "{place} takes {share} of {time}{ratio}: {count:call} of {operator}{sizes}, {mean:ns} each{unchanged}{inside}{calls}",
    "Look whether all of it is needed: fewer or smaller inputs, a result that is kept, a smaller type.",
    finds="a line of the program, or a call with all that it runs, takes most of the time in operators that are about as fast as they can be, with the largest of them and its inputs",
    source="a share of the time; no fault by itself, so it has no gain, unless a cheaper way is known: of a large kernel, or of a function of a library",
    also="where no other finding explains half of it",
    least=25.0,
    of_kinds=False,
)
MOST_LINES, MOST_SHAPES = 3, 2
LEAST_KERNEL = 128
"""From so many elements on, a kernel has cheaper ways if it is a product of smaller ones, or through Fourier transforms."""
LARGE_KERNEL = "A kernel as large as this one has cheaper ways: through torch.fft (multiply the transforms of padded signals) or, if it is the product of a column and a row, as a Gaussian is, two convolutions with these."
UNCHANGED = "Compute what depends on the unchanged input alone (a factorization, a norm, a converted copy, a product) once, before the loop, and use that in each call."
LEAST_CALLS = 5
"""An input that is the same in so many of the calls that are recorded in full is named."""
MOST_OF_CALLER = 2.0
"""A line that takes at most so many times what a call below it does is named with it."""
ALL_OF_CALL = 1.25
"""A call of a model that takes at most so many times what a line in it does is the place: what the model is given decides what that line has to do."""


def dominant_lines(loop: Loop, others: Sequence[Finding]) -> list[Finding]:
    """The lines whose operators take most of the time, with their backward, if none of the other findings names them."""
    ledger = ledger_of_process(raw_ledger(loop.trace), loop.process)
    if ledger is None or loop.device is not None:
        return []
    cells = ledger.cells
    nodes, node_of_stack = line_nodes(loop.trace)
    rows, stack = stacks_of_cells(ledger)
    node = np.array(node_of_stack)[stack]
    computes = (cells.name[rows] >= 0) & (cells.cause[rows] != Cause.PROCESSOR) & (node > 0)
    rows, stack, node = rows[computes], stack[computes], node[computes]
    line = np.array([entry.line for entry in nodes])[node]
    _, first = line_groups(loop.trace)
    node_ns = Groups(node, len(nodes)).sums(cells.time_ns[rows])
    for number in range(len(nodes) - 1, 0, -1):
        node_ns[nodes[number].caller] += node_ns[number]
    line_ns = Groups(line, len(first)).sums(cells.time_ns[rows])
    # Each with how far above its best speed it is.
    findings: list[tuple[float, Finding]] = []
    for number in np.argsort(-line_ns, kind="stable")[:MOST_LINES].tolist():
        is_here = np.flatnonzero(line == number)
        of_line = rows[is_here]
        time_ns = loop.usual_sum(ledger.counted_step[cells.step[of_line]], cells.time_ns[of_line])
        if loop.share(time_ns) < DOMINANT_LINE.least:
            break
        called_from = Groups(node[is_here], len(nodes)).largest(cells.time_ns[of_line])
        largest = is_here[np.argmax(np.where(node[is_here] == called_from, cells.time_ns[of_line], -1))]
        inner = loop.place_of_frame(int(first[number]))
        call, at_line = model_call(loop, int(stack[largest])), inner
        is_named = any(overlap(inner, other.place) for other in others)
        caller = nodes[node[largest]].caller
        while caller:
            around = loop.place_of_frame(int(first[nodes[caller].line]))
            is_named |= any(
                2 * (other.gain_ns or 0) >= time_ns and overlap(around, other.place) for other in others
            )
            is_all = line_ns[number] <= ALL_OF_CALL * node_ns[caller] <= ALL_OF_CALL**2 * line_ns[number]
            if overlap(around, call) and is_all:
                at_line = around
            caller = nodes[caller].caller
        if not is_named:
            findings.append(_finding(loop, cells, of_line, time_ns, at_line, inner))
    findings += _dominant_calls(
        loop, cells, rows, node, node_ns, [*others, *(dominant for _, dominant in findings)]
    )
    return [dominant for _, dominant in sorted(findings, key=itemgetter(0), reverse=True)]


def _dominant_calls(
    loop: Loop, cells: Cells, rows: Rows, node: Rows, node_ns: NDArray[Any], others: Sequence[Finding]
) -> list[tuple[float, Finding]]:
    """The innermost calls that take most of the time in many lines, none of which does by itself, if the other findings do not explain them."""
    nodes, _ = line_nodes(loop.trace)
    _, first = line_groups(loop.trace)
    lines = [loop.place_of_frame(int(first[entry.line])) if entry.line >= 0 else NOWHERE for entry in nodes]
    is_large = [
        number > 0 and loop.share(took_ns) >= DOMINANT_LINE.least for number, took_ns in enumerate(node_ns)
    ]
    findings = []
    for number in np.flatnonzero(is_large).tolist():
        if not nodes[number].children or any(is_large[child] for child in nodes[number].children.values()):
            continue
        inside = np.zeros(len(nodes), bool)
        inside[number] = True
        for below in range(number + 1, len(nodes)):
            inside[below] = inside[nodes[below].caller]
        inner_lines = [lines[inner] for inner in np.flatnonzero(inside).tolist()]
        explained_ns = [
            node_ns[number] if other.code == DOMINANT_LINE.code else other.gain_ns or 0
            for other in others
            if any(overlap(line, other.place) for line in inner_lines)
        ]
        callers, caller = [], nodes[number].caller
        while caller and node_ns[caller] <= MOST_OF_CALLER * node_ns[number]:
            callers.append(str(lines[caller]))
            caller = nodes[caller].caller
        is_here = rows[inside[node]]
        time_ns = int(cells.time_ns[is_here].sum())
        if 2 * sum(explained_ns) >= time_ns:
            continue
        largest = np.argmax(np.where(inside, Groups(node, len(nodes)).sums(cells.time_ns[rows]), 0))
        findings.append(_finding(loop, cells, is_here, time_ns, lines[number], lines[largest], callers))
    return findings


def _unchanged_input(loop: Loop, span: int) -> str:
    """How often the largest input of an operator outside modules is the same, unchanged tensor in calls from the same stack that were recorded in full; empty where it mostly differs."""
    trace = loop.trace
    spans, versions = trace.columns("spans"), trace.columns("tensor_versions")
    outer = int(nearest_of(trace, outermost_operators(trace))[span]) if span >= 0 else -1
    if outer < 0 or spans["module"][outer] >= 0:
        return ""
    is_alike = (spans["name"] == spans["name"][outer]) & (spans["stack"] == spans["stack"][outer])
    rows = np.flatnonzero(is_alike[versions["span"]] & (versions["storage"] > 0) & (versions["result"] == 0))
    calls = len(np.unique(versions["span"][rows]))
    inputs = parsed_inputs(trace, ShapesRow(int(shapes_of(trace)[outer])))
    if calls < LEAST_CALLS or inputs is None:
        return ""
    sizes = {
        argument: size for argument, size in enumerate(inputs.shapes) if isinstance(size, tuple) and size
    }
    largest = max(sizes, key=lambda argument: math.prod(sizes[argument]), default=-1)
    rows = rows[versions["argument"][rows] == largest]
    tensors = np.stack([versions[name][rows] for name in ("storage", "version", "offset_bytes")])
    different = np.unique(tensors, axis=1).shape[1]
    if len(rows) != calls or calls < LEAST_CALLS * different:
        return ""
    shape = "x".join(map(str, sizes[largest]))
    if different == 1:
        return f", with the same, unchanged input of {shape} in all calls recorded in full"
    return f", with only {different} different inputs of {shape} in {calls} calls recorded in full"


def _has_large_kernel(operator: str, sizes: Sequence[tuple[int, ...]]) -> bool:
    """Whether an operator on tensors of these sizes is a convolution whose weight has many elements for each pair of channels."""
    # A backward pass is given the gradient and the input before the weight.
    weight = sizes[1 + ("backward" in operator)] if len(sizes) > 1 + ("backward" in operator) else ()
    return "conv" in operator and len(weight) > 2 and math.prod(weight[2:]) >= LEAST_KERNEL


def _finding(
    loop: Loop,
    cells: Cells,
    rows: Rows,
    time_ns: int,
    place: SourceLine,
    inner: SourceLine,
    callers: Sequence[str] = (),
) -> tuple[float, Finding]:
    """The finding of some cells, with how far above their best speed they are, in nanoseconds."""
    name, count = operator_of_cells(loop.trace, cells, rows)
    named = rows[cells.name[rows] == name]
    largest = int(cells.span[named[np.argmax(cells.time_ns[named])]])
    inputs = (
        parsed_inputs(loop.trace, ShapesRow(int(shapes_of(loop.trace)[largest]))) if largest >= 0 else None
    )
    sizes = [] if inputs is None else [size for size in inputs.shapes if isinstance(size, tuple) and size]
    shapes = ["x".join(map(str, size)) for size in sizes[:MOST_SHAPES]]
    took_ns, needed_ns = int(cells.time_ns[rows].sum()), int(cells.needed_ns[rows].sum())
    unchanged = _unchanged_input(loop, largest)
    has_large_kernel = _has_large_kernel(loop.trace.strings[name], sizes)
    advice = LARGE_KERNEL if has_large_kernel else UNCHANGED if unchanged else ""
    words: dict[str, Any] = {
        "ratio": f", {took_ns / needed_ns:.1f} times what these calls need at best" if needed_ns > 0 else "",
        "operator": loop.trace.strings[name],
        "count": count,
        "mean": int(cells.time_ns[named].sum()) / max(count, 1),
        "sizes": f" on {' and '.join(shapes)}" if shapes else "",
        "unchanged": unchanged,
        "inside": f" at {inner}" if inner != place else "",
        "calls": calls_at(loop, place) + (f", called at {' and '.join(callers[:2])}" if callers else ""),
    }
    spans = np.unique(cells.span[rows])
    spans = spans[spans >= 0]
    of_operator = np.unique(cells.span[named])
    match = Match(
        of_operator[of_operator >= 0], time_ns, words, place=place, module="", spans=spans, advice=advice,
        gain_ns=time_ns * max(0.0, 1 - needed_ns / took_ns) if has_large_kernel and needed_ns else None,
    )  # fmt: skip
    return took_ns - needed_ns, DOMINANT_LINE.finding(loop, match)
