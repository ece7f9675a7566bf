"""Single steps take far longer than the others, and do something that the others do not.

Source: probing reports steps of twice the median, SageMaker Debugger steps beyond three standard deviations. Here a step is an
outlier at twice the median, when it costs at least 5 % of all step time; the first one, in which programs load, allocate and tune
what they need later, at five times the median and 20 %.

A thread that another program keeps from its processor looks as if Python ran, or as if data were late. So these two are causes only with
evidence that does not depend on the machine: samples say that the thread was blocked, the program runs a function in such steps only, or
several late steps have the same cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop, Place
from kinetoscope.analyses.step_difference import more_than_all_others
from kinetoscope.analyses.warm_up import warm_up
from kinetoscope.display.sentence import sentence
from kinetoscope.ledger.steps import compile_ns
from kinetoscope.model import units
from kinetoscope.model.schema import SampleState, SpanKind
from kinetoscope.model.steps import OPTIMIZER
from kinetoscope.model.time_spent import part_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.analyses.loop import Rows

LEAST_STEPS = 6
TIMES_MEDIAN = 2.0
OF_LONGEST = 0.25
"""Steps shorter than this part of the longest one are not late for the same reason: on a busy machine many take twice the median."""
LEAST_PERCENT = 5.0
FIRST_TIMES_MEDIAN = 5.0
LEAST_FIRST_PERCENT = 20.0
LEAST_REGULAR = 3
"""So many late steps at equal distances are what the loop is meant to do."""
# What explains a step has this part of the time that the step took too long.
EXPLAINS = 0.3
LEAST_PYTHON_NS = 50_000_000
"""Less Python without operators may be the machine's."""
LEAST_MORE_CALLS = 0.2
"""An operator with fewer more calls, as a part of the usual ones, did not take longer because of them."""
LEAST_BLOCKED = 0.5
LEAST_SAMPLES = 3


def first_step(loop: Loop) -> Finding | None:
    """Find first steps that take much of what was recorded, and what the longest of them has more of than the median step."""
    if loop.step_count < LEAST_STEPS:
        return None
    duration = loop.end_ns - loop.start_ns
    warm = warm_up(loop.trace)
    if warm.steps == 0:
        return None
    own_ns = np.maximum(duration[: warm.steps] - warm.usual_ns, 0)
    # What is compiled again in later steps is for the rules about that.
    again = loop.compilations[loop.compilations >= loop.first_warm_step]
    own_ns[again[again < warm.steps]] = 0
    longest = int(np.argmax(own_ns))
    excess_ns = int(own_ns.sum()) - sum(_more_evaluations_ns(loop, at) for at in range(warm.steps))
    share = loop.share(excess_ns)
    of_longest_ns = int(duration[longest] - warm.usual_ns) - _more_evaluations_ns(loop, longest)
    if of_longest_ns < (FIRST_TIMES_MEDIAN - 1) * warm.usual_ns or share < LEAST_FIRST_PERCENT:
        return None
    cause, place, rows = _cause(loop, longest, of_longest_ns, np.zeros(1, dtype=np.int64))
    if not cause:
        return None
    which = warm.which[0].upper() + warm.which[1:]
    return Finding(
        "first-step",
        sentence(
            f"{which} took {{}}, a usual one {{}}: {cause}",
            (float(duration[longest]), "ns"),
            (warm.usual_ns, "ns"),
        )
        if warm.steps == 1
        else sentence(
            f"{which} took {{}} more than as many usual ones, of {{}} each: in the longest {cause}",
            (warm.cost_ns, "ns"),
            (warm.usual_ns, "ns"),
        ),
        "Run some steps before you measure: kinetoscope.schedule(warmup=...) or kinetoscope run --steps leaves them out.",
        share,
        excess_ns,
        place,
        spans=rows,
    )


def step_outlier(loop: Loop) -> Finding | None:
    """Find the longest step, and what it has more of than the median step."""
    if loop.step_count < LEAST_STEPS:
        return None
    duration = loop.end_ns - loop.start_ns
    median = float(np.median(duration))
    late = np.flatnonzero(duration > max(TIMES_MEDIAN * median, OF_LONGEST * duration.max()))
    excess_ns = int((duration[late] - median).sum())
    share = loop.share(excess_ns)
    if len(late) == 0 or share < LEAST_PERCENT or len(late) > len(duration) // 3:
        return None
    worst = int(late[np.argmax(duration[late])])
    number = int(loop.work.numbers[worst])
    if 2 * _more_evaluations_ns(loop, worst) > duration[worst] - median:
        return None
    is_work = _is_regular(loop, late, worst) or _evaluates(loop, worst)
    cause, place, rows = _cause(
        loop, worst, float(duration[worst]) - median, late, with_operators=not is_work
    )
    if not cause:
        # The machine was busy elsewhere: nothing of the program explains it.
        return None
    others = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
    return Finding(
        "step-outlier",
        sentence(
            f"Step {number}{others} took {{}}, the median step {{}}: {cause}",
            (float(duration[worst]), "ns"),
            (median, "ns"),
        ),
        "Look at what this step does that others do not; do it less often, or outside the loop.",
        share,
        excess_ns,
        place,
        spans=rows,
    )


def _more_evaluations_ns(loop: Loop, at: int) -> int:
    """What a step, by its place in the loop, takes longer because its optimizer evaluates the loss more often than in the median step."""
    each = loop.evaluations_ns
    return int(max(0.0, each[at] - np.median(each)))


