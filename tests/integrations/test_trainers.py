"""A session that a trainer drives: what is asked is checked at once, failures of ours end nothing, traces get a folder."""

import copy
import pickle
import warnings

import pytest

pytest.importorskip("torch", reason="sessions record PyTorch")

import torch

import kinetoscope
from kinetoscope.integrations.trainers import TrainerProfiler, checked_options
from tests.support.trained import step_numbers, steps_of_ranges

CPU = [kinetoscope.ProfilerActivity.CPU]


OWN = {"folder": None, "schedule": None, "whole_run": False, "on_trace_ready": None, "overwrite": False}


def options(**changed):
    own = OWN | {name: value for name, value in changed.items() if name in OWN}
    passed_on = {name: value for name, value in changed.items() if name not in OWN}
    return checked_options({**own, "options": {"activities": CPU, **passed_on}})


def run(driven, steps, folder, total=None, first=0):
    driven.prepare("train", folder)
    driven.begin(total)
    for number in range(first, first + steps):
        driven.open_step(number)
        driven.open("hook")
        torch.ones(2).add(1)
        driven.close("hook")
        driven.close_step()
    driven.end()


# --------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("name", ["cuda", "CUDA", kinetoscope.ProfilerActivity.CUDA], ids=["small", "large", "itself"])  # fmt: skip
def test_cuda_is_refused_where_there_is_none_even_beside_the_cpu(name):
    with pytest.raises(kinetoscope.ArgumentError, match="activities contains CUDA, which this machine .* Available: CPU"):  # fmt: skip
        options(activities=["cpu", name])


def test_a_folder_with_traces_of_an_earlier_run_is_refused_unless_that_was_asked_for(tmp_path):
    run(TrainerProfiler(options(folder=tmp_path), "test"), 5, tmp_path)
    with pytest.raises(kinetoscope.ArgumentError, match="contains 1 trace of an earlier run .train-steps-2-4.ktrace.*overwrite=True"):  # fmt: skip
        TrainerProfiler(options(folder=tmp_path), "test").prepare("train", tmp_path)
    again = TrainerProfiler(options(folder=tmp_path, overwrite=True), "test")
    run(again, 5, tmp_path)
    assert again.saved == [tmp_path / "train-steps-2-4.ktrace"]


def test_a_schedule_that_begins_after_the_run_has_ended_is_refused(tmp_path):
    driven = TrainerProfiler(options(schedule=kinetoscope.schedule(wait=5, warmup=1, active=1)), "test")
    driven.prepare("train", tmp_path)
    with pytest.raises(kinetoscope.ArgumentError, match="skips 6 steps .* has only 6: nothing would be recorded"):  # fmt: skip
        driven.begin(6)
    assert not driven.is_running
    driven.begin(7)
    with pytest.warns(
        UserWarning, match=r"nothing was recorded: Schedule.* records after 6 steps, and this run had 0\."
    ):
        driven.end()


def test_a_later_run_that_is_too_short_is_a_warning_and_goes_on_without_us(tmp_path):
    driven = TrainerProfiler(
        options(schedule=kinetoscope.schedule(wait=2, warmup=1, active=1, repeat=1)), "test"
    )
    run(driven, 5, tmp_path, total=5)
    with pytest.warns(UserWarning, match="train is not profiled: Schedule.* skips 3 steps .* has only 2") as told:  # fmt: skip
        run(driven, 2, tmp_path, total=2)
    assert len(told) == 1
    assert step_numbers(driven.last_session().trace) == [3]
    assert len(driven.saved) == 1


def test_a_second_session_in_the_process_is_said_before_the_run(tmp_path):
    with kinetoscope.profile(activities=CPU, engine="kineto"):
        driven = TrainerProfiler(options(engine="kineto", whole_run=True), "test")
        driven.prepare("train", tmp_path)
        with pytest.raises(kinetoscope.StateError, match="another Kinetoscope session is already recording"):
            driven.begin(None)


