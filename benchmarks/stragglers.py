"""A rank that is late by 5 % of a step is named, with what takes it longer, from the summaries of a real gloo job.

Each trial plants a delay of 3 ms in one rank of a job with steps of about 60 ms: in its forward pass, its backward pass, in Python, or while it waits for
data; or it slows down the link between two ranks, by the kernel's own pacing of their sockets. Ranks compute and load by waiting, as for a
device, so that more of them fit on a machine than it has processors. In control trials nothing is planted, and no rank may be named.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from benchmarks.harness import Result, run
from kinetoscope.summaries.job import Job

RANKS, TRIALS, STEPS = 8, 40, 50
SHARE = 0.95
PHASES = {
    "forward": "compute",
    "backward": "compute",
    "input": "data_wait",
    "host": "host_wait",
    "link": "network",
}
LEAST_SLOWER = 1.1

JOB = """
import json, os, socket, sys, time
import torch
import torch.distributed as dist
import kinetoscope

plants, steps, delay_s = json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
BYTES, PACE = 1 << 20, 100_000_000

@torch.library.custom_op("planted::work", mutates_args=())
def work(x: torch.Tensor, seconds: float, backward_seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()

def setup(ctx, inputs, output):
    ctx.seconds = inputs[2]

def backward(ctx, grad):
    return work(grad, ctx.seconds, 0.0), None, None

work.register_autograd(backward, setup_context=setup)

class Samples(torch.utils.data.Dataset):
    late_s = 0.0
    def __len__(self):
        return steps + 2
    def __getitem__(self, place):
        time.sleep(0.006 + self.late_s)
        return torch.ones(8)

def sockets():
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
            and os.readlink(f"/proc/self/fd/{name}").startswith("socket:")}

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
whole, pair_values = torch.ones(1000), torch.ones(BYTES // 4)
before = sockets()
pairs = [dist.new_group([first, first + 1], group_desc="tp") for first in range(0, ranks, 2)]
pair = pairs[rank // 2]
dist.all_reduce(pair_values, group=pair)
links = [socket.socket(fileno=os.dup(one)) for one in sockets() - before]

def pace(bytes_per_second):
    for link in links:
        if link.type == socket.SOCK_STREAM:
            link.setsockopt(socket.SOL_SOCKET, 47, bytes_per_second)  # SO_MAX_PACING_RATE of Linux

samples, weight = Samples(), torch.ones(8, requires_grad=True)
for trial, (where, late) in enumerate(plants):
    mine = late in ((rank, rank // 2 * 2) if where == "link" else (rank,))
    late_s = {name: delay_s if mine and where == name else 0.0 for name in ("forward", "backward", "input", "host", "link")}
    samples.late_s = late_s["input"]
    slow = late_s["link"] * PACE / BYTES
    pace(int(PACE / (1 + slow)))
    batches = iter(torch.utils.data.DataLoader(samples))
    dist.barrier()
    with kinetoscope.profile(
        activities=[kinetoscope.ProfilerActivity.CPU], record_shapes=True, summary=str(trial),
        schedule=kinetoscope.schedule(wait=0, warmup=1, active=steps, repeat=1),
    ) as session:
        for _ in range(steps + 1):
            batch = next(batches)
            loss = work(weight * batch, 0.015 + late_s["forward"], 0.025 + late_s["backward"]).sum()
            loss.backward()
            time.sleep(late_s["host"])
            dist.all_reduce(pair_values, group=pair)
            dist.all_reduce(whole)
            session.step()
dist.barrier()
dist.destroy_process_group()
"""


def run_job(folder: Path, ranks: int, plants: list[tuple[str, int]], steps: int, delay_s: float) -> None:
    """Run the job, which writes the summaries of each trial into a folder of its number.

    Args:
        folder: Where it runs.
        ranks: How many processes it has; even.
        plants: For each trial what is planted and in which rank; for a link the lower rank of a pair.
        steps: How many steps a trial has.
        delay_s: The delay.
    """
    script = folder / "job.py"
    script.write_text(JOB)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script),
        json.dumps(plants), str(steps), str(delay_s),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)


def named(job: Job, where: str) -> tuple[int, str] | None:
    """The rank that the summaries name first, and what takes it longer; of a link the lower rank of the slowest pair."""
    rows = job.stragglers().to_pylist()
    if where == "link" and rows:
        slowest = job.links().to_pylist()[0]
        return (slowest["rank"], rows[0]["phase"]) if (slowest["times_slower"] or 0) >= LEAST_SLOWER else None
    return (rows[0]["rank"], rows[0]["phase"]) if rows else None


def measure(options: Namespace) -> list[Result]:
    """Run the trials of each kind, and as many control trials as of one kind."""
    ranks, trials, steps, delay_s = (2, 5, 5, 0.03) if options.quick else (RANKS, TRIALS, STEPS, 0.003)
    chosen = random.Random(17)
    kinds = [*PHASES, "nothing"]
    plants = [
        (kind, chosen.randrange(ranks // 2) * 2 if kind == "link" else chosen.randrange(ranks))
        for _ in range(trials // len(PHASES))
        for kind in kinds
    ]
    found: dict[str, list[bool]] = {kind: [] for kind in kinds}
    notes: dict[str, list[str]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        run_job(Path(name), ranks, plants, steps, delay_s)
        for trial, (kind, rank) in enumerate(plants):
            said = named(Job.open(Path(name) / str(trial)), kind)
            expected = None if kind == "nothing" else (rank, PHASES[kind])
            found[kind].append(said == expected)
            if said != expected:
                notes[kind].append(f"trial {trial}: named {said}, planted {expected}")
    results = []
    for kind, hits in found.items():
        share = sum(hits) / len(hits)
        what = (
            "no rank named without a delay" if kind == "nothing" else f"rank and phase named, delay in {kind}"
        )
        results.append(
            Result(what, f">= {SHARE:.0%}", f"{sum(hits)} of {len(hits)}", share >= SHARE, notes[kind])
        )
    return results


if __name__ == "__main__":
    run(measure)