def _is_regular(loop: Loop, late: Rows, worst: int) -> bool:
    """Whether late steps come at equal distances, by the design of the loop, as the rollouts of reinforcement learning do.

    Where the worst one runs more operators, those count that do, too: others are late because the machine is busy.
    """
    step = loop.step_of(np.flatnonzero(loop.outermost & loop.inside))
    count = np.bincount(step[step >= 0], minlength=len(loop.work))
    more = count - np.median(count)
    if more[worst] >= LEAST_MORE_CALLS * np.median(count):
        late = np.flatnonzero(2 * more >= more[worst])
    return len(late) >= LEAST_REGULAR and len(np.unique(np.diff(late))) == 1


def _evaluates(loop: Loop, at: int) -> bool:
    """Whether a step whose beginning is not marked has more of what modules run without autograd, and of nothing else in them.

    Between two steps of the optimizer lies what the program does between epochs: its validation is no part of the loop.
    """
    spans, own = loop.trace.columns("spans"), loop.trace.columns("steps")
    if own["source"][loop.work.row[at]] != OPTIMIZER:
        return False
    rows = np.flatnonzero(loop.inside & loop.outermost & (spans["kind"] == SpanKind.OPERATOR))
    step = loop.step_of(rows)
    rows, step = rows[step >= 0], step[step >= 0]
    in_module, recorded = spans["module"][rows] >= 0, spans["sequence"][rows] >= 0

    def more(mask: NDArray[np.bool_]) -> float:
        count = np.bincount(step[mask], minlength=len(loop.work))
        return float(count[at] - np.median(count))

    return more(in_module & ~recorded) > 0 >= more(in_module & recorded)


def _cause(
    loop: Loop, at: int, excess_ns: float, late: Rows, *, with_operators: bool = True
) -> tuple[str, Place, tuple[int, ...]]:
    """What a step, by its place in the loop, has most more of than the median step: calls of an operator, waiting for data, or Python.

    An operator that ran as often as always and only took longer is no cause: the machine was busy, mostly.
    """
    best: tuple[float, str, Place, tuple[int, ...]] = (EXPLAINS * excess_ns, "", Place(), ())
    compiling_ns = compile_ns(loop.trace)
    more_ns = float(compiling_ns[loop.work.row[at]] - np.median(compiling_ns[loop.work.row]))
    if more_ns > best[0]:
        # Before the operators: those that it runs to trace a program are its own.
        return (
            f"torch.compile compiles for {units.duration(more_ns)} more (see the table compiles)",
            Place(),
            (),
        )
    for row in more_than_all_others(loop, at):
        more_ns, kind, span = row["more_ns"], row["kind"], row["span"]
        if more_ns <= best[0]:
            continue
        spans = () if span is None else (span,)
        more = units.duration(more_ns)
        if kind == "operator":
            usual = row["usual_count"] or 0
            calls = (row["count"] or 0) - usual
            if with_operators and calls > 0 and calls >= LEAST_MORE_CALLS * usual:
                place = loop.place_of(span)
                text = f"it has {units.count(calls, 'more call')} of {row['name']}{f' at {place}' if place else ''}, which take {more}"
                best = (more_ns, text, place, spans)
        elif kind == "part" and row["name"] == part_words("data_wait_ns") and _recurs(loop, at, late, row):
            best = (more_ns, f"it waits {more} longer for data", Place(), ())
        elif kind == "python" and more_ns > LEAST_PYTHON_NS:
            place = Place(row["file"] or "", row["line"] or 0, row["name"] or "")
            if _is_the_program_s(loop, at, late, place) or _recurs(loop, at, late, row):
                where = f" at {place}" if place else ""
                best = (more_ns, f"no operator runs for {more} more{where}", place, spans)
    return best[1:]


def _recurs(loop: Loop, at: int, late: Rows, cause: dict[str, Any]) -> bool:
    """Whether another late step, the longest of them, has the same cause, for at least half as long."""
    others = late[late != at]
    if len(others) == 0:
        return False
    longest = int(others[np.argmax((loop.end_ns - loop.start_ns)[others])])
    same = ("kind", "name", "file", "line")
    return any(
        2 * row["more_ns"] >= cause["more_ns"] and all(row[key] == cause[key] for key in same)
        for row in more_than_all_others(loop, longest)
    )


def _is_the_program_s(loop: Loop, at: int, late: Rows, place: Place) -> bool:
    """Whether samples say that a step was blocked in a function, or that only late steps run that function."""
    samples, spans = loop.trace.columns("samples"), loop.trace.columns("spans")
    frames, strings = loop.trace.columns("frames"), loop.trace.strings
    names = zip(frames["file"].tolist(), frames["function"].tolist(), strict=True)
    in_function = np.array(
        [(strings[file], strings[function]) == (place.file, place.function) for file, function in names],
        dtype=np.bool_,
    )
    stacks = np.append(np.append(in_function, False)[loop.trace.column("stacks", "frame")], False)
    mine = np.flatnonzero((samples["thread"] == loop.thread) & stacks[samples["stack"]])
    step = loop.step_at(samples["time_ns"][mine])
    here = mine[step == at]
    if len(here) < LEAST_SAMPLES:
        return False
    blocked = samples["state"][here] == SampleState.BLOCKED
    if blocked.mean() >= LEAST_BLOCKED:
        return True
    ran = loop.step_of(np.flatnonzero(loop.inside & stacks[spans["own_stack"]]))
    return bool(np.isin(np.concatenate((step, ran)), np.append(late, -1)).all())
