"""Facts that a source file lacks are not added by exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kinetoscope
from kinetoscope import open as open_trace
from tests.support.chrome_file import read_strictly
from tests.support.kineto_text import kernel, op, opened

FRAME = ["PyTorch Profiler (0)", "Iteration Start: PyTorch Profiler", "Record Window End"]
WINDOW = (
    {"ph": "X", "cat": "Trace", "name": FRAME[0], "pid": "Spans", "tid": "PyTorch Profiler", "ts": 0, "dur": 30},
    {"ph": "i", "s": "g", "name": FRAME[1], "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": 0},
    {"ph": "i", "s": "g", "name": FRAME[2], "pid": "", "tid": "", "ts": 30},
)  # fmt: skip
BARE: dict[str, Any] = {"ph": "X", "name": "request", "pid": 1, "tid": 1, "ts": 1, "dur": 9}


def memory(ts: float, size: int, **more: int) -> dict[str, Any]:
    arguments = {"Bytes": size, "Device Type": 0, "Device Id": -1, **more}
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": arguments}


def saved(trace: kinetoscope.Trace, folder: Path, way: str) -> list[dict[str, Any]]:
    """Return the events of an export, direct or through another file."""
    for name in {"once": [], "chrome": ["between.json"], "ktrace": ["between.ktrace"]}[way]:
        trace.save(folder / name)
        trace = open_trace(folder / name)
    trace.save(folder / "out.json")
    events: list[dict[str, Any]] = read_strictly(folder / "out.json")["traceEvents"]
    return events


def one(events: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (event for event in events if event["name"] == name)
    return found


every_way = pytest.mark.parametrize("way", ["once", "chrome", "ktrace"])


@every_way
def test_slices_without_category_or_number_stay_so(tmp_path: Path, way: str) -> None:
    events = saved(opened(BARE, op("aten::mm", 20, 5)), tmp_path, way)
    assert "cat" not in one(events, "request")
    assert one(events, "aten::mm")["cat"] == "cpu_op"
    assert [event for event in events if "External id" in event.get("args", {})] == []


@every_way
def test_numbers_that_are_there_stay_and_no_other_comes(tmp_path: Path, way: str) -> None:
    source = opened(op("aten::mm", 0, 5, **{"External id": 7}), op("aten::add", 20, 5), kernel("k", 22, 1))
    events = saved(source, tmp_path, way)
    assert one(events, "aten::mm")["args"]["External id"] == 7
    assert "External id" not in one(events, "aten::add").get("args", {})
    assert one(events, "k")["cat"] == "kernel"


@every_way
def test_marks_of_memory_have_the_totals_of_the_source(tmp_path: Path, way: str) -> None:
    events = saved(opened(op("aten::mm", 0, 9), memory(1, 64), memory(2, -64)), tmp_path, way)
    marks = [event["args"] for event in events if event["name"] == "[memory]"]
    assert [sorted(mark) for mark in marks] == [["Bytes", "Device Id", "Device Type"]] * 2
    assert [mark["Bytes"] for mark in marks] == [64, -64]


@every_way
def test_totals_that_some_marks_have_are_those_of_these_marks(tmp_path: Path, way: str) -> None:
    known = {"Addr": 16, "Total Allocated": 164, "Total Reserved": 900}
    source = opened(op("aten::mm", 0, 9), memory(1, 64, **known), memory(2, -64, Addr=16))
    marks = [event["args"] for event in saved(source, tmp_path, way) if event["name"] == "[memory]"]
    assert known.items() <= marks[0].items()
    assert sorted(marks[1]) == ["Addr", "Bytes", "Device Id", "Device Type"]


@every_way
def test_framing_events_are_there_if_they_were(tmp_path: Path, way: str) -> None:
    for window, names in (((), []), (WINDOW, FRAME)):
        events = saved(opened(op("aten::mm", 0, 5), *window), tmp_path, way)
        assert [event["name"] for event in events if event["name"] in FRAME] == names


def test_a_recording_of_a_session_has_all_of_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with kinetoscope.profile(profile_memory=True) as prof:
        torch.ones(64) + 1
    prof.export_chrome_trace(str(tmp_path / "out.json"))
    events = read_strictly(tmp_path / "out.json")["traceEvents"]
    assert [event["name"] for event in events if event["name"] in FRAME] == FRAME
    assert all("cat" in event for event in events if event["ph"] == "X")
    assert "External id" in one(events, "aten::add")["args"]
    marks = [event["args"] for event in events if event["name"] == "[memory]"]
    assert marks
    assert all({"Total Allocated", "Total Reserved", "Addr"} <= set(mark) for mark in marks)
