"""Samples of Python stacks, against what Python itself says about its threads."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

import kinetoscope
from kinetoscope import Trace
from kinetoscope.model.schema import SampleState
from tests.support import warm_python
from tests.support.blocked_programs import PROGRAMS, Blocked, blocked, in_a_sort, stack_in_python
from tests.support.recorded import profile

PATIENCE_S = 60.0


def wait_for(path: Path, wanted: Callable[[Trace], bool]) -> None:
    """Reads the running recording until it has what a test wants."""
    until = time.monotonic() + PATIENCE_S
    while not wanted(Trace.from_recording(path)):
        assert time.monotonic() < until, "the sampler did not take the samples that this test waits for"


def stacks_of(trace: Trace) -> list[tuple[tuple[str, str, int], ...]]:
    """The stack of each sample, outermost first: function, file and line of each frame."""
    parent, frame = (trace.column("stacks", name).tolist() for name in ("parent", "frame"))
    function, file, line = (trace.column("frames", name).tolist() for name in ("function", "file", "line"))
    stacks = []
    for row in trace.column("samples", "stack").tolist():
        found = []
        at = row
        while at >= 0:
            one = frame[at]
            found.append((trace.strings[function[one]], trace.strings[file[one]], line[one]))
            at = parent[at]
        stacks.append(tuple(reversed(found)))
    return stacks


def stacks_and_states(trace: Trace) -> list[tuple[object, SampleState]]:
    """The stack of each sample and what its thread did."""
    return list(
        zip(stacks_of(trace), map(SampleState, trace.column("samples", "state").tolist()), strict=True)
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_stack_of_a_waiting_thread_is_the_one_that_python_shows(tmp_path, program):
    path = tmp_path / "live.recording"
    with blocked(program) as thread:
        expected = stack_in_python(thread)
        with profile(path=path):
            wait_for(path, lambda trace: expected in stacks_of(trace))
    trace = kinetoscope.open(path)
    rows = [row for row in trace.samples().to_pylist() if row["thread_name"] == "blocked"]
    assert rows
    assert {row["stack_row"] for row in rows} == {rows[0]["stack_row"]}
    assert {row["state"] for row in rows} <= {"blocked", "running"}


def busy_in_a_child() -> None:
    while True:
        sum(range(1000))


def test_a_forked_process_is_sampled_as_a_thread_with_its_id(tmp_path):
    path = tmp_path / "live.recording"
    child = multiprocessing.get_context("fork").Process(target=busy_in_a_child, daemon=True)

    def lines_of_child(trace: Trace) -> list[tuple[object, ...]]:
        threads = trace.column("threads", "os_tid")[trace.column("samples", "thread")]
        return [
            stack
            for stack, thread in zip(stacks_of(trace), threads.tolist(), strict=True)
            if thread == child.pid and stack[-1][0] == "busy_in_a_child"
        ]

    with profile(path=path):
        child.start()
        wait_for(path, lambda trace: len(lines_of_child(trace)) >= 3)
        child.kill()
        child.join()
        torch.ones(3)
    trace = kinetoscope.open(path)
    assert {stack[-1][1] for stack in lines_of_child(trace)} == {__file__}
    rows = trace.columns("samples")
    of_child = trace.column("threads", "os_tid")[rows["thread"]] == child.pid
    # They account for no more time than there was, and say nothing of what the process waited for.
    assert rows["period_ns"][of_child].sum() <= trace.duration_ns
    assert set(rows["state"][of_child].tolist()) == {SampleState.UNKNOWN}


def test_another_program_that_was_started_is_not_sampled(tmp_path):
    path = tmp_path / "live.recording"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        with profile(path=path):
            wait_for(path, lambda trace: len(trace.columns("samples")) >= 100)
        child.communicate(b"\n")
    assert child.pid not in kinetoscope.open(path).column("threads", "os_tid").tolist()


def test_a_thread_that_never_runs_takes_nothing_from_the_one_that_created_it(tmp_path):
    path, python = tmp_path / "live.recording", ctypes.pythonapi
    python.PyInterpreterState_Get.restype = python.PyThreadState_New.restype = ctypes.c_void_p

    def wait_for_rounds(more: int) -> None:
        def rounds(trace: Trace) -> int:
            return len(set(trace.column("samples", "time_ns").tolist()))

        before = rounds(Trace.from_recording(path))
        wait_for(path, lambda trace: rounds(trace) >= before + more)

    with profile(path=path):
        # On Python 3.11 it has the system's number of this thread until it runs.
        state = ctypes.c_void_p(python.PyThreadState_New(ctypes.c_void_p(python.PyInterpreterState_Get())))
        wait_for_rounds(3)
        python.PyThreadState_Clear(state)
        python.PyThreadState_Delete(state)
        wait_for_rounds(3)
        torch.ones(3)
    threads = kinetoscope.open(path).column("threads", "os_tid").tolist()
    assert threads.count(threading.get_native_id()) == 1


def test_of_a_deep_stack_the_innermost_frames_are_kept(tmp_path):
    def deep(here: Blocked, more: int = 800) -> None:
        if more == 0:
            here.wait()
        else:
            deep(here, more - 1)

    path = tmp_path / "live.recording"
    with blocked(deep) as thread:
        expected = stack_in_python(thread)
        with profile(path=path):
            wait_for(path, lambda trace: expected[-512:] in stacks_of(trace))


def test_samples_have_the_rows_of_the_operators_around_them(tmp_path):
    path = tmp_path / "live.recording"

    class Net(torch.nn.Module):
        def forward(self, x):
            x = x + 1
            total = 0
            for number in range(20_000):
                total += number
            return x - total

    net = torch.nn.Sequential(Net())

    def in_loop(trace: Trace) -> bool:
        return any(stack[-1][0].endswith("Net.forward") for stack in stacks_of(trace))

    with profile(path=path):
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for _ in range(20):
                net(torch.ones(2))
            if in_loop(Trace.from_recording(path)):
                break
    trace = kinetoscope.open(path)
    stacks = stacks_of(trace)
    (row, *_) = [row for row, stack in enumerate(stacks) if stack[-1][0].endswith("Net.forward")]
    module = trace.column("samples", "module")[row]
    assert trace.columns("modules")["path"][module] == "0"
    # The caller of the line is the same row for operators of the same call.
    parents = trace.column("stacks", "parent")
    of_operators = {parents[stack] for stack in trace.column("spans", "own_stack").tolist() if stack >= 0}
    assert parents[trace.column("samples", "stack")[row]] in of_operators
    thread = trace.column("samples", "thread")[row]
    assert trace.column("spans", "thread").tolist().count(thread) == len(trace.columns("spans"))
    assert trace.column("samples", "state")[row] in (SampleState.RUNNING, SampleState.BLOCKED)


def test_a_thread_that_waits_for_the_gil_says_so(tmp_path):
    path, done = tmp_path / "live.recording", threading.Event()

    def burn() -> None:
        while not done.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=burn, name="burning") for _ in range(3)]
    for thread in threads:
        thread.start()

    def states(trace: Trace) -> Counter[str]:
        rows = trace.samples().select(["state", "function"]).to_pylist()
        return Counter(row["state"] for row in rows if row["function"].endswith("burn"))

    try:
        with profile(path=path):
            wait_for(path, lambda trace: {"running", "waiting for the GIL"} <= set(states(trace)))
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_samples_can_be_left_out(tmp_path):
    path = tmp_path / "live.recording"
    with blocked(in_a_sort), profile(path=path, samples=False):
        torch.ones(2)
    trace = kinetoscope.open(path)
    assert trace.samples().num_rows == 0
    assert "sample_interval_ns" not in trace.info
    assert trace.table("losses").num_rows == 0


def test_the_metadata_names_the_rate():
    with profile() as session:
        torch.ones(2)
    assert session.trace.info["sample_interval_ns"] == 10_000_000


def test_a_ring_has_more_samples_as_it_keeps_few_steps(tmp_path):
    with profile(path=tmp_path / "live.recording", ring_bytes=8 << 20) as session:
        torch.ones(2)
    assert session.trace.info["sample_interval_ns"] == 2_500_000


def test_times_lie_in_the_recording_and_in_order(tmp_path):
    path = tmp_path / "live.recording"
    with blocked(in_a_sort), profile(path=path):
        wait_for(path, lambda trace: len(trace.columns("samples")) > 5)
    trace = kinetoscope.open(path)
    time_ns, period_ns = (trace.column("samples", name) for name in ("time_ns", "period_ns"))
    assert (time_ns[1:] >= time_ns[:-1]).all()
    assert (period_ns > 0).all()
    assert (time_ns - period_ns >= 0).all()
    assert time_ns.max() <= trace.duration_ns
    waited_ns = trace.column("samples", "waited_ns")
    if Path("/proc/self/schedstat").exists():
        names = trace.samples().column("thread_name").to_pylist()
        # Of the first round, nothing is known. A thread whose stack changed while it was read has no sample in it.
        for thread in set(names):
            first, *later = (
                waited for waited, name in zip(waited_ns.tolist(), names, strict=True) if name == thread
            )
            assert first == -1 or thread != "blocked"
            assert min(later, default=0) >= 0
    else:
        assert "unknown_waits" in [loss["code"] for loss in trace.losses]
    # Every thread is read at the same moment, and stands for the same time.
    assert period_ns[trace.column("samples", "thread") == 0].sum() <= trace.duration_ns


def test_paused_recordings_take_no_samples(tmp_path):
    path = tmp_path / "live.recording"

    def rounds() -> int:
        return len(set(Trace.from_recording(path).column("samples", "time_ns").tolist()))

    with profile(path=path) as session:
        wait_for(path, lambda trace: len(trace.columns("samples")) > 0)
        session.toggle_collection_dynamic(False, [kinetoscope.ProfilerActivity.CPU])
        before = rounds()
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            pass
        # One may have begun before the pause.
        assert rounds() <= before + 1
        session.toggle_collection_dynamic(True, [kinetoscope.ProfilerActivity.CPU])
        wait_for(path, lambda trace: len(set(trace.column("samples", "time_ns").tolist())) > before + 2)


def test_a_sample_after_a_pause_knows_no_wait(tmp_path):
    path = tmp_path / "live.recording"
    cpu = [kinetoscope.ProfilerActivity.CPU]

    def unknown(trace) -> int:
        samples = trace.columns("samples")
        return int((samples["waited_ns"][samples["thread"] == samples["thread"][0]] < 0).sum())

    with profile(path=path) as session:
        wait_for(path, lambda trace: len(trace.columns("samples")) > 2)
        before = unknown(Trace.from_recording(path))

        def pauses_again(_: Trace) -> bool:
            # The sampler sees a pause only if it lasts until it looks.
            session.toggle_collection_dynamic(False, cpu)
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass
            session.toggle_collection_dynamic(True, cpu)
            taken = len(Trace.from_recording(path).columns("samples"))
            # Pauses that follow each other too soon leave no time for a sample.
            wait_for(path, lambda trace: len(trace.columns("samples")) > taken)
            return unknown(Trace.from_recording(path)) > before

        # Else it has all that the thread waited since the sample before the pause.
        wait_for(path, pauses_again)


def test_there_is_one_sampler_for_all_cycles_and_none_in_a_forked_child(tmp_path):
    program = """
