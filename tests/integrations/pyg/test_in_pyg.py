"""Beside the real PyG: the same names with the same arguments, and training loops as its users write them."""

import gc
import inspect
import os
import sys
from types import ModuleType

import pytest
import torch

from kinetoscope import profile, schedule
from kinetoscope.integrations import pyg
from tests.support.real_pyg import geometric

__all__ = ["geometric"]

# What PyG keeps in its modules for itself alone.
INNER = {"begin_cuda_profile", "end_cuda_profile", "require_grad", "get_func_name", "is_torch_sparse_tensor"}


def of_pyg() -> dict[str, object]:
    """All public functions and classes of the package's modules that our contract is about."""
    homes = [f"torch_geometric.profile.{name}" for name in ("benchmark", "nvtx", "profile", "utils")]
    return {
        name: value
        for home in homes
        for name, value in vars(sys.modules[home]).items()
        if getattr(value, "__module__", "") == home and not name.startswith("_") and name not in INNER
    }


def test_we_have_every_name_with_the_arguments_their_order_and_their_defaults(geometric):
    names = of_pyg()
    assert set(geometric.profile.__all__) <= set(names)
    assert set(names) - set(pyg.__all__) == set()
    for name, thing in names.items():
        wanted, found = (inspect.signature(one).parameters.values() for one in (thing, getattr(pyg, name)))
        assert [(one.name, one.kind, one.default) for one in found] == [
            (one.name, one.kind, one.default) for one in wanted
        ], name


# ------------------------------------------------------------------------------------------------------------- training


@pytest.fixture
def graph(geometric):
    """A small graph with random links, the same each time."""
    made = torch.Generator().manual_seed(1)
    return geometric.data.Data(
        x=torch.randn(60, 8, generator=made),
        edge_index=torch.randint(0, 60, (2, 240), generator=made),
        y=torch.randint(0, 3, (60,), generator=made),
    )


@pytest.fixture
def model(geometric) -> torch.nn.Module:
    """Two layers for that graph, as they are before training."""
    torch.manual_seed(7)
    return geometric.nn.GraphSAGE(8, hidden_channels=16, num_layers=2, out_channels=3, dropout=0.5)


def test_the_handler_ends_a_session_of_torch_or_ours(model, graph, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.eval()
    with profile(schedule=schedule(wait=0, warmup=1, active=1), on_trace_ready=pyg.trace_handler) as session:
        for _ in range(2):
            model(graph.x, graph.edge_index)
            session.step()
    assert "aten::addmm" in capsys.readouterr().out
    assert os.listdir(tmp_path) == ["timeline.json"]


def test_layers_are_benchmarked(geometric, graph, capsys):
    layers = [geometric.nn.GraphSAGE(8, size, num_layers=1) for size in (4, 32)]
    pyg.benchmark(
        layers,
        (graph.x, graph.edge_index),
        num_steps=2,
        func_names=["small", "large"],
        num_warmups=1,
        backward=True,
    )
    printed = capsys.readouterr().out
    assert "| Name   | Forward   | Backward   | Total   |" in printed
    assert "| small  | " in printed


# ---------------------------------------------------------------------------------------------------------------- sizes


def graphs(geometric: ModuleType) -> dict[int, object]:
    """Graphs of each kind that PyG has, by their bytes."""
    links = torch.zeros(2, 30, dtype=torch.long)
    hetero = geometric.data.HeteroData()
    hetero["paper"].x = torch.zeros(10, 4)
    hetero["author"].x = torch.zeros(7, 2)
    hetero["author", "writes", "paper"].edge_index = links
    one = geometric.data.Data(x=torch.zeros(9, 2), edge_index=links)
    times = {name: torch.zeros(5) for name in ("src", "dst", "t")}
    return {
        9 * 2 * 4 + 480: one,
        10 * 4 * 4 + 7 * 2 * 4 + 480: hetero,
        3 * 20 + 60: geometric.data.TemporalData(**times, msg=torch.zeros(5, 3)),
        # Two graphs in one: batch and ptr beside twice the same.
        2 * (72 + 480) + 18 * 8 + 3 * 8: geometric.data.Batch.from_data_list([one, one]),
    }


def test_a_graph_is_as_large_as_pyg_says(geometric):
    for size, data in graphs(geometric).items():
        assert pyg.get_data_size(data) == geometric.profile.get_data_size(data) == size, data


def test_a_tensor_that_a_graph_has_twice_counts_once(geometric):
    x = torch.zeros(10, 128)
    assert pyg.get_data_size(geometric.data.Data(x=x, y=x)) == 10 * 128 * 4
    # PyG goes by where a tensor begins: the part is all that it sees of the whole.
    assert pyg.get_data_size(geometric.data.Data(x=x[:5], y=x)) == 10 * 128 * 4


def test_links_with_caches_of_their_own_count_with_them(geometric):
    links = geometric.EdgeIndex([[0, 1, 1], [1, 0, 2]], sparse_size=(3, 3), sort_order="row")
    plain = pyg.get_data_size(geometric.data.Data(edge_index=links))
    links.fill_cache_()
    assert plain == 2 * 3 * 8
    assert pyg.get_data_size(geometric.data.Data(edge_index=links)) > plain


def test_a_model_is_as_large_as_pyg_says(geometric, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pyg.count_parameters(model) == geometric.profile.count_parameters(model)
    assert pyg.get_model_size(model) == pytest.approx(geometric.profile.get_model_size(model), rel=0.1)


def test_new_tensors_are_found_by_both(geometric):
    counts = pyg.get_cpu_memory_from_gc, geometric.profile.get_cpu_memory_from_gc
    gc.collect()
    before = [count() for count in counts]
    kept = torch.zeros(10, 128)
    assert [count() - early for count, early in zip(counts, before, strict=True)] == [10 * 128 * 4] * 2
    assert kept.numel() == 1280
