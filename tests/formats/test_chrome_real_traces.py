"""Real traces of accelerators, read and written again: what other tools say of our files and of the originals."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kinetoscope
from tests.support.chrome_file import partly_overlapping, read_strictly
from tests.support.holistic import breakdowns, needs_holistic
from tests.support.perfetto import ask_perfetto, complaints, needs_perfetto
from tests.support.shared_traces import needs_shared_traces, traces_of_a_kind

pytestmark = needs_shared_traces
every_trace = pytest.mark.parametrize("path", traces_of_a_kind(), ids=lambda path: path.name.split(".")[0])


def exported(path: Path, folder: Path) -> Path:
    """The trace as we write it."""
    target = folder / path.name.removesuffix(".gz")
    kinetoscope.open(path).save(target)
    return target


@needs_perfetto
@every_trace
def test_perfetto_takes_everything(path: Path, tmp_path: Path) -> None:
    trace = kinetoscope.open(path)
    trace.save(tmp_path / "trace.json")
    # Each of these files ends with a slice and two marks of Kineto's that say when it recorded.
    shown = len(trace.columns("spans")) + len(trace.columns("allocations")) + 3
    assert complaints(tmp_path / "trace.json") == (shown, [])
    unpaired, arrows = ask_perfetto(
        tmp_path / "trace.json",
        "select name, value from stats where name like 'flow%' and value != 0",
        "select count(*) from flow",
    )
    assert unpaired == []
    backward = int((trace.column("spans", "forward") >= 0).sum())
    assert arrows == [[len(trace.columns("launches")) + backward]]


@every_trace
def test_the_file_is_strict_and_its_slices_nest(path: Path, tmp_path: Path) -> None:
    assert partly_overlapping(read_strictly(exported(path, tmp_path))) == []


def assert_close(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], where: str) -> None:
    """Rows say the same to within what numbers of microseconds since 1970 lose as doubles, and what whole ones leave out."""
    assert len(ours) == len(theirs), where
    for one, other in zip(ours, theirs, strict=True):
        for key, value in other.items():
            if isinstance(value, str):
                assert one[key] == value, where
            else:
                inexact = 1e-4 if key == "sum" else 1e-6
                assert one[key] == pytest.approx(value, rel=inexact, abs=0.01), where


@needs_holistic
def test_holistic_trace_analysis_says_the_same_of_our_files(tmp_path: Path) -> None:
    originals = traces_of_a_kind()
    # All in one process of it: starting that takes longer than most of its answers.
    answers = breakdowns(*[exported(path, tmp_path) for path in originals], *originals)
    for path, ours, theirs in zip(
        originals, answers[: len(originals)], answers[len(originals) :], strict=True
    ):
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, path.name)


RENAMED = {
    "Operator": "cpu_op", "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime",
    "external id": "External id",
}  # fmt: skip
WATCHED = ("External id", "Total Allocated", "Total Reserved", "Addr")
FRAME = ("PyTorch Profiler (0)", "Iteration Start: PyTorch Profiler", "Record Window End")


def told(path: Path) -> Counter[tuple[str, str]]:
    """How often each category, each framing event and each watched argument stands in a file, under today's names."""
    counts: Counter[tuple[str, str]] = Counter()
    for event in read_loosely(path):
        if event.get("name") in FRAME:
            counts["frame", event["name"]] += 1
        # Windows of other collectors, which one file has, say nothing of the run.
        elif event.get("cat") == "Trace":
            continue
        elif event.get("ph") == "X" or event.get("name") == "[memory]":
            category = RENAMED.get(event.get("cat", ""), event.get("cat", ""))
            if event["ph"] == "X":
                counts["category", category] += 1
            for key in event.get("args", {}):
                if (key := RENAMED.get(key, key)) in WATCHED:
                    counts[event["ph"], key] += 1
    return counts


def read_loosely(path: Path) -> list[dict[str, Any]]:
    """The events of a file as other tools may have written it."""
    raw = path.read_bytes()
    content = json.loads(gzip.decompress(raw) if path.name.endswith(".gz") else raw)
    events: list[dict[str, Any]] = content["traceEvents"]
    return events


@every_trace
def test_nothing_is_there_that_the_source_did_not_have(path: Path, tmp_path: Path) -> None:
    source, ours = told(path), told(exported(path, tmp_path))
    assert ours == source
    again = tmp_path / "again.json"
    kinetoscope.open(tmp_path / path.name.removesuffix(".gz")).save(again)
    assert told(again) == ours