# ------------------------------------------------------------------------------------------------- what is recorded


@pytest.mark.parametrize(
    ("total", "recorded"),
    [(1, [0]), (2, [1]), (3, [1, 2]), (4, [1, 2, 3]), (5, [2, 3, 4]), (9, [2, 3, 4]), (None, [2, 3, 4])],
)
def test_without_a_schedule_a_few_early_steps_are_recorded_of_a_run_of_any_length(total, recorded, tmp_path):
    driven = TrainerProfiler(options(), "test")
    run(driven, total or 6, tmp_path, total)
    assert step_numbers(driven.last_session().trace) == recorded
    assert steps_of_ranges(driven.last_session().trace)["hook"] == recorded
    (saved,) = driven.saved
    assert saved == tmp_path / "kinetoscope" / f"train-steps-{recorded[0]}-{recorded[-1]}.ktrace"


def test_steps_have_the_numbers_of_the_trainer_and_the_schedule_counts_those_of_the_run(tmp_path):
    driven = TrainerProfiler(
        options(schedule=kinetoscope.schedule(wait=1, warmup=1, active=1, repeat=2)), "test"
    )
    run(driven, 7, tmp_path, first=1000)
    assert [path.name for path in driven.saved] == ["train-steps-1002-1002.ktrace", "train-steps-1005-1005.ktrace"]  # fmt: skip
    with kinetoscope.open(driven.saved[0]) as trace:
        assert step_numbers(trace) == [1002]
        assert trace.info["trainer"] == "test"
        assert trace.info["stage"] == "train"
        assert "ended_by" not in trace.info


def test_a_hook_inside_itself_and_one_that_began_before_the_recording_end_where_they_should(tmp_path):
    driven = TrainerProfiler(
        options(schedule=kinetoscope.schedule(wait=0, warmup=1, active=1, repeat=1)), "test"
    )
    driven.prepare("train", tmp_path)
    driven.begin(None)
    driven.open("outer")
    for number in range(2):
        driven.open_step(number)
        driven.open("hook")
        driven.open("hook")
        driven.close("hook")
        driven.close("hook")
        driven.close_step()
    driven.close("outer")
    driven.close("never begun")
    driven.end()
    assert steps_of_ranges(driven.last_session().trace) == {"hook": [1, 1]}
    inner = (
        driven.last_session()
        .trace.sql("select depth from spans where name = 'hook' order by start_ns")
        .to_pylist()
    )
    assert inner[1]["depth"] == inner[0]["depth"] + 1


def test_two_runs_of_one_profiler_share_a_folder_and_neither_writes_over_the_other(tmp_path):
    driven = TrainerProfiler(options(folder=tmp_path), "test")
    run(driven, 5, tmp_path)
    run(driven, 5, tmp_path)
    assert [path.name for path in driven.saved] == ["train-steps-2-4.ktrace", "train-steps-2-4-2.ktrace"]


def test_a_new_profiler_without_a_folder_of_its_own_takes_a_new_one(tmp_path):
    for name in ("kinetoscope", "kinetoscope-2"):
        driven = TrainerProfiler(options(), "test")
        run(driven, 5, tmp_path)
        assert driven.saved[0].parent == tmp_path / name


def test_each_rank_has_its_own_files_in_one_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        run(TrainerProfiler(options(), "test"), 5, tmp_path)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.ktrace"))
    assert found == [
        "kinetoscope/train-steps-2-4.rank0.ktrace",
        "kinetoscope/train-steps-2-4.rank1.ktrace",
    ]


def test_a_handler_alone_means_that_nothing_is_written(tmp_path):
    seen = []
    driven = TrainerProfiler(options(on_trace_ready=lambda session: seen.append(session.step_num)), "test")
    run(driven, 6, tmp_path)
    assert (seen, driven.saved, list(tmp_path.iterdir())) == ([5], [], [])


# ------------------------------------------------------------------------------------------------------ what fails


