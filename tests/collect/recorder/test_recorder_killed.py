"""A recording whose process was killed at a random moment: it opens, and nothing that was committed is missing."""

from __future__ import annotations

import gc
import json
import mmap
import os
import random
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

import kinetoscope
import kinetoscope._core as _core
from kinetoscope import ProfilerActivity
from kinetoscope.collect.recorder.library import load_recorder
from tests.support.effort import times
from tests.support.programs import training_step

TRIALS = times(8, 120)
STEPS_AT_LEAST = 2


def make_program() -> Any:
    """A training step small enough to be killed everywhere inside of it."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    x = torch.ones(2, 4)
    return training_step(model, lambda: model(x).sum())


def record_until_killed(path: Path, progress: mmap.mmap, step: Any) -> None:
    """The child: records steps and says after each one how many are done."""
    prof = kinetoscope.profile(
        activities=[ProfilerActivity.CPU], engine="native", path=path, profile_memory=True, record_shapes=True
    )
    prof.start()
    recorder = load_recorder()
    # Ends by itself, should nobody be left to kill it.
    for number in range(1, 2_000):
        step()
        recorder.append("steps", {"number": [number]})
        with torch.profiler.record_function("mark"):
            progress[:8] = struct.pack("<Q", number)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    # Load, compile and test the recorder once, so that the children need not.
    step = make_program()
    with kinetoscope.profile(activities=[ProfilerActivity.CPU], engine="native"):
        step()
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    progress = mmap.mmap(-1, 8)
    # A recording of memory looks at every object of Python's collector, which costs each child a copy of its page.
    gc.freeze()
    for trial in range(TRIALS):
        path = tmp_path / f"{trial}.recording"
        progress[:8] = struct.pack("<Q", 0)
        child = os.fork()
        if child == 0:
            try:
                record_until_killed(path, progress, step)
            finally:
                os._exit(1)
        wanted = STEPS_AT_LEAST + chance.randrange(20)
        while struct.unpack("<Q", progress[:8])[0] < wanted:
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child died by itself"
        # Some moments later, anywhere inside a step.
        for _ in range(chance.randrange(3000)):
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done = struct.unpack("<Q", progress[:8])[0]
        where = f"trial {trial}, seed {seed}, {done} steps done"
        with kinetoscope.open(path) as trace:
            assert not trace.complete, where
            assert trace.info["complete"] is False, where
            names = [trace.strings[name] for name in trace.column("spans", "name")]
            # The mark of step n begins before its number is stored, so n marks were committed.
            assert names.count("mark") in (done, done + 1), where
            assert names.count("Optimizer.step#AdamW.step") >= done, where
            assert "" not in names, where
            self_ns = trace.column("spans", "self_ns")
            assert (self_ns >= 0).all(), where
            damaged = [loss for loss in trace.losses if "damaged" in loss["what"]]
            assert not damaged, where
        # Each row was written before the number of its step was stored.
        steps = [json.loads(part["json"]) for part in _core.read_recording(str(path))["rows"]["steps"]]
        assert steps[:done] == [{"number": [number]} for number in range(1, done + 1)], where
        assert len(steps) in (done, done + 1), where
        path.unlink()
