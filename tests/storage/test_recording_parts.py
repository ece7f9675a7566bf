"""Clones of recordings, and windows of time and steps cut out of them, while they go on and afterwards."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import kinetoscope
import kinetoscope._core as _core
from kinetoscope import ArgumentError, FormatError, StateError, Trace
from kinetoscope.collect.recorder.stream import STREAM
from kinetoscope.storage.recording_parts import clone, cut_steps
from tests.support.recorded import named, profile
from tests.support.recording_builder import RecordingBuilder
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

RING_BYTES = 1_000_000
X = torch.ones(1)
DAMAGE = ("damaged", "early_records", "uncalibrated_clock")


def numbers(trace: Trace) -> list[int]:
    found: list[int] = trace.column("steps", "number").tolist()
    return found


def negations_of_steps(trace: Trace) -> list[int]:
    """How many negations began in each step."""
    of_step = trace.column("spans", "step")[named(trace, "aten::neg")]
    return [int((of_step == row).sum()) for row in range(len(trace.columns("steps")))]


def undamaged(trace: Trace) -> bool:
    return not any(loss["code"].startswith(DAMAGE) for loss in trace.losses)


def lost(trace: Trace, code: str) -> int:
    return sum(loss["count"] for loss in trace.losses if loss["code"] == code)


def negate(times: int = 20) -> None:
    for _ in range(times):
        torch.neg(X)


def train(steps: int) -> None:
    """Make steps of 20 operators that an optimizer ends."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    for _ in range(steps):
        negate()
        optimizer.step()


def built(path: Path) -> Path:
    """A recording of 10 spans of 50 ns, each inside a hundred of its own, and of one around them all."""
    builder = RecordingBuilder(clock=0, start_tick=1_000, stop_tick=3_000, version=6)
    name = builder.name("a")
    builder.span(0, 1_500, builder.name("around"))
    for number in range(10):
        builder.span(100 * number, 100 * number + 50, name)
    path.write_bytes(builder.to_bytes())
    return path


def test_a_window_has_what_begins_in_it_and_cuts_what_crosses_its_ends(tmp_path: Path) -> None:
    source = built(tmp_path / "x.recording")
    _core.cut_recording(str(source), 0, str(tmp_path / "part"), 220, 800)
    with kinetoscope.open(tmp_path / "part") as part:
        spans = part.columns("spans")
        starts = spans["start_ns"].tolist()
        assert part.duration_ns == 580
        # Cut at both ends; cut at the start; the five that begin and end inside.
        assert [part.strings[name] for name in spans["name"]] == ["around", *["a"] * 6]
        assert starts == [0, 0, 80, 180, 280, 380, 480]
        assert spans["duration_ns"].tolist() == [580, 30, 50, 50, 50, 50, 50]
        assert part.column("spans", "flags").tolist()[2:] == [0] * 5
        assert all(part.column("spans", "flags").tolist()[:2])
        assert undamaged(part)


def test_a_window_ends_exclusively_and_keeps_what_ends_with_it(tmp_path: Path) -> None:
    source = built(tmp_path / "x.recording")
    _core.cut_recording(str(source), 0, str(tmp_path / "part"), 300, 450)
    with kinetoscope.open(tmp_path / "part") as part:
        assert part.columns("spans")["duration_ns"].tolist() == [150, 50, 50]
        assert part.column("spans", "flags").tolist()[1:] == [0, 0]
    _core.cut_recording(str(source), 0, str(tmp_path / "shorter"), 300, 400)
    with kinetoscope.open(tmp_path / "shorter") as part:
        assert len(part.columns("spans")) == 2


