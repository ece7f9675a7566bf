"""Small operators: loops over the elements of tensors, and values that are read one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kinetoscope.analyses.finding import NotNeeded
from kinetoscope.analyses.kinds import steps_with
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.analyses.rules.output_in_step import kinds_of_stacks
from kinetoscope.analyses.rules.python_bound import calls_at
from kinetoscope.ledger.avoidable_work.dataflow import calls_that_follow
from kinetoscope.ledger.avoidable_work.distinct_calls import VIEWS
from kinetoscope.ledger.avoidable_work.waste import waste_of
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import lies_in
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import Phase, SpanKind
from kinetoscope.model.time_spent import Cause
from kinetoscope.tables.costs.attainable import SLOWEST_GBYTES, SLOWEST_GFLOPS, least_call_ns
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.peaks import MATRIX
from kinetoscope.tables.host.units_of_work import Unit
from kinetoscope.tables.stacks import stacks_inside

READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal")
LEAST_READS = 20
LEAST_PER_STEP = 50
MOST_MEAN_NS = 20_000
INTERRUPTED = 0.05
"""The longest ones are left out of the mean: on a busy machine the program is stopped in the middle of some."""
MOST_PYTHON_NS = 10_000
"""More Python for each operator is not what calling it costs; neither is what the line calls in libraries, such as `json.dumps`."""
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
_ONE_BY_ONE = "Each round needs the result of the one before, so no operator does all at once: run more items side by side in each round, or do with fewer operators."
_AT_ONCE = "Make them one module that works on all inputs at once: one nn.Embedding with an offset for each column, a grouped convolution, torch.bmm or torch.func.stack_module_state with vmap."
_OF_READS = ("aten::resolve_conj", "aten::resolve_neg")
"""What `.tolist()` and `.numpy()` call themselves."""
_FILLS = frozenset({"aten::copy_", "aten::index_put_", "aten::fill_"})
"""What a line writes into a tensor for all rounds follows from what it wrote before, whatever it writes."""
_LOOPING = ("aten::select", "aten::slice", "aten::unbind", "aten::index", "aten::stack", "aten::cat")


@Rule(
    "scalar-read",
    "{place} reads {reads} values of tensors into Python{in_each}: {share} of {time}",
    "Keep the values in a tensor and read them once, with .tolist() or .cpu(); log less often.",
    finds="a line repeatedly reads values of tensors into Python; its share includes what computes them",
    source="torch's and NVIDIA's tuning guides on synchronization; no public threshold",
    also=f"{LEAST_READS} a step",
    least=1.0,
    explains=("device-idle", "launch-bound", "synchronizing-call", "tiny-operators"),
    cause=Cause.READ,
).selects
def scalar_read(loop: Loop) -> Answer:
    """The line that reads most values, with what computes them and the Python around: what one read of all values would save most of."""
    rows = loop.rows_named(*READS)
    rows = rows[loop.outermost[rows] & ~loop.in_optimizer[rows] & ~loop.of_torch[rows]]
    matches = []
    for line, _, reads in loop.by_place(rows):
        reads_per_step = _each(loop, reads)
        if reads_per_step < LEAST_READS:
            continue
        read = _with_what_is_read(loop, line, reads)
        time_ns = loop.cost_ns(read, with_device=False)
        time_ns += sum(
            gap.time_ns for gap in loop.gaps if (gap.place.file, gap.place.line) == (line.file, line.line)
        )
        left_out = NotNeeded(read, 1.0 - 1.0 / reads_per_step)
        matches.append(Match(reads, time_ns, {"reads": round(reads_per_step)}, place=line, left_out=left_out))
    return matches


def _each(loop: Loop, rows: Rows) -> float:
    """How many of some operators run in a step of the kinds that have them; without steps, in one pass through the model."""
    count = steps_with(loop, rows).count
    return len(rows) / loop.passes if loop.unit is Unit.RECORDING else len(rows) / max(count, 1)


def _with_what_is_read(loop: Loop, place: SourceLine, reads: Rows) -> Rows:
    """Reads, with the other operators of their line in their modules: a line that reads values is there to compute them."""
    spans = loop.trace.columns("spans")
    called = loop.outermost & loop.on_threads & ~loop.in_loading
    called &= np.isin(spans["module"], np.unique(spans["module"][reads]))
    lines = loop.by_place(np.flatnonzero(called)) if place else ()
    return next((rows for line, _, rows in lines if line == place), reads)


@Rule(
    "tiny-operators",
    (
        "{place} runs {operators} operators{a_step}{looping}, {mean:ns} each on average: {share} of {time} with {between} between "
        "them{python}"
    ),
    "Replace the loop by operators on whole tensors, or compile it with torch.compile.",
    finds=(
        "a line runs many small operators, mostly a Python loop over a tensor; the other lines of its loop count, too; or a recurrent cell for each step "
        "of a sequence"
    ),
    source="torch's former pattern matcher reports 10 operators of one line; layers are loops, too",
    also=f"{LEAST_PER_STEP} a step and {LEAST_REPEATED} for each module with their backward; {LEAST_CELLS} cells",
    least=10.0,
    explains=("device-idle", "launch-bound", "small-kernels"),
    is_predicted=True,
    of_loop=True,
).selects
def tiny_operators(loop: Loop) -> Answer:
    """Lines of loops that run small operators."""
    outermost = called_by_lines(loop)
    lines = loop.by_place(outermost[~loop.are_named(outermost, _OF_READS)])
    return [match for place, _, rows in lines if place and (match := _small(loop, place, rows, lines))]


def called_by_lines(loop: Loop) -> Rows:
    """The outermost operators of forward that lines of the program call for their own sake."""
    spans = loop.trace.columns("spans")
    own_stack = spans["own_stack"]
    rows = loop.outermost & (spans["kind"] == SpanKind.OPERATOR) & (spans["phase"] == Phase.FORWARD)
    rows &= ~loop.in_loading & ~loop.in_optimizer & ~loop.of_torch
    # What could be left out altogether is another finding.
    rows &= waste_of(loop.trace).part[:-1] <= 0
    rows &= ~(np.append(kinds_of_stacks(loop), -1) >= 0)[own_stack]
    rows &= ~np.append(stacks_inside(loop.trace, *_LOOPS_OF_TORCH), False)[own_stack]
    return np.flatnonzero(rows)


def _small(
    loop: Loop, place: SourceLine, rows: Rows, lines: Sequence[tuple[SourceLine, int, Rows]]
) -> Match | None:
    """What the small operators of a line take, those of its loop, their backward, and the Python and the engine of autograd between them."""
    spans = loop.trace.columns("spans")
    per_step = _each(loop, rows)
    # Layers that one line calls are no loop, unless each works on inputs of its own.
    modules = len(np.unique(spans["module"][rows]))
    is_loop = per_step >= LEAST_REPEATED * modules
    if per_step < LEAST_PER_STEP or not (is_loop or are_independent(loop, rows)):
        return None
    cells = loop.per_step(int(loop.are_named(rows, CELLS).sum()))
    other_lines = [] if cells >= LEAST_CELLS else _same_loop(loop, place, rows, lines)
    # The line of a cell says what to do about the whole loop.
    is_of_cells = any(loop.are_named(more, CELLS).any() for _, more in other_lines)
    if is_of_cells or (mean_ns(loop, rows) > MOST_MEAN_NS and cells < LEAST_CELLS):
        return None
    every = np.concatenate([rows, *(more for _, more in other_lines)])
    numbers = [place.line, *(line.line for line, _ in other_lines)]
    lines_of_loop = replace(place, line=min(numbers), until=max(numbers))
    # A loop in forward is one in backward, too.
    backward = loop.backward_of(every)
    engine_ns = between_ns(loop, backward, MOST_ENGINE_NS)
    python_of = python_of_lines(loop, lines_of_loop)
    python_ns = min(sum(python_of.values()), MOST_PYTHON_NS * len(every))
    time_ns = sum(loop.cost_ns(some, with_device=False) for some in (every, backward)) + python_ns + engine_ns
    is_python = 2 * python_ns > time_ns
    calls = calls_at(loop, max(python_of, key=python_of.__getitem__)) if is_python else ""
    looping = " in a loop over a tensor" if loop.are_named(rows, _LOOPING).any() else ""
    words = {
        "operators": round(_each(loop, every)),
        "looping": f" in a loop over {round(cells)} steps of a sequence" if cells >= LEAST_CELLS else looping,
        "mean": mean_ns(loop, every),
        "between": "the Python and the autograd engine" if 10 * engine_ns >= time_ns else "the Python",
        "python": f", most of it Python{calls}" if is_python else "",
    }
    if not is_loop:
        words["looping"] = f" in {modules} modules that do not need each other's results"
    gain_ns: float | None = time_ns - work_ns(loop, every, backward)
    advice = "" if is_loop else _AT_ONCE
    if cells >= LEAST_CELLS:
        advice = "Give whole sequences to nn.LSTM, nn.GRU or nn.RNN instead of single steps to a cell."
    elif is_loop and _feeds_itself(loop, every):
        advice, gain_ns = _ONE_BY_ONE, None
    elif mean_ns(loop, every) > MOST_MEAN_NS:
        # What other lines of the loop compute takes as long in any other form.
        gain_ns = None
    when = loop.when(np.concatenate((every, backward))) | loop.python
    return Match(rows, time_ns, words, gain_ns=gain_ns, place=lines_of_loop, advice=advice, time=when)


def are_independent(loop: Loop, rows: Rows) -> bool:
    """Whether modules at one line read none of each other's results, as far as their tensors were recorded."""
    spans, versions = loop.trace.columns("spans"), loop.trace.columns("tensor_versions")
    of_rows = np.flatnonzero(np.isin(versions["span"], rows) & (versions["storage"] > 0))
    module = spans["module"][versions["span"][of_rows]]
    storage, is_result = versions["storage"][of_rows], versions["result"][of_rows] != 0
    makes = np.unique(np.stack((storage, module))[:, is_result], axis=1)
    reads = np.unique(np.stack((storage, module))[:, ~is_result], axis=1)
    maker = dict(zip(*makes.tolist(), strict=True))
    return bool(maker) and all(maker.get(read, by) == by for read, by in zip(*reads.tolist(), strict=True))


