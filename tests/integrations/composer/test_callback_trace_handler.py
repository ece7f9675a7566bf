from types import SimpleNamespace

import pytest
import torch

import kinetoscope
from kinetoscope.integrations.composer import JSONTraceHandler, ProfilerAction, Timestamp, TorchProfiler
from tests.integrations.composer.profilers import CPU, HANDLER


def composers_state(*handlers, schedule=lambda _state: ProfilerAction.ACTIVE):
    """The state of a training with Composer's own profiler, of which handlers and our profiler are callbacks."""
    profiler = TorchProfiler("torch", "{batch}.json", None, activities=CPU, schedule=schedule)
    state = SimpleNamespace(
        run_name="run",
        timestamp=Timestamp(),
        callbacks=[profiler, *handlers],
        dataloader_len=None,
        profiler=SimpleNamespace(trace_handlers=list(handlers)),
    )
    for callback in state.callbacks:
        callback.init(state, None)
    return state


def a_batch(state, do):
    profiler = state.callbacks[0]
    profiler.batch_start(state, None)
    do()
    state.timestamp = state.timestamp.to_next_batch()
    profiler.batch_end(state, None)


def close(state):
    for callback in state.callbacks:
        callback.close(state, None)


COMMON = {"categories": ["x"], "timestamp": None, "wall_clock_time_ns": 0}


def test_marks_of_composers_own_profiler_are_in_the_trace_of_our_handler(tmp_path):
    """Its markers tell handlers of each event, from its threads as well; here they are told as it tells them."""
    handler = JSONTraceHandler(**HANDLER)
    state = composers_state(handler)

    def do():
        handler.process_duration_event("event/batch", is_start=False, **COMMON)  # of one that began before
        handler.process_duration_event("callback/TorchProfiler/batch_start", is_start=True, **COMMON)
        handler.process_duration_event("event/batch", is_start=True, **COMMON)
        torch.ones(2).add(1)
        handler.process_counter_event("cpu", values={"cpu_percent": 50.0}, **COMMON)
        handler.process_instant_event("now", **COMMON)
        handler.process_duration_event("event/batch", is_start=False, **COMMON)
        handler.process_duration_event("callback/TorchProfiler/batch_start", is_start=False, **COMMON)

    a_batch(state, do)
    close(state)
    with kinetoscope.open(tmp_path / "all/1.json") as trace:
        names = [name for name in trace.table("spans").column("name").to_pylist() if "::" not in name]
        assert names == ["ProfilerStep#0", "event/batch", "now"]
        (sample,) = trace.table("counters").to_pylist()
        assert (sample["name"], sample["value"]) == ("cpu/cpu_percent", 50.0)
        assert 0 < sample["time_ns"] < trace.duration_ns


def test_each_cycle_has_the_values_of_its_own_counters():
    handler = JSONTraceHandler(**HANDLER)
    state = composers_state(handler, schedule=lambda _state: ProfilerAction.ACTIVE_AND_SAVE)
    for loss in (0.5, torch.tensor(0.25)):
        a_batch(
            state,
            lambda loss=loss: handler.process_counter_event(
                "progress", values={"loss": loss, "rate": 1}, **COMMON
            ),
        )
    close(state)
    values = []
    for _, (path,) in handler.saved_traces:
        with kinetoscope.open(path) as trace:
            values.append({row["name"]: row["value"] for row in trace.table("counters").to_pylist()})
    assert values == [
        {"progress/loss": 0.5, "progress/rate": 1.0},
        {"progress/loss": 0.25, "progress/rate": 1.0},
    ]


def test_a_file_that_something_else_wrote_is_taken(tmp_path, small_trace):
    handler = JSONTraceHandler(**HANDLER)
    state = SimpleNamespace(run_name="run", timestamp=Timestamp(batch=4), profiler=object())
    handler.init(state, None)
    small_trace.save("theirs.json")
    handler.process_chrome_json_trace_file(tmp_path / "theirs.json")
    handler.close(state, None)
    with kinetoscope.open(tmp_path / "all/4.json") as trace:
        assert trace.table("spans").column("name").to_pylist() == ["aten::mm"]
        assert trace.info["rank"] == 0


def test_a_handler_that_fails_costs_what_it_would_have_written():
    told = []

    def fail(path):
        raise OSError("full")

    broken, whole = (
        SimpleNamespace(process_chrome_json_trace_file=do, init=print, close=print)
        for do in (fail, told.append)
    )
    state = composers_state(broken, whole)
    a_batch(state, lambda: None)
    with pytest.warns(UserWarning, match="SimpleNamespace did not write a trace: OSError: full"):
        close(state)
    assert [path.name for path in told] == ["1.json"]


def test_files_of_other_formats_are_not_given_to_handlers_that_read_json():
    told = []
    handler = SimpleNamespace(process_chrome_json_trace_file=told.append, init=print, close=print)
    state = composers_state(handler)
    profiler = TorchProfiler(
        "other", "{batch}.ktrace", None, activities=CPU, schedule=lambda _state: ProfilerAction.ACTIVE
    )
    state.callbacks[0] = profiler
    profiler.init(state, None)
    a_batch(state, lambda: None)
    close(state)
    assert ([path.name for _, (path,) in profiler.saved_traces], told) == (["1.ktrace"], [])


# -------------------------------------------------------------------------------------------------- wrong use, at once


def test_a_folder_with_files_is_an_error_before_training(tmp_path):
    (tmp_path / "all").mkdir()
    (tmp_path / "all/old.json").write_text("{}")
    with pytest.raises(FileExistsError, match="is not empty"):
        composers_state(JSONTraceHandler(**HANDLER))
    close(composers_state(JSONTraceHandler(**HANDLER, overwrite=True)))
