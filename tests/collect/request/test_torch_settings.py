"""What torch.profiler does for settings of its own and for readers of its traces, and we do too."""

import gc
import json
import warnings

import pytest
import torch
import torch.profiler
from torch.autograd.profiler import KinetoStepTracker

import kinetoscope
from kinetoscope.collect.request import torch_settings
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)

CPU = [torch.profiler.ProfilerActivity.CPU]


def config(**settings):
    return torch._C._profiler._ExperimentalConfig(**settings)


def operators():
    x = torch.ones(3, 4)
    with torch.profiler.record_function("a.range"):
        (x + x).add(2)


def recorded(tp, program=operators, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tp.profile(activities=CPU, **options) as prof:
            program()
    return prof


def events_of(session, path):
    write = session.save if isinstance(session, kinetoscope.Trace) else session.export_chrome_trace
    write(str(path))
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def slices(session, path):
    found = events_of(session, path)
    return [
        (event["cat"], event["name"])
        for event in sorted(
            (event for event in found if event.get("ph") == "X"), key=lambda event: event["ts"]
        )
        if event["cat"] != "Trace"
    ]


@pytest.mark.parametrize("asked", [True, False])
def test_names_show_overloads_where_they_are_asked_for(engine, asked, tmp_path):  # noqa: F811
    options = {"experimental_config": config(capture_overload_names=asked)}
    theirs = recorded(torch.profiler, **options)
    ours = recorded(kinetoscope, engine=engine, **options)
    told = slices(theirs, tmp_path / "theirs.json")
    assert (("cpu_op", "aten::add.Tensor") in told) is asked
    assert slices(ours, tmp_path / "ours.json") == told
    assert "aten::add" in {event.name for event in ours.events()}


def test_a_trace_read_again_keeps_such_names(native, tmp_path):  # noqa: F811
    prof = recorded(kinetoscope, engine=native, experimental_config=config(capture_overload_names=True))
    first = slices(prof, tmp_path / "first.json")
    again = slices(kinetoscope.open(tmp_path / "first.json"), tmp_path / "again.json")
    assert again == first


FRAME = ("PyTorch Profiler (0)", "Iteration Start: PyTorch Profiler", "Record Window End")


def frame(session, path):
    """The three events that say when Kineto recorded, without times."""
    events = [event for event in events_of(session, path) if event.get("name") in FRAME]
    times = ("ts", "dur")
    return {
        event["name"]: {key: value for key, value in event.items() if key not in times} for event in events
    }


def test_readers_find_when_it_was_recorded(engine, tmp_path):  # noqa: F811
    theirs, ours = recorded(torch.profiler), recorded(kinetoscope, engine=engine)
    told = frame(theirs, tmp_path / "theirs.json")
    assert set(told) == set(FRAME)
    assert frame(ours, tmp_path / "ours.json") == told
    events = events_of(ours, tmp_path / "ours.json")
    (window,) = (event for event in events if event.get("cat") == "Trace")
    (end,) = (event for event in events if event.get("name") == FRAME[2])
    assert [event["name"] for event in events[-4:]] == [FRAME[0], "process_sort_index", *FRAME[1:]]
    inside = [event for event in events if event.get("ph") == "X" and event is not window]
    assert window["ts"] <= min(event["ts"] for event in inside)
    assert max(event["ts"] + event["dur"] for event in inside) <= end["ts"]
    assert window["ts"] + window["dur"] == pytest.approx(end["ts"], abs=1e-6)


def test_a_file_read_again_is_framed_once(native, tmp_path):  # noqa: F811
    prof = recorded(kinetoscope, engine=native)
    frame(prof, tmp_path / "first.json")
    read = kinetoscope.open(tmp_path / "first.json")
    assert not set(FRAME) & set(read.strings)
    again = [
        event["name"] for event in events_of(read, tmp_path / "again.json") if event.get("name") in FRAME
    ]
    assert sorted(again) == sorted(FRAME)


def collecting():
    operators()
    gc.collect(0)
    gc.collect(2)
    operators()


@pytest.mark.parametrize("options", [{}, {"with_stack": True}])
def test_collections_of_garbage_are_spans(engine, options, tmp_path):  # noqa: F811
    options = {**options, "experimental_config": config(record_python_gc_info=True)}
    gc.collect()
    gc.disable()
    try:
        theirs = recorded(torch.profiler, collecting, **options)
        ours = recorded(kinetoscope, collecting, engine=engine, **options)
    finally:
        gc.enable()
    told = [one for one in slices(theirs, tmp_path / "theirs.json") if one[1] == "Python GC"]
    found = [one for one in slices(ours, tmp_path / "ours.json") if one[1] == "Python GC"]
    if "with_stack" in options:
        assert told == [("python_function", "Python GC")] * 2
        assert found == told
    else:
        # torch records them with stacks only; the native engine needs none.
        assert found in (told, [("python_function", "Python GC")] * 2)
    assert "Python GC" not in {
        event.name for event in recorded(kinetoscope, collecting, engine=engine).events()
    }


@pytest.mark.parametrize("options", [{}, {"with_stack": True}])
def test_an_option_records_collections_of_garbage_too(engine, options, tmp_path):  # noqa: F811
    gc.collect()
    gc.disable()
    try:
        ours = recorded(kinetoscope, collecting, engine=engine, garbage_collection=True, **options)
    finally:
        gc.enable()
    found = [one for one in slices(ours, tmp_path / "ours.json") if one[1] == "Python GC"]
    assert found == [("python_function", "Python GC")] * 2
    assert ours.trace.run_info.record_python_gc_info


def test_a_torch_that_cannot_record_collections_of_garbage_says_so(monkeypatch):
    known = torch_settings._places()
    without = {name: place for name, place in known.items() if name != "record_python_gc_info"}
    monkeypatch.setattr(torch_settings, "_places", lambda: without)
    with (
        pytest.warns(UserWarning, match="without effect: garbage_collection"),
        kinetoscope.profile(activities=CPU, engine="kineto", garbage_collection=True) as ours,
    ):
        collecting()
    assert not ours.trace.run_info.record_python_gc_info


def test_collections_are_left_alone_afterwards(native):  # noqa: F811
    before = list(gc.callbacks)
    recorded(kinetoscope, collecting, engine=native, experimental_config=config(record_python_gc_info=True))
    assert gc.callbacks == before


def counted_steps(tp):
    """How the tracker of steps counts around a session with three calls of `step`."""
    counts = [KinetoStepTracker.current_step()]
    with tp.profile(activities=CPU, schedule=tp.schedule(wait=0, warmup=0, active=2, repeat=1)) as prof:
        for _ in range(3):
            torch.ones(2)
            prof.step()
            counts.append(KinetoStepTracker.current_step())
    counts.append("ProfilerStep" in KinetoStepTracker._step_dict)
    return [count - counts[0] for count in counts[1:-1]], counts[-1]


@pytest.mark.filterwarnings("ignore:.*Profiler clears events", "ignore:.*warmup", "ignore:.*won't be")
@pytest.mark.parametrize("daemon", ["1", ""])
def test_a_daemon_is_given_the_steps(native, daemon, monkeypatch):  # noqa: F811
    monkeypatch.setenv("KINETO_USE_DAEMON", daemon)
    theirs, ours = counted_steps(torch.profiler), counted_steps(kinetoscope)
    assert ours == theirs == ([1, 2, 3] if daemon else [0, 0, 0], False)
