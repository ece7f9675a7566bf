"""Hangs of twelve kinds, planted in real gloo jobs, are noticed, and `kinetoscope last` says first which rank hangs at which line.

Each trial is a job of three ranks with steps of about 50 ms that was left on. After some steps one rank hangs. From outside, a trial measures when the job's
files say that it hangs, or is dead, after the first overdue step, and how long `kinetoscope last FOLDER` takes then. The first rank and the first line of the job
on its screen have to be those of the rank that hangs. In control trials a step takes long without hanging, and nothing may be said.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.harness import Result, run
from kinetoscope.flight import jobs
from kinetoscope.flight.incidents import INCIDENTS

RANKS, HANGING = 3, 1
TRIALS, AT_ONCE = 2, 4
SUSPICION_S, ANSWER_S = 15.0, 20.0
SHARE_RIGHT, SHARE_IN_TIME = 0.98, 0.95
GIVE_UP_S = 60.0
LOOK_EVERY_S = 0.25
SETTLED_STEPS = 40

JOB = """
import atexit, ctypes, multiprocessing, os, queue, signal, subprocess, sys, threading, time
import torch
import torch.distributed as dist
import kinetoscope

FOLDER, HANGING, STEPS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = -1

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, at):
{loads}
        return torch.ones(8)

def began():
    with open(os.path.join(FOLDER, "fault.new"), "w") as file:
        file.write(str(time.monotonic()))
    os.replace(os.path.join(FOLDER, "fault.new"), os.path.join(FOLDER, "fault"))

def first_then_second(first, second):
    with first:
        time.sleep(0.5)
        with second:{lock_mark}
            pass

def ends():
{ends}

def work(n):
    time.sleep(0.05)
{plants}

def train():
    global rank
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    whole, out = torch.ones(1000), [torch.ones(1000) for _ in range(3)]
    net = torch.nn.Linear(8, 8)
    batches = iter(torch.utils.data.DataLoader(Samples(), num_workers={workers}, batch_size=1))
    recorder = kinetoscope.leave_on(folder=os.path.join(FOLDER, "flights"), keep="4MiB")
    for n in range(STEPS + {more_steps}):
        recorder.step(n)
        batch = next(batches)
        net(batch).sum().backward()
        work(n)
{collectives}
    ends()

def start(number):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="3")
    train()

if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_RUN_ID="job", OMP_NUM_THREADS="1")
    with __import__("socket").socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    ranks = []
    for number in range(3):
        # With the usual end of a program, which the children of multiprocessing have not.
        ranks.append(os.fork())
        if not ranks[-1]:
            start(number)
            break
    else:
        for process in ranks:
            os.waitpid(process, 0)
