"""Python code between operators takes the time, in one function of the program, or the function waits there.

Time in which no operator, call of a runtime, or wait is recorded; a function counts when it is more than the dispatch of operators,
which takes some 10 microseconds each. Samples say whether Python runs or waits, and for what. Threshold: 10 % of step time, as the host-bound
rules of TraceLens and XProf.
"""

from __future__ import annotations

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.kinds import is_call
from kinetoscope.model.schema import SampleWait

LEAST_PERCENT = 10.0
LEAST_NS = 200_000
"""Shorter stretches are what calling an operator costs."""
DENSE_NS = 1_000
"""Recorded Python calls closer together than this say how long recording them takes, which is `profiler_cost`."""
WAITS = 0.5
"""A function waits if its thread did not run for more than this part of the time."""


OTHER_WAITS = ", such as for a file, a lock or another thread"
_ADVICE = (
    "Wait for it less often, or let another thread do it while the loop goes on: write files in the background, prepare ahead what the loop needs, hold "
    "locks for a shorter time."
)
_WAITS = {
    SampleWait.LOCK: (
        "waits for a lock or another thread",
        "Hold locks for a shorter time, and take the result of another thread later, when it is ready: queue.Queue and Future.done() say so without waiting.",
    ),
    SampleWait.SLEEP: (
        "sleeps",
        "Remove the pause, or let another thread do what it waits for and ask only whether that is done.",
    ),
    SampleWait.FILE: (
        "waits for a file to be read or written",
        "Read ahead and write in the background, in another thread: the loop then only waits where the disk is slower than the step.",
    ),
    SampleWait.PIPE: (
        "waits for a pipe, which another process writes or reads",
        "Start the process earlier and read its answer later, or keep one running instead of a new one each time.",
    ),
    SampleWait.SOCKET: (
        "waits for a socket",
        "Ask earlier, from another thread, and take the answer when it is there; send several requests at once.",
    ),
    SampleWait.PROCESS: (
        "waits for another process to end",
        "Start it with subprocess.Popen and ask later with poll() whether it has ended, or keep one running instead of a new one each time.",
    ),
    SampleWait.EVENTS: ("waits for one of several files or connections", _ADVICE),
    SampleWait.MEMORY: (
        "waits for memory to be read from a disk",
        "Read the file once into memory, such as without mmap, or ahead in another thread; with swapped-out memory, use less of it.",
    ),
    SampleWait.TERMINAL: ("waits for the terminal", "Print less often, or to a file."),
}


def waiting(wait: int) -> tuple[str, str]:
    """What is said of a loop that waits, and what to change, by what it waits for: a `SampleWait`."""
    return _WAITS.get(SampleWait(wait), ("waits", _ADVICE))


def python_bound(loop: Loop) -> Finding | None:
    """Find the function in which most Python runs between operators."""
    gap = next((gap for gap in loop.python_functions(LEAST_NS) if gap.place), None)
    if gap is None or (share := loop.share(gap.time_ns)) < LEAST_PERCENT:
        return None
    spans = loop.trace.columns("spans")
    calls = int((is_call(spans["kind"]) & loop.threads[spans["thread"]]).sum())
    if calls * DENSE_NS > loop.python.total_ns:
        return None
    if gap.blocked_part > WAITS:
        what, advice = waiting(gap.wait)
        said = f"The loop {what} in {gap.place.function} ({gap.place}) for {{}} of step time ({{}} a step)"
        said += OTHER_WAITS if gap.wait == SampleWait.UNKNOWN else ""
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
