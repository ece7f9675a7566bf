import json
import logging
from types import SimpleNamespace

import pytest
import torch

import kinetoscope
from kinetoscope import ArgumentError
from kinetoscope.integrations.composer import (
    ProfilerAction,
    Timestamp,
    TorchProfiler,
    cyclic_schedule,
)
from tests.integrations.composer.profilers import CPU, PLACES, a_trace, saved
from tests.support.noting_engine import NotingEngine

SKIP, WARMUP, ACTIVE, SAVE = ProfilerAction


class Composer:
    """Sends the events of a training run in the order in which Composer sends them, with the state it shows."""

    def __init__(self, callback, schedule=None, *, batches=4, known=True, run_name="run", logger=None):
        self.callback, self.logger = callback, logger
        self.state = SimpleNamespace(
            run_name=run_name,
            timestamp=Timestamp(),
            profiler=None if schedule is None else SimpleNamespace(schedule=schedule),
            dataloader_len=batches if known else None,
            callbacks=[callback],
        )
        self.batches = batches
        self.send("init")

    def send(self, event):
        getattr(self.callback, event, lambda *_: None)(self.state, self.logger)

    def train(self, epochs=1, do=lambda: None):
        for _ in range(epochs):
            self.send("epoch_start")
            for _ in range(self.batches):
                self.send("before_dataloader")
                self.send("after_dataloader")
                self.send("batch_start")
                do()
                self.state.timestamp = self.state.timestamp.to_next_batch(samples=2, tokens=8)
                self.send("batch_end")
            self.send("before_dataloader")  # it asks once more and finds that there is no batch left
            self.state.timestamp = self.state.timestamp.to_next_epoch()
            self.send("epoch_end")
        return self

    def close(self):
        self.callback.close(self.state, self.logger)


def by_letters(text, batches):
    """A schedule that wants for each batch what a letter says; anything beyond the text is skipped."""
    letters = {".": SKIP, "w": WARMUP, "A": ACTIVE, "S": SAVE}
    epochs = text.split(" ")

    def schedule(state):
        epoch, batch = int(state.timestamp.epoch), int(state.timestamp.batch_in_epoch)
        return letters[
            (epochs[epoch] if epoch < len(epochs) else "").ljust(batches, ".")[batch : batch + 1] or "."
        ]

    return schedule


# ---------------------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("wanted", "saves", "calls"),
    [
        ("....", [], []),
        (".wAS", [4], ["prepare", "start", "stop"]),
        ("wASw AS..", [3, 6], ["prepare", "start", "stop"] * 2),
        ("SSS.", [1, 2, 3], ["prepare", "start", "stop"] * 3),
        ("S... S...", [1, 5], ["prepare", "start", "stop"] * 2),
        ("AAAA AAAS", [8], ["prepare", "start", "stop"]),
        # A recording that the schedule leaves without a save is saved: with warm-up, skip, and the end of the run after it.
        ("AA.. ....", [2], ["prepare", "start", "stop"]),
        ("AAww ....", [2], ["prepare", "start", "stop", "prepare"]),
        (".wAA wAS.", [4, 7], ["prepare", "start", "stop"] * 2),
        (".... ..AA", [8], ["prepare", "start", "stop"]),
        # What is warm stays warm until it is needed.
        ("...w ..AS", [8], ["prepare", "start", "stop"]),
    ],
)
@pytest.mark.filterwarnings("ignore:nothing was recorded")
def test_what_is_recorded_and_saved(wanted, saves, calls, known, engine):
    profiler = TorchProfiler(**PLACES, engine=engine)
    trainer = Composer(profiler, by_letters(wanted, 4), known=known).train(epochs=2)
    trainer.close()
    assert saved(profiler) == saves
    done = [call for call in engine.log if call in ("prepare", "start", "stop")]
    if wanted.endswith("w ....") or wanted == "AAww ....":
        assert done[: len(calls)] == calls
    else:
        assert done == calls


