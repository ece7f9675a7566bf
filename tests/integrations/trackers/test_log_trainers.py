"""Trainers with `log_to_tracker`: each logs its trace to its own logger of TensorBoard."""

import re
import warnings
from pathlib import Path

import pytest
import torch

import kinetoscope
from kinetoscope.integrations.composer import TorchProfiler, cyclic_schedule
from tests.support.trained import Net, Regression

reader = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="TensorBoard is not installed: run `make trackers`",
)

CPU = [kinetoscope.ProfilerActivity.CPU]
SHORT = kinetoscope.schedule(wait=0, warmup=1, active=2, repeat=1)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def writer(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "board") as made:
        yield made


def logged(folder):
    """The tags of all events below a folder."""
    files = [path.parent for path in folder.rglob("events.out.tfevents.*")]
    return {tag for one in files for tag in reader.EventAccumulator(str(one)).Reload().Tags()["scalars"]}


def test_lightning_logs_to_its_logger(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning.pytorch.loggers import TensorBoardLogger

    from kinetoscope.integrations.lightning import KinetoscopeProfiler

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch, _index):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    profiler = KinetoscopeProfiler(tmp_path / "traces", schedule=SHORT, activities=CPU, log_to_tracker=True)
    trainer = lightning.Trainer(
        logger=TensorBoardLogger(tmp_path), profiler=profiler, max_epochs=1, accelerator="cpu", default_root_dir=tmp_path,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(8, 4), 2))
    assert "kinetoscope/step_ms" in logged(tmp_path)
    (report,) = tmp_path.rglob("report.html")
    assert report.parent.name == "fit-steps-1-2"


def test_transformers_logs_to_the_writer_of_its_callback(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
        from kinetoscope.integrations.transformers import KinetoscopeCallback
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    callback = KinetoscopeCallback(tmp_path / "traces", schedule=SHORT, activities=CPU, log_to_tracker=True)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, num_train_epochs=1, report_to=["tensorboard"], use_cpu=True,
        disable_tqdm=True, save_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    transformers.Trainer(Net(), arguments, train_dataset=Regression(8), callbacks=[callback]).train()
    assert "kinetoscope/step_ms" in logged(tmp_path)


def test_accelerate_logs_to_its_trackers(tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")
    from kinetoscope.integrations.accelerate import profiled

    accelerator = accelerate.Accelerator(log_with="tensorboard", project_dir=str(tmp_path), cpu=True)
    accelerator.init_trackers("run")
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    with profiled(accelerator, tmp_path / "traces", whole_run=True, activities=CPU, log_to_tracker=True):
        for _ in range(3):
            accelerator.backward(model(torch.randn(2, 4)).sum())
            optimizer.step()
    accelerator.end_training()
    assert "kinetoscope/step_ms" in logged(tmp_path)


def test_ignite_logs_to_the_writer_that_it_gets(tmp_path, writer):
    engine_room = pytest.importorskip("ignite.engine", reason="Ignite is not installed")
    from kinetoscope.integrations.ignite import attach

    model = torch.nn.Linear(4, 1)
    engine = engine_room.Engine(lambda _engine, batch: model(batch).sum().backward())
    attach(engine, tmp_path / "traces", schedule=SHORT, activities=CPU, log_to_tracker=writer)
    engine.run(list(torch.randn(4, 2, 4)), max_epochs=1)
    assert "kinetoscope/step_ms" in logged(tmp_path)


def test_the_profiler_of_composer_logs_to_the_writer_that_it_gets(tmp_path, writer):
    model = torch.nn.Linear(4, 1)
    with TorchProfiler(
        str(tmp_path / "traces"), run_name="mine", schedule=cyclic_schedule(wait=0, warmup=1, active=2, repeat=1),
        activities=CPU, log_to_tracker=writer,
    ) as profiler:  # fmt: skip
        for _ in range(4):
            model(torch.randn(2, 4)).sum().backward()
            profiler.step()
    assert "kinetoscope/step_ms" in logged(tmp_path)


def test_the_page_of_the_documentation_is_a_program_that_runs(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="MLflow is not installed: run `make trackers`")
    pytest.importorskip("accelerate", reason="Accelerate is not installed")
    page = (Path(__file__).parents[3] / "docs" / "trackers.md").read_text()
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(compile(block, "trackers.md", "exec"), names)
    client = names["mlflow"].MlflowClient()
    run = names["run"].info.run_id
    assert "first-steps" in {
        item.path.rpartition("/")[2] for item in client.list_artifacts(run, "kinetoscope")
    }
    assert client.get_run(run).data.tags["kinetoscope.incident"].startswith("look")
    assert "kinetoscope/step_ms" in logged(tmp_path / "runs")
    names["mlflow"].set_tracking_uri(None)