def test_steps_that_are_not_there_and_what_is_no_recording_are_refused(tmp_path: Path) -> None:
    source = built(tmp_path / "x.recording")
    (tmp_path / "text").write_text("no recording")
    with pytest.raises(FormatError, match="not a readable recording"):
        clone(tmp_path / "text", tmp_path / "part")
    with pytest.raises(ArgumentError, match="has none of the steps from 3 up to 4: it has no steps"):
        cut_steps(source, tmp_path / "part", 3, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text", "x.recording"]


@pytest.mark.usefixtures("native")
def test_clones_beside_threads_that_record(tmp_path: Path) -> None:
    going = threading.Event()
    going.set()

    def work() -> None:
        while going.is_set():
            negate(50)

    path, copy = tmp_path / "x.recording", tmp_path / "copy"
    threads = [threading.Thread(target=work) for _ in range(3)]
    kept = 0
    with profile(path=path, ring_bytes=RING_BYTES) as prof:
        for thread in threads:
            thread.start()
        # So that the first copy has something, however late the threads begin.
        negate(50)
        try:
            for number in range(30):
                STREAM.clone(copy) if number % 2 else clone(path, copy)
                with kinetoscope.open(copy) as trace:
                    assert undamaged(trace)
                    assert trace.info["complete"]
                    # Of each thread, those that were open then.
                    assert lost(trace, "unfinished_spans") <= 12
                    assert {trace.strings[name] for name in trace.column("spans", "name")} == {"aten::neg"}
                    kept = max(kept, len(trace.columns("spans")))
        finally:
            going.clear()
            for thread in threads:
                thread.join()
    assert kept * 48 > RING_BYTES / 2
    assert undamaged(prof.trace)


@pytest.mark.usefixtures("native")
def test_a_clone_has_what_was_recorded_until_then(tmp_path: Path) -> None:
    with profile(path=tmp_path / "x.recording", samples=False) as prof:
        with torch.profiler.record_function("first"):
            negate()
        with torch.profiler.record_function("open"):
            STREAM.clone(tmp_path / "copy")
        negate()
    with kinetoscope.open(tmp_path / "copy") as trace:
        assert len(named(trace, "aten::neg")) == 20
        assert len(named(trace, "first")) == len(named(trace, "open")) == 1
        assert lost(trace, "unfinished_spans") == 1
        assert trace.info["complete"]
    assert len(named(prof.trace, "aten::neg")) == 40
    with pytest.raises(StateError, match="not recording"):
        STREAM.clone(tmp_path / "copy")


@pytest.mark.usefixtures("native")
def test_a_clone_has_every_session(tmp_path: Path) -> None:
    with profile(path=tmp_path / "x.recording", samples=False):
        negate()
        with profile(samples=False, record_shapes=True):
            negate()
            STREAM.clone(tmp_path / "copy")
            _core.cut_recording(str(tmp_path / "copy"), 1, str(tmp_path / "inner"))
    with kinetoscope.open(tmp_path / "inner") as trace:
        assert len(named(trace, "aten::neg")) == 20


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("marked", [True, False])
def test_steps_are_cut_out_of_a_ring_that_goes_on(tmp_path: Path, marked: bool) -> None:
    path = tmp_path / "x.recording"
    with profile(path=path, ring_bytes=RING_BYTES, samples=False) as prof:
        if marked:
            for _ in range(3_000):
                negate()
                prof.step()
        else:
            train(3_000)
        clone(path, tmp_path / "copy")
        cut_steps(path, tmp_path / "part", 2_990, 2_995)
    with kinetoscope.open(tmp_path / "copy") as copy:
        kept = numbers(copy)
        assert lost(copy, "recycled_spans") > 0
    with kinetoscope.open(tmp_path / "part") as part:
        assert numbers(part) == list(range(2_990, 2_995))
        assert negations_of_steps(part) == [20] * 5
        # Nothing of these steps was overwritten.
        assert part.losses == []
        assert not part.column("steps", "duration_ns").min() <= 0
    cut_steps(tmp_path / "copy", tmp_path / "part", 0, 2_999)
    with kinetoscope.open(tmp_path / "part") as part:
        assert numbers(part) == [number for number in kept if number < 2_999]
    with pytest.raises(ArgumentError, match=rf"none of the steps from 5 up to 7: it has steps {kept[0]} to"):
        cut_steps(tmp_path / "copy", tmp_path / "part", 5, 7)


@pytest.mark.usefixtures("native")
def test_cut_steps_that_an_optimizer_ends_keep_their_numbers(tmp_path: Path) -> None:
    with profile(path=tmp_path / "x.recording", samples=False) as prof:
        train(40)
    cut_steps(tmp_path / "x.recording", tmp_path / "part", 20, 30)
    with kinetoscope.open(tmp_path / "part") as part:
        assert numbers(part) == list(range(20, 30))
        recorded, cut = prof.trace.columns("steps"), part.columns("steps")
        # Readings of the clock round to a nanosecond, and the first step begins with the part.
        assert np.abs(cut["duration_ns"] - recorded["duration_ns"][20:30]).max() <= 2