def test_a_training_that_is_left_on_has_the_batches_as_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profiler = TorchProfiler(**PLACES, leave_on={"folder": "flights", "keep": "1MiB"})
    trainer = Composer(profiler)
    steps = []

    def batch():
        steps.append(profiler.recorder.status().step)
        trainer.state.loss = torch.tensor(float("nan") if len(steps) == 6 else 1.0)

    trainer.train(epochs=2, do=batch).close()
    assert steps == [0, 1, 2, 3, 4, 5, 6, 7]
    (path,) = profiler.recorder.status().incidents
    assert json.loads(path.with_suffix(".json").read_text())["what"] == "the loss of step 5 is nan"
    assert not profiler.recorder.is_on
    # Without a schedule, nothing else is recorded.
    assert (saved(profiler), [path.name for path in tmp_path.iterdir()]) == ([], ["flights"])
    # In a loop of one's own, an exception that leaves the block is an incident.
    with (
        pytest.raises(RuntimeError, match="bad batch"),
        TorchProfiler(**PLACES, leave_on={"folder": "flights", "keep": "1MiB"}) as profiler,
    ):
        profiler.step()
        raise RuntimeError("bad batch")
    (path,) = profiler.recorder.status().incidents
    found = json.loads(path.with_suffix(".json").read_text())
    assert (found["reason"], found["step"]) == ("crash", 1)


def test_the_schedule_of_composers_profiler_and_our_own_do_the_same(engine):
    numbers = {"wait": 1, "warmup": 1, "active": 2, "repeat": 1}
    with_theirs = TorchProfiler(**PLACES, engine=engine)
    Composer(with_theirs, cyclic_schedule(**numbers), batches=5).train(epochs=2).close()
    with_ours = TorchProfiler(
        **PLACES | {"folder": "own"}, engine=engine, schedule=cyclic_schedule(**numbers)
    )
    Composer(with_ours, batches=5).train(epochs=2).close()
    assert saved(with_theirs) == saved(with_ours) == [4, 9]


def test_a_run_that_fails_in_a_batch_leaves_what_was_recorded(engine):
    profiler = TorchProfiler(**PLACES, engine=engine)
    trainer = Composer(profiler, by_letters("AAAA", 4))
    with pytest.raises(ZeroDivisionError):
        trainer.train(do=lambda: 1 / 0)
    trainer.close()
    assert saved(profiler) == [0]


def test_a_recording_without_a_batch_is_no_trace(engine):
    profiler = TorchProfiler(**PLACES, engine=engine)
    trainer = Composer(profiler, by_letters("AAAA", 4))
    trainer.send("before_dataloader")  # and then the loader turns out to be empty
    trainer.close()
    assert saved(profiler) == []
    assert engine.log[:3] == ["prepare", "start", "stop"]


def test_steps_have_the_numbers_of_batches_and_hold_the_wait_for_their_data():
    profiler = TorchProfiler(**PLACES, activities=CPU, schedule=by_letters(".AS. .AS.", 4))
    trainer = Composer(profiler, batches=4).train(epochs=2, do=lambda: torch.ones(3).sum())
    trainer.close()
    with kinetoscope.open(profiler.saved_traces[-1][1][0]) as trace:
        spans = trace.table("spans").to_pylist()
        steps = [span for span in spans if span["kind"] == "step"]
        waits = [span for span in spans if span["name"].startswith("enumerate(DataLoader)#")]
        assert [step["name"] for step in steps] == ["ProfilerStep#5", "ProfilerStep#6"]
        for step, wait in zip(steps, waits, strict=True):
            assert step["start_ns"] <= wait["start_ns"]
            assert wait["start_ns"] + wait["duration_ns"] < step["start_ns"] + step["duration_ns"]
        assert [row["data_wait_ns"] for row in trace.table("breakdown").to_pylist()] == [
            wait["duration_ns"] for wait in waits
        ]
        assert trace.info["global_rank"] == 0


# -------------------------------------------------------------------------------------------------- wrong use, at once


@pytest.mark.parametrize("schedule", [kinetoscope.schedule(wait=0, warmup=1, active=1), lambda _state: "now"])
def test_a_schedule_of_another_kind_is_an_error_before_training(schedule, engine):
    with pytest.raises(ArgumentError, match="schedule"):
        Composer(TorchProfiler(**PLACES, engine=engine), schedule)
    assert engine.log == []


# -------------------------------------------------------------------------------------------------- training goes on


