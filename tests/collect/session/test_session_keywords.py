"""The keywords of torch's session that are not switches: observers, ids, time limits, experimental settings."""

import json
import os
import warnings

import pytest
import torch
import torch.profiler
from torch._C._profiler import _ExperimentalConfig

import kinetoscope
from kinetoscope import ArgumentError, ProfilerActivity, StateError, profile, schedule
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from kinetoscope.collect.request import torch_settings as experimental_module
from tests.support import warm_python
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)

CPU = [ProfilerActivity.CPU]
# Settings that releases of torch from 2.7 on have not all.
TRACE_ONLY, CUSTOM, METRICS = (
    {name: value} if experimental_module.has_setting(name) else {}
    for name, value in (
        ("trace_only", True), ("custom_profiler_config", "x"), ("profiler_metrics", ["x"]),
    )
)  # fmt: skip


class NotingObserver:
    """Writes down what it is told; `fail` names calls that shall raise."""

    def __init__(self, log=None, fail=()):
        self.log = [] if log is None else log
        self.fail = set(fail)

    def __getattr__(self, call):
        if call not in ("start", "stop", "cleanup"):
            raise AttributeError(call)

        def note():
            self.log.append(f"observer {call}")
            if call in self.fail:
                self.fail.discard(call)
                raise OSError(f"no room to {call}")

        return note


# ------------------------------------------------------------------------------------------------------------ observers


def test_an_observer_runs_for_the_same_time_as_the_recording():
    recorder = NotingEngine()
    observer = NotingObserver(recorder.log)
    with profile(
        engine=recorder,
        execution_trace_observer=observer,
        schedule=schedule(wait=1, warmup=1, active=1, repeat=2),
        on_trace_ready=lambda session: session.trace,
    ) as session:
        for _ in range(6):
            session.step()
    cycle = ["prepare", "observer start", "start", "observer stop", "stop", "build"]
    assert recorder.log == [*cycle, *cycle, "observer cleanup"]
    assert session.execution_trace_observer is observer
    assert all(request.record_function_ids for request in recorder.requests)


@pytest.mark.parametrize(
    "numbers",
    [None, {"wait": 0, "warmup": 1, "active": 2}, {"wait": 2, "warmup": 1, "active": 1, "repeat": 1},
     {"wait": 9, "warmup": 1, "active": 1}],
)  # fmt: skip
@pytest.mark.filterwarnings(
    "ignore:nothing was recorded", "ignore:.*Profiler clears events", "ignore:a finished"
)
def test_an_observer_gets_the_same_calls_as_from_torch(numbers):
    heard = []
    for module, keywords in ((torch.profiler, {}), (kinetoscope, {"engine": NotingEngine()})):
        observer = NotingObserver()
        with module.profile(
            activities=CPU,
            execution_trace_observer=observer,
            schedule=None if numbers is None else module.schedule(**numbers),
            **keywords,
        ) as session:
            for _ in range(5):
                session.step()
        heard.append(observer.log)
    assert heard[0] == heard[1]


def test_by_hand_nobody_cleans_up():
    observer = NotingObserver()
    session = profile(engine=NotingEngine(), execution_trace_observer=observer)
    session.start()
    session.stop()
    assert observer.log == ["observer start", "observer stop"]


def test_an_observer_that_cannot_start_leaves_nothing_running():
    recorder = NotingEngine()
    observer = NotingObserver(fail=["start"])
    session = profile(engine=recorder, execution_trace_observer=observer)
    with pytest.raises(OSError, match="no room to start"):
        session.start()
    assert ACTIVE_SESSIONS.current() is None
    assert observer.log == ["observer start"]
    session.start()
    session.stop()
    assert recorder.log == ["prepare", "prepare", "start", "stop"]


def test_an_engine_that_cannot_start_stops_the_observer():
    observer = NotingObserver()
    session = profile(
        engine=NotingEngine(fail={"start": StateError("busy")}), execution_trace_observer=observer
    )
    with pytest.raises(StateError, match="busy"):
        session.start()
    assert observer.log == ["observer start", "observer stop"]
    assert ACTIVE_SESSIONS.current() is None


def test_an_observer_that_cannot_stop_takes_nothing_with_it():
    recorder, ready = NotingEngine(), []
    session = profile(
        engine=recorder, execution_trace_observer=NotingObserver(fail=["stop"]), on_trace_ready=ready.append
    )
    session.start()
    with pytest.raises(OSError, match="no room to stop"):
        session.stop()
    assert ready == [session]
    assert session.trace is not None
    assert ACTIVE_SESSIONS.current() is None


