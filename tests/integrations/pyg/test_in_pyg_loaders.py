"""Programs as users of PyG write them, with its loaders: with our names in the place of PyG's."""

import os
import types
import warnings
from collections import defaultdict

import pytest
import torch

import kinetoscope
from kinetoscope.integrations import pyg
from tests.support.real_pyg import geometric

__all__ = ["geometric"]

PROGRAM = """
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE, global_mean_pool
from kinetoscope.integrations.pyg import get_data_size, get_stats_summary, profileit, timeit, torch_profile


def trained(loader, model, whole_graphs, device):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    @profileit(device)
    def step(model, batch):
        model.train()
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)
        loss = cross_entropy(global_mean_pool(out, batch.batch) if whole_graphs else out, batch.y)
        loss.backward()
        optimizer.step()
        return loss.item()

    losses, stats, bytes_seen = [], [], []
    with timeit(log=False) as epoch:
        for batch in loader:
            bytes_seen.append(get_data_size(batch))
            loss, one = step(model, batch)
            losses.append(loss)
            stats.append(one)
    return losses, stats, bytes_seen, epoch.duration


@timeit()
@torch.no_grad()
def tested(loader, model):
    model.eval()
    return [model(batch.x, batch.edge_index).argmax(dim=-1) for batch in loader]


def made():
    torch.manual_seed(7)
    return GraphSAGE(8, hidden_channels=16, num_layers=2, out_channels=3, dropout=0.5)
"""


@pytest.fixture(scope="module")
def program(geometric) -> types.ModuleType:
    """That program."""
    with warnings.catch_warnings():
        # PyG's loaders import what torch has declared old.
        warnings.simplefilter("ignore")
        import torch_geometric.loader  # noqa: F401

        module = types.ModuleType("a_program_with_loaders")
        exec(compile(PROGRAM, "a_program_with_loaders.py", "exec"), module.__dict__)
        yield module


def graphs(geometric, count: int) -> list:
    """Small graphs with random links, the same each time."""
    drawn = torch.Generator().manual_seed(1)
    return [
        geometric.data.Data(
            x=torch.randn(12, 8, generator=drawn),
            edge_index=torch.randint(0, 12, (2, 40), generator=drawn),
            y=torch.randint(0, 3, (1,), generator=drawn),
        )
        for _ in range(count)
    ]


def loader_of(kind: str, geometric):
    """Three batches: of whole graphs, made here or by a worker process, or of parts of one graph."""
    if kind == "parts":
        (one,) = graphs(geometric, 1)
        one.y = torch.arange(12) % 3
        return geometric.loader.RandomNodeLoader(one, num_parts=3, shuffle=True)
    fork = {"num_workers": 1, "multiprocessing_context": "fork"} if kind == "graphs of a worker" else {}
    return geometric.loader.DataLoader(graphs(geometric, 6), batch_size=2, shuffle=True, **fork)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("kind", ["graphs", "graphs of a worker", "parts"])
def test_each_batch_is_measured_and_the_model_learns_the_same(kind, geometric, program, monkeypatch):
    def run():
        model = program.made()
        torch.manual_seed(8)
        return program.trained(loader_of(kind, geometric), model, kind != "parts", "cpu"), model.state_dict()

    (losses, stats, bytes_seen, seconds), learned = run()
    monkeypatch.setattr(
        program, "profileit", lambda _device: lambda step: lambda *given: (step(*given), None)
    )
    (expected, *_), learned_alone = run()
    assert losses == expected
    assert all(torch.equal(value, learned_alone[name]) for name, value in learned.items())
    assert [type(one) for one in stats] == [pyg.CPUStats] * 3
    assert 0 < sum(one.time for one in stats) <= seconds
    assert all(one.max_allocated_cpu > 0 and one.max_rss_cpu > 50 for one in stats)
    summary = program.get_stats_summary(stats)
    assert min(one.time for one in stats) <= summary.time_mean <= max(one.time for one in stats)
    assert summary.time_std > 0
    assert summary.max_allocated_cpu == max(one.max_allocated_cpu for one in stats)
    if kind == "parts":
        assert all(size >= 4 * (8 * 4 + 8) for size in bytes_seen)
    else:
        # Of two graphs each: features, links, classes, which graph a node is of, and where each begins.
        assert bytes_seen == [24 * 8 * 4 + 2 * 80 * 8 + 2 * 8 + 24 * 8 + 3 * 8] * 3


def test_an_epoch_of_inference_is_timed_and_recorded(geometric, program, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns: dict[str, list] = defaultdict(list)
    with program.torch_profile(csv_data=columns, write_csv="prof") as session:
        found = program.tested(loader_of("graphs", geometric), program.made())
    assert [classes.shape for classes in found] == [(24,)] * 3
    printed = capsys.readouterr().out
    assert printed.count("Time: ") == printed.count("Self CPU time total") == 1
    assert "aten::index_select" in printed or "aten::gather" in printed
    assert os.listdir(tmp_path) == ["timeline.json"]
    assert len(columns["NAME"]) == 5
    assert isinstance(session, kinetoscope.profile)
    names = [row.key for row in session.key_averages()]
    assert any(name.startswith("enumerate(DataLoader)") for name in names)


def test_where_there_is_no_cuda_the_error_comes_before_the_first_step(geometric, program):
    model = program.made()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(pyg.DeviceError, match=r"all tensors are on cpu"):
        program.trained(loader_of("graphs", geometric), model, True, "cuda")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
