"""Which rank a process is, and what its files are called; process groups are in `tests/e2e/test_ranks.py`."""

from pathlib import Path

import pytest
import torch

import kinetoscope
from kinetoscope.collect.process.rank import ranked
from kinetoscope.collect.session import metadata
from tests.support.recorded import profile


@pytest.fixture
def launched(monkeypatch):
    """Sets what a launcher tells each process; None takes it away."""

    def tell(rank, world_size):
        for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    tell(None, None)
    return tell


@pytest.mark.parametrize(
    ("rank", "world_size", "path", "expected"),
    [
        (None, None, "run.ktrace", "run.ktrace"),
        ("0", "1", "run.ktrace", "run.ktrace"),
        ("3", "8", "run.ktrace", "run.rank3.ktrace"),
        ("3", "8", "a/run.of.x.recording", "a/run.of.x.rank3.recording"),
        ("3", "8", "run", "run.rank3"),
        ("3", "8", "{rank}/run.{rank}.ktrace", "3/run.3.ktrace"),
        ("0", "1", "run.{rank}.ktrace", "run.0.ktrace"),
        (None, None, "run.{rank}.ktrace", "run.0.ktrace"),
        ("three", "8", "run.ktrace", "run.ktrace"),
        ("3", "eight", "run.ktrace", "run.ktrace"),
        ("-1", "8", "run.ktrace", "run.ktrace"),
    ],
)
def test_each_rank_has_a_path_of_its_own(launched, rank, world_size, path, expected):
    launched(rank, world_size)
    assert ranked(Path(path)) == Path(expected)


@pytest.mark.parametrize(("rank", "expected"), [("5", 5), (None, None), ("", None), ("x", None), ("٣", None)])
def test_the_launchers_rank_is_known_before_there_is_a_group(launched, rank, expected):
    launched(rank, "8")
    with profile() as session:
        torch.ones(2)
    assert session.trace.info.get("rank") == expected
    assert set(session.trace.table("spans")["rank"].to_pylist()) == {expected}


def test_the_live_file_of_each_cycle_and_rank_has_a_name_of_its_own(launched, tmp_path):
    launched("2", "4")
    plan = kinetoscope.schedule(wait=0, warmup=1, active=1, repeat=2)
    with profile(
        schedule=plan, path=tmp_path / "run.recording", on_trace_ready=lambda ready: ready.trace
    ) as session:
        for _ in range(4):
            torch.ones(2)
            session.step()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.rank2.1.recording",
        "run.rank2.recording",
    ]


@pytest.mark.parametrize("place", ["et.json", None, 3])
def test_where_the_execution_trace_goes_is_noted_if_it_is_a_path(place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    class Observer:
        def get_output_file_path(self):
            return place

    noted = metadata.execution_trace(Observer())
    assert noted == ({"execution_trace": f'"{tmp_path / "et.json"}"'} if place == "et.json" else {})
    assert metadata.execution_trace(None) == {}
    assert metadata.execution_trace(kinetoscope.ExecutionTraceObserver()) == {}
