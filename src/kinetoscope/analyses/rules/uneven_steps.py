"""Uneven steps: single ones that take far longer than the others, and steps that get slower and slower.

A thread that another program keeps from its processor looks as if Python ran, or as if data were late. So these two are causes of a long step only with evidence
that does not depend on the machine: samples say that the thread was blocked, the program runs a function in such steps only, or several late steps have the
same cause.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.analyses.step_difference import more_than_all_others
from kinetoscope.analyses.warm_up import WarmUp, warm_up
from kinetoscope.ledger.steps import compile_ns
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.schema import SampleState, SpanKind
from kinetoscope.model.steps import OPTIMIZER
from kinetoscope.model.time_spent import part_words

LEAST_STEPS = 6
TIMES_MEDIAN = 2.0
OF_LONGEST = 0.25
"""Steps shorter than this part of the longest one are not late for the same reason: on a busy machine many take twice the median."""
FIRST_TIMES_MEDIAN = 5.0
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
LEAST_SLOWING = 12
TIMES_FIRST = 1.3
EXPLAINS_SLOWING = 0.5
IN_ORDER = 0.8
"""The rank correlation of a line's time, number of operators, or bytes with the number of the step."""
_MOST_LINES = 10
_EARLIER_GRAPHS = "Backward walks the graphs of earlier steps again: detach() what is carried from one step to the next, and keep no loss or output that has a graph."
_SEVERAL_FIRST = "{which} took {more:ns} longer than usual ({usual:ns} each): in the longest {cause}"


@Rule(
    "first-step",
    "{which} took {longest:ns}, a usual one {usual:ns}: {cause}",
    "Run some steps before you measure: kinetoscope.schedule(warmup=...) or kinetoscope run --steps leaves them out.",
    finds=(
        "the steps of [warm-up](glossary.md#warm-up), the longest of which takes five times a usual one, because of the program; not where an optimizer such as "
        "L-BFGS evaluates the loss more often at first"
    ),
    source="no public threshold: at first, programs load, allocate and tune what they need later",
    least=20.0,
    explains=("step-outlier",),
    of_kinds=False,
).selects
def first_step(loop: Loop) -> Answer:
    """First steps that take much of what was recorded, and what the longest of them has more of than the median step."""
    warm = warm_up(loop.trace)
    if loop.step_count < LEAST_STEPS or warm.steps == 0:
        return None
    duration, above_ns = loop.end_ns - loop.start_ns, _above_usual_ns(loop, warm)
    longest = int(np.argmax(above_ns))
    excess_ns = int(above_ns.sum()) - sum(_more_evaluations_ns(loop, step) for step in range(warm.steps))
    of_longest_ns = int(duration[longest] - warm.usual_ns) - _more_evaluations_ns(loop, longest)
    is_long = of_longest_ns >= (FIRST_TIMES_MEDIAN - 1) * warm.usual_ns
    if not is_long or loop.share(excess_ns) < first_step.least:
        return None
    cause, line, rows = _cause(loop, longest, of_longest_ns, np.zeros(1, dtype=np.int64))
    words = {
        "which": warm.which[0].upper() + warm.which[1:],
        "longest": float(duration[longest]),
        "more": warm.cost_ns,
        "usual": warm.usual_ns,
        "cause": cause,
    }
    text = _SEVERAL_FIRST if warm.steps > 1 else ""
    return Match(rows, excess_ns, words, place=line, text=text).as_given() if cause else None


def _above_usual_ns(loop: Loop, warm: WarmUp) -> NDArray[np.float64]:
    """What each step of warm-up takes more than a usual one, without those that compile again, which is for the rules about that."""
    above_ns = np.maximum(loop.work.duration_ns[: warm.steps] - warm.usual_ns, 0)
    again = loop.compilations[loop.compilations >= loop.first_warm_step]
    above_ns[again[again < warm.steps]] = 0
    return np.asarray(above_ns)


@Rule(
    "step-outlier",
    "Step {number}{more} took {longest:ns}, the median step {median:ns}: {cause}",
    "Look at what this step does that others do not; do it less often, or outside the loop.",
    finds=(
        "single steps take twice the median, because of the program; not because of more operators in three or more steps at equal distances, which are the work "
        "of the loop, nor of validation between epochs where the program marks no steps"
    ),
    source="probing (twice the median); SageMaker Debugger reports steps beyond three standard deviations",
    least=5.0,
    of_kinds=False,
).selects
def step_outlier(loop: Loop) -> Answer:
    """The longest step, and what it has more of than the median step."""
    if loop.step_count < LEAST_STEPS:
        return None
    duration, median = loop.work.duration_ns, float(np.median(loop.work.duration_ns))
    late = np.flatnonzero(duration > max(TIMES_MEDIAN * median, OF_LONGEST * duration.max()))
    excess_ns = int((duration[late] - median).sum())
    if len(late) == 0 or len(late) > len(duration) // 3 or loop.share(excess_ns) < step_outlier.least:
        return None
    worst, too_long_ns = int(late[np.argmax(duration[late])]), float(duration[late].max()) - median
    is_work = _is_regular(loop, late, worst) or _evaluates(loop, worst)
    cause, line, rows = _cause(loop, worst, too_long_ns, late, with_operators=not is_work)
    # Without a cause the machine was busy elsewhere: nothing of the program explains it.
    if not cause or 2 * _more_evaluations_ns(loop, worst) > too_long_ns:
        return None
    words = {
        "number": str(int(loop.work.numbers[worst])),
        "more": f" (and {len(late) - 1} more)" if len(late) > 1 else "",
        "longest": float(duration[worst]),
        "median": median,
        "cause": cause,
    }
    return Match(rows, excess_ns, words, place=line).as_given()


