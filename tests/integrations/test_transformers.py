"""The Trainer of Transformers with our callback in it."""

import importlib
import sys
import warnings

import pytest

pytest.importorskip("torch", reason="Transformers trains with PyTorch")

import torch

import kinetoscope
from tests.support.on_demand import OnDemand
from tests.support.trained import Net, Regression, step_numbers, steps_of_ranges

transformers = OnDemand("transformers", "this trainer is not installed")
ours = OnDemand("kinetoscope.integrations.transformers", "the Trainer needs Accelerate", needs="accelerate")
CPU = [kinetoscope.ProfilerActivity.CPU]


def trainer(folder, *callbacks, net=None, **changed):
    options = {
        "per_device_train_batch_size": 2, "num_train_epochs": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True,
        "save_strategy": "no", "logging_strategy": "no", "dataloader_pin_memory": False,
    }  # fmt: skip
    return transformers.Trainer(
        model=net or Net(),
        args=transformers.TrainingArguments(output_dir=str(folder), **options | changed),
        train_dataset=Regression(8),
        eval_dataset=Regression(4),
        callbacks=list(callbacks),
    )


def train(using, **keywords):
    """Trains; the trainer's own warnings are its own business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return using.train(**keywords)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """Two epochs of eight micro-batches, two to a step, with evaluation, logging and saving, recorded whole."""
    folder = tmp_path_factory.mktemp("whole")
    callback = ours.KinetoscopeCallback(whole_run=True, activities=CPU)
    using = trainer(
        folder, callback, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=3, save_strategy="steps",
        save_steps=2, logging_strategy="steps", logging_steps=2, per_device_train_batch_size=1,
    )  # fmt: skip
    train(using)
    return callback, using, folder


def test_the_steps_are_those_of_the_optimizer_as_the_trainer_counts_them(whole_run):
    callback, using, _ = whole_run
    assert using.state.global_step == 8
    assert step_numbers(callback.trace) == list(range(8))


def test_the_trace_is_written_into_the_folder_of_the_trainer(whole_run):
    callback, _, folder = whole_run
    assert callback.saved_traces == [folder / "kinetoscope" / "train-steps-0-7.ktrace"]
    with kinetoscope.open(callback.saved_traces[0]) as trace:
        assert trace.info["trainer"] == f"transformers {transformers.__version__}"
        assert trace.info["stage"] == "train"


def test_what_the_trainer_does_is_spans_and_a_step_holds_its_wait_and_its_micro_batches(whole_run):
    spans = steps_of_ranges(whole_run[0].trace)
    assert spans["[Trainer]get_batch_samples"] == list(range(8))
    assert spans["[Trainer]training_step"] == [step for step in range(8) for _ in range(2)]
    assert spans["Optimizer.step#AdamW.step"] == list(range(8))


def test_evaluation_logging_and_saving_belong_to_no_step(whole_run):
    spans = steps_of_ranges(whole_run[0].trace)
    assert set(spans["[Trainer]evaluate"]) == {None}
    assert len(spans["[Trainer]evaluate"]) in (
        2,
        3,
    )  # versions differ in whether the last step is evaluated, too
    assert spans["[Trainer]save_checkpoint"] == [None] * 4
    assert set(spans["[Trainer]prediction_step"]) == {None}
    assert set(spans["[Trainer]log"]) == {None}
    assert spans["[Trainer]epoch"] == [None, None]


def test_the_trainer_is_left_as_it_was(whole_run):
    _, using, _ = whole_run
    assert not {"get_batch_samples", "training_step", "evaluate", "log", "prediction_step"} & set(vars(using))


def test_without_options_steps_two_to_four_are_recorded_and_nothing_else_changes(tmp_path):
    def weights(*callbacks):
        torch.manual_seed(3)
        using = trainer(tmp_path, *callbacks)
        train(using)
        return [*(value.tolist() for value in using.model.parameters()), torch.rand(1).item()]

    callback = ours.KinetoscopeCallback(activities=CPU)
    assert weights() == weights(callback)
    assert [path.name for path in callback.saved_traces] == ["train-steps-2-4.ktrace"]
    assert step_numbers(callback.trace) == [2, 3, 4]


@pytest.mark.parametrize(
    ("error", "ended_by"),
    [(RuntimeError("out of luck"), "RuntimeError: out of luck"), (KeyboardInterrupt(), "KeyboardInterrupt")],
    ids=["error", "interrupt"],
)
def test_a_training_that_fails_leaves_a_finished_trace(error, ended_by, tmp_path):
    class Failing(transformers.TrainerCallback):
        def on_optimizer_step(self, args, state, control, **_):
            if state.global_step == 3:
                raise error

    callback = ours.KinetoscopeCallback(activities=CPU)
    using = trainer(tmp_path, callback, Failing())
    with pytest.raises(type(error)):
        train(using)
    with kinetoscope.open(callback.saved_traces[0]) as trace:
        assert step_numbers(trace) == [2, 3]
        assert trace.info["ended_by"] == ended_by
    assert "training_step" not in vars(using)


def test_a_training_that_stops_early_leaves_a_finished_trace_without_an_empty_step(tmp_path):
    class Stopping(transformers.TrainerCallback):
        def on_evaluate(self, args, state, control, **_):
            control.should_training_stop = state.global_step == 4

    callback = ours.KinetoscopeCallback(activities=CPU)
    train(trainer(tmp_path, callback, Stopping(), eval_strategy="steps", eval_steps=1))
    with kinetoscope.open(callback.saved_traces[0]) as trace:
        assert step_numbers(trace) == [2, 3]
        assert "ended_by" not in trace.info


def test_steps_go_on_where_a_checkpoint_left_off(tmp_path):
    train(trainer(tmp_path, save_strategy="steps", save_steps=4))
    callback = ours.KinetoscopeCallback(activities=CPU, schedule=kinetoscope.schedule(wait=0, warmup=1, active=2, repeat=1))  # fmt: skip
    train(trainer(tmp_path, callback), resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert step_numbers(callback.trace) == [5, 6]


def test_two_trainings_one_after_the_other_are_two_runs(tmp_path):
    callback = ours.KinetoscopeCallback(tmp_path / "traces", activities=CPU)
    using = trainer(tmp_path, callback)
    train(using)
    train(using)
    assert [path.name for path in callback.saved_traces] == ["train-steps-2-4.ktrace", "train-steps-2-4-2.ktrace"]  # fmt: skip


def test_a_trainer_that_was_given_the_callback_later_is_profiled_as_well(tmp_path):
    callback = ours.KinetoscopeCallback(activities=CPU)
    using = trainer(tmp_path)
    using.add_callback(callback)
    train(using)
    assert step_numbers(callback.trace) == [2, 3, 4]
    using.remove_callback(callback)
    train(using)
    assert len(callback.saved_traces) == 1


def test_what_is_wrong_is_said_before_the_first_step(tmp_path):
    trained = []

    class Noting(Net):
        def forward(self, x, labels):
            trained.append(x)
            return super().forward(x, labels)

    late = kinetoscope.schedule(wait=10, warmup=1, active=1)
    with pytest.raises(kinetoscope.ArgumentError, match="skips 11 steps .* has only 8"):
        train(trainer(tmp_path, ours.KinetoscopeCallback(activities=CPU, schedule=late), net=Noting()))
    (tmp_path / "train-steps-2-4.ktrace").write_bytes(b"")
    with pytest.raises(kinetoscope.ArgumentError, match="contains 1 trace of an earlier run"):
        train(trainer(tmp_path, ours.KinetoscopeCallback(tmp_path, activities=CPU), net=Noting()))
    with pytest.raises(kinetoscope.ArgumentError, match="no option 'scedule'.*did you mean"):
        ours.KinetoscopeCallback(activities=CPU, scedule=late)
    assert trained == []


def test_without_transformers_the_module_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "kinetoscope.integrations.transformers", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        kinetoscope.MissingDependencyError, match=r'pip install "kinetoscope\[transformers\]"'
    ):
        importlib.import_module("kinetoscope.integrations.transformers")
