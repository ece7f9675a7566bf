"""Programs that are killed, crash or have no room: the program is not hurt, and what is left of it is found."""

from __future__ import annotations

import gc
import os
import random
import signal
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import kinetoscope
from kinetoscope.flight.jobs import GONE, HANGS, attempts_in, state_of
from kinetoscope.flight.last import last_event
from kinetoscope.flight.step_log import read_step_log
from kinetoscope.flight.unclean_exits import rescue_rings
from tests.flight.test_last import HANGS as HANGING_PROGRAM
from tests.flight.test_last import LINE, PATIENCE_S, hanging, look_again, wait_for_incident
from tests.support import warm_python
from tests.support.effort import times
from tests.support.small_disk import tmpfs

# In `make stress`, 500 programs are killed.
SERIES, KILLED = times(1, 50), times(3, 10)
REPEATED = times(1, 25)
FIRST_STEP = 1000


def train(folder, says, record_all):
    """The child: says in each step, through a pipe, which one it is."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = kinetoscope.leave_on(keep="4MiB", folder=folder)
    if record_all:
        recorder._follow_plan = lambda *_: None
        recorder._plan.records = lambda step: True
    # Ends by itself, should nobody be left to kill it.
    for number in range(FIRST_STEP, 50_000):
        recorder.step(number)
        os.write(says, struct.pack("<Q", number))
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


def next_number(told):
    """The next number that a child says, or None once it has ended."""
    text = told.read(8)
    return struct.unpack("<Q", text)[0] if text else None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("series", range(SERIES))
def test_killed_at_random_moments(tmp_path, series):
    # Load and test the recorder once, so that the children need not.
    with kinetoscope.profile(activities=[torch.profiler.ProfilerActivity.CPU], engine="native"):
        torch.ones(2).add(1)
    seed = random.SystemRandom().randrange(1 << 32) + series
    chance = random.Random(seed)
    gc.freeze()
    before = None
    for trial in range(KILLED):
        hears, says = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                train(tmp_path, says, trial % 2 == 0)
            finally:
                os._exit(1)
        os.close(says)
        with open(hears, "rb") as told:
            wanted = FIRST_STEP + chance.randrange(60)
            while (number := next_number(told)) != wanted:
                assert number is not None, f"seed {seed}: the child died by itself"
            for _ in range(chance.randrange(3000)):
                pass
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            while (after := next_number(told)) is not None:
                number = after
        where = f"trial {trial}, seed {seed}, child {child}"
        # The start of this one has made an incident of the one before.
        if before is not None:
            kept = last_event(str(before[0]), tmp_path)
            assert (kept.reason, kept.ranks[0].step) == (GONE, before[1]), where
            assert "/incidents/" in kept.folder, where
        found = last_event(str(child), tmp_path)
        (rank,) = found.ranks
        assert (found.reason, rank.rank, rank.process, rank.problem) == (GONE, 0, child, ""), where
        # It may have been killed between the log and the word to us, or between the end of a step in the log and the next one.
        assert rank.step in (number, number + 1), where
        assert rank.last_step is None or rank.last_step <= rank.step, where
        before = child, rank.step
    (made,) = rescue_rings(tmp_path)
    with kinetoscope.open(made) as trace:
        assert not trace.complete
        numbers = trace.columns("steps")["number"].tolist()
    assert set(numbers) <= set(range(FIRST_STEP, before[1] + 1))
    # The budget leaves out most of the steps of an uneven trial, which may have had a few of them.
    assert numbers or trial % 2
    assert all(ring.state != GONE for attempt in attempts_in(tmp_path) for ring in attempt.rings())


PROGRAM = """
import ctypes, os, resource, signal, sys, warnings
import torch, kinetoscope

@torch.library.custom_op("deaths::sum", mutates_args=())
def total(x: torch.Tensor) -> torch.Tensor:
    {inside}  # here
    return x.sum()

