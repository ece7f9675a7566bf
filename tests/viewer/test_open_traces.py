"""Traces that a server was given: several at once, some of them broken, and files that change while they are looked at."""

import json
import os
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope import ArgumentError, FormatError
from kinetoscope.collect.process.machine import boot
from kinetoscope.viewer import open_traces
from kinetoscope.viewer.open_traces import Given, given, names_of, stamp
from tests.support.recording_builder import RecordingBuilder
from tests.support.trace_builder import TraceBuilder


def text_of(*names):
    """Chrome's format with a slice for each name."""
    slices = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": place * 10, "dur": 5}
        for place, name in enumerate(names)
    ]
    return json.dumps({"traceEvents": slices})


def spans(one):
    return len(one.offer.trace.columns("spans"))


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def after(self, seconds, one):
        self.now += seconds
        one.look_again()


@pytest.fixture
def clock():
    return Clock()


def test_a_file_that_changed_is_read_again_when_it_rests(tmp_path, clock):
    path = tmp_path / "run.json"
    path.write_text(text_of("a"))
    one = Given("run", str(path), clock=clock)
    assert (spans(one), one.offer.version, one.offer.live) == (1, 1, False)
    clock.after(3, one)
    assert one.offer.version == 1
    path.write_text(text_of("a", "b"))
    clock.after(3, one)
    assert one.offer.version == 1  # whoever writes it may not be done
    clock.after(3, one)
    assert (spans(one), one.offer.version) == (2, 2)
    clock.after(3, one)
    assert one.offer.version == 2