@pytest.mark.parametrize("call", ["prepare", "start", "stop"])
def test_a_recorder_that_fails_ends_the_profiling_and_not_the_training(call):
    engine = NotingEngine(a_trace, fail={call: RuntimeError("broken")})
    profiler = TorchProfiler(**PLACES, engine=engine)
    trained = []
    trainer = Composer(profiler, by_letters(".wAS", 4))
    with pytest.warns(UserWarning, match="profiling stopped, training continues: RuntimeError: broken"):
        trainer.train(epochs=2, do=lambda: trained.append(1))
    trainer.close()
    assert (len(trained), saved(profiler)) == (8, [])


def test_a_schedule_that_fails_later_ends_the_profiling_and_not_the_training(engine):
    def schedule(state):
        return {0: WARMUP, 1: ACTIVE}[int(state.timestamp.batch)]

    profiler, trained = TorchProfiler(**PLACES, engine=engine), []
    with pytest.warns(UserWarning, match="profiling stopped, training continues: KeyError: 2"):
        Composer(profiler, schedule).train(do=lambda: trained.append(1)).close()
    assert len(trained) == 4
    assert engine.log.count("start") == engine.log.count("stop") == 1


def test_a_trace_that_cannot_be_written_costs_that_trace_only(engine, tmp_path):
    profiler = TorchProfiler(**PLACES, engine=engine)
    trainer = Composer(profiler, by_letters("SS..", 4))
    (tmp_path / "run/1.json").mkdir()
    with pytest.warns(UserWarning, match="a trace was not saved: IsADirectoryError"):
        trainer.train()
    trainer.close()
    assert saved(profiler) == [2]


def test_trace_handlers_of_composers_profiler_are_told_of_each_file(engine):
    told = []
    profiler = TorchProfiler(**PLACES, engine=engine, num_traces_to_keep=1)
    trainer = Composer(profiler, by_letters("SS..", 4))
    trainer.state.profiler.trace_handlers = [
        SimpleNamespace(process_chrome_json_trace_file=lambda path: told.append((path.name, path.exists())))
    ]
    trainer.train().close()
    assert told == [("1.json", True), ("2.json", True)]


def test_the_logger_is_told_the_state_and_gets_the_files(engine):
    traces, uploads = [], []
    logger = SimpleNamespace(
        log_traces=traces.append, upload_file=lambda **options: uploads.append(options["remote_file_name"])
    )
    profiler = TorchProfiler("run", "{batch}.json", "/far/{batch}.json", engine=engine)
    Composer(profiler, by_letters(".wAS", 4), logger=logger).train().close()
    assert [told["profiler/state"] for told in traces] == ["SKIP", "WARMUP", "ACTIVE", "ACTIVE_AND_SAVE"]
    assert uploads == ["far/4.json"]


# ----------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize(("memory", "tables"), [(True, 2), (False, 1)])
def test_tables_of_operators_are_logged_at_the_end(memory, tables, engine, caplog):
    caplog.set_level(logging.INFO, logger="kinetoscope.integrations.composer")
    profiler = TorchProfiler(**PLACES, engine=engine, activities=CPU, profile_memory=memory)
    Composer(profiler, by_letters("S...", 4)).train().close()
    assert len(caplog.messages) == tables
    assert all("aten::mm" in message and "Self CPU" in message for message in caplog.messages)


def test_tables_of_the_device_are_logged_if_one_was_profiled(caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="kinetoscope.integrations.composer")
    profiler = TorchProfiler(**PLACES, engine=NotingEngine(a_trace))
    monkeypatch.setattr(TorchProfiler, "_has_device", staticmethod(lambda _activities: True))
    Composer(profiler, by_letters("S...", 4)).train().close()
    assert len(caplog.messages) == 4


def test_without_a_batch_nothing_is_begun_and_nothing_logged(engine, caplog):
    caplog.set_level(logging.INFO, logger="kinetoscope.integrations.composer")
    profiler = TorchProfiler(**PLACES, engine=engine)
    Composer(profiler, cyclic_schedule()).close()
    assert (engine.log, caplog.messages, profiler.profiler) == ([], [], None)


def test_other_arguments_of_the_session_are_passed_on(engine):
    profiler = TorchProfiler(
        **PLACES, engine=engine, record_shapes=True, with_stack=True, with_flops=False, with_modules=True
    )
    Composer(profiler, by_letters("S...", 4)).train().close()
    (request,) = engine.requests
    asked = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
    assert [getattr(request.options, name) for name in asked] == [True, True, True, False, True]
    assert json.loads(request.info["profile_memory"]) == 1
