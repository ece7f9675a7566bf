"""A job that is left on with control, in a process of its own, which does what a test says: steps, hangs, and so on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinetoscope.flight.control.client import ControlTarget, targets
from tests.support import warm_python

JOB = """
import ctypes, os, signal, sys
import torch, kinetoscope
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
signal.signal(signal.SIGUSR1, lambda number, frame: None)

def train_step():
    model(torch.ones(2, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

def leave_on(control):
    global recorder
    recorder = kinetoscope.leave_on(keep="8MiB", control=control)
    return recorder.status().problem

def steps(count):
    for _ in range(int(count)):
        recorder.step()
        train_step()
    return recorder.status().step

def stop():
    recorder.stop()

def hold():
    # In C, with Python's global lock, until a signal comes.
    print(flush=True)
    ctypes.PyDLL(None).pause()

def fork():
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    return child

def close_files():
    # As a program does that becomes a daemon.
    os.closerange(3, 1024)

print(leave_on(sys.argv[1]), flush=True)
for line in sys.stdin:
    name, *arguments = line.split()
    done = globals()[name](*arguments)
    print("" if done is None else done, flush=True)
recorder.stop()
"""


class ControlledJob:
    """A job in another process.

    Attributes:
        process: The process.
        folder: The folder of all jobs.
        problem: What the recorder said at its start.
    """

    def __init__(self, process: warm_python.Started, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.problem = self.answer()

    def do(self, *words: object) -> str:
        """Call a function of the job, and wait until it returns."""
        self.begin(*words)
        return self.answer()

    def begin(self, *words: object) -> None:
        """Call a function of the job; `answer` waits until it returns."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hold(self) -> None:
        """Let the job hold Python's global lock, until `release`."""
        self.do("hold")

    def release(self) -> None:
        """End `hold`."""
        os.kill(self.process.pid, signal.SIGUSR1)
        self.answer()

    def target(self) -> ControlTarget:
        """The job, to send requests to."""
        (found,) = targets(str(self.process.pid), self.folder)
        return found

    def answer(self) -> str:
        """Wait until the function that was called returns."""
        return self.process.stdout.readline().rstrip("\n")


@contextmanager
def controlled_job(folder: Path, control: str = "socket", **environment: str) -> Iterator[ControlledJob]:
    """A job whose files are below a folder; it ends with the block."""
    process = warm_python.start(
        "-c", JOB, control,
        cwd=folder, env={**os.environ, "KINETOSCOPE_DIR": str(folder / "jobs"), **environment},
    )  # fmt: skip
    try:
        yield ControlledJob(process, folder / "jobs")
        process.stdin.close()
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
        process.close()