def _feeds_itself(loop: Loop, rows: Rows) -> bool:
    """Whether most operators of a loop compute from what they made in an earlier round, as far as their tensors were recorded."""
    spans = loop.trace.columns("spans")
    rows = rows[~loop.are_named(rows, VIEWS | _FILLS)]
    if len(rows) == 0:
        return False
    calls = Groups.by([spans[name][rows] for name in ("name", "stack", "module")])
    times = calls.sizes()[calls.of_row]
    # What a line calls several times in a round may follow from itself without any loop.
    once = times < 2 * min(times[times >= SAME_LOOP * np.median(times)], default=0)
    call_of = dict(zip(rows[once].tolist(), calls.of_row[once].tolist(), strict=True))
    step = loop.step_of(np.arange(len(spans)))
    again, follows = calls_that_follow(loop.trace, call_of, np.where(loop.in_optimizer, -1, step))
    return 2 * follows > again


def work_ns(loop: Loop, *operators: Rows) -> int:
    """What operators of the host would still take as one operator on whole tensors: all but the cost of calls."""
    if loop.device is not None:
        return 0
    spans, costs = loop.trace.columns("spans"), costs_of(loop.trace)
    counted = np.flatnonzero(costs.counted.counts & loop.inside)
    counted = counted[lies_in(loop.trace, np.concatenate(operators), counted)]
    call = costs.calls.of_span[counted]
    # The rates of a trace that has small operators alone are those of small operators.
    is_product = np.append([family in MATRIX for family in costs.calls.family], False)[call]
    slowest_ns = np.maximum(costs.flops[counted], 0) / SLOWEST_GFLOPS
    slowest_ns += np.where(is_product, 0.0, np.maximum(costs.bytes_moved[counted], 0) / SLOWEST_GBYTES)
    least_ns = np.append(least_call_ns(loop.trace), 0.0)[call]
    least_ns = np.where(slowest_ns > 0, np.minimum(least_ns, slowest_ns), least_ns)
    return loop.typical_sum(counted, np.minimum(least_ns, spans["duration_ns"][counted]))


