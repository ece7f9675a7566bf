"""What a run without --children says of the processes that the program starts."""

import os
import time

import pytest

from kinetoscope.launcher.unrecorded import children_cpu_s, descendants, unrecorded_children


def test_processes_count_while_they_run_and_when_they_have_ended():
    before_s = children_cpu_s()
    ready, say_ready = os.pipe()
    wait, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        begin_s = time.process_time()
        while time.process_time() < begin_s + 0.1:
            pass
        os.write(say_ready, b"1")
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    os.read(ready, 1)
    # The kernel counts what a running process uses in hundredths of a second.
    assert children_cpu_s() - before_s >= 0.08
    os.close(end)
    os.waitpid(child, 0)
    assert children_cpu_s() - before_s >= 0.08
    for one in (ready, say_ready):
        os.close(one)


@pytest.mark.parametrize(
    ("used_s", "process_s", "said"),
    [
        (12.5, 100.0, True),
        (0.5, 1.0, False),  # `git rev-parse` and the like
        (-3.0, 1.0, False),  # recorded processes
        (12.5, 10_000.0, False),
    ],
)
def test_what_they_used_is_said_if_it_is_much(monkeypatch, used_s, process_s, said):
    monkeypatch.setattr(time, "process_time", lambda: process_s)
    messages = unrecorded_children(used_s, "auto")
    assert bool(messages) is said
    if said:
        what = "processes that the program started used 12.5 s of CPU time and are not in the trace"
        assert messages == [f"{what}: `kinetoscope run --children` records those that use PyTorch"]


def test_with_torchs_collector_the_option_needs_another_engine(monkeypatch):
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    assert "--children`, with another engine than kineto," in unrecorded_children(10.0, "kineto")[0]


def test_descendants_are_this_process_and_all_that_it_started():
    wait, end = os.pipe()
    ready, say_ready = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        os.close(end)
        if grandchild:
            os.write(say_ready, str(grandchild).encode())
        os.read(wait, 1)
        os._exit(0)
    grandchild = int(os.read(ready, 20))
    processes = descendants()
    assert processes[0] == os.getpid()
    assert {child, grandchild} <= set(processes)
    os.close(end)
    os.waitpid(child, 0)
    assert child not in descendants()
    for file in (wait, ready, say_ready):
        os.close(file)
