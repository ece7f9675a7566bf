"""The cost of `kinetoscope run --children` for Pythons that do not import torch: their start, and each audited event.

Pythons start with and without the start-up hook, in turns. The hook listens to audit events, which `import`, `open` and `id` raise among others; `id`
is the most frequent one in training steps.
"""

import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

from benchmarks.harness import Result, run
from kinetoscope.launcher import child_hook
from kinetoscope.launcher.options import LaunchOptions

MOST_START_MS = 5.0
MOST_EVENT_NS = 500.0
EVENTS = """
import time
times = []
for _ in range(7):
    began = time.thread_time_ns()
    for number in range(100_000):
        id(number)
    times.append(time.thread_time_ns() - began)
print(min(times) / 100_000)
"""


def processor_s() -> float:
    """Return the processor time of all child processes so far, in seconds."""
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(options: Namespace) -> list[Result]:
    """Start Pythons with and without the hook, in turns."""
    rounds = 3 if options.quick else 40
    with tempfile.TemporaryDirectory() as folder:
        run_options = LaunchOptions(prefix=Path(folder) / "run", children=True)
        (Path(folder) / child_hook.OPTIONS_FILE).write_text(run_options.to_json(), encoding="utf-8")
        hooked = {**os.environ, child_hook.VARIABLE: folder, "PYTHONPATH": child_hook.START_UP_FOLDER}
        environments = {"plain": dict(os.environ), "hooked": hooked}
        starts: dict[str, list[float]] = {name: [] for name in environments}
        events: dict[str, list[float]] = {name: [] for name in environments}
        for _ in range(rounds):
            for name, environment in environments.items():
                began_s = processor_s()
                subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
                starts[name].append(1e3 * (processor_s() - began_s))
        for _ in range(max(2, rounds // 8)):
            for name, environment in environments.items():
                done = subprocess.run(
                    [sys.executable, "-c", EVENTS],
                    env=environment,
                    check=True,
                    capture_output=True,
                    text=True,
                )
                events[name].append(float(done.stdout))
    added_ms = median(starts["hooked"]) - median(starts["plain"])
    added_ns = min(events["hooked"]) - min(events["plain"])
    return [
        Result(
            "start of a Python that a recorded program starts",
            f"<= {MOST_START_MS:g} ms more",
            f"{added_ms:.2f} ms of processor time more",
            added_ms <= MOST_START_MS,
            [
                f"median {median(starts['plain']):.1f} ms without the hook, {median(starts['hooked']):.1f} ms with it"
            ],
        ),
        Result(
            "audited event, such as id()",
            f"<= {MOST_EVENT_NS:g} ns more",
            f"{added_ns:.0f} ns more",
            added_ns <= MOST_EVENT_NS,
            [f"{min(events['plain']):.0f} ns without the hook, {min(events['hooked']):.0f} ns with it"],
        ),
    ]


if __name__ == "__main__":
    run(measure)
