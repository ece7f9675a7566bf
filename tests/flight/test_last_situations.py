"""What `kinetoscope last` says in the situations of an engineer on call: the cause, its rank and its line, or how old what it says is."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import inspect
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep

import pytest
import torch
import torch.distributed as distributed
from torch.utils.data import DataLoader, Dataset

import kinetoscope
from kinetoscope.flight.flight import current_recorder
from kinetoscope.flight.last import last_event

PATIENCE_S = 120.0
LAST_STEP = 30
STRESS = "one of many situations; the others of its kind are in the normal run"


def lock():
    threading.Event().wait()  # here


def gil_held_in_c():
    ctypes.PyDLL(None).sleep(100_000)  # here


def loop_in_c():
    re.match("(a+)+b", "a" * 60)  # here


def loop_in_python():
    while True:  # here
        pass


def sleeping():
    sleep(100_000)  # here


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)  # here


def subprocess_wait():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        child.wait()  # here


def subprocess_output():
    subprocess.run(["sleep", "1000"], capture_output=True, check=False)  # here


def pipe():
    os.read(os.pipe()[0], 1)  # here


def full_pipe():
    os.write(os.pipe()[1], bytes(1 << 20))  # here


def fifo():
    os.mkfifo("fifo")
    open("fifo")  # here  # noqa: SIM115


def thread_join():
    thread = threading.Thread(target=sleep, args=(100_000,), daemon=True)
    thread.start()
    thread.join()  # here


def deadlock():
    mine, other = threading.Lock(), threading.Lock()
    took = threading.Barrier(2)

    def take():
        with other:
            took.wait()
            mine.acquire()

    with mine:
        threading.Thread(target=take, daemon=True).start()
        took.wait()
        other.acquire()  # here


class Stuck(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, at):
        if at == 5:
            sleep(100_000)  # in the worker
        return torch.ones(1)


def loader_worker():
    for _ in DataLoader(Stuck(), num_workers=2, batch_size=2):  # here
        pass


class Dies(Stuck):
    def __getitem__(self, at):
        os._exit(1)


def dead_loader_worker():
    for _ in DataLoader(Dies(), num_workers=1):  # here
        pass


def killed():
    os.kill(os.getpid(), signal.SIGKILL)  # here


def segmentation_fault():
    ctypes.string_at(0)  # here


def aborted():
    os.abort()  # here


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)  # here
    signal.pause()


def raised():
    raise ValueError("the real cause")  # here


def raised_in_torch():
    torch.ones(3) + torch.ones(4)  # here


def memory_error():
    bytearray(1 << 60)  # here


def torch_memory_error():
    torch.empty(1 << 58)  # here


def little_address_space():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    bytearray(8 << 30)  # here


def recursion():
    recursion()  # here


def exits_with_1():
    sys.exit(1)  # here


def raised_in_library():
    inspect.signature(3)  # here


def exits_at_once():
    os._exit(3)  # here


def loss_is_nan():
    current_recorder().end_step(float("nan"))  # here


ENDS = (killed, raised, raised_in_torch, exits_with_1, exits_at_once, segmentation_fault, aborted)
WORKER_LINE = next(
    at
    for at, text in enumerate(inspect.getsourcelines(Stuck)[0], inspect.getsourcelines(Stuck)[1])
    if "in the worker" in text
)


def line_of(situation):
    lines, first = inspect.getsourcelines(situation)
    at = next(at for at, text in enumerate(lines) if "# here" in text)
    return f"{__file__}:{first + at} {situation.__name__}"


def train(situation, says, rank, ranks):
    """The job: its last rank gets into the situation in the last step."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    if ranks > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{os.getcwd()}/meets", rank=rank, world_size=ranks
        )
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with kinetoscope.leave_on(keep="4MiB", folder="jobs") as recorder:
        for number in range(LAST_STEP + 2):
            recorder.step(number)
            if number == LAST_STEP and rank == ranks - 1:
                os.write(says, b"!")
                situation()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@contextmanager
def job(situation, ranks=1):
    """Runs a job in forks of this process; yields them once its last rank is about to get into a situation."""
    with kinetoscope.profile(activities=[torch.profiler.ProfilerActivity.CPU], engine="native"):
        torch.ones(2).add(1)
    gc.freeze()
    hears, says = os.pipe()
    children = []
    try:
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                if ranks > 1:
                    own = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
                    os.environ.update({**own, "TORCHELASTIC_RUN_ID": "job"})
                # That of the tests, which would print what this one does on purpose.
                faulthandler.disable()
                try:
                    with open(os.devnull, "w") as nowhere:
                        os.dup2(nowhere.fileno(), 2)
                    train(situation, says, rank, ranks)
                except BaseException:  # noqa: BLE001  (what a program does at its end: it has no more to say)
                    traceback.print_exc()
                finally:
                    os._exit(1)
            children.append(child)
        os.close(says)
        assert os.read(hears, 1) == b"!", "the job ended before it got there"
        yield children
    finally:
        os.close(hears)
        for child in children:
            end(child)
        gc.unfreeze()


def end(process):
    """Ends a process and those that it has started."""
    with suppress(OSError):
        for child in map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()):
            os.kill(child, signal.SIGKILL)
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def last_words(passes=lambda text: True):
    """What `last` prints, once it is what it should be: a job may need a moment to get into its situation."""
    until = time.monotonic() + PATIENCE_S
    while True:
        found = last_event(None, Path("jobs"))
        text = "\n".join(found.lines())
        if passes(text) or time.monotonic() > until:
            return found, text