import os, threading, time, warnings
import torch, kinetoscope
from kinetoscope import profile, Trace

# Python 3.12 and newer warn of forks of processes with several threads.
warnings.simplefilter("ignore", DeprecationWarning)

def samplers():
    names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
    return names.count("kscope sampler")

def sampled(path):
    while len(Trace.from_recording(path).columns("samples")) < 2:
        torch.ones(2)

for cycle in range(3):
    with profile(engine="native", path="parent.recording") as prof:
        sampled("parent.recording")
        assert samplers() == 1
        child = os.fork()
        if child == 0:
            assert samplers() == 0
            files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
            assert not [name for name in files if "/task/" in name]
            with profile(engine="native", path=f"child{cycle}.recording") as own:
                assert samplers() == 1
                sampled(f"child{cycle}.recording")
            assert set(own.trace.column("samples", "thread").tolist()) == {0}
            assert own.trace.column("threads", "os_tid").tolist() == [os.getpid()]
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        sampled("parent.recording")
print("done")
"""
    done = warm_python.run("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_threads_that_come_and_go_do_no_harm(tmp_path):
    path = tmp_path / "live.recording"
    started = 0
    with profile(path=path):
        until = time.monotonic() + PATIENCE_S
        seen: set[int] = set()
        while len(seen) < 5 and time.monotonic() < until:
            threads = [threading.Thread(target=sum, args=(range(3000),)) for _ in range(30)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            started += 30
            if started % 300 == 0:
                seen = set(Trace.from_recording(path).column("samples", "time_ns").tolist())
    trace = kinetoscope.open(path)
    assert set(trace.columns("losses")["code"]) <= {"torn_samples"}


def test_code_that_comes_and_goes_keeps_its_names(tmp_path):
    path = tmp_path / "live.recording"
    text = "def work{0}():\n    total = 0\n    for number in range(20_000):\n        total += number\n    return total\nwork{0}()\n"
    with profile(path=path):
        until = time.monotonic() + PATIENCE_S
        built = 0
        seen = 0
        while seen < 20 and time.monotonic() < until:
            for _ in range(50):
                built += 1
                exec(compile(text.format(built), f"built{built}.py", "exec"), {})
            seen = len(Trace.from_recording(path).columns("samples"))
    trace = kinetoscope.open(path)
    inner = [frame for stack in stacks_of(trace) for frame in stack if frame[1].startswith("built")]
    assert inner
    for function, file, line in inner:
        number = file.removeprefix("built").removesuffix(".py")
        assert (function, line) in {
            ("<module>", 1), ("<module>", 6), *((f"work{number}", line) for line in range(1, 6)),
        }  # fmt: skip


_FORBID = """
import ctypes, platform, struct
def forbid(*calls):
    # Each call of these numbers fails with EPERM from here on, in every thread.
    libc = ctypes.CDLL(None, use_errno=True)
    rules = struct.pack("HBBI", 0x20, 0, 0, 0)
    for place, call in enumerate(calls):
        rules += struct.pack("HBBI", 0x15, len(calls) - place, 0, call)
    rules += struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000) + struct.pack("HBBI", 0x06, 0, 0, 0x00050001)
    kept = ctypes.create_string_buffer(rules)
    program = struct.pack("HxxxxxxP", len(rules) // 8, ctypes.addressof(kept))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    # Not prctl(): that one filters the calling thread only.
    number = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    assert libc.syscall(number, 1, 1, ctypes.create_string_buffer(program)) == 0, ctypes.get_errno()
X86 = platform.machine() == "x86_64"
PROCESS_VM_READV, PREAD64 = (310, 17) if X86 else (270, 67)
"""


@pytest.mark.parametrize(
    ("calls", "expected"),
    [("PROCESS_VM_READV", "sampled"), ("PROCESS_VM_READV, PREAD64", "samples_missing")],
)
def test_where_reading_memory_is_forbidden(tmp_path, calls, expected):
    program = f"""{_FORBID}
import torch, kinetoscope, time
from kinetoscope import profile, Trace
with profile(engine="native", samples=False):
    torch.ones(2)
forbid({calls})
with profile(engine="native", path="live.recording") as prof:
    until = time.monotonic() + {PATIENCE_S}
    while {expected == "sampled"} and len(Trace.from_recording("live.recording").columns("samples")) < 3:
        assert time.monotonic() < until
trace = kinetoscope.open("live.recording")
codes = trace.columns("losses")["code"]
print("sampled" if len(trace.columns("samples")) else "", *codes, sep="")
for why in trace.columns("losses")["why"]:
    assert "process_vm_readv" in why, why
"""
    done = warm_python.run("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{expected}\n", "")


@pytest.mark.parametrize(
    "ending", ["", "os._exit(3)", "sys.exit(3)", "os.kill(os.getpid(), 9)", "raise KeyError(3)"]
)
def test_every_end_of_a_process_leaves_a_readable_recording(tmp_path, ending):
    program = f"""
import os, sys, threading, time
import torch, kinetoscope
from kinetoscope import profile, Trace

def burn():
    while True:
        sum(range(1000))
for _ in range(3):
    threading.Thread(target=burn, daemon=True).start()
prof = profile(engine="native", path="live.recording")
prof.start()
while len(Trace.from_recording("live.recording").columns("samples")) < 8:
    torch.ones(2)
{ending}
"""
    done = warm_python.run("-c", program, cwd=tmp_path)
    assert done.returncode == {"": 0, "os.kill(os.getpid(), 9)": -9, "raise KeyError(3)": 1}.get(ending, 3)
    trace = kinetoscope.open(tmp_path / "live.recording")
    assert len(trace.columns("samples")) >= 8
    assert {row["function"] for row in trace.samples().to_pylist()} & {"burn"}


def test_a_subinterpreter_does_no_harm(tmp_path):
    program = """
import threading
import torch, kinetoscope
from kinetoscope import profile, Trace
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
with profile(engine="native", path="live.recording") as prof:
    made = interpreters.create()
    def run():
        interpreters.run_string(made, "total = 0\\nfor number in range(3_000_000):\\n    total += number\\n")
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    interpreters.destroy(made)
    while len(Trace.from_recording("live.recording").columns("samples")) < 3:
        torch.ones(2)
print("done")
"""
    done = warm_python.run("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_torchs_collector_takes_no_samples():
    with kinetoscope.profile(engine="kineto") as session:
        torch.ones(2)
    assert session.trace.samples().num_rows == 0


def test_file_descriptors_are_given_back(tmp_path):
    path = tmp_path / "live.recording"

    def descriptors() -> set[str]:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{name}"))
            except FileNotFoundError:
                continue
        return {name for name in found if "/task/" in name or name.endswith("/mem")}

    with profile(path=path):
        wait_for(path, lambda trace: len(trace.columns("samples")) > 2)
    assert descriptors() == set()


def read_of_a_pipe():
    ours, theirs = os.pipe()

    def wait():
        with os.fdopen(ours, "rb") as source:
            source.read()

    return wait, partial(os.close, theirs)


def answer_of_a_socket():
    ours, theirs = socket.socketpair()

    def wait():
        with ours:
            ours.recv(1)

    return wait, theirs.close


def answer_of_a_socket_with_a_timeout():
    ours, theirs = socket.socketpair()
    ours.settimeout(60.0)

    def wait():
        with ours:
            ours.recv(1)

    return wait, theirs.close


def end_of_a_process():
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    return process.wait, partial(process.communicate, b"\n")


def lock_of_another_thread():
    lock = threading.Lock()
    lock.acquire()
    return lock.acquire, lock.release


def waits_of(trace, thread):
    """What a thread waits for: others of the process may wait for the same."""
    rows = trace.samples().select(["os_tid", "waits_for"]).to_pylist()
    return {row["waits_for"] for row in rows if row["os_tid"] == thread.native_id}


@pytest.mark.parametrize(
    ("make", "waits_for"),
    [
        (read_of_a_pipe, "a pipe"),
        (answer_of_a_socket, "a socket"),
        (answer_of_a_socket_with_a_timeout, "a socket"),
        (end_of_a_process, "a process"),
        (lock_of_another_thread, "a lock"),
    ],
)
def test_a_blocked_thread_says_what_it_waits_for(tmp_path, make, waits_for):
    try:
        Path("/proc/thread-self/syscall").read_text()
    except OSError as error:
        pytest.skip(f"the system does not say in which call a thread is: {error}")
    path = tmp_path / "live.recording"
    wait, release = make()
    thread = threading.Thread(target=wait, name="waiting")
    thread.start()

    try:
        with profile(path=path):
            wait_for(path, lambda trace: waits_for in waits_of(trace, thread))
    finally:
        release()
        thread.join()
    assert waits_for in waits_of(kinetoscope.open(path), thread)
