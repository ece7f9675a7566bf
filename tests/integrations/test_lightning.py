"""Lightning's own Trainer, under both names of the package, with our profiler in it."""

import importlib
import logging
import signal
import warnings

import pytest

pytest.importorskip("torch", reason="Lightning trains with PyTorch")

import torch

import kinetoscope
from kinetoscope.integrations.lightning import KinetoscopeProfiler
from tests.support.torch_engines import native  # noqa: F401  (a fixture)
from tests.support.trained import Net, loader, names_by_phase, step_numbers, steps_of_ranges

CPU = [kinetoscope.ProfilerActivity.CPU]
PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def imported(name):
    """Imports a trainer, whose own warnings are its own business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason="this trainer is not installed")


@pytest.fixture(scope="module", params=PACKAGES)
def lightning(request):
    return imported(request.param)


@pytest.fixture(scope="module")
def one_lightning():
    return imported(PACKAGES[0])


def model(lightning, fails_at=None, error=None):
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, index):
            if self.trainer.global_step == fails_at:
                raise error
            return self.net(**batch)["loss"]

        def validation_step(self, batch, index):
            self.log("loss", self.net(**batch)["loss"])

        test_step = validation_step

        def predict_step(self, batch, index):
            return self.net(**batch)["logits"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    return Model()


def trainer(lightning, profiler, folder, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    return lightning.Trainer(
        profiler=profiler, default_root_dir=folder, **quiet | {"enable_model_summary": False} | options
    )


def calling(function, *arguments, **keywords):
    """Calls into a trainer, whose own warnings are its own business; returns the value and our warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        value = function(*arguments, **keywords)
    return value, [str(each.message) for each in told if "kinetoscope" in str(each.filename)]


@pytest.fixture(scope="module")
def whole_fit(lightning, tmp_path_factory):
    """A run of two epochs with validation, recorded whole."""
    folder = tmp_path_factory.mktemp("fit")
    profiler = KinetoscopeProfiler(whole_run=True, activities=CPU)
    using = trainer(lightning, profiler, folder, max_epochs=2, num_sanity_val_steps=1)
    on_exception = using.strategy.on_exception
    calling(using.fit, model(lightning), loader(3), loader(2))
    assert using.strategy.on_exception == on_exception
    return profiler, folder


def test_the_steps_are_the_training_batches_as_the_trainer_counts_them(whole_fit):
    profiler, _ = whole_fit
    assert step_numbers(profiler.trace) == [0, 1, 2, 3, 4, 5]


def test_the_trace_is_written_into_the_folder_of_the_trainer(whole_fit, lightning):
    profiler, folder = whole_fit
    assert profiler.saved_traces == [folder / "kinetoscope" / "fit-steps-0-5.ktrace"]
    with kinetoscope.open(profiler.saved_traces[0]) as trace:
        package = lightning.__name__.partition(".")[0]
        assert trace.info["trainer"] == f"{package} {importlib.import_module(package).__version__}"
        assert trace.info["stage"] == "fit"


def test_every_hook_that_lightning_tells_a_profiler_of_is_a_span(whole_fit, lightning, tmp_path):
    told = []

    class Listening(lightning.profilers.Profiler):
        def start(self, action_name):
            # This one comes before the trainer has set its profiler up.
            if not action_name.endswith("configure_callbacks"):
                told.append(action_name)

        def stop(self, action_name):
            return

    using = trainer(lightning, Listening(), tmp_path, max_epochs=2, num_sanity_val_steps=1)
    calling(using.fit, model(lightning), loader(3), loader(2))
    spans = steps_of_ranges(whole_fit[0].trace)
    assert {name: told.count(name) for name in told} == {name: len(spans.get(name, [])) for name in set(told)}
    assert len(set(told)) > 40


def test_a_step_holds_its_wait_and_its_work_and_none_of_the_validation(whole_fit):
    spans = steps_of_ranges(whole_fit[0].trace)
    each = [0, 1, 2, 3, 4, 5]
    assert spans["[_TrainingEpochLoop].train_dataloader_next"] == each
    assert spans["run_training_batch"] == each
    assert spans["[LightningModule]Model.on_train_batch_end"] == each
    assert spans["[LightningModule]Model.on_after_backward"] == each
    assert set(spans["[Strategy]SingleDeviceStrategy.validation_step"]) == {None}
    assert set(spans["run_training_epoch"]) == {None}


def test_forward_and_backward_in_the_closure_are_not_the_optimizer_s(whole_fit):
    # Lightning hands every optimizer a closure that runs forward and backward.
    forward, backward, optimizer = (
        names_by_phase(whole_fit[0].trace)[phase] for phase in ("forward", "backward", "optimizer")
    )
    steps, parameters = 6, 4
    assert optimizer["aten::addcdiv_"] == steps * parameters
    assert backward["AddmmBackward0"] == 2 * steps
    assert forward["aten::tanh"] > steps < forward["aten::mse_loss"]
    assert not optimizer.keys() & {"aten::addmm", "aten::tanh", "aten::mse_loss", "aten::ones_like"}


