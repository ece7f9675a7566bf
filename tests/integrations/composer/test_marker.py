from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

import kinetoscope
from kinetoscope import ArgumentError, StateError
from kinetoscope.integrations.composer import (
    JSONTraceHandler,
    Profiler,
    ProfilerAction,
    Timestamp,
    TorchProfiler,
    cyclic_schedule,
)
from kinetoscope.trace import concatenate
from tests.integrations.composer.profilers import CPU, HANDLER, Handler, profiler_of


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A loop of one's own with marks and counters of the system: its traces by the names of their files."""
    folder = tmp_path_factory.mktemp("recorded")
    handler = JSONTraceHandler(str(folder / "all"), "{batch}.json.gz", None)
    profiler = Profiler(
        cyclic_schedule(wait=1, warmup=0, active=2, repeat=2),
        handler,
        sys_prof_memory=True,
        sys_prof_disk=True,
        sys_prof_net=True,
        torch_prof_folder=str(folder / "torch"),
        torch_prof_remote_file_name=None,
        activities=CPU,
        run_name="run",
    )
    with profiler:
        for number in range(7):
            with profiler.marker("forward", record_instant_on_start=True, record_instant_on_finish=True):
                torch.ones(3).add(number)
            profiler.marker("progress").counter({"loss": number / 2, "rate": 1})
            profiler.marker("moment").instant()
            profiler.step()
    with ExitStack() as opened:
        cycles = [opened.enter_context(kinetoscope.open(path)) for _, (path,) in handler.saved_traces]
        concatenate(cycles).save(folder / "all/both.json")
    traces = {}
    for path in folder.rglob("*.json*"):
        with kinetoscope.open(path) as trace:
            traces[f"{path.parent.name}/{path.name}"] = {
                "spans": [
                    row for row in trace.table("spans").to_pylist() if not row["name"].startswith("aten::")
                ],
                "counters": trace.table("counters").to_pylist(),
                "steps": trace.table("steps").to_pylist(),
            }
    return SimpleNamespace(
        traces=traces,
        saved=handler.saved_traces,
        torch=profiler.saved_traces,
    )


# -------------------------------------------------------------------------------------------------- what is in traces


def test_each_cycle_has_a_trace_and_these_can_be_put_together(recorded):
    assert sorted(recorded.traces) == [
        "all/3.json.gz",
        "all/6.json.gz",
        "all/both.json",
        "torch/rank0.3.pt.trace.json",
        "torch/rank0.6.pt.trace.json",
    ]
    assert [moment.batch for moment, _ in recorded.saved] == [3, 6]
    assert [moment.batch for moment, _ in recorded.torch] == [3, 6]
    assert [step["number"] for step in recorded.traces["all/both.json"]["steps"]] == [1, 2, 4, 5]


@pytest.mark.parametrize("name", ["all/6.json.gz", "torch/rank0.6.pt.trace.json"])
def test_marks_are_ranges_inside_the_steps(recorded, name):
    spans = recorded.traces[name]["spans"]
    of_a_step = [("forward", 1), ("forward#instant", 2), ("forward#instant", 2), ("moment", 1)]
    assert [(span["name"], span["depth"]) for span in spans] == [
        ("ProfilerStep#4", 0),
        *of_a_step,
        ("ProfilerStep#5", 0),
        *of_a_step,
    ]
    ranges = [span for span in spans if span["name"] == "forward"]
    assert all(span["kind"] == "user_annotation" for span in ranges)
    assert all(span["duration_ns"] > 0 for span in ranges)


@pytest.mark.parametrize(
    ("name", "numbers"), [("torch/rank0.6.pt.trace.json", [4, 5]), ("all/both.json", [1, 2, 4, 5])]
)
def test_counters_are_tracks_with_a_value_in_each_step(recorded, name, numbers):
    trace = recorded.traces[name]
    samples = {}
    for row in trace["counters"]:
        samples.setdefault(row["name"], []).append((row["time_ns"], row["value"]))
    assert [value for _, value in samples["progress/loss"]] == [number / 2 for number in numbers]
    for (time_ns, _), step in zip(samples["progress/loss"], trace["steps"], strict=True):
        assert step["start_ns"] <= time_ns <= step["start_ns"] + step["duration_ns"]
    assert {"progress/rate", "memory_used_bytes", "process_rss_bytes"} <= set(samples)
    assert any(counter.startswith("disk_") for counter in samples)
    assert any(counter.startswith("network_") for counter in samples)


