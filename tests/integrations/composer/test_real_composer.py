"""Composer's own Trainer with our profiler in it. `tools/try_composer.py` says how to have Composer beside our torch."""

import importlib
import json
from types import SimpleNamespace

import pytest
import torch

import kinetoscope
from kinetoscope.integrations import composer as ours

NO_COMPOSER = (
    "Composer is not installed or cannot be imported here: tools/try_composer.py makes an environment"
)


@pytest.fixture(scope="module")
def composer():
    if not importlib.import_module("kinetoscope.integrations.composer._present").IS_THERE:
        pytest.skip(NO_COMPOSER)
    return importlib.import_module("composer")


@pytest.fixture
def train(composer):
    """Trains a small network for some epochs of 10 batches, and closes the trainer."""
    from torch.utils.data import DataLoader, TensorDataset

    class Net(composer.ComposerModel):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

        def forward(self, batch):
            return self.net(batch[0])

        def loss(self, outputs, batch):
            return torch.nn.functional.cross_entropy(outputs, batch[1])

    def train(*, epochs=2, **options):
        torch.manual_seed(0)
        model = Net()
        data = TensorDataset(torch.randn(40, 16), torch.randint(0, 2, (40,)))
        trainer = composer.Trainer(
            model=model,
            train_dataloader=DataLoader(data, batch_size=4),
            max_duration=f"{epochs}ep",
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            run_name="run",
            device="cpu",
            progress_bar=False,
            **options,
        )
        trainer.fit()
        trainer.close()
        return SimpleNamespace(
            callbacks=trainer.state.callbacks, weights=[p.detach().clone() for p in model.parameters()]
        )

    return train


SCHEDULE = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}
pytestmark = pytest.mark.filterwarnings("ignore")  # of Composer's own, and of a torch it was not made for


def names(profiler):
    return [paths[0].name for _, paths in profiler.saved_traces]


def test_it_is_a_callback_that_needs_nothing_else(composer, train):
    profiler = ours.TorchProfiler(schedule=ours.cyclic_schedule(**SCHEDULE), num_traces_to_keep=3)
    assert isinstance(profiler, composer.Callback)
    plain, profiled = train(), train(callbacks=[profiler])
    assert all(torch.equal(a, b) for a, b in zip(plain.weights, profiled.weights, strict=True))
    assert names(profiler) == [f"rank0.{batch}.pt.trace.json" for batch in (8, 14, 18)]
    assert [int(moment.epoch) for moment, _ in profiler.saved_traces] == [0, 1, 1]
    with kinetoscope.open(profiler.saved_traces[-1][1][0]) as trace:
        steps = trace.table("steps").to_pylist()
        assert [step["number"] for step in steps] == [16, 17]
        assert all(step["operators"] > 50 for step in steps)
        assert all(row["input_wait_ns"] > 0 for row in trace.table("breakdown").to_pylist())


def test_the_schedule_is_that_of_composers_profiler(composer, train):
    from composer.profiler import Profiler, cyclic_schedule

    off = {"torch_prof_profile_memory": False, "torch_prof_with_flops": False}
    profiler = ours.TorchProfiler(use_gzip=True)
    train(
        callbacks=[profiler],
        profiler=Profiler(schedule=cyclic_schedule(**SCHEDULE), trace_handlers=[], sys_prof_cpu=False, **off),
    )
    assert names(profiler) == [f"rank0.{batch}.pt.trace.json.gz" for batch in (4, 8, 14, 18)]


def test_composers_profiler_uses_ours_after_install_composer(composer, train):
    from composer.profiler import JSONTraceHandler, Profiler
    from composer.profiler import TorchProfiler as Own

    ours.install_composer()
    try:
        handler = JSONTraceHandler(merged_trace_filename=None)
        profiler = Profiler(
            schedule=ours.cyclic_schedule(**SCHEDULE),
            trace_handlers=[handler],
            torch_prof_num_traces_to_keep=1,
        )
        (profiler_of_ours,) = [
            each for each in train(profiler=profiler).callbacks if isinstance(each, ours.TorchProfiler)
        ]
        assert names(profiler_of_ours) == ["rank0.18.pt.trace.json"]
        events = json.loads(handler.saved_traces[-1][1][0].read_text("utf-8"))
        assert {"aten::addmm", "event/batch"} <= {event["name"] for event in events}
    finally:
        ours.uninstall_composer()
    assert importlib.import_module("composer.profiler.profiler").TorchProfiler is Own


def test_wrong_use_is_told_by_the_trainer_before_training(composer, train, tmp_path):
    with pytest.raises(RuntimeError, match="no schedule of batches"):
        train(callbacks=[ours.TorchProfiler()])
    from composer.profiler import Profiler

    with pytest.raises(RuntimeError, match="Composer's own TorchProfiler is on, too"):
        train(
            callbacks=[ours.TorchProfiler()],
            profiler=Profiler(schedule=ours.cyclic_schedule(), trace_handlers=[]),
        )
    (tmp_path / "run/torch_traces").mkdir(parents=True, exist_ok=True)
    (tmp_path / "run/torch_traces/old.json").write_text("{}")
    with pytest.raises(FileExistsError, match="is not empty"):
        train(callbacks=[ours.TorchProfiler(schedule=ours.cyclic_schedule())])


def test_files_go_through_composers_uploader(composer, train, tmp_path):
    from composer.loggers import RemoteUploaderDownloader

    store = tmp_path / "store"
    store.mkdir()
    uploader = RemoteUploaderDownloader(
        bucket_uri="libcloud://bucket",
        backend_kwargs={"provider": "local", "container": ".", "provider_kwargs": {"key": str(store)}},
        num_concurrent_uploads=1,
        use_procs=False,
    )
    profiler = ours.TorchProfiler(
        remote_file_name="/{run_name}/{batch}.json",
        schedule=ours.cyclic_schedule(**SCHEDULE),
        num_traces_to_keep=0,
    )
    train(callbacks=[profiler], loggers=[uploader])
    assert sorted(path.name for path in (store / "run").iterdir()) == [
        "14.json",
        "18.json",
        "4.json",
        "8.json",
    ]
    assert list((tmp_path / "run/torch_traces").iterdir()) == []
