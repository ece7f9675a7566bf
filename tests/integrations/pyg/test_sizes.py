import dataclasses
import io

import pytest
import torch

from kinetoscope.integrations.pyg import count_parameters, get_data_size, get_model_size


def test_trainable_parameters_are_counted_and_shared_ones_once():
    model = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.Linear(128, 32), torch.nn.BatchNorm1d(32))
    model.append(model[0])
    model[1].bias.requires_grad_(False)
    assert count_parameters(model) == 32 * 128 + 128 + 128 * 32 + 2 * 32


def test_the_size_of_a_model_is_that_of_its_file_and_no_file_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(32, 128, bias=False)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert get_model_size(model) == len(file.getvalue())
    assert 32 * 128 * 4 < get_model_size(model) < 32 * 128 * 4 + 2000
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------------------- data


@dataclasses.dataclass
class Batch:
    """What a loader of a user's own may return."""

    x: torch.Tensor
    rest: object = None


class Stores:
    """Graphs of PyG keep their tensors in stores."""

    def __init__(self, *stores) -> None:
        self.stores = stores


class SparseTensor:
    """As torch_sparse has it: rows as pointers, columns, and values that need not be there."""

    def csr(self):
        return torch.zeros(11, dtype=torch.long), torch.zeros(100, dtype=torch.long), None


FLOATS = torch.zeros(10, 128)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(FLOATS, 5120, id="tensor"),
        pytest.param(Stores({"x": FLOATS, "y": FLOATS}), 5120, id="graph that holds one twice"),
        pytest.param(Stores({"x": FLOATS, "adj": SparseTensor()}), 5120 + 11 * 8 + 100 * 8, id="sparse of PyG"),
        pytest.param(Batch(FLOATS, {"more": [torch.zeros(2, dtype=torch.half), "text", 3]}), 5124, id="dataclass"),
        pytest.param([FLOATS[:4], FLOATS], 5120, id="part before the whole"),
        pytest.param([FLOATS[:6], FLOATS[4:]], 5120, id="overlapping parts"),
        pytest.param([FLOATS[:2], FLOATS[8:]], 4 * 512, id="parts apart"),
        pytest.param(FLOATS[:, 0], 40, id="column"),
        pytest.param([FLOATS[:, 0], FLOATS], 5120, id="column of a whole that is there"),
        pytest.param(FLOATS.t(), 5120, id="transposed"),
        pytest.param(torch.zeros(3, 1).expand(3, 1000), 12, id="expanded"),
        pytest.param(torch.zeros(0), 0, id="empty"),
        pytest.param(torch.zeros(100, device="meta"), 0, id="without memory"),
        pytest.param(torch.eye(4).to_sparse(), 2 * 4 * 8 + 4 * 4, id="coo"),
        pytest.param([], 0, id="nothing"),
    ],
)  # fmt: skip
def test_tensors_count_once_wherever_they_are(data, expected):
    assert get_data_size(data) == expected


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:Sparse CSC tensor support is in beta state")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc], ids=str)
def test_compressed_tensors_count_with_their_indices(layout):
    assert get_data_size(torch.eye(4).to_sparse(layout=layout)) == 5 * 8 + 4 * 8 + 4 * 4


def test_a_container_that_holds_itself_is_gone_through_once():
    data = {"x": FLOATS}
    data["self"] = data
    assert get_data_size(data) == 5120