def test_it_counts_as_a_profiler_of_lightning(lightning):
    profiler = KinetoscopeProfiler(activities=CPU)
    assert isinstance(profiler, lightning.profilers.Profiler)
    assert profiler.local_rank == 0
    interface = [name for name in vars(lightning.profilers.Profiler) if not name.startswith("_")]
    assert [name for name in interface if not hasattr(profiler, name)] == []


def test_without_options_steps_two_to_four_are_recorded_and_summed_up(one_lightning, tmp_path, caplog):
    profiler = KinetoscopeProfiler(tmp_path, "summary", activities=CPU, row_limit=3)
    using = trainer(one_lightning, profiler, tmp_path, max_epochs=2)
    net = model(one_lightning)
    calling(using.fit, net, loader(4), loader(2))
    assert [path.name for path in profiler.saved_traces] == ["fit-steps-2-4.ktrace"]
    text = (tmp_path / "fit-summary.txt").read_text()
    assert "steps 2 to 4, " in text
    assert str(profiler.saved_traces[0]) in text
    assert "Self CPU time total" in text
    # The same profiler in the other loops: their own steps, and in the log where there is no file for the summary.
    profiler.filename = None
    with caplog.at_level(logging.INFO, "lightning.pytorch.profilers"):
        logging.getLogger("lightning.pytorch").propagate, before = True, logging.getLogger("lightning.pytorch").propagate  # fmt: skip
        for loop in (using.validate, using.test, using.predict):
            calling(loop, net, loader(5))
            assert step_numbers(profiler.trace) == [2, 3, 4]
        logging.getLogger("lightning.pytorch").propagate = before
    assert [path.name for path in profiler.saved_traces[1:]] == [
        "validate-steps-2-4.ktrace",
        "test-steps-2-4.ktrace",
        "predict-steps-2-4.ktrace",
    ]
    spans = steps_of_ranges(profiler.trace)
    assert spans["[_PredictionLoop].predict_next"] == spans["[Strategy]SingleDeviceStrategy.predict_step"] == [2, 3, 4]  # fmt: skip
    said = [record.message for record in caplog.records if "Kinetoscope" in record.message]
    assert [text.split()[0] for text in said] == ["VALIDATE", "TEST", "PREDICT"]
    assert str(profiler.saved_traces[3]) in said[2]
    assert str(profiler.saved_traces[2]) not in said[2]


def test_accumulated_and_skipped_batches_and_data_of_unknown_length_keep_their_numbers(
    one_lightning, tmp_path
):
    class Skipping(type(model(one_lightning))):
        def on_train_batch_start(self, batch, index):
            return -1 if self.current_epoch == 0 and index == 2 else None

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(loader(4).dataset)

    profiler = KinetoscopeProfiler(tmp_path, whole_run=True, activities=CPU)
    using = trainer(one_lightning, profiler, tmp_path, max_epochs=2, accumulate_grad_batches=2)
    calling(using.fit, Skipping(), torch.utils.data.DataLoader(Endless(), batch_size=2))
    numbers = step_numbers(profiler.trace)
    assert numbers == [0, 1, 2, 3, 4, 5, 6]
    assert steps_of_ranges(profiler.trace)["run_training_batch"] == [0, 1, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("error", "seen", "ended_by"),
    [(RuntimeError("bad batch"), RuntimeError, "RuntimeError: bad batch"), (KeyboardInterrupt(), SystemExit, "KeyboardInterrupt")],
    ids=["error", "interrupt"],
)  # fmt: skip
def test_a_training_that_fails_leaves_a_finished_trace(error, seen, ended_by, one_lightning, tmp_path):
    profiler = KinetoscopeProfiler(tmp_path, activities=CPU)
    using = trainer(one_lightning, profiler, tmp_path, max_epochs=2)
    on_exception = using.strategy.on_exception
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(seen):
            calling(using.fit, model(one_lightning, fails_at=3, error=error), loader(4))
    finally:
        signal.signal(signal.SIGINT, handler)
    with kinetoscope.open(profiler.saved_traces[0]) as trace:
        assert step_numbers(trace) == [2, 3]
        assert trace.info["ended_by"] == ended_by
    assert using.strategy.on_exception == on_exception
    # The same trainer again: a run like every other; and one without steps, of which there is nothing to say.
    calling(using.fit, model(one_lightning), loader(4))
    assert "steps " in profiler.summary()
    assert len(profiler.saved_traces) == 2
    calling(using.fit, model(one_lightning), loader(4))
    assert profiler.summary() == ""


