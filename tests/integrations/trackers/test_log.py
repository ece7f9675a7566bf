"""`log_to_tracker` without a tracker; with each of them, see the other files."""

import logging

import pytest

import kinetoscope
from kinetoscope.integrations.trackers import TrainerLog, checked_tracker
from kinetoscope.integrations.trackers.log import active_trackers, trackers_of


@pytest.fixture
def writer(tmp_path):
    """A writer that notes what it gets, as there are many that are none of torch's."""

    class Writer:
        log_dir = str(tmp_path / "board")

        def __init__(self):
            self.scalars, self.texts, self.flushed = {}, {}, 0

        def add_scalar(self, tag, value, step):
            self.scalars[tag] = (value, step)

        def add_text(self, tag, text, step):
            self.texts[tag] = text

        def flush(self):
            self.flushed += 1

    return Writer()


@pytest.fixture
def nothing_active():
    if active_trackers():
        pytest.skip("another test of this process has an active run")


def test_without_an_active_run_it_is_an_error(recorded, nothing_active):
    with pytest.raises(kinetoscope.StateError, match="found no active run of wandb or mlflow"):
        kinetoscope.log_to_tracker(recorded)


@pytest.mark.parametrize("given", [3, "run", [], [None], logging.getLogger("x")])
def test_what_is_no_tracker_is_refused(recorded, given):
    with pytest.raises(kinetoscope.ArgumentError, match="is not one that Kinetoscope logs to"):
        kinetoscope.log_to_tracker(recorded, given)
    with pytest.raises(kinetoscope.ArgumentError, match="log_to_tracker="):
        checked_tracker(given)


def test_any_writer_of_the_interface_of_tensorboard_is_used(recorded, writer, tmp_path):
    assert kinetoscope.log_to_tracker(recorded, writer, name="first") == ["tensorboard"]
    assert writer.scalars["kinetoscope/step_ms"][0] > 0
    assert "| path | class |" in writer.texts["kinetoscope/modules"]
    assert writer.flushed == 1
    saved = tmp_path / "board" / "kinetoscope" / "first"
    assert {path.name for path in saved.iterdir()} == {"first.ktrace", "report.html"}
    assert str(saved / "report.html") in writer.texts["kinetoscope/findings"]


def test_a_failing_tracker_is_one_warning_and_the_others_get_it(recorded, writer):
    class Full(type(writer)):
        def add_scalar(self, tag, value, step):
            raise OSError("no space left")

    with pytest.warns(UserWarning, match="not logged to tensorboard: OSError: no space left") as warned:
        done = kinetoscope.log_to_tracker(recorded, [Full(), writer])
    assert done == ["tensorboard"]
    assert len(warned) == 1
    assert writer.flushed == 1


def test_a_logger_of_a_trainer_stands_for_what_is_in_it_once(writer):
    class Logger:
        experiment = writer

    class Callback:
        tb_writer = writer

    assert [one.writer for one in trackers_of([Logger(), Callback(), writer])] == [writer]


def test_a_trainer_without_an_active_run_gets_a_warning(recorded, nothing_active):
    with pytest.warns(UserWarning, match="no run of a tracker is active"):
        TrainerLog(True).log(recorded, None, list)


def test_a_trainer_logs_to_its_own_loggers(recorded, writer):
    TrainerLog(True).log(recorded, "train", lambda: [writer])
    assert writer.flushed == 1


def test_incidents_are_logged(writer, tmp_path):
    with kinetoscope.leave_on(folder=tmp_path / "jobs", on=()) as recorder:
        log = TrainerLog(writer)
        log.log_incidents(list)
        log.log_incidents(list)
        recorder.step()
        # It is a kind for which a program that ends would wait.
        path = recorder.snapshot("crash")
    assert path is not None
    assert "crash" in writer.texts["kinetoscope/incident"]
    assert str(path) in writer.texts["kinetoscope/incident"]
    assert writer.flushed == 1
