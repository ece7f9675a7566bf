"""Stacks of the last samples, from a recording that goes on."""

import threading

import torch

import kinetoscope
from kinetoscope.flight.live_stacks import StackLine, ThreadStack
from kinetoscope.flight.ring_stacks import ring_stacks, stacks_text


def test_the_last_sample_of_each_thread_is_read_while_it_runs(tmp_path):
    path = tmp_path / "ring.recording"
    ended = threading.Event()

    def wait_here():
        torch.ones(2).add_(1)
        ended.wait()

    thread = threading.Thread(target=wait_here, name="waiting one")
    with kinetoscope.profile(engine="native", path=path, ring_bytes=1 << 20):
        thread.start()
        found = []
        # On a busy machine, it may be sampled before it waits.
        while not any("wait_here" in line.function for stack in found for line in stack.lines[:-1]):
            torch.ones(2).add_(1)
            found = ring_stacks(path)
        ended.set()
        thread.join()
    waiting = next(stack for stack in found if any("wait_here" in line.function for line in stack.lines[:-1]))
    at = next(line for line in waiting.lines if "wait_here" in line.function)
    assert at.file == __file__
    assert waiting.time_ns > 0


def test_as_text():
    stack = ThreadStack(
        "main",
        77,
        "blocked",
        5_000_000_000,
        (StackLine("train.py", 3, "<module>"), StackLine("train.py", 9, "step")),
    )
    assert stacks_text([stack], 7_000_000_000) == (
        "thread main (77), blocked when it was sampled 2 s ago\n  train.py:3 <module>\n  train.py:9 step\n"
    )
    assert "no samples" in stacks_text([])