@pytest.mark.parametrize(("chosen", "deep"), [({}, True), ({"deep_steps": False}, False)])
def test_some_steps_are_recorded_in_full(tmp_path, chosen, deep):
    traces = []
    driven = TrainerProfiler(
        options(on_trace_ready=lambda session: traces.append(session.trace), **chosen), "test"
    )
    run(driven, 6, tmp_path)
    driven.end()
    (trace,) = traces
    assert bool(trace.run_info.deep_steps) == deep
    assert (trace.column("spans", "shapes") >= 0).any() == deep


def test_the_failure_of_the_training_ends_the_recording_and_stands_in_the_trace(tmp_path):
    driven = TrainerProfiler(options(whole_run=True), "test")
    driven.prepare("train", tmp_path)
    driven.begin(None)
    driven.open_step(0)
    torch.ones(2).add(1)
    driven.end(ValueError("no more"))
    driven.close_step()
    with kinetoscope.open(driven.saved[0]) as trace:
        assert step_numbers(trace) == [0]
        assert trace.info["ended_by"] == "ValueError: no more"


def test_a_handler_that_fails_is_a_warning_or_the_users_own_exception(tmp_path):
    def fail(session):
        raise OSError("full")

    with pytest.warns(
        UserWarning, match="on_trace_ready failed at step 5, profiling continues: OSError: full"
    ):
        run(TrainerProfiler(options(on_trace_ready=fail), "test"), 6, tmp_path)
    driven = TrainerProfiler(options(on_trace_ready=fail, on_error="raise"), "test")
    with pytest.raises(OSError, match="full"):
        run(driven, 6, tmp_path)
    driven.end()


def test_a_trace_that_cannot_be_written_is_a_warning_and_still_in_memory(tmp_path):
    driven = TrainerProfiler(options(folder=tmp_path / "traces"), "test")
    driven.prepare("train", tmp_path)
    (tmp_path / "traces" / "train-steps-2-4.ktrace").mkdir()
    driven.begin(None)
    for number in range(5):
        driven.open_step(number)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            driven.close_step()
    assert "could not be written: " in str(told[0].message)
    assert "Training continues" in str(told[0].message)
    driven.end()
    assert driven.saved == []
    assert step_numbers(driven.last_session().trace) == [2, 3, 4]


class BreakingEngine:
    """An engine that fails in the middle of a run."""

    name = "breaking"

    def prepare(self, request):
        return

    def start(self):
        raise kinetoscope.RecorderError("no room for the recording")

    def stop(self):
        raise kinetoscope.RecorderError("it never ran")


def test_a_failure_of_the_recorder_in_mid_run_is_a_warning_and_the_training_goes_on(tmp_path):
    driven = TrainerProfiler(options(engine=BreakingEngine()), "test")
    with pytest.warns(UserWarning, match="no room") as told:
        run(driven, 8, tmp_path)
    assert [str(warning.message) for warning in told] == [
        "this cycle is not recorded (step 2): no room for the recording",
        "nothing was recorded: the cycle of step 2 could not be recorded: no room for the recording",
    ]
    assert not driven.is_running


def test_it_can_be_copied_to_another_process_before_and_after_a_run(tmp_path):
    driven = TrainerProfiler(options(folder=tmp_path), "test")
    sent = pickle.dumps(driven)
    # Each training in a process of its own, which is then gone, and of which this one knows nothing.
    for _ in range(2):
        run(pickle.loads(sent), 5, tmp_path)
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["train-steps-2-4-2.ktrace", "train-steps-2-4.ktrace"]


def test_a_copy_goes_on_with_the_folder(tmp_path):
    driven = TrainerProfiler(options(folder=tmp_path), "test")
    run(driven, 5, tmp_path)
    other = copy.deepcopy(driven)
    assert not other.is_running
    run(other, 5, tmp_path)
    assert [path.name for path in other.saved] == ["train-steps-2-4.ktrace", "train-steps-2-4-2.ktrace"]