def in_stress(*values):
    return pytest.param(*values, marks=pytest.mark.stress(STRESS), id=values[0].__name__)


def important(*values):
    return pytest.param(*values, id=values[0].__name__)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("situation", "state"),
    [
        important(lock, "blocked by a lock"),
        important(gil_held_in_c, "blocked by sleep in C code that holds the GIL"),
        in_stress(loop_in_c, "running"),
        in_stress(loop_in_python, "running"),
        in_stress(sleeping, "blocked by sleep"),
        important(stopped, "stopped by a signal (SIGSTOP)"),
        important(subprocess_wait, "blocked by a process"),
        in_stress(subprocess_output, "blocked by events"),
        in_stress(pipe, "blocked by a pipe"),
        in_stress(full_pipe, "blocked by a pipe"),
        in_stress(fifo, "blocked by a pipe"),
        in_stress(thread_join, "blocked by a lock"),
        in_stress(deadlock, "blocked by a lock"),
        important(loader_worker, "blocked by events"),
    ],
)
def test_a_program_that_does_not_go_on_is_looked_at_now(situation, state):
    where = f"in {line_of(situation)}, main thread {state}"
    worker = (
        f"blocked by sleep at {__file__}:{WORKER_LINE} Stuck.__getitem__"
        if situation is loader_worker
        else ""
    )
    with job(situation):
        found, text = last_words(lambda text: where in text and worker in text)
    assert (where in text, worker in text, found.ranks[0].step) == (True, True, LAST_STEP), text
    assert "last sample" not in text


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("situation", "reason", "what", "has_line"),
    [
        important(killed, "gone", "ended without a word in step 30", False),
        important(segmentation_fault, "gone", "crashed in step 30 with SIGSEGV", True),
        in_stress(aborted, "gone", "crashed in step 30 with SIGABRT", True),
        in_stress(exits_at_once, "gone", "ended without a word in step 30", False),
        important(raised, "crash", "ValueError: the real cause", True),
        in_stress(raised_in_torch, "crash", "RuntimeError: The size of tensor a (3)", True),
        in_stress(raised_in_library, "crash", "TypeError: 3 is not a callable object", True),
        in_stress(memory_error, "oom", "MemoryError", True),
        in_stress(torch_memory_error, "oom", "RuntimeError: ", True),
        in_stress(loss_is_nan, "nan", "the loss of step 30 is nan", False),
        in_stress(terminated, "exit", "SIGTERM", True),
        in_stress(dead_loader_worker, "crash", "RuntimeError: DataLoader worker", True),
        in_stress(little_address_space, "oom", "MemoryError", True),
        in_stress(recursion, "crash", "RecursionError: ", True),
        in_stress(exits_with_1, "exit", "sys.exit(1)", True),
    ],
)
def test_the_end_of_a_program_is_told_with_its_cause_and_step(situation, reason, what, has_line):
    with job(situation) as (child,):
        os.waitpid(child, 0)
    found, text = last_words()
    (rank,) = found.ranks
    # A loss is looked at between two steps.
    assert (found.reason, rank.step or rank.last_step) == (reason, LAST_STEP), text
    assert what in found.sentence
    if has_line:
        # Without room for a copy of the ring only the incident's own words are left.
        assert f" {line_of(situation).partition(' ')[0]}" in text
    elif reason == "gone" and f"in {line_of(situation)}" not in text:
        # At most a second before the end, whether the step is recorded or not.
        is_dated = "  last sample, " in text and " before the process was last seen" in text
        assert is_dated or "where in the step is unknown" in text, text


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("situation", "begins", "has_line"),
    [
        in_stress(lock, "rank 1 holds up the job: blocked by a lock", True),
        in_stress(loop_in_python, "rank 1 holds up the job: running", True),
        important(
            gil_held_in_c, "rank 1 holds up the job: blocked by sleep in C code that holds the GIL", True
        ),
        in_stress(stopped, "rank 1 is stopped by a signal (SIGSTOP)", True),
        in_stress(killed, "rank 1 ended without a word in step 30", False),
        in_stress(raised, "crash of rank 1 at ", True),
        in_stress(sleeping, "rank 1 holds up the job: blocked by sleep", True),
        in_stress(subprocess_wait, "rank 1 holds up the job: blocked by a process", True),
        in_stress(loader_worker, "rank 1 holds up the job: blocked by events", True),
        in_stress(raised_in_torch, "crash of rank 1 at ", True),
        in_stress(exits_with_1, "exit of rank 1 at ", True),
        in_stress(exits_at_once, "rank 1 ended without a word in step 30", False),
        in_stress(segmentation_fault, "rank 1 crashed in step 30 with SIGSEGV", True),
        in_stress(aborted, "rank 1 crashed in step 30 with SIGABRT", True),
    ],
)
def test_the_rank_that_holds_up_a_job_or_failed_first_is_named(situation, begins, has_line):
    def is_told(text):
        first = text.partition(": ")[2].split("\n", 1)[0]
        return first.startswith(begins) and "rank 0" in first

    with job(situation, ranks=2) as children:
        if situation in ENDS:
            for child in children:
                os.waitpid(child, 0)
        _, text = last_words(is_told)
    assert is_told(text), text
    if has_line:
        assert line_of(situation) in text
