"""Python code between operators takes the time, in one function of the program, or the function waits there.

Time in which no operator, call of a runtime, or wait is recorded; a function counts when it is more than the dispatch of operators,
which takes some 10 microseconds each. Samples say whether Python runs or waits. Threshold: 10 % of step time, as the host-bound
rules of TraceLens and XProf.
"""

from __future__ import annotations

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.kinds import is_call

LEAST_PERCENT = 10.0
LEAST_NS = 200_000
"""Shorter stretches are what calling an operator costs."""
DENSE_NS = 1_000
"""Recorded Python calls closer together than this say how long recording them takes, which is `profiler_cost`."""
WAITS = 0.5
"""A function waits if its thread did not run for more than this part of the time."""


def python_bound(loop: Loop) -> Finding | None:
    """Find the function in which most Python runs between operators."""
    gap = next((gap for gap in loop.python_functions(LEAST_NS) if gap.place), None)
    if gap is None or (share := loop.share(gap.time_ns)) < LEAST_PERCENT:
        return None
    spans = loop.trace.columns("spans")
    calls = int((is_call(spans["kind"]) & (spans["thread"] == loop.thread)).sum())
    if calls * DENSE_NS > loop.python.total_ns:
        return None
    if gap.blocked_part > WAITS:
        said = f"The loop waits in {gap.place.function} ({gap.place}) for {{}} of step time ({{}} a step), such as for a file, a lock or another thread"
        advice = (
            "Wait for it less often, or let another thread do it while the loop goes on: write files in the background, prepare ahead what "
            "the loop needs, hold locks for a shorter time."
        )
    else:
        said = f"Python in {gap.place.function} ({gap.place}) runs for {{}} of step time ({{}} a step) without any operator"
        advice = (
            "Move this code out of the step, do it less often, or express it as tensor operators. python_calls=True (kinetoscope run "
            "--python-calls) records which functions it runs."
        )
    return Finding(
        "python-bound",
        sentence(said, (share, "%"), (loop.per_step(gap.time_ns), "ns")),
        advice,
        share,
        gap.time_ns,
        gap.place,
        spans=gap.rows,
    )
