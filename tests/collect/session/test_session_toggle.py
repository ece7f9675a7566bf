"""Switching collection off and on while a session records: what is missing, and that the trace says so."""

import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.profiler

import kinetoscope
import kinetoscope._core as _core
from kinetoscope import ArgumentError, ProfilerActivity, StateError, Trace, profile, schedule
from kinetoscope.collect import RecordingRequest
from kinetoscope.collect.engines.native import NativeEngine
from kinetoscope.combine.concatenate import concatenate
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)

CPU = [ProfilerActivity.CPU]


def program(session):
    """Adds, subtracts while collection is off, and multiplies; the outer range is open all the time."""
    with session, torch.profiler.record_function("outer"):
        torch.ones(2).add(1)
        session.toggle_collection_dynamic(False, CPU)
        torch.ones(2).sub(1)
        session.toggle_collection_dynamic(True, CPU)
        torch.ones(2).mul(2)
    return Counter(event.name for event in session.events())


def test_what_is_recorded_is_what_torch_records(engine):  # noqa: F811
    theirs = program(torch.profiler.profile(activities=CPU))
    ours = program(profile(activities=CPU, engine=engine))
    assert "aten::sub" not in ours
    # torch turns its callbacks off and on, and so does the Kineto engine.
    if engine == "kineto":
        assert ours == theirs
    else:
        assert ours - theirs == Counter()
        assert {"aten::add", "aten::mul", "outer"} <= set(ours)


def test_the_trace_says_when_it_was_off(engine, tmp_path):  # noqa: F811
    session = profile(activities=CPU, engine=engine)
    program(session)
    (loss,) = session.trace.losses
    assert (loss["code"], loss["count"], loss["where"]) == (
        "collection_paused",
        1,
        "CPU",
    )
    assert re.search(r"\d (µs|ms|s) in all", loss["why"])
    assert not session.trace.complete
    (pause,) = session.trace.info["pauses"]
    assert pause["activity"] == "CPU"
    begin_ns, end_ns = pause["from_realtime_ns"], pause["to_realtime_ns"]
    start_ns = session.trace.info["start_realtime_ns"]
    assert begin_ns < end_ns
    assert -1_000_000_000 < begin_ns - start_ns < 60_000_000_000
    session.export_chrome_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["losses"][0]["where"] == "CPU"


def test_pauses_by_the_recording_thread_are_those_of_torch():
    theirs = program(torch.profiler.profile(activities=CPU, profile_memory=True))
    ours = program(profile(activities=CPU, engine="kineto", profile_memory=True))
    assert {name: count for name, count in theirs.items() if name != "[memory]"} == {
        name: count for name, count in ours.items() if name != "[memory]"
    }


def test_another_thread_switches_what_torch_records_of_the_first_one():
    def switch(enable):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(session.toggle_collection_dynamic, enable, CPU).result()

    with profile(activities=CPU, engine="kineto") as session:
        torch.ones(2).add(1)
        switch(False)
        torch.ones(2).sub(1)
        switch(True)
        torch.ones(2).mul(2)
        session.toggle_collection_dynamic(False, CPU)
        torch.ones(2).sub(1)
        with pytest.raises(StateError, match="only that thread can switch them on"):
            switch(True)
        session.toggle_collection_dynamic(True, CPU)
        torch.ones(2).div(2)
    names = Counter(event.name for event in session.events())
    assert [names[f"aten::{name}"] for name in ("add", "sub", "mul", "div")] == [1, 0, 1, 1]
    assert len(session.trace.info["pauses"]) == 2


def test_off_to_the_end_and_on_again_in_the_next_recording(engine):  # noqa: F811
    session = profile(activities=CPU, engine=engine, acc_events=True)
    for off in (True, False):
        with session:
            if off:
                session.toggle_collection_dynamic(False, CPU)
            torch.ones(2).add(1)
    first, second = session.cycles
    assert "to the end of the recording" in first.losses[0]["why"]
    assert second.complete
    names = [
        [trace.strings[name] for name in trace.column("spans", "name").tolist()] for trace in session.cycles
    ]
    assert ["aten::add" in of_cycle for of_cycle in names] == [False, True]
    assert concatenate([first, second]).losses[0]["where"] == "CPU (cycle 0)"


def test_a_killed_recording_knows_of_it_too(native, tmp_path):  # noqa: F811
    session = profile(activities=CPU, engine=native, path=tmp_path / "live.recording")
    session.start()
    session.toggle_collection_dynamic(False, CPU)
    live = Trace.from_recording(tmp_path / "live.recording")
    session.stop()
    assert [loss["code"] for loss in live.losses] == [
        "recording_not_stopped",
        "collection_paused",
    ]