def test_a_training_that_stops_early_leaves_a_finished_trace(one_lightning, tmp_path):
    class Stop(one_lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step == 4

    profiler = KinetoscopeProfiler(tmp_path, activities=CPU)
    using = trainer(one_lightning, profiler, tmp_path, max_epochs=9, min_epochs=0, callbacks=[Stop()])
    calling(using.fit, model(one_lightning), loader(6))
    with kinetoscope.open(profiler.saved_traces[0]) as trace:
        assert step_numbers(trace) == [2, 3]
        assert "ended_by" not in trace.info


def test_steps_go_on_where_a_checkpoint_left_off(one_lightning, tmp_path):
    net = model(one_lightning)
    first = trainer(one_lightning, None, tmp_path, max_epochs=1)
    calling(first.fit, net, loader(4))
    first.save_checkpoint(tmp_path / "last.ckpt")
    profiler = KinetoscopeProfiler(tmp_path, activities=CPU)
    second = trainer(one_lightning, profiler, tmp_path, max_epochs=3)
    calling(second.fit, net, loader(4), ckpt_path=str(tmp_path / "last.ckpt"))
    assert step_numbers(profiler.trace) == [6, 7, 8]


def test_a_short_run_is_recorded_with_a_shorter_schedule(one_lightning, tmp_path):
    profiler = KinetoscopeProfiler(tmp_path, activities=CPU)
    calling(
        trainer(one_lightning, profiler, tmp_path, fast_dev_run=True).fit, model(one_lightning), loader(9)
    )
    assert step_numbers(profiler.trace) == [0]
    calling(trainer(one_lightning, profiler, tmp_path, max_epochs=9, limit_train_batches=1, max_steps=3).fit, model(one_lightning), loader(9))  # fmt: skip
    assert step_numbers(profiler.trace) == [1, 2]


def test_what_is_wrong_is_said_before_the_first_step(one_lightning, tmp_path):
    trained = []

    class Noting(type(model(one_lightning))):
        def training_step(self, batch, index):
            trained.append(index)
            return super().training_step(batch, index)

    late = KinetoscopeProfiler(
        tmp_path, activities=CPU, schedule=kinetoscope.schedule(wait=10, warmup=1, active=1)
    )
    with pytest.raises(kinetoscope.ArgumentError, match="skips 11 steps .* has only 8"):
        calling(trainer(one_lightning, late, tmp_path, max_epochs=2).fit, Noting(), loader(4))
    (tmp_path / "fit-steps-2-4.ktrace").write_bytes(b"")
    with pytest.raises(kinetoscope.ArgumentError, match="contains 1 trace of an earlier run"):
        calling(
            trainer(one_lightning, KinetoscopeProfiler(tmp_path, activities=CPU), tmp_path, max_epochs=2).fit,
            Noting(),
            loader(4),
        )
    assert trained == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedul": None}, "no option 'schedul'"),
        ({"filename": "a/b"}, "filename='a/b' is not valid"),
        ({"dirpath": 3}, "dirpath=3 is not valid"),
        ({"sort_by": "colour"}, "sort_by='colour': cannot sort by.*self_cpu_time_total"),
        ({"row_limit": "all"}, "row_limit='all' is not valid"),
    ],
    ids=["option", "filename", "dirpath", "sort-key", "rows"],
)
def test_wrong_arguments_are_refused_at_once(options, message):
    with pytest.raises(kinetoscope.ArgumentError, match=message):
        KinetoscopeProfiler(activities=CPU, **options)


def test_the_losses_are_the_same_with_and_without_it(one_lightning, tmp_path):
    def weights(profiler):
        one_lightning.seed_everything(7, verbose=False)
        net = model(one_lightning)
        calling(trainer(one_lightning, profiler, tmp_path, max_epochs=2).fit, net, torch.utils.data.DataLoader(loader(4).dataset, 2, shuffle=True))  # fmt: skip
        return [*(parameter.tolist() for parameter in net.parameters()), torch.rand(1).item()]

    assert weights(None) == weights(KinetoscopeProfiler(tmp_path, activities=CPU))


@pytest.mark.usefixtures("native")
def test_lightnings_own_profiler_passes_everything_on_when_installed(one_lightning, tmp_path):
    with kinetoscope.install():
        profiler = one_lightning.profilers.PyTorchProfiler(
            dirpath=tmp_path,
            schedule=torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1),
            record_shapes=True,
            profile_memory=True,
            with_flops=True,
            row_limit=-1,
        )
        using = trainer(one_lightning, profiler, tmp_path, max_epochs=1, limit_val_batches=0)
        calling(using.fit, model(one_lightning), loader(7))
        text = profiler.summary()
    (written,) = tmp_path.glob("*.pt.trace.json")
    with kinetoscope.open(written) as trace:
        assert step_numbers(trace) == [3, 4]
        products = [event for event in trace.events() if event.name == "aten::addmm"]
        assert len(products) == 4
        assert all(event.input_shapes[1][0] == 2 for event in products)
    assert "CPU Mem" in text
    assert "FLOPs" in text
