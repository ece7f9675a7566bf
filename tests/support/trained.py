"""Small things to train, for tests that run other people's trainers."""

from collections import Counter
from typing import Any

import torch

from kinetoscope.trace import Trace


class Regression(torch.utils.data.Dataset):
    """Pairs of a vector and its sum."""

    def __init__(self, length: int) -> None:
        inputs = torch.arange(length * 4, dtype=torch.float32).reshape(length, 4) / (length * 4)
        self.pairs = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in inputs]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.pairs[index]


class Net(torch.nn.Module):
    """Learns the sum, and returns its loss as the models of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        guess = self.layers(x)
        return {"loss": torch.nn.functional.mse_loss(guess, labels), "logits": guess}


def loader(batches: int) -> "torch.utils.data.DataLoader[Any]":
    """Returns a loader of so many batches of two."""
    return torch.utils.data.DataLoader(Regression(2 * batches), batch_size=2)


def step_numbers(trace: Trace) -> list[int]:
    """The numbers of the steps of a trace, in order of time."""
    return trace.table("steps").column("number").to_pylist()


def steps_of_ranges(trace: Trace) -> dict[str, list[int | None]]:
    """For each name of a range the numbers of the steps that its spans began in, None outside of all."""
    table = trace.table("spans")
    columns = [table.column(name).to_pylist() for name in ("kind", "name", "step", "start_ns")]
    found: dict[str, list[int | None]] = {}
    for _, kind, name, step in sorted(
        (start, kind, name, -1 if step is None else step)
        for kind, name, step, start in zip(*columns, strict=True)
    ):
        if kind == "user_annotation":
            found.setdefault(name, []).append(None if step == -1 else step)
    return found


def names_by_phase(trace: Trace) -> dict[str, Counter[str]]:
    """How often each operator and backward function ran in each phase."""
    columns = [trace.table("spans").column(name).to_pylist() for name in ("kind", "phase", "name")]
    found: dict[str, Counter[str]] = {}
    for kind, phase, name in zip(*columns, strict=True):
        if kind in ("operator", "backward"):
            found.setdefault(phase, Counter())[name] += 1
    return found
