"""`leave_on` of the trainers: their own steps and losses, and what is between two steps is neither slow nor a hang."""

import json
import warnings

import pytest

pytest.importorskip("torch", reason="trainers train with PyTorch")

import torch

import kinetoscope
from kinetoscope.flight.flight import current_recorder
from kinetoscope.flight.last import last_event
from kinetoscope.flight.step_log import read_step_log
from tests.support.trained import Net, Regression, loader


@pytest.fixture
def flights(tmp_path):
    return {"folder": tmp_path / "flights", "budget": "50%", "keep": "1MiB"}


def step_under_way():
    """The number of the step that is watched now; None between two steps."""
    log = read_step_log(current_recorder().status().ring.with_suffix(".steps"))
    return log.number if log.began_ns else None


def logged_steps():
    return [
        step.number for step in read_step_log(current_recorder().status().ring.with_suffix(".steps")).steps
    ]


def incident(recorder):
    """The first incident; a loss that is no number leaves weights that are none."""
    path = recorder.status().incidents[0]
    return json.loads(path.with_suffix(".json").read_text())


def quietly(call, *arguments, **keywords):
    """Calls into a trainer, whose own warnings are its own business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments, **keywords)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(package, flights, tmp_path):
    lightning = quietly(pytest.importorskip, package, reason="this trainer is not installed")
    from kinetoscope.integrations.lightning import KinetoscopeProfiler

    seen = {}

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, index):
            seen.setdefault("training", []).append(step_under_way())
            loss = self.net(**batch)["loss"]
            return loss * float("nan") if self.trainer.fit_loop.epoch_loop.total_batch_idx == 4 else loss

        def validation_step(self, batch, index):
            seen.setdefault("validation", []).append(step_under_way())

        def on_save_checkpoint(self, checkpoint):
            seen.setdefault("checkpoint", []).append(step_under_way())
            seen["logged"] = logged_steps()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def trainer(profiler, epochs):
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        return lightning.Trainer(
            profiler=profiler, default_root_dir=tmp_path, max_epochs=epochs, accelerator="cpu", **quiet
        )

    profiler = KinetoscopeProfiler(leave_on=flights)
    using = trainer(profiler, 2)
    training_step = using.strategy.training_step
    quietly(using.fit, Model(), loader(3), loader(1))
    assert seen["training"] == [0, 1, 2, 3, 4, 5]
    assert set(seen["validation"]) == set(seen["checkpoint"]) == {None}
    assert seen["logged"] == [0, 1, 2, 3, 4, 5]
    assert current_recorder() is None
    assert using.strategy.training_step == training_step
    found = incident(profiler.recorder)
    assert (found["reason"], found["what"]) == ("nan", "the loss of step 4 is nan")
    # Nothing else was asked for.
    assert profiler.saved_traces == []
    assert not (tmp_path / "kinetoscope").exists()
    # A resumed job counts on.
    seen.clear()
    quietly(
        trainer(KinetoscopeProfiler(leave_on=flights), 3).fit,
        Model(),
        loader(3),
        loader(1),
        ckpt_path=next(tmp_path.rglob("*.ckpt")),
    )
    assert seen["training"] == [6, 7, 8]


def test_transformers(flights, tmp_path):
    transformers = quietly(pytest.importorskip, "transformers", reason="this trainer is not installed")
    from kinetoscope.integrations.transformers import KinetoscopeCallback

    seen = {"training": [], "evaluation": [], "checkpoint": []}

    class Noting(Net):
        fails_at = None

        def forward(self, x, labels):
            seen["training" if self.training else "evaluation"].append(step_under_way())
            if self.training and step_under_way() == self.fails_at:
                raise RuntimeError("bad batch")
            return super().forward(x, labels)

    class Callback(transformers.TrainerCallback):
        def on_save(self, *arguments, **keywords):
            seen["checkpoint"].append(step_under_way())

    def trainer(net, callback, steps):
        options = {
            "report_to": [], "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "max_steps": steps,
            "gradient_accumulation_steps": 2, "per_device_train_batch_size": 1, "eval_strategy": "steps", "eval_steps": 2,
            "save_steps": 2, "logging_strategy": "no",
        }  # fmt: skip
        return transformers.Trainer(
            model=net,
            args=transformers.TrainingArguments(str(tmp_path), **options),
            train_dataset=Regression(16),
            eval_dataset=Regression(4),
            callbacks=[callback, Callback()],
        )

    # Both kinds of recording at once.
    net, callback = Noting(), KinetoscopeCallback(tmp_path / "traces", leave_on=flights)
    quietly(trainer(net, callback, 4).train)
    assert seen["training"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(seen["evaluation"]) == set(seen["checkpoint"]) == {None}
    assert callback.recorder.status().incidents == ()
    assert [path.name for path in callback.saved_traces] == ["train-steps-1-3.ktrace"]
    seen["training"].clear()
    net.fails_at, callback = 5, KinetoscopeCallback(leave_on=flights)
    with pytest.raises(RuntimeError, match="bad batch"):
        quietly(trainer(net, callback, 8).train, resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert seen["training"] == [4, 4, 5]
    found = incident(callback.recorder)
    assert (found["reason"], found["step"]) == ("crash", 5)
    assert found["what"].startswith("RuntimeError: bad batch at ")
    (rank,) = last_event(None, callback.recorder.status().folder).ranks
    assert (rank.step, rank.last_step) == (5, 4)
    assert rank.line.startswith(f"{__file__}:")
    assert current_recorder() is None
    assert callback.saved_traces == []


def test_accelerate(flights, tmp_path):
    accelerate = quietly(pytest.importorskip, "accelerate", reason="this trainer is not installed")
    from kinetoscope.integrations.accelerate import profiled

    accelerator = accelerate.Accelerator(cpu=True)
    net = Net()
    net, optimizer, batches = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01), loader(5))
    seen = []
    with profiled(accelerator, leave_on=flights, first_step=100) as profiler:
        for number, batch in enumerate(batches):
            seen.append(step_under_way())
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch)["loss"] * (float("inf") if number == 2 else 1))
                optimizer.step()
                optimizer.zero_grad()
            if number == 3:
                accelerator.save_model(net, tmp_path / "saved")
                assert step_under_way() is None
            if number == 4:
                profiler.end_step()
                assert step_under_way() is None
    assert seen == [100, 101, 102, 103, None]
    assert incident(profiler.recorder)["what"] == "the loss of step 102 is inf"
    assert not vars(accelerator).keys() & {"backward", "save_model", "save_state", "load_state"}
    with pytest.raises(kinetoscope.ArgumentError, match="first_step=-1 is not valid"):
        profiled(accelerator, first_step=-1)


def test_ignite(flights):
    quietly(pytest.importorskip, "ignite", reason="this trainer is not installed")
    from ignite.engine import Engine, Events

    from kinetoscope.integrations.ignite import attach

    seen, evaluated = [], []
    net = Net()

    def update(engine, batch):
        seen.append(step_under_way())
        return {"loss": float("nan") if engine.state.iteration == 3 else net(**batch)["loss"].item()}

    engine = Engine(update)
    evaluator = Engine(lambda engine, batch: evaluated.append(step_under_way()))
    profiler = attach(engine, leave_on=flights)
    engine.add_event_handler(Events.ITERATION_COMPLETED(every=2), lambda _: evaluator.run(loader(1)))
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda _: evaluator.run(loader(1)))
    engine.run(loader(4))
    assert seen == [1, 2, 3, 4]
    assert evaluated == [None] * 3
    assert incident(profiler.recorder)["what"] == "the loss of step 3 is nan"
    # One that is on already gets the steps, and stays on.
    with kinetoscope.leave_on(**flights) as recorder:
        engine.run(loader(4), max_epochs=2)
        assert (profiler.recorder, recorder.is_on, recorder.status().step) == (recorder, True, 8)