def test_with_on_error_warn_the_failure_of_an_observer_is_a_warning():
    recorder = NotingEngine()
    session = profile(
        engine=recorder,
        execution_trace_observer=NotingObserver(fail=["stop"]),
        schedule=schedule(wait=0, warmup=1, active=1),
        on_trace_ready=lambda session: session.trace,
        on_error="warn",
    )
    session.start()
    session.step()
    with pytest.warns(
        UserWarning, match="observer failed at step 2, profiling continues: OSError: no room to stop"
    ):
        session.step()
    session.step()
    session.step()
    session.stop()
    assert recorder.log.count("build") == 2


def test_the_programs_own_exception_is_not_replaced_by_the_observers():
    observer = NotingObserver(fail=["stop", "cleanup"])
    with (
        pytest.warns(UserWarning, match="observer") as told,
        pytest.raises(KeyError),
        profile(engine=NotingEngine(), execution_trace_observer=observer),
    ):
        raise KeyError
    assert [str(one.message) for one in told] == [
        "the execution trace observer failed: OSError: no room to stop",
        "the execution trace observer's cleanup failed: OSError: no room to cleanup",
    ]
    with (
        pytest.raises(OSError, match="no room to cleanup"),
        profile(engine=NotingEngine(), execution_trace_observer=NotingObserver(fail=["cleanup"])),
    ):
        pass


def test_the_environment_asks_for_an_observer_as_in_torch(tmp_path):
    program = (
        "import torch, kinetoscope\n"
        "with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU]) as prof:\n"
        "    torch.ones(2).add(1)\n"
        "print(prof.execution_trace_observer.get_output_file_path())\n"
    )
    environment = {**os.environ, "ENABLE_PYTORCH_EXECUTION_TRACE": "1", "TMPDIR": str(tmp_path)}
    done = warm_python.run("-c", program, env=environment)
    assert done.returncode == 0, done.stderr
    with open(done.stdout.strip(), encoding="utf-8") as file:
        assert "aten::add" in {node["name"] for node in json.load(file)["nodes"]}


# ------------------------------------------------------------------------------------------------------------------ ids


def cycles_with_ids(module, ids, **keywords):
    """Runs two cycles and a half; returns the id that each handler saw and how often the callback was called."""
    calls = []

    def make():
        calls.append(1)
        return f"id {len(calls)}"

    seen = []
    session = module.profile(
        activities=CPU,
        custom_trace_id_callback=make if ids else None,
        schedule=module.schedule(wait=1, warmup=1, active=1),
        on_trace_ready=lambda session: seen.append(session.get_trace_id()),
        **keywords,
    )
    before = session.get_trace_id()
    with session:
        for _ in range(8):
            session.step()
    return before, seen, len(calls)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events", "ignore:a finished recording")
def test_each_cycle_has_an_id_as_in_torch():
    ours = cycles_with_ids(kinetoscope, ids=True, engine=NotingEngine())
    assert ours == cycles_with_ids(torch.profiler, ids=True)
    assert ours == (None, ["id 1", "id 2", "id 3"], 3)
    for module, keywords in ((torch.profiler, {}), (kinetoscope, {"engine": NotingEngine()})):
        _, seen, _ = cycles_with_ids(module, ids=False, **keywords)
        assert len(set(seen)) == 3
        for made in seen:
            assert len(made) == 32
            assert int(made, 16) >= 0
            assert made == made.upper()


def test_the_id_is_in_the_file_where_torch_puts_it(engine, tmp_path):  # noqa: F811
    told = []
    for module, keywords in ((torch.profiler, {}), (kinetoscope, {"engine": engine})):
        with module.profile(
            activities=CPU, custom_trace_id_callback=lambda: 'a "quoted" id', with_flops=True, **keywords
        ) as session:
            torch.ones(2, 2).mm(torch.ones(2, 2))
        session.export_chrome_trace(str(tmp_path / "trace.json"))
        told.append(session.get_trace_id())
        if module is kinetoscope:
            described = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
            assert described["trace_id"] == 'a "quoted" id'
            assert described["with_flops"] == 1
            assert "record_shapes" not in described
    assert told[0] == told[1]


