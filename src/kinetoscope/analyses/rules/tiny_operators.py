"""A line runs many small operators, so that calling them costs more than their work.

A Python loop over the rows of a tensor, mostly. Threshold of the loop: 10 operators from one line, as torch's former pattern
matcher; here 50 of a step, and 10 for each module, since layers are loops, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop, Place
from kinetoscope.analyses.rules.output_in_step import kinds_of_stacks
from kinetoscope.display.sentence import sentence
from kinetoscope.ledger.avoidable_work.waste import waste_of
from kinetoscope.model import units
from kinetoscope.model.schema import Phase, SpanKind
from kinetoscope.tables.stacks import stacks_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

LEAST_PER_STEP = 50
MOST_MEAN_NS = 20_000
INTERRUPTED = 0.05
"""The longest ones are left out of the mean: on a busy machine the program is stopped in the middle of some."""
MOST_PYTHON_NS = 10_000
"""More Python for each operator is not what calling it costs; neither is what the line calls in libraries, such as `json.dumps`."""
LEAST_PERCENT = 10.0
LEAST_REPEATED = 10
"""Fewer operators of a module in a step are no loop."""
LEAST_CELLS = 20
"""A recurrent cell that runs so often in a step goes through a sequence, which one call of its layer does, too."""
CELLS = ("aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell")
MOST_ENGINE_NS = 10_000
"""The same of autograd's engine, from one node of backward to the next."""
SAME_LOOP = 0.45
"""A line that runs so often as another one of its function is in the same loop: one in a branch that is taken half of the time, too."""
_LOOPS_OF_TORCH = ("/torch/nn/utils/", "/torch/optim/")
"""Loops over parameters in torch itself are not the program's to change."""
_OF_READS = ("aten::resolve_conj", "aten::resolve_neg")
"""What `.tolist()` and `.numpy()` call themselves."""
_LOOPING = ("aten::select", "aten::slice", "aten::unbind", "aten::index", "aten::stack", "aten::cat")


def tiny_operators(loop: Loop) -> Finding | None:
    """Find the loop that runs the most small operators, and what they take with the Python and the engine of autograd between them."""
    spans = loop.trace.columns("spans")
    rows = np.flatnonzero(
        loop.inside
        & (spans["kind"] == SpanKind.OPERATOR)
        & (spans["phase"] == Phase.FORWARD)
        & ~loop.in_loading
        & ~loop.in_optimizer
        & ~loop.of_torch
        # What could be left out altogether is another finding.
        & (waste_of(loop.trace).part[:-1] <= 0)
        & ~(np.append(kinds_of_stacks(loop), -1) >= 0)[spans["own_stack"]]
        & ~np.append(stacks_inside(loop.trace, *_LOOPS_OF_TORCH), False)[spans["own_stack"]]
    )
    outermost = rows[loop.outermost[rows]]
    outermost = outermost[~loop.are_named(outermost, _OF_READS)]
    best: Finding | None = None
    lines = loop.by_place(outermost)
    for place, _, mine in lines:
        each = loop.per_pass(len(mine))
        if each < LEAST_PER_STEP or not place:
            continue
        # Many layers that one line calls are no loop.
        if each < LEAST_REPEATED * len(np.unique(spans["module"][mine])):
            continue
        cells = loop.per_step(int(loop.are_named(mine, CELLS).sum()))
        kept = max(1, round((1 - INTERRUPTED) * len(mine)))
        mean_ns = float(np.sort(spans["duration_ns"][mine])[:kept].mean())
        if mean_ns > MOST_MEAN_NS and cells < LEAST_CELLS:
            continue
        others = [] if cells >= LEAST_CELLS else _same_loop(loop, place, mine, lines)
        if any(loop.are_named(one, CELLS).any() for _, one in others):
            # The line of the cell says what to do about the whole loop.
            continue
        every = np.concatenate([mine, *(one for _, one in others)])
        # A loop in forward is one in backward, too.
        backward = loop.backward_of(every)
        whole_ns = sum(loop.cost_ns(one, with_device=False) for one in (every, backward))
        engine_ns = _engine_ns(loop, backward)
        python_ns = min(
            _python_ns(loop, place, [here.line for here, _ in others]), MOST_PYTHON_NS * len(every)
        )
        whole_ns += python_ns + engine_ns
        between = "the Python and the autograd engine" if 10 * engine_ns >= whole_ns else "the Python"
        share = loop.share(whole_ns)
        if share < LEAST_PERCENT or (best is not None and best.share_percent >= share):
            continue
        looping = " in a loop over a tensor" if loop.are_named(mine, _LOOPING).any() else ""
        if cells >= LEAST_CELLS:
            looping = f" in a loop over {round(cells)} steps of a sequence"
        with_others = f", with {units.count(len(others), 'other line')} of its loop" if others else ""
        best = Finding(
            "tiny-operators",
            sentence(
                f"{place} runs {{}} operators{loop.unit.each}{looping}, {{}} each on average: {{}} of {loop.unit.time} with {between} between them{with_others}{', most of it Python' if 2 * python_ns > whole_ns else ''}",
                round(each),
                (mean_ns, "ns"),
                (share, "%"),
            ),
            "Give whole sequences to nn.LSTM, nn.GRU or nn.RNN instead of single steps to a cell."
            if cells >= LEAST_CELLS
            else "Replace the loop by operators on whole tensors, or compile it with torch.compile.",
            share,
            whole_ns,
            place,
            loop.module_of(int(mine[0])),
            tuple(mine[:MOST_ROWS].tolist()),
            is_predicted=True,
            time=loop.when(np.concatenate((every, backward))) | loop.python,
        )
    return best


def _same_loop(
    loop: Loop, place: Place, mine: Rows, lines: Sequence[tuple[Place, int, Rows]]
) -> list[tuple[Place, Rows]]:
    """The other lines of the loop that a line is in: those of its function that run as often, and their operators."""
    times = _times(loop, mine)
    return [
        (other, rows)
        for other, _, rows in lines
        if (other.file, other.function) == (place.file, place.function)
        and other.line != place.line
        and _times(loop, rows) >= SAME_LOOP * times
    ]


def _python_ns(loop: Loop, place: Place, others: Sequence[int]) -> int:
    """The Python between the operators of a loop: at its lines, and where it has several, at those between them and its head."""
    first, last = min((place.line, *others)) - bool(others), max((place.line, *others))
    return sum(
        round(gap.time_ns * (1 - gap.called_part))
        for gap in loop.gaps
        if (gap.place.file, gap.place.function) == (place.file, place.function)
        and first <= gap.place.line <= last
    )


def _times(loop: Loop, rows: Rows) -> float:
    """How often a line runs in all steps: as often as the operator that it calls least, of those that it calls as often as others."""
    each = np.unique(loop.trace.column("spans", "name")[rows], return_counts=True)[1]
    return float(np.median(each)) if len(each) else 0.0


def _engine_ns(loop: Loop, backward: Rows) -> int:
    """What autograd's engine usually takes between some nodes of backward that follow each other on one thread."""
    spans = loop.trace.columns("spans")
    order = backward[np.lexsort((spans["start_ns"][backward], spans["thread"][backward]))]
    before, after = order[:-1], order[1:]
    between_ns = spans["start_ns"][after] - spans["start_ns"][before] - spans["duration_ns"][before]
    close = (spans["thread"][before] == spans["thread"][after]) & (between_ns <= MOST_ENGINE_NS)
    return loop.typical_sum(before[close], np.maximum(between_ns[close], 0))