def test_a_killed_recording_has_the_metadata_that_were_added_meanwhile(native, tmp_path):  # noqa: F811
    session = profile(activities=CPU, engine=native, path=tmp_path / "live.recording")
    session.start()
    session.add_metadata("learned", "late")
    session.add_metadata_json("changed", "1")
    session.add_metadata_json("changed", "[2]")
    live = Trace.from_recording(tmp_path / "live.recording")
    session.stop()
    for trace in (live, session.trace):
        assert (trace.info["learned"], trace.info["changed"]) == ("late", [2])


def test_twenty_thousand_switches_lose_nothing(native, tmp_path):  # noqa: F811
    path = tmp_path / "live.recording"
    recorder = NativeEngine()
    recorder.prepare(RecordingRequest(frozenset(CPU), path=path))
    recorder.start()
    for number in range(20_000):
        recorder.toggle(number % 2 == 1, frozenset(CPU))
    torch.ones(2).add(1)
    trace = recorder.stop().trace()
    assert {loss["code"]: loss["count"] for loss in trace.losses} == {"collection_paused": 10_000}
    pauses = trace.info["pauses"]
    assert len(pauses) == 10_000
    times = [pause[end] for pause in pauses for end in ("from_realtime_ns", "to_realtime_ns")]
    assert times == sorted(times)
    assert "aten::add" in trace.strings
    # Each switch writes one row and nothing of those before, neither there nor in the metadata.
    recording = _core.read_recording(str(path))
    assert [part["rows"] for part in recording["rows"]["toggles"]] == [1] * 20_000
    assert "pauses" not in recording["info"]


def test_repeated_toggles_have_no_effect():
    recorder = NotingEngine()
    session = profile(engine=recorder, activities=CPU)
    with session:
        for on in (False, False, True, True):
            session.toggle_collection_dynamic(on, iter(CPU))
    assert recorder.log == ["prepare", "start", "off CPU", "off CPU", "on CPU", "on CPU", "stop"]


def test_two_switches_in_a_row_are_one_pause(native):  # noqa: F811
    with profile(activities=CPU, engine=native) as session:
        for on in (True, False, False, True, True, False, True):
            session.toggle_collection_dynamic(on, CPU)
    assert session.trace.losses[0]["count"] == 2


def test_activities_that_are_not_recorded_are_passed_over_as_in_torch():
    recorder = NotingEngine()
    with profile(engine=recorder, activities=CPU) as session:
        session.toggle_collection_dynamic(False, [ProfilerActivity.CUDA])
        session.toggle_collection_dynamic(False, [])
    assert recorder.log == ["prepare", "start", "stop"]


@pytest.mark.parametrize(
    "activities", ["CPU", ["CPU"], [1], 5, None, [{ProfilerActivity.CPU: []}], ProfilerActivity.CPU]
)
def test_wrong_activities_are_refused_and_nothing_is_switched(activities):
    recorder = NotingEngine()
    with profile(engine=recorder, activities=CPU) as session:
        with pytest.raises(ArgumentError, match=r"activities.*ProfilerActivity\.CPU"):
            session.toggle_collection_dynamic(False, activities)
        with pytest.raises(ArgumentError, match="enable='off'"):
            session.toggle_collection_dynamic("off", CPU)
    assert recorder.log == ["prepare", "start", "stop"]


def test_where_nothing_is_recorded_it_has_no_effect_and_says_so():
    recorder = NotingEngine()
    session = profile(engine=recorder, schedule=schedule(wait=1, warmup=1, active=1))
    for _ in ("before start", "while waiting"):
        with pytest.warns(UserWarning, match="has no effect: this session is not recording now"):
            session.toggle_collection_dynamic(False, CPU)
        if session._run is None:
            session.start()
    with pytest.warns(UserWarning, match="nothing was recorded"):
        session.stop()
    assert recorder.log == []


def test_an_engine_that_cannot_says_so():
    class Plain:
        """An engine of somebody else's, without the call."""

        name = "plain"

        def __init__(self):
            noting = NotingEngine()
            self.prepare, self.start, self.stop = noting.prepare, noting.start, noting.stop

    with (
        profile(engine=Plain(), activities=CPU) as session,
        pytest.raises(StateError, match="engine 'plain' cannot switch collection off"),
    ):
        session.toggle_collection_dynamic(False, CPU)


def test_an_engine_by_itself_refuses_to_be_switched_when_it_does_not_record():
    for name in ("kineto", "native"):
        with pytest.raises(StateError, match="nothing to switch off or on"):
            options = kinetoscope.collect.RecordingOptions(engine=name)
            kinetoscope.collect.choose_engine(options, frozenset(CPU)).toggle(False, frozenset(CPU))
