"""Composer's own Trainer with our profiler in it. `tools/try_composer.py` says how to have Composer beside our torch."""

import importlib
import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

import kinetoscope
from kinetoscope.integrations import composer as ours
from kinetoscope.trace import concatenate

NO_COMPOSER = (
    "Composer is not installed or cannot be imported here: tools/try_composer.py makes an environment"
)


@pytest.fixture(scope="module")
def composer():
    if not importlib.import_module("kinetoscope.integrations.composer.callback").IS_THERE:
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
        assert all(row["data_wait_ns"] > 0 for row in trace.table("breakdown").to_pylist())


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

    with pytest.raises(RuntimeError, match="Composer's own TorchProfiler is also on"):
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


def test_files_have_the_names_that_composers_own_profiler_gives_them(composer, train, tmp_path):
    """Two cycles of the first epoch, with either profiler: the same names, and the same operators of the same model."""
    from composer.profiler import Profiler, cyclic_schedule

    def files_of(profiler, folder):
        train(epochs=1, profiler=profiler)
        assert profiler is not None
        return sorted(
            str(path.relative_to(tmp_path / folder)) for path in (tmp_path / folder).rglob("*.json")
        )

    def operators(folder):
        with kinetoscope.open(tmp_path / folder / "rank0.4.pt.trace.json") as trace:
            counts = {}
            for span in trace.table("spans").to_pylist():
                if span["name"].startswith("aten::"):
                    counts[span["name"]] = counts.get(span["name"], 0) + 1
            return counts

    schedule = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}
    options = {"trace_handlers": [], "sys_prof_cpu": False, "torch_prof_remote_file_name": None}
    theirs = files_of(
        Profiler(schedule=cyclic_schedule(**schedule), torch_prof_folder="{run_name}/theirs", **options),
        "run/theirs",
    )
    ours.install_composer()
    try:
        with_ours = files_of(
            Profiler(schedule=cyclic_schedule(**schedule), torch_prof_folder="{run_name}/ours", **options),
            "run/ours",
        )
    finally:
        ours.uninstall_composer()
    assert with_ours == ["rank0.4.pt.trace.json", "rank0.8.pt.trace.json"] == theirs
    assert operators("run/ours") == operators("run/theirs")


def test_our_trace_handler_under_composers_own_profiler(composer, train, tmp_path):
    from composer.profiler import Profiler, cyclic_schedule

    handler = ours.JSONTraceHandler()
    train(epochs=1, profiler=Profiler(schedule=cyclic_schedule(**SCHEDULE), trace_handlers=[handler]))
    assert [path.name for _, (path,) in handler.saved_traces] == ["ep0-ba4-rank0.json", "ep0-ba8-rank0.json"]
    with kinetoscope.open(tmp_path / "run/traces/ep0-ba4-rank0.json") as trace:
        names = trace.table("spans").column("name").to_pylist()
        assert {"aten::addmm", "event/batch"} <= set(names)


def test_ours_and_composers_trace_handler_under_composers_profiler_after_install_composer(
    composer, train, tmp_path
):
    from composer.profiler import Profiler

    ours.install_composer()
    try:
        handler = ours.JSONTraceHandler(num_traces_to_keep=1)
        told = composer.profiler.JSONTraceHandler("{run_name}/told", merged_trace_filename=None)
        profiler = Profiler(
            schedule=ours.cyclic_schedule(**SCHEDULE), trace_handlers=[handler, told], sys_prof_memory=True
        )
        plain, profiled = train(), train(profiler=profiler)
    finally:
        ours.uninstall_composer()
    assert all(torch.equal(a, b) for a, b in zip(plain.weights, profiled.weights, strict=True))
    assert [path.name for _, (path,) in handler.saved_traces] == ["ep1-ba18-rank0.json"]
    with kinetoscope.open(tmp_path / "run/traces/ep1-ba18-rank0.json") as trace:
        names = trace.table("spans").column("name").to_pylist()
        assert [step["number"] for step in trace.table("steps").to_pylist()] == [16, 17]
        # Composer marks what happens in ACTIVE batches; the last one of a cycle is ACTIVE_AND_SAVE.
        assert names.count("event/batch") == names.count("event/dataloader") == 1
        assert not [name for name in names if name.startswith("callback/TorchProfiler/")]
        assert any("memory" in name for name in trace.table("counters").column("name").to_pylist())
    events = json.loads(told.saved_traces[-1][1][0].read_text("utf-8"))
    assert {"aten::addmm", "event/batch"} <= {event["name"] for event in events}


RANK = """
import sys
sys.path[:0] = sys.argv[1].split(":")
import torch
NO_TORCHVISION
import composer
from composer.utils import dist
from torch.utils.data import DataLoader, TensorDataset
from kinetoscope.integrations import composer as ours

class Net(composer.ComposerModel):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(16, 2)

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return torch.nn.functional.cross_entropy(outputs, batch[1])

dist.initialize_dist("cpu")
ours.install_composer()
from composer.profiler import Profiler
data, model = TensorDataset(torch.randn(80, 16), torch.randint(0, 2, (80,))), Net()
handler = ours.JSONTraceHandler()
trainer = composer.Trainer(
    model=model, train_dataloader=DataLoader(data, batch_size=4, sampler=dist.get_sampler(data)), max_duration="1ep",
    optimizers=torch.optim.SGD(model.parameters(), lr=0.1), run_name="two", device="cpu", progress_bar=False,
    profiler=Profiler(schedule=ours.cyclic_schedule(wait=1, warmup=1, active=2, repeat=2), trace_handlers=[handler]),
)
trainer.fit()
trainer.close()
"""
# See tools/try_composer.py.
NO_TORCHVISION = """
try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.partition('.')[0] == 'torchvision']:
        del sys.modules[name]
    declared = torch.library.Library('torchvision', 'DEF')
    for name in ('nms', 'qnms'):
        declared.define(name + '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
"""


def test_two_ranks_of_composers_trainer_can_be_in_one_trace(composer, tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    ranks = []
    for rank in range(2):
        for name, value in {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": 2,
            "LOCAL_WORLD_SIZE": 2,
            "NODE_RANK": 0,
        }.items():
            monkeypatch.setenv(name, str(value))
        program = RANK.replace("NO_TORCHVISION", NO_TORCHVISION)
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", program, ":".join(sys.path)], cwd=tmp_path
            )
        )
    assert [process.wait(timeout=240) for process in ranks] == [0, 0]
    names = sorted(
        str(path.relative_to(tmp_path / "two")) for path in (tmp_path / "two").rglob("*") if path.is_file()
    )
    assert names == [
        *(f"torch_traces/rank{rank}.{batch}.pt.trace.json" for rank in range(2) for batch in (4, 8)),
        *(f"traces/ep0-ba{batch}-rank{rank}.json" for batch in (4, 8) for rank in range(2)),
    ]
    with ExitStack() as opened:
        folder = tmp_path / "two/traces"
        of_ranks = [
            [
                opened.enter_context(kinetoscope.open(folder / f"ep0-ba{batch}-rank{rank}.json"))
                for batch in (4, 8)
            ]
            for rank in range(2)
        ]
        trace = kinetoscope.merge([concatenate(cycles) for cycles in of_ranks])
        assert [(row["rank"], row["clock"]) for row in trace.table("processes").to_pylist()] == [
            (0, "monotonic"),
            (1, "monotonic"),
        ]
        steps = trace.table("steps").to_pylist()
        for rank in range(2):
            assert [step["number"] for step in steps if step["rank"] == rank] == [2, 3, 6, 7]
