"""A line runs many small operators, so that calling them costs more than their work.

A Python loop over the rows of a tensor, mostly. Threshold of the loop: 10 operators from one line, as torch's former pattern
matcher; here 50 of a step, and 10 for each module, since layers are loops, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.schema import Phase, SpanKind

if TYPE_CHECKING:
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
_OF_READS = ("aten::resolve_conj", "aten::resolve_neg")
"""What `.tolist()` and `.numpy()` call themselves."""
_LOOPING = ("aten::select", "aten::slice", "aten::unbind", "aten::index", "aten::stack", "aten::cat")


def tiny_operators(loop: Loop) -> Finding | None:
    """Find the line that runs the most small operators, and what they take with the Python and the engine of autograd between them."""
    spans = loop.trace.columns("spans")
    rows = np.flatnonzero(
        loop.inside
        & (spans["kind"] == SpanKind.OPERATOR)
        & (spans["phase"] == Phase.FORWARD)
        & ~loop.in_loading
        & ~loop.in_optimizer
        & ~loop.of_torch
    )
    outermost = rows[loop.outermost[rows]]
    outermost = outermost[~loop.are_named(outermost, _OF_READS)]
    gaps = {(gap.place.file, gap.place.line): round(gap.time_ns * (1 - gap.called_part)) for gap in loop.gaps}
    best: Finding | None = None
    for place, _, mine in loop.by_place(outermost):
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
        # A loop in forward is one in backward, too.
        backward = loop.backward_of(mine)
        whole_ns = sum(loop.cost_ns(one, with_device=False) for one in (mine, backward))
        engine_ns = _engine_ns(loop, backward)
        python_ns = min(gaps.get((place.file, place.line), 0), MOST_PYTHON_NS * len(mine))
        whole_ns += python_ns + engine_ns
        between = "the Python and the autograd engine" if 10 * engine_ns >= whole_ns else "the Python"
        share = loop.share(whole_ns)
        if share < LEAST_PERCENT or (best is not None and best.share_percent >= share):
            continue
        looping = " in a loop over a tensor" if loop.are_named(mine, _LOOPING).any() else ""
        if cells >= LEAST_CELLS:
            looping = f" in a loop over {round(cells)} steps of a sequence"
        best = Finding(
            "tiny-operators",
            sentence(
                f"{place} runs {{}} operators a step{looping}, {{}} each on average: {{}} of step time with {between} between them{', most of it Python' if 2 * python_ns > whole_ns else ''}",
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
        )
    return best


def _engine_ns(loop: Loop, backward: Rows) -> int:
    """What autograd's engine usually takes between some nodes of backward that follow each other on one thread."""
    spans = loop.trace.columns("spans")
    order = backward[np.lexsort((spans["start_ns"][backward], spans["thread"][backward]))]
    before, after = order[:-1], order[1:]
    between_ns = spans["start_ns"][after] - spans["start_ns"][before] - spans["duration_ns"][before]
    close = (spans["thread"][before] == spans["thread"][after]) & (between_ns <= MOST_ENGINE_NS)
    return loop.typical_sum(before[close], np.maximum(between_ns[close], 0))