"""

REDUCE = "dist.all_reduce(whole)"
HERE = "  # the line"
KILLED_FROM_OUTSIDE = f"""
if n == STEPS:
    began()
    threading.Timer(2.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    time.sleep(100_000){HERE}
"""
LOCK_DEADLOCK = """
if n == STEPS:
    first, second = threading.Lock(), threading.Lock()
    threading.Thread(target=first_then_second, args=(second, first), daemon=True).start()
    began()
    first_then_second(first, second)
"""
THREAD_IN_TEARDOWN = f"""
def waits():
    threading.Event().wait(){HERE}
if rank == HANGING:
    threading.Thread(target=waits, name="uploads").start()
    time.sleep(0.1)
    began()
dist.barrier()
"""
HANDLER_IN_TEARDOWN = f"""
def flushes():
    began()
    queue.Queue().join()
    threading.Event().wait(){HERE}
if rank == HANGING:
    atexit.register(flushes)
dist.barrier()
"""
MISSING_IN_TEARDOWN = f"""
dist.barrier()
if rank == HANGING:
    began()
    threading.Event().wait(){HERE}
dist.barrier()
dist.destroy_process_group()
"""


def _indented(text: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in text.strip("\n").splitlines())


@dataclass(frozen=True)
class Plant:
    """A kind of hang as parts of the job's program.

    Attributes:
        at: What the rank that hangs does in `work`, in the step that hangs.
        collectives: What each rank does after `work`.
        loads: What a worker of the data loader of that rank does with the first sample of that step.
        ends: What each rank does after its last step.
        work: As `at`, as whole lines.
        all_ranks: What each rank does in `work`.
    """

    at: str = ""
    collectives: str = REDUCE
    loads: str = ""
    ends: str = "pass"
    work: str = ""
    all_ranks: str = ""

    def program(self) -> str:
        """The job."""
        plants = self.work or (f"if n == STEPS:\n    began()\n    {self.at}{HERE}" if self.at else "pass")
        if plants != "pass":
            plants = f"if rank == HANGING:\n{_indented(plants, 4)}"
        plants = self.all_ranks or plants
        loads = (
            f"if rank == HANGING and at == STEPS:\n    began()\n    {self.loads}{HERE}"
            if self.loads
            else "pass"
        )
        return JOB.format(
            loads=_indented(loads, 8), plants=_indented(plants, 4), ends=_indented(self.ends, 4),
            collectives=_indented(self.collectives, 8), workers=2 if self.loads else 0,
            lock_mark=HERE if self.work == LOCK_DEADLOCK else "", more_steps=0 if self.ends != "pass" else 10_000,
        )  # fmt: skip


def _differs(usual: str, otherwise: str) -> str:
    """Each rank does the usual; the one that hangs does otherwise in one step."""
    return f"if rank == HANGING and n == STEPS:\n{_indented(otherwise, 4)}\nelse:\n{_indented(usual, 4)}"


KINDS = {
    "never enters": [
        Plant("time.sleep(100_000)"), Plant("threading.Event().wait()"), Plant("while n >= 0: n += 1"),
    ],
    "another order": [
        Plant(collectives=_differs(f"{REDUCE}\ndist.all_gather(out, whole)", f"began()\ndist.all_gather(out, whole){HERE}\n{REDUCE}")),
        Plant(collectives=_differs(f"dist.broadcast(whole, 0)\n{REDUCE}", f"began()\n{REDUCE}{HERE}\ndist.broadcast(whole, 0)")),
    ],
    "skips one": [
        Plant(collectives=_differs(f"{REDUCE}\ndist.barrier()", f"began()\ndist.barrier(){HERE}")),
        Plant(collectives=_differs(f"dist.all_gather(out, whole)\n{REDUCE}", f"began()\n{REDUCE}{HERE}")),
    ],
    "another shape": [
        Plant(collectives=_differs("dist.all_reduce(whole[:1])", f"began()\ndist.all_reduce(whole[:2]){HERE}") + f"\n{REDUCE}"),
        Plant(collectives=_differs("dist.all_reduce(whole[:2])", f"began()\ndist.all_reduce(whole[:1]){HERE}") + f"\n{REDUCE}{HERE}"),
        Plant(collectives=_differs(REDUCE, f"began()\ndist.all_reduce(torch.ones(500)){HERE}")),
    ],
    "loader worker": [Plant(loads="time.sleep(100_000)"), Plant(loads="multiprocessing.Event().wait()")],
    "subprocess": [
        Plant('subprocess.run(["sleep", "100000"])'),
        Plant('subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE).stdout.read()'),
    ],
    "queue": [Plant("queue.Queue().get()"), Plant("multiprocessing.Queue().get()")],
    "deadlock": [Plant(work=LOCK_DEADLOCK)],
    "killed": [Plant("os.kill(os.getpid(), signal.SIGSTOP)"), Plant(work=KILLED_FROM_OUTSIDE)],
    "exits early": [Plant("sys.exit(0)"), Plant("sys.exit(3)")],
    "teardown": [Plant(ends=THREAD_IN_TEARDOWN), Plant(ends=HANDLER_IN_TEARDOWN), Plant(ends=MISSING_IN_TEARDOWN)],
    "C++": [
        Plant(
            "time.sleep(100_000)",
            'torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(whole, "sum", dist.group.WORLD.group_name))',
        ),
        Plant("ctypes.PyDLL(None).sleep(100_000)"),
    ],
}  # fmt: skip

SAVES = """
if n == STEPS and rank == 0:
    began()
    until = time.monotonic() + 40
    while time.monotonic() < until:
        torch.save(torch.ones(1_000_000), os.path.join(FOLDER, "checkpoint.pt"))
"""
EVALUATES = """
if n == STEPS and rank == 0:
    began()
    until = time.monotonic() + 40
    for number in range(100_000):
        torch.nn.functional.relu(torch.ones(100, 100) @ torch.ones(100, 100)).sum().item()
        time.sleep(0.01)
        if time.monotonic() > until:
            break
"""
DEBUGS = """
if n == STEPS and rank == 0:
    began()
    import pdb
    reads, _ = os.pipe()
    pdb.Pdb(stdin=os.fdopen(reads), stdout=sys.stdout).set_trace()
    n += 0
"""
HEALTHY = {
    "checkpoint of 40 s": SAVES,
    "evaluation of 40 s": EVALUATES,
    "paused in a debugger": DEBUGS,
}


@dataclass
class Trial:
    """What came of a hang: seconds until it was suspected, and until the answer was there; and whether that was right."""

    kind: str
    number: int
    suspected_s: float | None = None
    answered_s: float = 0.0
    rank_is_first: bool = False
    line_is_first: bool = False
    names_innocent: bool = False
    screen: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the rank and its line come first."""
        return self.rank_is_first and self.line_is_first

    @property
    def is_in_time(self) -> bool:
        """Whether it was suspected, and answered, soon enough."""
        return (
            self.suspected_s is not None and self.suspected_s <= SUSPICION_S and self.answered_s <= ANSWER_S
        )

    def __str__(self) -> str:
        after = "never suspected" if self.suspected_s is None else f"suspected after {self.suspected_s:.1f} s"
        rights = f"rank {'first' if self.rank_is_first else 'WRONG'}, line {'first' if self.line_is_first else 'WRONG'}"
        innocent = ", AN INNOCENT RANK FIRST" if self.names_innocent else ""
        return f"{self.kind} {self.number}: {after}, answered in {self.answered_s:.1f} s, {rights}{innocent}"


@contextmanager
def job(program: str, folder: Path) -> Iterator[Path]:
    """Run a job; its processes, and theirs, are killed at the end. Yields its program."""
    script = folder / "job.py"
    script.write_text(program)
    command = [sys.executable, str(script), str(folder), str(HANGING), str(SETTLED_STEPS)]
    with open(folder / "output", "wb") as output:
        started = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
        try:
            yield script
        finally:
            # All are in the session that was started for them.
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def is_suspected(folder: Path) -> bool:
    """Whether the files of the job say that something is wrong."""
    attempt = jobs.Attempt(folder / "flights" / "job" / "0")
    states = {ring.state for ring in attempt.rings()}
    reasons = {
        path.parent.name.partition("-")[2] for path in (attempt.folder / INCIDENTS).glob("*/rank*.json")
    }
    return bool(reasons & {"hang", "crash", "exit", "gone"} or states & {jobs.HANGS, jobs.GONE})


def began_s(folder: Path) -> float | None:
    """When the step began that hangs, by the monotonic clock; None if it has not."""
    path = folder / "fault"
    return float(path.read_text()) if path.exists() else None


def wait_for_suspicion(folder: Path, give_up_s: float) -> float | None:
    """Seconds from the moment that the step was overdue until the job's files say that it hangs; None if they never did."""
    end_s = time.monotonic() + 120.0
    while (fault_s := began_s(folder)) is None:
        if time.monotonic() > end_s:
            raise RuntimeError(f"the job did not begin: {(folder / 'output').read_text()[-2000:]}")
        time.sleep(LOOK_EVERY_S)
    while (passed_s := time.monotonic() - fault_s) < give_up_s:
        if is_suspected(folder):
            # Twice the time of a step.
            return max(passed_s - 0.2, 0.0)
        time.sleep(LOOK_EVERY_S)
    return None


def try_hang(kind: str, number: int) -> Trial:
    """Run one trial."""
    trial = Trial(kind, number)
    plants = KINDS[kind]
    program = plants[number % len(plants)].program()
    with tempfile.TemporaryDirectory() as name, job(program, Path(name)):
        folder = Path(name)
        trial.suspected_s = wait_for_suspicion(folder, GIVE_UP_S)
        asked_s = time.monotonic()
        command = [sys.executable, "-m", "kinetoscope", "last", str(folder / "flights")]
        trial.screen = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        trial.answered_s = time.monotonic() - asked_s
    lines = [at for at, line in enumerate(program.splitlines(), 1) if line.endswith(HERE)]
    first_rank = re.search(r"\branks? (\d+)", trial.screen)
    first_line = re.search(r"job\.py:(\d+)", trial.screen)
    trial.rank_is_first = first_rank is not None and int(first_rank[1]) == HANGING
    trial.line_is_first = first_line is not None and int(first_line[1]) in lines
    trial.names_innocent = first_rank is not None and not trial.rank_is_first
    print(trial, flush=True)
    if not trial.is_right:
        print("    " + "\n    ".join(trial.screen.splitlines()[:14]), flush=True)
    return trial


def is_called_hang(kind: str) -> float | None:
    """Run a healthy program whose step takes 40 s; return after how many seconds it was suspected, or None."""
    program = Plant(all_ranks=HEALTHY[kind]).program()
    with tempfile.TemporaryDirectory() as name, job(program, Path(name)):
        suspected_s = wait_for_suspicion(Path(name), 45.0)
    print(
        f"healthy, {kind}: {'not suspected' if suspected_s is None else f'SUSPECTED after {suspected_s:.1f} s'}",
        flush=True,
    )
    return suspected_s


def add_options(parser: ArgumentParser) -> None:
    """Add what else can be chosen."""
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"trials of each kind (default: {TRIALS})")
    parser.add_argument(
        "--at-once",
        type=int,
        default=AT_ONCE,
        help=f"jobs at the same time (default: {AT_ONCE}); most of them wait",
    )
    parser.add_argument(
        "--kind",
        action="append",
        choices=[*KINDS, "healthy"],
        help="only this kind; may be given more than once",
    )


