"""Programs of several threads and processes. torch.profiler sees the thread that started it; we see all."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.support.programs.catalog import Program, program, slow_program


@program
def pipeline_of_threads() -> Program:
    """One thread prepares, one computes, the starting one collects: three threads at once, joined by queues."""
    model = nn.Linear(4, 4)

    def prepare(out: queue.Queue[torch.Tensor | None]) -> None:
        for number in range(5):
            out.put(torch.full((2, 4), float(number)).add(1))
        out.put(None)

    def compute(into: queue.Queue[torch.Tensor | None], out: queue.Queue[torch.Tensor | None]) -> None:
        with torch.no_grad():
            while (batch := into.get()) is not None:
                out.put(model(batch))
        out.put(None)

    def run() -> None:
        first: queue.Queue[torch.Tensor | None] = queue.Queue(2)
        second: queue.Queue[torch.Tensor | None] = queue.Queue(2)
        threads = [
            threading.Thread(target=prepare, args=(first,)),
            threading.Thread(target=compute, args=(first, second)),
        ]
        for thread in threads:
            thread.start()
        while (result := second.get()) is not None:
            result.sum()
        for thread in threads:
            thread.join()

    return run


@program
def backward_in_several_threads() -> Program:
    models = [nn.Linear(4, 4) for _ in range(3)]
    x = torch.randn(3, 4)

    def step(model: nn.Module) -> None:
        model(x).square().sum().backward()

    def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(step, model) for model in models[1:]]
            step(models[0])
            for one in waiting:
                one.result()

    return run


class Squares(Dataset[tuple[torch.Tensor, int]]):
    """A few items, each made by operators."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index)).square(), index


@program
def data_loader() -> Program:
    loader = DataLoader(Squares(), batch_size=3, drop_last=True)

    def run() -> None:
        for values, index in loader:
            (values * index[:, None]).sum()

    return run


@slow_program
def data_loader_with_workers() -> Program:
    loader = DataLoader(Squares(), batch_size=2, num_workers=2)

    def run() -> None:
        for values, index in loader:
            (values * index[:, None]).sum()

    return run
