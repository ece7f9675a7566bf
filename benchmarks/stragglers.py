"""A rank of a running job that is late by 5 % of a step is named, with what takes it longer and at which line, within 15 s, from outside.

A job of gloo ranks with steps of about 60 ms is left on. In turn nothing is late for a while, and then something is: one rank takes 3 ms longer in its forward pass, in Python,
while it waits or loads, two ranks do, all ranks of a host, another rank in each step, or a rank on a processor that another program uses. Meanwhile the job is
asked again and again, as `kinetoscope last` and `kinetoscope status` do it. A trial is right if the ranks, the part and the line come first 15 s after the onset, and
nobody else was named in between. Between plants, nobody may be named once the seconds that are compared have passed.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import Result, run
from kinetoscope.flight.jobs import Attempt, attempts_in
from kinetoscope.flight.slow_ranks import LAST_S, job_of_rings, slow_ranks

RANKS, TRIALS, SHARE = 8, 2, 0.95
DELAY_S, ONSET_S, CLEAN_S = 0.003, 15.0, 18.0
PARTS = {
    "forward": ("operators",),
    "python": ("Python", "waiting for a CPU core"),
    "waits": ("waiting",),
    "input": ("waiting for data",),
    "two": ("waiting",),
    "host": ("waiting",),
    "busy": ("waiting for a CPU core",),
    "rotating": (),
}

JOB = """
import json, os, socket, sys, time
import torch
import torch.distributed as dist
import kinetoscope, sympy, torch._dynamo

FOLDER, PLANTS, RANKS, DELAY_S, CLEAN_S, ONSET_S = (json.loads(word) for word in sys.argv[1:])

class Samples(torch.utils.data.Dataset):
    late_s = 0.0
    def __len__(self):
        return 1_000_000
    def __getitem__(self, at):
        time.sleep(0.006 + self.late_s)
        return torch.ones(8)

