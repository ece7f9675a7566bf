"""Real accelerator traces, read and written again: other tools give the same results for both files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kinetoscope
from tests.support.chrome_file import partly_overlapping, read_strictly
from tests.support.holistic import breakdowns, needs_holistic
from tests.support.perfetto import ask_perfetto, needs_perfetto
from tests.support.real_traces import different_traces


@dataclass(frozen=True)
class Exported:
    """A trace and the file that we write from it."""

    source: Path
    trace: kinetoscope.Trace
    path: Path
    content: dict[str, Any]


@pytest.fixture(scope="module", params=different_traces(), ids=lambda path: path.name.split(".")[0])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """Write each trace, and read it again with a strict parser."""
    source: Path = request.param
    path = tmp_path_factory.mktemp("exported") / source.name.removesuffix(".gz")
    with kinetoscope.open(source) as trace:
        trace.save(path)
        yield Exported(source, trace, path, read_strictly(path))
    path.unlink()


@needs_perfetto
def test_perfetto_takes_everything(exported: Exported) -> None:
    trace = exported.trace
    # Each of these files ends with Kineto's slice and two events about the recorded window.
    shown = len(trace.columns("spans")) + len(trace.columns("allocations")) + 3
    taken, lost, unpaired, arrows = ask_perfetto(
        exported.path,
        "select count(*) from slice",
        "select name, value from stats where value != 0 and severity in ('error', 'data_loss')",
        "select name, value from stats where name like 'flow%' and value != 0",
        "select count(*) from flow",
    )
    assert (taken, lost) == ([[shown]], [])
    assert unpaired == []
    backward = int((trace.column("spans", "forward") >= 0).sum())
    assert arrows == [[len(trace.columns("launches")) + backward]]


def test_the_file_is_strict_and_its_slices_nest(exported: Exported) -> None:
    assert partly_overlapping(exported.content) == []


def assert_close(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], where: str) -> None:
    """Check that rows are equal, up to the precision of Unix microseconds as doubles and of integer microseconds."""
    assert len(ours) == len(theirs), where
    for one, other in zip(ours, theirs, strict=True):
        for key, value in other.items():
            if isinstance(value, str):
                assert one[key] == value, where
            else:
                inexact = 1e-4 if key == "sum" else 1e-6
                assert one[key] == pytest.approx(value, rel=inexact, abs=0.01), where


@needs_holistic
@pytest.mark.stress("Holistic Trace Analysis looks at real traces for 14 s")
def test_holistic_trace_analysis_says_the_same_of_our_files(tmp_path: Path) -> None:
    originals = different_traces()
    ours = [tmp_path / path.name.removesuffix(".gz") for path in originals]
    for path, target in zip(originals, ours, strict=True):
        kinetoscope.open(path).save(target)
    # All queries in one process, because starting it takes longer than most queries.
    answers = breakdowns(*ours, *originals)
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


def told(content: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Count categories, events about the recorded window, and selected arguments in a file, under current names."""
    counts: Counter[tuple[str, str]] = Counter()
    for event in content["traceEvents"]:
        if event.get("name") in FRAME:
            counts["frame", event["name"]] += 1
        # One file also has windows of other collectors, which are not about the run.
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


def test_nothing_is_there_that_the_source_did_not_have(exported: Exported, tmp_path: Path) -> None:
    # Formatted as by other tools.
    source = told(json.loads(gzip.decompress(exported.source.read_bytes())))
    assert told(exported.content) == source
    again = tmp_path / "again.json"
    kinetoscope.open(exported.path).save(again)
    assert told(json.loads(again.read_bytes())) == source
