import json
import os
from collections import defaultdict

import pytest
import torch

import kinetoscope
from kinetoscope.integrations.pyg import (
    print_time_total,
    rename_profile_file,
    torch_profile,
    trace_handler,
    xpu_profile,
)
from tests.support.simulated_accelerator import cuda, xpu

__all__ = ["cuda", "xpu"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def work() -> torch.Tensor:
    return torch.ones(30, 30) @ torch.ones(30, 30)


def names_in(file: str) -> set[str]:
    with open(file, encoding="utf-8") as opened:
        return {event["name"] for event in json.load(opened)["traceEvents"] if "dur" in event}


@pytest.mark.parametrize("options", [{}, {"export_chrome_trace": False}], ids=["timeline", "none"])
def test_a_block_is_printed_and_its_timeline_written_unless_it_is_not_wanted(options, capsys, tmp_path):
    with torch_profile(**options) as session:
        work()
    printed = capsys.readouterr().out
    assert "aten::mm" in printed
    assert "Self CPU time total" in printed
    files = os.listdir(tmp_path)
    assert files == ([] if options else ["timeline.json"])
    assert all("aten::mm" in names_in(file) for file in files)
    assert isinstance(session, kinetoscope.profile)
    assert len(session.trace.columns("spans")) > 0


def test_it_decorates_functions(capsys):
    @torch_profile(False)
    def multiply(value):
        work()
        return value

    assert [multiply(1), multiply(2)] == [1, 2]
    assert capsys.readouterr().out.count("Self CPU time total") == 2


def test_the_five_that_took_longest_fill_the_columns():
    columns: dict[str, list] = defaultdict(list)
    with torch_profile(False, columns, "prof") as session:
        work()
        torch.ones(3).exp().sum().neg()
    longest = sorted(session.key_averages(), key=lambda event: event.self_cpu_time_total, reverse=True)
    assert columns["NAME"] == [event.key for event in longest[:5]]
    assert {len(column) for column in columns.values()} == {5}


def test_on_a_machine_with_cuda_the_columns_of_the_device_are_filled_too(cuda):
    cuda.used = False
    columns: dict[str, list] = defaultdict(list)
    with torch_profile(False, columns, "prof"):
        work()
        torch.ones(3).exp().sum().neg()
    assert list(columns)[6:] == ["SELF CUDA %", "SELF CUDA", "CUDA TOTAL", "CUDA TIME AVG", "# OF CALLS"]
    assert {len(column) for column in columns.values()} == {5}


@pytest.mark.parametrize("write_csv", [None, "bench"])
def test_only_prof_fills_the_columns(write_csv):
    columns: dict[str, list] = {}
    with torch_profile(False, columns, write_csv):
        work()
    assert columns == {}


def test_what_the_block_raises_comes_through_and_what_was_recorded_is_kept(capsys):
    with pytest.raises(KeyError), torch_profile():
        work()
        raise KeyError
    assert "aten::mm" in capsys.readouterr().out
    assert "aten::mm" in names_in("timeline.json")


def test_a_timeline_that_cannot_be_written_in_the_end_is_a_warning(tmp_path):
    recording = torch_profile()
    session = recording.__enter__()
    work()
    (tmp_path / "timeline.json").mkdir()
    with pytest.warns(UserWarning, match="timeline.json"):
        recording.__exit__(None, None, None)
    assert len(session.trace.columns("spans")) > 0


def test_the_handler_serves_torchs_own_sessions_too(capsys):
    with torch.profiler.profile(on_trace_ready=trace_handler):
        work()
    assert "Self CPU time total" in capsys.readouterr().out
    assert "aten::mm" in names_in("timeline.json")


class Averages(list):
    """Averages that note by what they were to be sorted."""

    def table(self, sort_by: str) -> str:
        return f"sorted by {sort_by}"

    def key_averages(self) -> "Averages":
        return self


class Event:
    """An operator with this time on the device."""

    def __init__(self, device_time: float) -> None:
        self.self_device_time_total = device_time


@pytest.mark.parametrize(
    ("times", "expected"),
    [([0.0, 3.0], "self_device_time_total"), ([0.0], "self_cpu_time_total"), ([], "self_cpu_time_total")],
    ids=["device", "host", "nothing"],
)
def test_the_table_is_sorted_by_the_device_where_it_took_part(times, expected, capsys):
    print_time_total(Averages(map(Event, times)))
    assert capsys.readouterr().out == f"sorted by {expected}\n"


# ------------------------------------------------------------------------------------------------------------ renaming


@pytest.mark.parametrize(
    ("parts", "expected"),
    [(("a", "b"), "profile-a-b.json"), (("GCN", 2), "profile-GCN-2.json"), ((), "profile.json")],
    ids=["two", "number", "none"],
)
def test_the_timeline_gets_a_name_that_lasts(parts, expected, tmp_path):
    (tmp_path / "timeline.json").write_text("{}")
    rename_profile_file(*parts)
    assert os.listdir(tmp_path) == [expected]


# ----------------------------------------------------------------------------------------------------------------- XPU


@pytest.mark.parametrize("export", [True, False])
def test_with_an_intel_gpu_the_block_is_recorded_on_it_too(xpu, export, capsys, tmp_path):
    # This build of torch records no XPU, whatever the machine has: that it says so shows that it was asked to.
    with pytest.warns(UserWarning, match="disabling XPU profiling"), xpu_profile(export) as session:
        work()
    assert "aten::mm" in capsys.readouterr().out
    assert os.listdir(tmp_path) == ["timeline.json"] * export
    assert len(session.trace.columns("spans")) > 0