def test_a_file_is_not_looked_at_more_often_than_every_two_seconds(tmp_path, clock, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text(text_of("a"))
    one = Given("run", str(path), clock=clock)
    looks = []
    monkeypatch.setattr(open_traces, "stamp", lambda path: looks.append(path) or stamp(path))
    for _ in range(20):
        clock.after(0.5, one)
    assert 4 <= len(looks) <= 5


def test_a_file_that_takes_long_to_read_is_left_alone_longer(tmp_path, clock):
    path = tmp_path / "run.json"
    path.write_text(text_of("a"))

    def slowly(source):
        clock.now += 10
        return kinetoscope.open(source)

    one = Given("run", str(path), slowly, clock)
    path.write_text(text_of("a", "b"))
    for _ in range(7):
        clock.after(5, one)
    assert one.offer.version == 1
    clock.after(5, one)
    clock.after(5, one)
    assert one.offer.version == 2


def test_what_was_read_stays_when_the_file_breaks_or_goes(tmp_path, clock):
    path = tmp_path / "run.json"
    path.write_text(text_of("a"))
    one = Given("run", str(path), clock=clock)
    path.write_text("no trace any more")
    clock.after(3, one)
    clock.after(3, one)
    assert spans(one) == 1
    assert one.offer.version == 2
    assert "does not contain a trace" in one.offer.problem
    path.unlink()
    clock.after(3, one)
    assert spans(one) == 1
    path.write_text(text_of("a", "b", "c"))
    clock.after(3, one)
    clock.after(3, one)
    assert (spans(one), one.offer.problem, one.offer.version) == (3, None, 3)


def test_a_file_that_could_not_be_read_can_be_later(tmp_path, clock):
    path = tmp_path / "run.json"
    path.write_text("")
    one = Given("run", str(path), clock=clock)
    assert one.offer.trace is None
    assert "empty" in one.offer.problem
    path.write_text(text_of("a"))
    clock.after(3, one)
    clock.after(3, one)
    assert (spans(one), one.offer.problem) == (1, None)


def recording(path, spans, state=0, readings=1):
    """A recording with some spans, of which the file system says that it did not change."""
    builder = RecordingBuilder(state=state)
    builder.pairs = [(1_000 + 10 * at, 5_000 + 10 * at, 10**18 + 10 * at) for at in range(readings)]
    for at in range(spans):
        builder.span(10 * at, 10 * at + 5)
    builder.write(path)
    os.utime(path, ns=(10**18, 10**18))


def test_a_recording_that_grows_within_its_file_is_seen_to(tmp_path):
    path = tmp_path / "run.kscope"
    recording(path, 5)
    before = stamp(str(path))
    assert stamp(str(path)) == before
    recording(path, 6)
    assert path.stat().st_mtime_ns == 10**18
    assert stamp(str(path)) != before


def test_a_recording_that_was_stopped_is_as_any_file(tmp_path):
    path = tmp_path / "run.kscope"
    recording(path, 5, state=1)
    before = stamp(str(path))
    assert before[:2] == (10**18, path.stat().st_size)
    os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    assert stamp(str(path)) != before


def test_a_running_recording_without_anything_new_is_not_read_again(tmp_path, clock):
    path = tmp_path / "run.kscope"
    recording(path, 5)
    read = []

    def opened(source):
        read.append(source)
        trace = kinetoscope.open(source)
        trace.info.update(process=os.getpid(), start_monotonic_ns=None, boot_id=json.loads(boot()["boot_id"]))
        return trace

    one = Given("run", str(path), opened, clock)
    assert one.offer.live
    for readings in (2, 3, 4):
        recording(path, 5, readings=readings)
        # The kernel writes pages of a mapped file now and then.
        os.utime(path)
        clock.after(3, one)
    assert (len(read), one.offer.version, one.offer.live) == (1, 1, True)
    recording(path, 6)
    clock.after(3, one)
    assert (len(read), one.offer.version, spans(one)) == (2, 2, 6)


def test_a_running_recording_is_read_at_once_when_it_grows(tmp_path, clock):
    path = tmp_path / "run.kscope"
    recording(path, 5)
    builder = TraceBuilder().span("a", 0, 10)
    builder.state = "recording"
    read = []

    def opened(source):
        read.append(source)
        trace = builder.build()
        trace.info.update(process=os.getpid(), boot_id=json.loads(boot()["boot_id"]))
        return trace

    one = Given("run", str(path), opened, clock)
    assert one.offer.live
    recording(path, 6)
    clock.after(3, one)
    assert (len(read), one.offer.version, one.offer.live) == (2, 2, True)
    one.offer.trace.info["process"] = 2**22 + 1
    clock.after(3, one)
    assert (len(read), one.offer.version, one.offer.live) == (2, 3, False)
    clock.after(3, one)
    assert (len(read), one.offer.version) == (2, 3)


def test_a_recording_becomes_the_trace_that_its_program_writes_at_its_end(tmp_path, clock):
    path = tmp_path / "run.recording"
    RecordingBuilder().write(path)
    one = Given("run.recording", str(path), clock=clock)
    path.unlink()
    clock.after(3, one)
    assert (one.offer.name, one.offer.version, spans(one)) == ("run.recording", 1, 0)
    TraceBuilder().span("a", 0, 10).build().save(tmp_path / "run.ktrace")
    clock.after(3, one)
    assert (one.offer.name, one.offer.version, spans(one)) == ("run.ktrace", 2, 1)


def test_where_one_can_be_read_the_others_only_say_why_not(tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(text_of("a"))
    bad.write_text("nothing")
    found = given([str(bad), str(good), str(tmp_path / "missing.json")])
    assert [one.offer.trace is not None for one in found] == [False, True, False]
    assert "does not contain a trace" in found[0].offer.problem
    assert found[2].offer.problem == f"{tmp_path / 'missing.json'}: No such file or directory"


def test_where_none_can_be_read_the_first_reason_is_raised(tmp_path):
    (tmp_path / "bad.json").write_text("nothing")
    with pytest.raises(FormatError, match="does not contain a trace"):
        given([str(tmp_path / "bad.json"), str(tmp_path / "missing.json")])


def test_a_mistake_in_reading_one_is_told_and_ends_nothing(tmp_path):
    def opened(source):
        if "bad" in source:
            raise ZeroDivisionError("strange")
        return TraceBuilder().span("a", 0, 1).build()

    found = given(["bad", "good"], opened)
    assert "strange" in found[0].offer.problem
    assert found[1].offer.trace is not None


def test_what_can_be_looked_at():
    trace = TraceBuilder().span("a", 0, 10).build()

    class Session:
        def __init__(self):
            self.trace = trace

    assert [one.offer.trace for one in given([trace, Session()])] == [trace, trace]
    with pytest.raises(ArgumentError, match="no trace was given"):
        given([])
    with pytest.raises(ArgumentError, match="5 is not a trace"):
        given([5])


def test_a_trace_that_was_given_stays_open_and_one_that_was_opened_is_closed(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(text_of("a"))
    trace = TraceBuilder().span("a", 0, 10).build()
    mine, opened = given([trace, path])
    mine.close()
    opened.close()
    assert len(trace.columns("spans")) == 1
    assert "closed" in repr(opened.offer.trace)


def test_names_are_as_short_as_they_can_be_and_all_different():
    assert names_of(["/a/run.ktrace", "/b/run.ktrace", "/b/other.json"]) == [
        "a/run.ktrace",
        "b/run.ktrace",
        "other.json",
    ]
    assert names_of(["run.ktrace", Path("run.ktrace")]) == ["run.ktrace", "run.ktrace (2)"]
    assert names_of(["s3://bucket/x/run.ktrace"]) == ["run.ktrace"]
    assert names_of([TraceBuilder().span("a", 0, 1).build()]) == ["trace"]
