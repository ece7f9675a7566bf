"""Rings in which every step has names, shapes and metadata of its own: all that is kept is named right, whatever was collected."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import kinetoscope
from kinetoscope import ProfilerActivity
from kinetoscope.collect.recorder.library import load_recorder
from kinetoscope.collect.recorder.stream import STREAM
from kinetoscope.storage.live_recording import LAYOUT
from tests.support.effort import times
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

pytestmark = pytest.mark.usefixtures("native")

CPU = [ProfilerActivity.CPU]
RING_BYTES = 600_000
TRIALS = times(4, 150)


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul(2)


def request(model: torch.nn.Module, worker: int, number: int) -> None:
    """Work whose name says the shape that its operators get."""
    with torch.profiler.record_function(f"request {worker} {number}"):
        model(torch.empty(number % 100 + 1))


def session(**options: Any) -> kinetoscope.profile:
    return kinetoscope.profile(activities=CPU, engine="native", ring_bytes=RING_BYTES, **options)


def misnamed(trace: kinetoscope.Trace) -> list[Any]:
    """Operators that are not what the request around them says, and requests that are out of order."""
    wrong: list[Any] = []
    numbers: dict[int, list[int]] = {}
    rows = trace.table("spans").to_pylist()
    within: dict[int, tuple[int, int]] = {}
    for row in sorted(rows, key=lambda row: row["start_ns"]):
        thread, start_ns = row["thread"], row["start_ns"]
        if row["name"].startswith("request "):
            worker, number = (int(text) for text in row["name"].split()[1:])
            numbers.setdefault(worker, []).append(number)
            within[thread] = number, start_ns + row["duration_ns"]
        elif row["name"] == "aten::mul" and start_ns < within.get(thread, (0, 0))[1]:
            size = within[thread][0] % 100 + 1
            shape, module, stack = row["shapes"], row["module"], row["stack"]
            right = (shape is None or f"[{size}]" in str(shape)) and (
                module is None or "Doubled" in str(module)
            )
            if not right or (stack is not None and "forward" not in str(stack)):
                wrong.append((size, shape, module, stack))
        elif not row["name"]:
            wrong.append(row)
    # A chunk with something open is kept a while longer than those after it, so that some may be missing in between.
    wrong += [(worker, found) for worker, found in numbers.items() if found != sorted(set(found))]
    return wrong


def collections(path: Path) -> int:
    """How often the dictionary of a recording was collected."""
    with path.open("rb") as file:
        file.seek(LAYOUT["header.dictionary_collections"])
        return int(struct.unpack("<Q", file.read(8))[0])


@pytest.mark.parametrize(
    "options", [{}, {"record_shapes": True}, {"python_calls": True, "record_shapes": True}]
)
def test_three_threads_keep_the_names_of_what_a_ring_has(options: dict[str, bool], tmp_path: Path) -> None:
    count = times(3_000, 100_000)
    model = Doubled()
    path = tmp_path / "ring.ktrace"

    def work(worker: int) -> None:
        for number in range(count):
            request(model, worker, number)

    with session(path=path, samples=True, **options) as prof:
        workers = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
        for one in workers:
            one.start()
        copies = []
        while any(one.is_alive() for one in workers):
            STREAM.clone(tmp_path / "copy.ktrace")
            with kinetoscope.open(tmp_path / "copy.ktrace") as copy:
                copies.append(misnamed(copy))
        for one in workers:
            one.join()
    codes = {row["code"] for row in prof.trace.losses}
    assert not any(copies)
    assert misnamed(prof.trace) == []
    assert "recycled_spans" in codes
    # Nothing is freed while a copy is made: what finds no room then is counted.
    allowed = {
        "recycled_spans",
        "recycled_samples",
        "torn_samples",
        "recycled_allocations",
        "limited_dictionary",
    }
    assert codes <= allowed
    assert collections(path) > 0


def record_until_killed(path: Path, progress: mmap.mmap, model: torch.nn.Module) -> None:
    """The child: says after each request how many there were."""
    prof = session(path=path, record_shapes=True)
    prof.start()
    # Ends by itself, should nobody be left to kill it.
    for number in range(500_000):
        request(model, 0, number)
        progress[:8] = struct.pack("<Q", number)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    model = Doubled()
    with session():
        request(model, 0, 0)
    load_recorder()
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    progress = mmap.mmap(-1, 8)
    collected = 0
    for trial in range(TRIALS):
        path = tmp_path / f"{trial}.ktrace"
        progress[:8] = struct.pack("<Q", 0)
        child = os.fork()
        if child == 0:
            try:
                record_until_killed(path, progress, model)
            finally:
                os._exit(1)
        wanted = chance.randrange(4_000, 12_000)
        while struct.unpack("<Q", progress[:8])[0] < wanted:
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child died by itself"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done = struct.unpack("<Q", progress[:8])[0]
        where = f"trial {trial}, seed {seed}, {done} requests done"
        with kinetoscope.open(path) as trace:
            assert misnamed(trace) == [], where
            last = [
                row["name"] for row in trace.table("spans").to_pylist() if row["name"].startswith("request")
            ][-1]
            assert int(last.split()[-1]) >= done, where
            assert "limited_dictionary" not in {row["code"] for row in trace.losses}, where
        collected += collections(path)
    assert collected > 0
