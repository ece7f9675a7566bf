"""The real PyG, loaded when a test first asks for it: that takes seconds."""

import warnings
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def geometric() -> ModuleType:
    """The package `torch_geometric` with its data, layers and profiling."""
    with warnings.catch_warnings():
        # What PyG warns of when it is loaded beside a newer torch is no concern of ours.
        warnings.simplefilter("ignore")
        import torch_geometric.data
        import torch_geometric.nn
        import torch_geometric.profile
    return torch_geometric
