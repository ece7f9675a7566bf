"""What sources record is in the recording while the program runs: a killed process leaves it, all but its last second."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kinetoscope
import kinetoscope._core as _core
from kinetoscope.model.schema import StorageRole
from tests.support import warm_python
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

pytestmark = pytest.mark.usefixtures("native")

# Two workers make batches without end; with "inner", a session inside of another one records all of it.
TRAINS = """
import sys
import torch
from torch.utils.data import DataLoader, IterableDataset
import kinetoscope
from kinetoscope import DataLoading, SystemCounters

class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(8)

def session(path, ring_bytes=None):
    return kinetoscope.profile(
        engine="native", path=path, ring_bytes=ring_bytes, profile_memory=True, samples=False,
        sources=[DataLoading(), SystemCounters(gpu=False, interval_s=0.05)],
    )

path, kind = sys.argv[1:]
if kind == "inner":
    sessions = [kinetoscope.profile(engine="native", path=path, samples=False), session(None)]
else:
    sessions = [session(path, 4 << 20 if kind == "ring" else None)]
for one in sessions:
    one.start()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for batch in DataLoader(Endless(), batch_size=2, num_workers=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def rows_in(path: Path) -> Counter[str]:
    """How many rows of each table a recording in progress has."""
    found: Counter[str] = Counter()
    if path.exists():
        for table, parts in _core.read_recording(str(path))["rows"].items():
            found[table] = sum(part["rows"] for part in parts)
    return found


def workers_in(path: Path) -> set[int]:
    """The workers that have batches in a recording in progress."""
    parts = _core.read_recording(str(path))["rows"].get("loader_batches", [])
    return {process for part in parts for process in json.loads(part["json"]).get("process", [])}


def killed(path: Path, kind: str) -> Counter[str]:
    """Run the program until its recording has rows of each source and worker, and kill it; return how many batches and samples it had by then."""
    child = warm_python.start("-c", TRAINS, path, kind)
    try:
        seen: Counter[str] = Counter()
        while seen["loader_batches"] < 20 or seen["counters"] < 40 or len(workers_in(path)) < 2:
            with suppress(subprocess.TimeoutExpired):
                child.wait(0.05)
                raise AssertionError("the program has ended")
            seen = rows_in(path)
        return seen
    finally:
        child.kill()
        child.close()


def check(trace: kinetoscope.Trace, seen: Counter[str]) -> None:
    """A trace has everything that its recording had."""
    # Of what each counter had before the recording began, the last value is kept.
    assert len(trace.columns("counters")) >= seen["counters"] - 20
    spans: list[dict[str, Any]] = trace.table("spans").to_pylist()
    batches = [span for span in spans if span["name"] == "DataLoader.fetch"]
    # A batch that was begun and one that was made are a row each.
    assert len(batches) >= seen["loader_batches"] / 2 - 2
    assert len({span["process"] for span in batches}) == 2
    (loader,) = trace.info["data_loading"]["loaders"].values()
    assert (loader["dataset"], loader["num_workers"]) == ("Endless", 2)
    storages = trace.columns("storages")
    held = storages["role"] == StorageRole.OPTIMIZER_STATE
    names = {trace.strings[name] for name in storages["name"][held].tolist()}
    assert "momentum_buffer" in names
    # Of several processes, where is followed by which.
    unwritten = {loss["where"].split()[0] for loss in trace.losses if loss["code"] == "last_second"}
    assert unwritten == {"counters", "loader_batches", "loader_workers", "loaders"}
    assert not any("damaged" in loss["code"] or "dropped" in loss["code"] for loss in trace.losses)


@pytest.mark.parametrize(
    "kind", [pytest.param("file", marks=pytest.mark.stress("a ring has the same in less space")), "ring"]
)
def test_a_killed_process_leaves_what_its_sources_recorded(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "live.recording"
    seen = killed(path, kind)
    with kinetoscope.open(path) as trace:
        assert trace.path == path
        check(trace, seen)


def test_each_session_of_a_shared_recording_has_its_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "live.recording"
    seen = killed(path, "inner")
    with kinetoscope.open(path) as outer:
        assert len(outer.columns("counters")) == len(outer.columns("storages")) == 0
        assert "data_loading" not in outer.info
        assert "last_second" not in [loss["code"] for loss in outer.losses]
    _core.cut_recording(str(path), 1, str(tmp_path / "inner.recording"))
    with kinetoscope.open(tmp_path / "inner.recording") as inner:
        check(inner, seen)
