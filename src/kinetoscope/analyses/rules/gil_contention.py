"""The training loop waits for Python's global lock, which another thread of the program holds.

Samples of the loop's thread say when it waits for the lock; those of other threads what runs meanwhile. Threshold: 5 % of step time.
"""

from __future__ import annotations

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.schema import SampleState

LEAST_PERCENT = 5.0
LEAST_SAMPLES = 5


def gil_contention(loop: Loop) -> Finding | None:
    """Find waits for the global lock, and the line of another thread that runs most."""
    samples = loop.trace.columns("samples")
    waiting = loop.in_step_samples(samples["state"] == SampleState.WAITING_FOR_GIL)
    mine = waiting[loop.threads[samples["thread"][waiting]]]
    time_ns = int(samples["period_ns"][mine].sum())
    share = loop.share(time_ns)
    if share < LEAST_PERCENT or len(mine) < LEAST_SAMPLES:
        return None
    process = loop.trace.column("threads", "process_row")
    running = loop.in_step_samples(samples["state"] == SampleState.RUNNING)
    thread = samples["thread"][running]
    running = running[(thread != loop.thread) & (process[thread] == loop.process)]
    place = loop.most_sampled(running)
    where = f"{place.named} runs on another thread" if place else "another thread runs"
    return Finding(
        "gil-contention",
        sentence(
            f"{loop.unit.subject} waits for Python's global lock while {where}: {{}} of {loop.unit.time}",
            (share, "%"),
        ),
        "Do this work in another process, such as a worker of a DataLoader, or with operators and libraries that release the lock.",
        share,
        time_ns,
        place,
    )