{before}
recorder = kinetoscope.leave_on(keep="4MiB", folder={folder!r})
recorder._follow_plan = lambda *_: None
recorder._plan.records = lambda step: True
{started}
found = 0.0
for number in range(500, 540):
    recorder.step(number)
    x = torch.full((64,), float(number))
    if number == 539:
        found += float(total(x))
    found += float(x.sum())
recorder.snapshot("end")
recorder.stop()
print(found)
"""
RESULT = f"{sum(64.0 * number for number in range(500, 540)) + 64.0 * 539}\n"


def program(folder, *, inside="pass", before="pass", started="pass"):
    return PROGRAM.format(folder=str(folder), inside=inside, before=before, started=started)


def run(folder, text):
    (folder / "train.py").write_text(text)
    return warm_python.run(str(folder / "train.py"), cwd=folder)


def line_of(folder):
    lines = (folder / "train.py").read_text().splitlines()
    return f"{folder / 'train.py'}:{next(at for at, line in enumerate(lines, 1) if line.endswith('# here'))} total"


@pytest.mark.parametrize(
    ("inside", "ended_by"),
    [
        ("ctypes.string_at(0)", signal.SIGSEGV),
        ("os.abort()", signal.SIGABRT),
        ("os.kill(os.getpid(), signal.SIGKILL)", signal.SIGKILL),
    ],
)
def test_a_crash_inside_of_an_operator_names_it(tmp_path, inside, ended_by):
    for trial in range(REPEATED):
        folder = tmp_path / str(trial)
        folder.mkdir()
        done = run(folder, program(folder / "jobs", inside=inside))
        assert done.returncode == -ended_by
        found = last_event(None, folder / "jobs")
        (rank,) = found.ranks
        assert (found.reason, rank.step, rank.last_step) == (GONE, 539, 538)
        assert rank.operator == "deaths::sum"
        assert rank.line.startswith(f"{folder / 'train.py'}:")


@pytest.mark.parametrize(
    "inside", ["bytearray(1 << 45)", "torch.empty(1 << 45)"], ids=["by Python", "by torch"]
)
def test_memory_that_is_not_there(tmp_path, inside):
    limit = "resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))"
    done = run(tmp_path, program(tmp_path / "jobs", inside=inside, started=limit))
    assert done.returncode == 1
    found = last_event(None, tmp_path / "jobs")
    assert (found.reason, found.ranks[0].step) == ("oom", 539)
    assert line_of(tmp_path).rpartition(" ")[0] in found.ranks[0].what


@contextmanager
def limited_memory(most_bytes):
    """A control group whose processes have so much memory, where this user may make one."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    v1 = next((path for _, kinds, path in own if "memory" in kinds.split(",")), None)
    v2 = next((path for _, kinds, path in own if not kinds), "/")
    name = f"kinetoscope-{os.getpid()}"
    tree = "/sys/fs/cgroup/memory" + v1 if v1 is not None else "/sys/fs/cgroup" + v2
    group = Path(tree) / name
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"this user cannot make a control group: {error}")
    try:
        limit = group / ("memory.limit_in_bytes" if v1 is not None else "memory.max")
        try:
            limit.write_text(str(most_bytes))
        except OSError as error:
            pytest.skip(f"this user cannot limit the memory of a control group: {error}")
        yield group
    finally:
        group.rmdir()


@pytest.mark.stress("it fills its memory slowly, so that this is noticed")
def test_killed_for_its_memory(tmp_path):
    # Memory is read once a second: the last 50 MiB take longer.
    slowly = "[(torch.ones(1 << 19), __import__('time').sleep(0.1)) for _ in range(400)]"
    inside = f"kept = [torch.ones(1 << 22) for _ in range(26)] + {slowly}"
    (tmp_path / "train.py").write_text(program(tmp_path / "jobs", inside=inside))
    with limited_memory(900 << 20) as group:
        command = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} train.py"
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, check=False, capture_output=True, text=True
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
    found = last_event(None, tmp_path / "jobs")
    (rank,) = found.ranks
    # The incident is from before, when little of the memory was left.
    assert (found.reason, rank.step, rank.last_step) == ("oom", 539, 538)
    assert line_of(tmp_path).rpartition(" ")[0] in rank.line
    assert found.sentence.endswith(": the process has nearly all of the 900 MiB that it may have")