def mean_ns(loop: Loop, rows: Rows) -> float:
    """The mean duration of some operators, without the longest twentieth of them."""
    uninterrupted = max(1, round((1 - INTERRUPTED) * len(rows)))
    return float(np.sort(loop.trace.column("spans", "duration_ns")[rows])[:uninterrupted].mean())


def _same_loop(
    loop: Loop, place: SourceLine, mine: Rows, lines: Sequence[tuple[SourceLine, int, Rows]]
) -> list[tuple[SourceLine, Rows]]:
    """The other lines of a line's loop, and their operators: lines of its function that run as often."""
    times = times_of(loop, mine)
    return [
        (other, rows)
        for other, _, rows in lines
        if (other.file, other.function) == (place.file, place.function)
        and other.line != place.line
        and times_of(loop, rows) >= SAME_LOOP * times
    ]


def python_of_lines(loop: Loop, place: SourceLine) -> dict[SourceLine, int]:
    """The Python between the operators of a loop by line: at its lines, and where it has several, at those between them and its head."""
    first = place.line - (place.until > place.line)
    of_line: dict[SourceLine, int] = defaultdict(int)
    for gap in loop.gaps:
        is_there = (gap.place.file, gap.place.function) == (place.file, place.function)
        if is_there and first <= gap.place.line <= place.until:
            of_line[gap.place] += round(gap.time_ns * (1 - gap.called_part))
    return of_line


def times_of(loop: Loop, rows: Rows) -> float:
    """How often a line runs in all steps: as often as the operator that it calls least, of those that it calls as often as others."""
    each = np.unique(loop.trace.column("spans", "name")[rows], return_counts=True)[1]
    return float(np.median(each)) if len(each) else 0.0


def between_ns(loop: Loop, backward: Rows, most_ns: int) -> int:
    """What usually passes between some nodes of backward that follow each other on one thread after at most so long."""
    spans = loop.trace.columns("spans")
    order = backward[np.lexsort((spans["start_ns"][backward], spans["thread"][backward]))]
    before, after = order[:-1], order[1:]
    passes_ns = spans["start_ns"][after] - spans["start_ns"][before] - spans["duration_ns"][before]
    close = (spans["thread"][before] == spans["thread"][after]) & (passes_ns <= most_ns)
    return loop.typical_sum(before[close], np.maximum(passes_ns[close], 0))
