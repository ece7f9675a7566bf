"""How long `kinetoscope last` takes to read the rings of a job with 1,000 ranks on one machine.

The rings are those of one program, a training loop of tiny operators that has filled its ring, under the names of all ranks.
"""

import os
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import kinetoscope
from benchmarks.harness import Result, run
from benchmarks.workloads import tiny_training_step
from kinetoscope.flight.last import last_event
from kinetoscope.model import units

MOST_S = 10.0


def measure(options: Namespace) -> list[Result]:
    """Fill a ring, give it to all ranks, and ask what happened last."""
    ranks, steps = (20, 40) if options.quick else (1000, 2000)
    step = tiny_training_step(layers=1)
    with tempfile.TemporaryDirectory() as folder:
        attempt = Path(folder, "jobs", "job", "0")
        attempt.mkdir(parents=True)
        own = Path(folder, "own")
        with kinetoscope.leave_on("100%", folder=own, keep="1MiB", on=("hang",)) as recorder:
            for number in range(steps):
                recorder.step(number)
                step()
            ring = recorder.status().ring
            if ring is None:
                raise RuntimeError(str(recorder.status()))
            size = ring.stat().st_size
            log = ring.with_suffix(".steps").read_bytes()
            for rank in range(ranks):
                os.link(ring, attempt / f"rank{rank}.recording")
                (attempt / f"rank{rank}.steps").write_bytes(log)
        # No longer recorded, which would slow it down.
        began_s = time.perf_counter()
        found = last_event(None, attempt)
        took_s = time.perf_counter() - began_s
    problems = [place.problem for place in found.ranks if place.problem]
    return [
        Result(
            f"last, {units.count(ranks, 'ring')} of {units.size(size)}",
            f"<= {MOST_S:.0f} s",
            f"{took_s:.1f} s",
            took_s <= MOST_S and not problems and len(found.ranks) == ranks,
            [units.count(len(found.lines()), "line") + " of text", *problems[:1]],
        )
    ]


if __name__ == "__main__":
    run(measure)
