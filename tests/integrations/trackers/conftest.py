"""A small recorded training for all trackers."""

import pytest

pytest.importorskip("torch", reason="recording needs PyTorch")

import torch

import kinetoscope


@pytest.fixture(scope="session")
def recorded():
    """Six steps of a small model, with shapes, stacks and modules."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, 8)), 4)
    with kinetoscope.profile(record_shapes=True, with_stack=True, with_modules=True) as session:
        for (batch,) in data:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            session.step()
    return session.trace


@pytest.fixture
def incident(tmp_path):
    """The recording of an incident of `leave_on`."""
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with kinetoscope.leave_on(folder=tmp_path / "jobs", on=()) as recorder:
        for _ in range(5):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            recorder.step()
        return recorder.snapshot("loss went up")