@Rule(
    "slowing-steps",
    "Steps get slower, from {first:ns} to {last:ns}: the operators of {place} take {early:ns} in the first steps and {late:ns} in the last",
    "Something grows with each step, such as a tensor that is concatenated to: allocate it once and fill it, or keep less of it.",
    finds="steps take longer and longer, because the operators of one line do: a graph that is carried on, a tensor that grows",
    source="no public threshold: what grows by chance does not grow in order",
    also=(
        f"{LEAST_SLOWING} steps, the last third {TIMES_FIRST} times the first; where other programs have the processors only if operators or bytes "
        "grow"
    ),
    least=5.0,
    explains=("step-outlier", "tiny-operators"),
    of_kinds=False,
).selects
def slowing_steps(loop: Loop) -> Answer:
    """The line that runs more operators or allocates more in nearly every step, or explains half of the growth and takes longer in nearly every step."""
    if loop.step_count < LEAST_SLOWING:
        return None
    first, last = _ends(loop.end_ns - loop.start_ns)
    if last < TIMES_FIRST * first:
        return None
    lines = [line for line in loop.by_place(np.flatnonzero(loop.outermost)) if line[0]]
    of_function: dict[tuple[str, str], list[Rows]] = defaultdict(list)
    for line, _, rows in lines:
        of_function[line.file, line.function].append(rows)
    matches = (
        _slows(loop, line, rows, np.concatenate(of_function[line.file, line.function]), first, last)
        for line, _, rows in lines[:_MOST_LINES]
    )
    return [match for match in matches if match is not None]


def _slows(
    loop: Loop, place: SourceLine, rows: Rows, of_function: Rows, first: float, last: float
) -> Match | None:
    """The match of a line whose operators take longer in later steps, if those of its function grow with the number of the step."""
    spans, step = loop.trace.columns("spans"), loop.step_of(rows)
    step_ns = Groups(step, len(loop.work)).sums(spans["duration_ns"][rows])
    by_step = Groups(loop.step_of(of_function), len(loop.work))
    sizes = [by_step.sums(np.maximum(spans[name][of_function], 0)) for name in ("bytes", "bytes_moved")]
    early, late = _ends(step_ns)
    grows = max(_order(size) for size in (by_step.sizes(), *sizes)) >= IN_ORDER
    # On a busy machine all operators take longer whenever other programs begin to work.
    slows = late - early >= EXPLAINS_SLOWING * (last - first) and _order(step_ns) >= IN_ORDER
    if late <= early or not (grows or (slows and not loop.machine_is_busy)):
        return None
    advice = _EARLIER_GRAPHS if _walks_earlier_graphs(loop, rows) else ""
    latest, more_ns = rows[step == step.max()], int(np.maximum(step_ns - early, 0).sum())
    words = {"first": first, "last": last, "early": early, "late": late}
    return Match(latest, more_ns, words, place=place, advice=advice, time=loop.when(rows))


def _more_evaluations_ns(loop: Loop, at: int) -> int:
    """What a step, by its place in the loop, takes longer because its optimizer evaluates the loss more often than in the median step."""
    each = loop.evaluations_ns
    return int(max(0.0, each[at] - np.median(each)))


def _is_regular(loop: Loop, late: Rows, worst: int) -> bool:
    """Whether late steps come at equal distances, by the design of the loop, as the rollouts of reinforcement learning do.

    Where the worst one runs more operators, those count that do, too: others are late because the machine is busy.
    """
    count = Groups(loop.step_of(np.flatnonzero(loop.outermost & loop.inside)), len(loop.work)).sizes()
    more = count - np.median(count)
    if more[worst] >= LEAST_MORE_CALLS * np.median(count):
        late = np.flatnonzero(2 * more >= more[worst])
    return len(late) >= LEAST_REGULAR and len(np.unique(np.diff(late))) == 1


def _evaluates(loop: Loop, at: int) -> bool:
    """Whether a step whose beginning is not marked has more of what modules run without autograd, and of nothing else in them.

    Between two steps of the optimizer lies what the program does between epochs: its validation is no part of the loop.
    """
    spans, marks = loop.trace.columns("spans"), loop.trace.columns("steps")
    if marks["source"][loop.work.row[at]] != OPTIMIZER:
        return False
    rows = np.flatnonzero(loop.inside & loop.outermost & (spans["kind"] == SpanKind.OPERATOR))
    by_step = Groups(loop.step_of(rows), len(loop.work))
    in_module, recorded = spans["module"][rows] >= 0, spans["sequence"][rows] >= 0

    def more(mask: Mask) -> float:
        count = by_step.sums(mask)
        return float(count[at] - np.median(count))

    return more(in_module & ~recorded) > 0 >= more(in_module & recorded)


