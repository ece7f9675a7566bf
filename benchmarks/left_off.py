"""What `kinetoscope.leave_on` costs a step where it is off: imported only, and started and stopped before.

Each process times a step of tiny operators in blocks, then imports, or starts and stops a recorder, or does nothing, and times it again. The
shortest block of the second half is compared with that of the first, and the processes that do something with those that do nothing.
"""

import json
import random
import statistics
import subprocess
import sys
import time
from argparse import Namespace

from benchmarks.harness import Result, run

MOST_PERCENT = 0.1
BLOCKS, BLOCK_S = 60, 0.02
MEANWHILE = {
    "nothing": "",
    "imported": "import kinetoscope",
    "started and stopped": """
import kinetoscope, tempfile
with tempfile.TemporaryDirectory() as folder, kinetoscope.leave_on(folder=folder) as recorder:
    for _ in range(2000):
        recorder.step()
        step()
""",
}
PROGRAM = """
import gc, sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs = torch.randn(4, 8)

def step():
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()

def shortest(blocks, steps):
    least = float("inf")
    for _ in range(blocks):
        before = time.process_time_ns()
        for _ in range(steps):
            step()
        least = min(least, time.process_time_ns() - before)
    return least / steps

blocks, block_s = int(sys.argv[1]), float(sys.argv[2])
gc.disable()
shortest(5, 200)
steps = max(int(block_s * 1e9 / shortest(5, 200)), 1)
before = shortest(blocks, steps)
exec(sys.argv[3])
print(shortest(blocks, steps) / before)
"""


def measure(options: Namespace) -> list[Result]:
    """Let the processes take turns, in random order."""
    rounds, blocks = (1, 3) if options.quick else (12, BLOCKS)
    found: dict[str, list[float]] = {name: [] for name in MEANWHILE}
    began = time.perf_counter()
    for number in range(rounds):
        for name in random.sample(list(MEANWHILE), len(MEANWHILE)):
            words = [sys.executable, "-c", PROGRAM, str(blocks), str(BLOCK_S), MEANWHILE[name]]
            found[name].append(json.loads(subprocess.run(words, check=True, capture_output=True).stdout))
        print(
            f"round {number + 1} of {rounds}, {time.perf_counter() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    results = []
    for name in list(MEANWHILE)[1:]:
        each = [100 * (one - other) for one, other in zip(found[name], found["nothing"], strict=True)]
        middle = statistics.median(each)
        error = statistics.stdev(each) / len(each) ** 0.5 if len(each) > 1 else float("inf")
        results.append(
            Result(
                f"leave_on, {name}, in each step",
                f"upper limit <= {MOST_PERCENT} %",
                f"{middle:+.2f} % (±{2 * error:.2f})",
                middle + 2 * error <= MOST_PERCENT,
                [f"{len(each)} pairs of processes"],
            )
        )
    return results


if __name__ == "__main__":
    run(measure)