@pytest.mark.parametrize("when", ["before", "started"])
def test_a_disk_on_which_no_file_can_grow(tmp_path, when):
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))"
    done = run(tmp_path, program(tmp_path / "jobs", **{when: limit}))
    assert (done.returncode, done.stdout) == (0, RESULT), done.stderr


@pytest.mark.parametrize("options", ["size=3m", "size=256k", "size=64m", "ro"])
def test_a_disk_that_is_small_or_cannot_be_written(tmp_path, options):
    with tmpfs(tmp_path / "disk", options):
        done = run(tmp_path, program(tmp_path / "disk" / "jobs"))
        assert (done.returncode, done.stdout) == (0, RESULT), done.stderr
        # Where there was room for a ring, what led to a death is found.
        if options in ("size=3m", "size=64m"):
            text = program(tmp_path / "disk" / "jobs", inside="os.kill(os.getpid(), signal.SIGKILL)")
            assert run(tmp_path, text).returncode == -signal.SIGKILL
            found = last_event(None, tmp_path / "disk" / "jobs")
            assert (found.reason, found.ranks[0].step, found.ranks[0].operator) == (GONE, 539, "deaths::sum")


def test_the_disk_becomes_full_while_it_records(tmp_path):
    with tmpfs(tmp_path / "disk", "size=24m"):
        place = str(tmp_path / "disk")
        started = (
            "try:\n"
            f"    with open({place!r} + '/fills', 'wb', buffering=0) as file:\n"
            "        while True:\n"
            "            file.write(bytes(4096))\n"
            "except OSError:\n"
            "    pass"
        )
        done = run(tmp_path, program(tmp_path / "disk" / "jobs", started=started))
        assert (done.returncode, done.stdout) == (0, RESULT), done.stderr


def test_a_stopped_program_hangs_and_goes_on(tmp_path):
    text = program(
        tmp_path / "jobs",
        before="from kinetoscope.flight.triggers import StepTimes",
        started="recorder._times, recorder.quiet_s = StepTimes(0.3, 0.3), 1.0",
        inside="os.kill(os.getpid(), signal.SIGSTOP)",
    )
    (tmp_path / "train.py").write_text(text)
    child = warm_python.start("train.py", cwd=tmp_path)
    until = time.monotonic() + PATIENCE_S
    try:
        while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            look_again(child, until)
        (log,) = tmp_path.glob("jobs/*/0/*.steps")
        while state_of(read_step_log(log), time.monotonic_ns()) != HANGS:
            look_again(child, until)
        found = last_event(None, tmp_path / "jobs")
        (rank,) = found.ranks
        assert (found.reason, rank.state, rank.step, rank.last_step) == ("hang", HANGS, 539, 538)
        assert rank.operator == "deaths::sum"
    finally:
        child.send_signal(signal.SIGCONT)
    assert child.stdout.read() == RESULT
    child.close()


def test_a_pipe_that_nobody_reads(tmp_path):
    full = '__import__("os").write(__import__("os").pipe()[1], bytes(1 << 20))'
    for trial in range(REPEATED):
        folder = tmp_path / str(trial)
        folder.mkdir()
        with hanging(folder, HANGING_PROGRAM.format(hangs=full, recorded="True")) as child:
            wait_for_incident(folder, child)
            found = last_event(None, folder / "jobs")
        (rank,) = found.ranks
        assert (found.reason, rank.step, rank.last_step) == ("hang", 181_049, 181_048)
        assert (rank.operator, rank.module) == ("waiting", "Stuck")
        assert rank.line == f"{folder / 'train.py'}:{LINE} Stuck.forward"