def test_handlers_of_another_kind_are_told_of_marks_and_files(engine):
    handler = Handler()
    with profiler_of(engine, [handler]) as profiler:
        for number in range(2):
            with profiler.marker("forward", categories=["net"], record_instant_on_finish=True):
                pass
            profiler.marker("progress").counter({"loss": number})
            profiler.step()
    assert handler.told == [
        ("init",),
        ("duration", "forward", ("net",), True, 0),
        ("instant", "forward", ("net",), 0),
        ("duration", "forward", ("net",), False, 0),
        ("counter", "progress", {"loss": 0}),
        ("duration", "forward", ("net",), True, 1),
        ("instant", "forward", ("net",), 1),
        ("duration", "forward", ("net",), False, 1),
        ("counter", "progress", {"loss": 1}),
        ("file", "2.json", True),
        ("close",),
    ]


@pytest.mark.parametrize(
    ("actions", "marked"),
    [
        ((), []),
        ([ProfilerAction.WARMUP], [1]),
        ([ProfilerAction.SKIP, ProfilerAction.ACTIVE_AND_SAVE], [0, 2]),
    ],
)
def test_marks_are_of_the_batches_whose_actions_were_asked_for(actions, marked, engine):
    handler = Handler()
    with profiler_of(engine, [handler], schedule=cyclic_schedule(wait=1, warmup=1, active=1)) as profiler:
        for _ in range(3):
            profiler.marker("moment", actions=actions).instant()
            profiler.step()
    assert [fact[3] for fact in handler.told if fact[0] == "instant"] == marked


def test_a_marker_is_a_decorator_and_there_is_one_for_each_name(engine):
    handler = Handler()
    with profiler_of(engine, [handler]) as profiler:
        marker = profiler.marker("work")
        assert profiler.marker("work", categories=["late"]) is marker

        @marker
        def bare(number):
            return number + 1

        @marker()
        def called(number):
            raise ZeroDivisionError

        assert (bare(1), bare.__name__) == (2, "bare")
        with pytest.raises(ZeroDivisionError):
            called(1)
        assert bare(number=2) == 3
        profiler.step()
    assert [fact[1:4] for fact in handler.told if fact[0] == "duration"] == [
        ("work", ("late",), True),
        ("work", ("late",), False),
    ] * 3


def test_a_marker_that_is_used_out_of_order_is_refused(engine):
    profiler = profiler_of(engine)
    with pytest.raises(StateError, match=r"is not attached to a training run: .* before marker\(\)"):
        profiler.marker("work")
    with profiler:
        marker = profiler.marker("work")
        with pytest.raises(RuntimeError, match=r"the marker 'work' was not started: call start\(\) first"):
            marker.finish()
        marker.start()
        with pytest.raises(RuntimeError, match="the marker 'work' was started already"):
            marker.start()
        profiler.step()
        profiler.step()


def test_a_counter_that_is_no_number_is_refused_whether_it_is_recorded_or_not(engine):
    with profiler_of(engine, schedule=cyclic_schedule(wait=1, warmup=0, active=1)) as profiler:
        with pytest.raises(
            ArgumentError, match="the marker 'progress': the counter 'loss' is 'low'; need a number"
        ):
            profiler.marker("progress").counter({"loss": "low"})
        profiler.marker("progress").counter({"loss": torch.tensor(1.0)})
        profiler.step()
        profiler.step()


def test_marks_of_composers_own_profiler_are_in_the_trace_of_our_handler(tmp_path):
    """Its markers tell handlers of each event, from its threads as well; here they are told as it tells them."""
    handler = JSONTraceHandler(**HANDLER)
    profiler = TorchProfiler(
        "torch", "{batch}.json", None, activities=CPU, schedule=lambda _state: ProfilerAction.ACTIVE
    )
    state = SimpleNamespace(
        run_name="run",
        timestamp=Timestamp(),
        callbacks=[profiler, handler],
        dataloader_len=None,
        profiler=SimpleNamespace(trace_handlers=[handler]),
    )
    common = {"categories": ["x"], "timestamp": state.timestamp, "wall_clock_time_ns": 0}
    for callback in (profiler, handler):
        callback.init(state, None)
    profiler.batch_start(state, None)
    handler.process_duration_event("event/batch", is_start=False, **common)  # of one that began before
    handler.process_duration_event("event/batch", is_start=True, **common)
    torch.ones(2).add(1)
    handler.process_counter_event("cpu", values={"cpu_percent": 50.0}, **common)
    handler.process_instant_event("now", **common)
    handler.process_duration_event("event/batch", is_start=False, **common)
    state.timestamp = state.timestamp.to_next_batch()
    profiler.batch_end(state, None)
    for callback in (profiler, handler):
        callback.close(state, None)
    with kinetoscope.open(tmp_path / "all/1.json") as trace:
        names = [name for name in trace.table("spans").column("name").to_pylist() if "::" not in name]
        assert names == ["ProfilerStep#0", "event/batch", "now"]
        (sample,) = trace.table("counters").to_pylist()
        assert (sample["name"], sample["value"]) == ("cpu/cpu_percent", 50.0)
        assert 0 < sample["time_ns"] < trace.duration_ns


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