def spin(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:  # python
        pass  # python

def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    socket.gethostname = lambda: f"node{2 * rank // RANKS}"

    @torch.library.custom_op("planted::work", mutates_args=())
    def work(x: torch.Tensor, seconds: float, backward_seconds: float) -> torch.Tensor:
        time.sleep(seconds)
        return x.clone()

    def setup(ctx, inputs, output):
        ctx.seconds = inputs[2]

    def backward(ctx, grad):
        return work(grad, ctx.seconds, 0.0), None, None

    work.register_autograd(backward, setup_context=setup)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    whole, weight, last = torch.ones(1000), torch.ones(8, requires_grad=True), torch.zeros(1)
    samples = Samples()
    batches = iter(torch.utils.data.DataLoader(samples))
    recorder = kinetoscope.leave_on(folder=os.path.join(FOLDER, "flights"), keep="32MiB")
    processors = os.sched_getaffinity(0)
    number = 0
    for at, (kind, ranks) in enumerate(PLANTS):
        for is_planted in (False, True):
            late_s = DELAY_S if is_planted and rank in ranks else 0.0
            waits_s = late_s if kind in ("waits", "two", "host") else 0.0
            samples.late_s = late_s if kind == "input" else 0.0
            os.sched_setaffinity(0, {max(processors)} if late_s and kind == "busy" else processors)
            dist.barrier()
            began = time.monotonic()
            if rank == 0:
                with open(os.path.join(FOLDER, "onset.new"), "w") as file:
                    json.dump([at, is_planted, began], file)
                os.replace(os.path.join(FOLDER, "onset.new"), os.path.join(FOLDER, "onset"))
            last[0] = 0
            while not last[0]:
                number += 1
                recorder.step(number)
                batch = next(batches)  # input
                loss = work(weight * batch, 0.015 + (late_s if kind == "forward" else 0.0), 0.025).sum()  # forward
                loss.backward()
                if waits_s:
                    time.sleep(waits_s)  # waits two host
                if late_s and kind == "python":
                    spin(late_s)  # python
                if kind == "busy":
                    spin(0.004)
                if is_planted and kind == "rotating" and number % RANKS == rank:
                    time.sleep(DELAY_S)
                if rank == 0:
                    last[0] = time.monotonic() - began > (ONSET_S + 5.0 if is_planted else CLEAN_S)
                dist.broadcast(last, 0)
                dist.all_reduce(whole)

if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_RUN_ID="job", OMP_NUM_THREADS="1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    children = []
    for rank in range(RANKS):
        children.append(os.fork())
        if not children[-1]:
            train(rank)
            break
    else:
        for child in children:
            os.waitpid(child, 0)
"""
LINES = {
    kind: [
        number for number, line in enumerate(JOB.splitlines(), 1) if kind in line.partition("  # ")[2].split()
    ]
    for kind in PARTS
}
BUSY = "import os, sys\nos.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\nwhile True: pass"


@dataclass
class Trial:
    """What was said of a plant, or of the time before it.

    Attributes:
        kind: What was planted.
        ranks: The ranks in which it was planted; none before.
        said: When after the onset which ranks were named, the first by what, in words.
        disagreements: How often the findings and the table of stragglers named another rank first.
    """

    kind: str
    ranks: list[int]
    said: list[tuple[float, list[int], str]] = field(default_factory=list)
    disagreements: int = 0

    def is_right(self, named: list[int], words: str) -> bool:
        """Whether an answer names the ranks, with part and line of the first."""
        if self.kind == "host":
            return f"ranks of node{2 * self.ranks[0] // RANKS}" in words
        is_part = any(f" on {part}" in words for part in PARTS[self.kind])
        is_line = self.kind == "busy" or any(f"job.py:{line})" in words for line in LINES[self.kind])
        return sorted(named) == sorted(self.ranks) and is_part and is_line

    def right_after_s(self) -> float | None:
        """How long after the onset the answer was right for the first time; None if it never was."""
        return next((at_s for at_s, named, words in self.said if self.is_right(named, words)), None)

    def wrong(self) -> list[str]:
        """The answers that named a rank in which nothing was planted."""
        late = set(self.ranks)
        from_s = LAST_S + 2.0 if not late else 0.0
        return [
            f"{at_s:.0f} s: {named}: {words}"
            for at_s, named, words in self.said
            if at_s > from_s and set(named) - late
        ]


def watch(folder: Path, plants: list[tuple[str, list[int]]], ranks: int) -> list[Trial]:
    """Run the job, and ask it until it ends; two trials for each plant, the first without it."""
    (folder / "job.py").write_text(JOB)
    trials = [Trial(kind, late if planted else []) for kind, late in plants for planted in (False, True)]
    words = [json.dumps(value) for value in (str(folder), plants, ranks, DELAY_S, CLEAN_S, ONSET_S)]
    with subprocess.Popen(
        [sys.executable, "job.py", *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as job:
        others: subprocess.Popen[bytes] | None = None
        while job.poll() is None:
            time.sleep(1.0)
            if not (folder / "onset").exists():
                continue
            at, is_planted, began_s = json.loads((folder / "onset").read_text())
            is_busy = is_planted and plants[at][0] == "busy"
            if is_busy and others is None:
                others = subprocess.Popen([sys.executable, "-c", BUSY])
            elif not is_busy and others is not None:
                others.kill()
                others = None
            ask(trials[2 * at + is_planted], attempts_in(folder / "flights", listed=False), began_s)
        if others is not None:
            others.kill()
    return trials


def ask(trial: Trial, attempts: list[Attempt], began_s: float) -> None:
    """Ask the job once."""
    if not attempts:
        return
    after_s = time.monotonic() - began_s
    rings = attempts[-1].rings()
    named = slow_ranks(rings)
    trial.said.append((after_s, [*named], next(iter(named.values()), "")))
    job = job_of_rings(rings)
    table = [] if job is None else job.stragglers()["rank"].to_pylist()
    found = [] if job is None else [finding.rank for finding in job.report.findings if finding.rank >= 0]
    trial.disagreements += table[:1] != found[:1] and trial.kind != "host"


def measure(options: Namespace) -> list[Result]:
    """Plant each kind, and ask."""
    chosen = random.Random(17)
    ranks, repeats = (4, 1) if options.quick else (RANKS, options.trials)
    kinds = ["waits"] if options.quick else [*PARTS]
    plants = [
        (
            kind,
            {"two": chosen.sample(range(ranks), 2), "host": [*range(ranks // 2)], "rotating": []}.get(
                kind, [chosen.randrange(ranks)]
            ),
        )
        for _ in range(repeats)
        for kind in kinds
    ]
    with tempfile.TemporaryDirectory() as name:
        trials = watch(Path(name), plants, ranks)
    results = []
    for kind in kinds:
        planted = [trial for trial in trials if trial.kind == kind and trial.ranks]
        times = [trial.right_after_s() for trial in planted]
        in_time = [seconds for seconds in times if seconds is not None and seconds <= ONSET_S + 2.0]
        notes = [f"right after {', '.join(f'{seconds:.0f} s' if seconds else 'never' for seconds in times)}"]
        notes += [text for trial in planted for text in trial.wrong()][:5]
        if planted:
            what = f"rank, part and line within {ONSET_S:.0f} s: {kind}"
            results.append(
                Result(
                    what,
                    f">= {SHARE:.0%}",
                    f"{len(in_time)} of {len(times)}",
                    len(in_time) >= SHARE * len(times),
                    notes,
                )
            )
    clean = [trial for trial in trials if not trial.ranks]
    wrong = [text for trial in clean for text in trial.wrong()]
    answers = sum(len(trial.said) for trial in clean)
    flagged = sum(bool(trial.wrong()) for trial in clean)
    results.append(
        Result(
            "stretches without a late rank in which one is named",
            "0",
            f"{flagged} of {len(clean)}",
            not flagged,
            [f"{answers} answers", *wrong[:5]],
        )
    )
    victims = sum(bool(trial.wrong()) for trial in trials if trial.ranks)
    results.append(Result("plants in which another rank is named", "0", f"{victims}", not victims))
    apart = sum(trial.disagreements for trial in trials)
    results.append(
        Result("answers in which findings and table name another rank first", "0", f"{apart}", not apart)
    )
    return results


def add_options(parser: ArgumentParser) -> None:
    """Add the option of this benchmark."""
    parser.add_argument("--trials", type=int, default=TRIALS, help="how often each kind is planted")


if __name__ == "__main__":
    run(measure, add_options)
