import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetoscope import ArgumentError, MissingDependencyError, StateError
from kinetoscope.integrations.composer import (
    JSONTraceHandler,
    Profiler,
    ProfilerAction,
    Timestamp,
    cyclic_schedule,
)
from tests.integrations.composer.profilers import (
    CPU,
    HANDLER,
    NO_COUNTERS,
    Handler,
    a_trace,
    profiler_of,
    saved,
    two_batches,
)

# ------------------------------------------------------------------------------------------------- the whole of a run


def test_all_arguments_reach_what_records(engine):
    profiler = profiler_of(
        engine,
        schedule=cyclic_schedule(warmup=1, active=1),
        torch_prof_folder="{run_name}/far",
        torch_prof_filename="{batch}.json",
        torch_prof_memory_filename="m{batch}.html",
        torch_prof_overwrite=True,
        torch_prof_use_gzip=True,
        torch_prof_record_shapes=True,
        torch_prof_with_stack=True,
        torch_prof_with_flops=False,
        torch_prof_num_traces_to_keep=3,
        with_modules=True,
        run_name="mine",
    )
    files = profiler.torch_profiler.files
    assert (files.folder_template, files.overwrite, files.num_traces_to_keep) == ("{run_name}/far", True, 3)
    two_batches(profiler)
    assert Path("mine/far/m2.html").exists()
    assert [str(path) for _, (path,) in profiler.saved_traces] == ["mine/far/2.json.gz"]
    (request,) = engine.requests
    asked = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
    assert [getattr(request.options, name) for name in asked] == [True, True, True, False, True]


def test_epochs_and_the_last_batch_are_those_of_the_loop(engine):
    profiler = profiler_of(engine, schedule=cyclic_schedule(warmup=1, active=8))
    profiler.start(dataloader_len=3)
    for _ in range(2):
        for _ in range(3):
            profiler.step()
        profiler.next_epoch()
    profiler.stop()
    profiler.stop()
    assert saved(profiler) == [3, 6]


def test_a_handler_that_fails_costs_what_it_would_have_written(engine):
    broken, whole = Handler(fail=True), Handler()
    profiler = profiler_of(engine, [broken, whole])
    with pytest.warns(UserWarning, match="Handler did not write a trace: OSError: full"):
        two_batches(profiler)
    assert ("file", "2.json", True) in whole.told
    assert saved(profiler) == [2]


def test_a_handler_that_fails_at_a_mark_or_at_the_end_is_a_warning_and_others_are_told(engine):
    broken, whole = Handler(), Handler()
    broken.process_instant_event = lambda **_facts: 1 / 0
    broken.close = lambda _state, _logger: 1 / 0
    profiler = profiler_of(engine, [broken, whole]).start()
    moment = profiler.marker("moment")
    with pytest.warns(UserWarning, match="Handler gets no more markers: ZeroDivisionError"):
        moment.instant()
    moment.instant()  # without another warning, which would be an error here
    profiler.step()
    profiler.step()
    with pytest.warns(UserWarning, match="Handler was not closed: ZeroDivisionError"):
        profiler.stop()
    assert [fact[0] for fact in whole.told] == ["init", "instant", "instant", "file", "close"]


def test_a_schedule_that_fails_ends_the_profiling_and_markers_do_not_fail_with_it(engine):
    def schedule(state):
        return {0: ProfilerAction.WARMUP}[int(state.timestamp.batch)]

    handler = Handler()
    profiler = profiler_of(engine, [handler], schedule=schedule).start()
    profiler.marker("moment").instant()
    with pytest.warns(UserWarning, match="profiling stopped, training continues: KeyError: 1"):
        profiler.step()
    with profiler.marker("moment") as marker:
        marker.counter({"loss": 1})
    profiler.stop()
    assert [fact[0] for fact in handler.told] == ["init", "instant", "close"]


def test_files_of_other_formats_are_not_given_to_handlers_that_read_json(engine):
    handler = Handler()
    with profiler_of(engine, [handler], torch_prof_filename="{batch}.ktrace") as profiler:
        profiler.step()
        profiler.step()
    assert [fact for fact in handler.told if fact[0] == "file"] == []
    profiler.record_chrome_json_trace_file(_written("by_hand.json"))
    assert handler.told[-1] == ("file", "by_hand.json", True)


def _written(name):
    a_trace(None).save(name)
    return name