def test_the_callback_can_be_replaced_between_cycles():
    session = profile(engine=NotingEngine(), on_trace_ready=lambda session: session.trace)
    for name in ("first", "second"):
        session.set_custom_trace_id_callback(lambda name=name: name)
        session.start()
        session.stop()
        assert session.trace.info["trace_id"] == session.get_trace_id() == name
    with pytest.raises(ArgumentError, match="callback=7"):
        session.set_custom_trace_id_callback(7)


@pytest.mark.parametrize("made", [None, 7, b"id"])
def test_an_id_that_is_no_text_is_refused_before_anything_begins(made):
    recorder = NotingEngine()
    session = profile(engine=recorder, custom_trace_id_callback=lambda: made)
    with pytest.raises(ArgumentError, match=f"custom_trace_id_callback returned {made!r}"):
        session.start()
    assert recorder.log == []
    assert ACTIVE_SESSIONS.current() is None


def test_a_callback_that_fails_leaves_nothing_running():
    session = profile(engine=NotingEngine(), custom_trace_id_callback=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.start()
    assert ACTIVE_SESSIONS.current() is None


# ------------------------------------------------------------------------------------------------ experimental settings


def test_every_setting_that_torch_has_is_known_by_its_place():
    signature = _ExperimentalConfig.__init__.__doc__ or ""
    for name, place in experimental_module._places().items():
        assert f" {name}: " in signature
        usual = _ExperimentalConfig().__getstate__()[place]
        other = {bool: True, list: ["x"], str: "x"}[type(usual)]
        made = experimental_module.for_torchs_collector(None, **{name: other})
        assert list(experimental_module.changed_settings(made)) == [name]
    assert len(experimental_module._places()) == len(_ExperimentalConfig().__getstate__())


def test_what_the_native_engine_has_no_use_for_is_named_once(native):  # noqa: F811
    config = _ExperimentalConfig(
        verbose=True, performance_events=["x"], enable_cuda_sync_events=True, **METRICS
    )
    session = profile(
        activities=CPU,
        engine=native,
        experimental_config=config,
        post_processing_timeout_s=5,
        acc_events=True,
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            session.start()
            session.stop()
    (said,) = [str(one.message) for one in told]
    for name in ("performance_events", "enable_cuda_sync_events", *METRICS):
        assert f"experimental_config.{name}," in said
    assert "post_processing_timeout_s" in said
    assert "verbose" not in said
    assert told[0].filename == __file__


def test_settings_that_the_native_engine_always_honors_do_not_warn(native):  # noqa: F811
    config = _ExperimentalConfig(profile_all_threads=True, capture_overload_names=True, **TRACE_ONLY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with profile(activities=CPU, engine=native, experimental_config=config) as session:
            torch.ones(2).add(1)
    assert "Tensor" in {event.overload_name for event in session.events()}


def test_the_kineto_engine_hands_them_to_torch():
    config = _ExperimentalConfig(capture_overload_names=True, **CUSTOM, **TRACE_ONLY)
    with profile(activities=CPU, engine="kineto", experimental_config=config) as session:
        torch.ones(2).add(1)
    if not torch.__version__.startswith("2.7."):
        # The collector of torch 2.7 takes the setting and writes no overloads.
        assert "Tensor" in {event.overload_name for event in session.events()}
    handed = experimental_module.changed_settings(session.profiler.experimental_config)
    assert handed["capture_overload_names"] is True
    for name, value in (CUSTOM | TRACE_ONLY).items():
        assert handed[name] == value


@pytest.mark.parametrize(
    ("options", "collected", "told"),
    [
        ({}, True, "can crash the program"),
        ({"profile_memory": True}, None, "without effect with profile_memory=True"),
    ],
)
def test_torch_collects_all_threads_only_where_the_program_asks_for_it(options, collected, told):
    config = _ExperimentalConfig(profile_all_threads=True, **TRACE_ONLY)
    with (
        pytest.warns(UserWarning, match=told),
        profile(activities=CPU, engine="kineto", experimental_config=config, **options) as asked,
    ):
        pass
    with profile(activities=CPU, engine="kineto", **options) as usual:
        pass
    handed = [
        experimental_module.changed_settings(session.profiler.experimental_config).get("profile_all_threads")
        for session in (asked, usual)
    ]
    assert handed == [collected, None]
    assert experimental_module.changed_settings(config)["profile_all_threads"] is True, "it is not changed"