def _cause(
    loop: Loop, at: int, excess_ns: float, late: Rows, *, with_operators: bool = True
) -> tuple[str, SourceLine, Rows]:
    """What a step, by its place in the loop, has most more of than the median step: calls of an operator, waiting for data, or Python.

    An operator that ran as often as always and only took longer is no cause: the machine was busy, mostly.
    """
    nothing = np.zeros(0, np.int64)
    best: tuple[float, str, SourceLine, Rows] = (EXPLAINS * excess_ns, "", SourceLine(), nothing)
    compiling_ns = compile_ns(loop.trace)
    more_ns = float(compiling_ns[loop.work.row[at]] - np.median(compiling_ns[loop.work.row]))
    if more_ns > best[0]:
        # Before the operators: those that it runs to trace a program are its own.
        return (
            f"torch.compile compiles for {units.duration(more_ns)} more (see the table compiles)",
            SourceLine(),
            nothing,
        )
    for row in more_than_all_others(loop, at):
        more_ns, kind, span = row["more_ns"], row["kind"], row["span"]
        if more_ns <= best[0]:
            continue
        spans = nothing if span is None else np.array([span], np.int64)
        more = units.duration(more_ns)
        if kind == "operator":
            usual = row["usual_count"] or 0
            calls = (row["count"] or 0) - usual
            if with_operators and calls > 0 and calls >= LEAST_MORE_CALLS * usual:
                line = loop.place_of(span)
                text = f"it has {units.count(calls, 'more call')} of {row['name']}{f' at {line}' if line else ''}, which take {more}"
                best = (more_ns, text, line, spans)
        elif kind == "part" and row["name"] == part_words("data_wait_ns") and _recurs(loop, at, late, row):
            best = (more_ns, f"it waits {more} longer for data", SourceLine(), nothing)
        elif kind == "python" and more_ns > LEAST_PYTHON_NS:
            line = SourceLine(row["file"] or "", row["line"] or 0, row["name"] or "")
            if _is_the_program_s(loop, at, late, line) or _recurs(loop, at, late, row):
                where = f" at {line}" if line else ""
                best = (more_ns, f"no operator runs for {more} more{where}", line, spans)
    return best[1:]


def _recurs(loop: Loop, at: int, late: Rows, cause: dict[str, Any]) -> bool:
    """Whether another late step, the longest of them, has the same cause, for at least half as long."""
    other_late = late[late != at]
    if len(other_late) == 0:
        return False
    longest = int(other_late[np.argmax((loop.end_ns - loop.start_ns)[other_late])])
    same = ("kind", "name", "file", "line")
    return any(
        2 * row["more_ns"] >= cause["more_ns"] and all(row[key] == cause[key] for key in same)
        for row in more_than_all_others(loop, longest)
    )


def _is_the_program_s(loop: Loop, at: int, late: Rows, place: SourceLine) -> bool:
    """Whether samples say that a step was blocked in a function, or that only late steps run that function."""
    samples, spans = loop.trace.columns("samples"), loop.trace.columns("spans")
    frames, strings = loop.trace.columns("frames"), loop.trace.strings
    names = zip(frames["file"].tolist(), frames["function"].tolist(), strict=True)
    in_function = np.array(
        [(strings[file], strings[function]) == (place.file, place.function) for file, function in names],
        dtype=np.bool_,
    )
    stacks = np.append(np.append(in_function, False)[loop.trace.column("stacks", "frame")], False)
    of_function = np.flatnonzero((samples["thread"] == loop.thread) & stacks[samples["stack"]])
    step = loop.step_at(samples["time_ns"][of_function])
    here = of_function[step == at]
    if len(here) < LEAST_SAMPLES:
        return False
    blocked = samples["state"][here] == SampleState.BLOCKED
    if blocked.mean() >= LEAST_BLOCKED:
        return True
    ran = loop.step_of(np.flatnonzero(loop.inside & stacks.take(spans["own_stack"])))
    return bool(np.isin(np.concatenate((step, ran)), np.append(late, -1)).all())


def _ends(values: Rows) -> tuple[float, float]:
    third = len(values) // 3
    return float(np.median(values[:third])), float(np.median(values[-third:]))


def _order(values: Rows) -> float:
    """How much values rise in order: the correlation of their ranks with their places; 0 for values that hardly rise."""
    first, last = _ends(values)
    if last <= 0 or last < TIMES_FIRST * first:
        return 0.0
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def _walks_earlier_graphs(loop: Loop, rows: Rows) -> bool:
    """Whether most backward functions of some spans are of operators that ran in an earlier step."""
    spans = loop.trace.columns("spans")
    back = rows[(spans["kind"][rows] == SpanKind.BACKWARD) & (spans["forward"][rows] >= 0)]
    earlier = loop.step_of(spans["forward"][back].astype(np.int64)) < loop.step_of(back)
    return 2 * int(earlier.sum()) > len(back) > 0