def test_composers_trainer_finds_what_it_asks_for(engine):
    handler = JSONTraceHandler(**HANDLER)
    profiler = profiler_of(engine, handler)
    state = SimpleNamespace(callbacks=[], timestamp=Timestamp(batch_in_epoch=5), run_name="run")
    profiler.bind_to_state(state)
    assert state.callbacks == [profiler, handler]
    assert profiler.torch_profiler is profiler
    assert (profiler.remote_filenames, profiler.trace_handlers, profiler.resumption_batch_idx) == (
        [],
        [handler],
        0,
    )
    profiler.after_load(state, None)
    state.profiler, state.timestamp = profiler, Timestamp(batch_in_epoch=5)
    assert [profiler.resumption_batch_idx, profiler.schedule(state)] == [5, ProfilerAction.WARMUP]
    profiler.trace_handlers = ()
    assert profiler.trace_handlers == []


# -------------------------------------------------------------------------------------------------- wrong use, at once


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"schedule": 3}, "schedule=3 is not valid"),
        ({"trace_handlers": JSONTraceHandler}, "it is a class: make an object of it"),
        ({"trace_handlers": [object()]}, r"is not a trace handler \(no init\(\)\)"),
        ({"torch_prof_folder": "{batch}"}, "folder=.*unknown variable {batch}"),
        ({"torch_prof_num_traces_to_keep": -2}, "num_traces_to_keep=-2"),
        ({"torch_prof_memory_filename": "m.html", "torch_prof_profile_memory": False}, "profile_memory=True"),
        ({"sys_prof_cpu": True, "sys_prof_stats_thread_interval_seconds": 0}, "interval_s=0"),
        ({"on_trace_ready": print}, "on_trace_ready cannot be set"),
    ],
)
def test_wrong_arguments_are_refused_when_the_profiler_is_made(arguments, said):
    with pytest.raises(ArgumentError, match=said):
        Profiler(**{"schedule": cyclic_schedule(), **NO_COUNTERS, **arguments})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"folder": "{batch}"}, "folder=.*unknown variable {batch}; the variables are: run_name"),
        ({"filename": "{loss}.json"}, "filename=.*unknown variable {loss}; the variables are: .*batch_wct"),
        ({"filename": "a.txt"}, "this suffix is not supported"),
        ({"remote_file_name": "nostore://a.json"}, "unknown protocol nostore://"),
        ({"num_traces_to_keep": 1.5}, "num_traces_to_keep=1.5"),
    ],
)
def test_wrong_arguments_are_refused_when_the_handler_is_made(arguments, said):
    with pytest.raises(ValueError, match=said):
        JSONTraceHandler(**arguments)


def test_counters_of_the_system_without_psutil_are_refused_when_the_profiler_is_made(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psutil", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "kinetoscope\[system\]"'):
        Profiler(cyclic_schedule())


def test_a_folder_of_a_handler_with_files_is_an_error_before_training(tmp_path, engine):
    (tmp_path / "all").mkdir()
    (tmp_path / "all/old.json").write_text("{}")
    profiler = profiler_of(engine, JSONTraceHandler(**HANDLER))
    with pytest.raises(FileExistsError, match="is not empty"):
        profiler.start()
    assert (engine.log, profiler.torch_profiler.profiler) == ([], None)
    profiler = profiler_of(engine, JSONTraceHandler(**HANDLER, overwrite=True))
    with profiler:
        profiler.step()
        with pytest.raises(StateError, match="was started already"):
            profiler.start()
        profiler.step()


def test_a_handler_without_anything_to_write_is_an_error_before_training():
    state = SimpleNamespace(run_name="run", timestamp=Timestamp(), profiler=None, callbacks=[])
    with pytest.raises(RuntimeError, match="JSONTraceHandler has no profiler to get traces from"):
        JSONTraceHandler().init(state, None)
    state.profiler = object()
    with pytest.raises(
        RuntimeError, match="makes no TorchProfiler when torch_prof_record_shapes, .* Turn on at least one"
    ):
        JSONTraceHandler().init(state, None)
    state.callbacks, state.run_name = None, None
    with pytest.raises(ArgumentError, match="run has no name"):
        JSONTraceHandler("all").init(state, object())
    with pytest.raises(ArgumentError, match="remote_file_name contains {run_name}"):
        JSONTraceHandler("all", "a.json").init(state, object())


def test_calls_at_the_wrong_moment_are_refused(engine):
    profiler = profiler_of(engine)
    for call in (profiler.step, profiler.next_epoch):
        with pytest.raises(StateError, match=r"call start\(\)"):
            call()


def test_tables_are_logged_once(engine, caplog):
    caplog.set_level(logging.INFO, logger="kinetoscope.integrations.composer")
    with profiler_of(engine, JSONTraceHandler(**HANDLER), activities=CPU) as profiler:
        profiler.step()
        profiler.step()
    assert len(caplog.messages) == 2