def measure(options: Namespace) -> list[Result]:
    """Run the trials of each kind, and the healthy programs."""
    trials = 1 if options.quick else options.trials
    chosen = options.kind or (["subprocess"] if options.quick else [*KINDS, "healthy"])
    kinds = [kind for kind in KINDS if kind in chosen]
    results = []
    with ThreadPoolExecutor(options.at_once) as pool:
        hangs = [pool.submit(try_hang, kind, number) for number in range(trials) for kind in kinds]
        healthy = {kind: pool.submit(is_called_hang, kind) for kind in HEALTHY if "healthy" in chosen}
        tried = [hang.result() for hang in hangs]
        suspected = [kind for kind, outcome in healthy.items() if outcome.result() is not None]
    for kind in kinds:
        of_kind = [trial for trial in tried if trial.kind == kind]
        suspicions = [trial.suspected_s for trial in of_kind if trial.suspected_s is not None]
        after = f"{median(suspicions):.1f} s ({max(suspicions):.1f} at most)" if suspicions else "never"
        right, in_time = (
            sum(getattr(trial, name) for trial in of_kind) for name in ("is_right", "is_in_time")
        )
        measured = f"{right} of {len(of_kind)} right, {in_time} in time, suspected after {after}, answered in {max(trial.answered_s for trial in of_kind):.1f} s"
        results.append(Result(f"hang: {kind}", "-", measured, None))
    if tried:
        right, in_time = sum(trial.is_right for trial in tried), sum(trial.is_in_time for trial in tried)
        innocent = sum(trial.names_innocent for trial in tried)
        results += [
            Result("hangs: rank and line come first", f">= {SHARE_RIGHT:.0%}", f"{right} of {len(tried)}", right >= SHARE_RIGHT * len(tried)),
            Result("hangs: an innocent rank comes first", "0", f"{innocent} of {len(tried)}", innocent == 0),
            Result(
                f"hangs: suspected <= {SUSPICION_S:.0f} s after a step is overdue, answered <= {ANSWER_S:.0f} s later",
                f">= {SHARE_IN_TIME:.0%}", f"{in_time} of {len(tried)}", in_time >= SHARE_IN_TIME * len(tried),
            ),
        ]  # fmt: skip
    if healthy:
        results.append(
            Result(
                "healthy programs suspected",
                "0",
                f"{len(suspected)} of {len(healthy)}",
                not suspected,
                suspected,
            )
        )
    return results


if __name__ == "__main__":
    run(measure, add_options)
