"""Small training programs, each with one planted bottleneck that can be left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

Step = Callable[[int], None]
PLANTED: dict[str, Callable[[bool], tuple[Step, int]]] = {}


def planted(code: str) -> Callable[[Any], Any]:
    """Register a program under the code of the finding that must name its fault."""

    def register(make: Any) -> Any:
        PLANTED[f"{code}:{make.__name__}"] = make
        return make

    return register


class Net(nn.Module):
    """Two linear layers, wide enough that operators take most of a step."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(functional.gelu(self.second(functional.gelu(self.first(x)))))


def training(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Callable[[int], torch.Tensor],
    more: Callable[[int, torch.Tensor], None] | None = None,
) -> Step:
    """A step of training; `more` runs at its end."""

    def step(number: int) -> None:
        loss = model(batch(number)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if more is not None:
            more(number, loss)

    return step


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def fixed(rows: int = 192) -> Callable[[int], torch.Tensor]:
    x = torch.randn(rows, 64)
    return lambda number: x


class Slow(Dataset[torch.Tensor]):
    """Samples that take a while to make when `slow`."""

    def __init__(self, slow: bool) -> None:
        self._slow = slow
        self._data = torch.randn(4096, 64)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._slow:
            return torch.stack([torch.sin(self._data[index] * factor) for factor in range(40)]).mean(0)
        return self._data[index]


def forever(loader: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


@planted("main-process-loading")
def loading_in_the_loop(fault: bool) -> tuple[Step, int]:
    model = Net(1024)
    batches = forever(DataLoader(Slow(fault), batch_size=32))
    return training(model, sgd(model), lambda number: next(batches)), 8


def collate_slowly(samples: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(64)
    for _ in range(30):
        for sample in samples:
            total = total + sample
    return torch.stack(samples) + 0 * total


@planted("input-wait")
def a_slow_collate_function(fault: bool) -> tuple[Step, int]:
    model = Net()
    if not fault:
        # Without a worker: one that gets no processor on a busy machine is a true input wait.
        return training(model, sgd(model), fixed()), 8
    loader = DataLoader(
        Slow(False), batch_size=64, num_workers=1, collate_fn=collate_slowly, multiprocessing_context="fork"
    )
    batches = forever(loader)
    return training(model, sgd(model), lambda number: next(batches)), 8


def count_pairs(number: int) -> int:
    total = 0
    for first in range(1200):
        for second in range(200):
            total += first ^ second ^ number
    return total


@planted("python-bound")
def a_double_loop_in_python(fault: bool) -> tuple[Step, int]:
    model = Net()
    return training(
        model, sgd(model), fixed(), (lambda number, loss: count_pairs(number)) if fault else None
    ), 12  # type: ignore[arg-type,return-value]


class PerToken(nn.Module):
    """Adds a row at a time, or all at once."""

    def __init__(self, slow: bool) -> None:
        super().__init__()
        self.net = Net(128)
        self.slow = slow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.slow:
            return self.net(x * 2 + 1)
        rows = [x[at] * 2 + 1 for at in range(x.shape[0])]
        return self.net(torch.stack(rows))


@planted("tiny-operators")
def rows_one_by_one(fault: bool) -> tuple[Step, int]:
    model = PerToken(fault)
    return training(model, sgd(model), fixed(256)), 12


@planted("scalar-read")
def items_of_a_loss(fault: bool) -> tuple[Step, int]:
    model = Net()

    def read(number: int, loss: torch.Tensor) -> None:
        values = loss.detach().expand(3000)
        if fault:
            sum(value.item() for value in values)
        else:
            float(values.sum())

    return training(model, sgd(model), fixed(), read), 12


class Deep(nn.Module):
    """Many small layers, so that the optimizer has many parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = functional.relu(layer(x))
        return x


@planted("single-tensor-optimizer")
def an_optimizer_for_each_parameter(fault: bool) -> tuple[Step, int]:
    model = Deep()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=not fault)
    return training(model, optimizer, fixed(1024)), 12


@planted("zero-grad-fill")
def gradients_are_filled_with_zeros(fault: bool) -> tuple[Step, int]:
    model, seldom = Net(64), nn.Linear(2000, 2000)
    optimizer = torch.optim.SGD([*model.parameters(), *seldom.parameters()], lr=0.01)
    x = torch.randn(4, 64)

    def step(number: int) -> None:
        loss = model(x).square().mean()
        if number == 0:
            loss = loss + seldom(torch.ones(1, 2000)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not fault)

    return step, 12


@planted("autograd-in-inference")
def inference_that_records_a_graph(fault: bool) -> tuple[Step, int]:
    model = Net().eval()
    x = torch.randn(192, 64)

    def step(number: int) -> None:
        with torch.set_grad_enabled(fault):
            model(x).argmax()

    return step, 12


class Attention(nn.Module):
    """One head of attention, by hand or with the fused operator."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.project = nn.Linear(64, 192)
        self.by_hand = by_hand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        if not self.by_hand:
            return functional.scaled_dot_product_attention(q, k, v)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 8.0, -1)
        return weights @ v


@planted("unfused-attention")
def attention_by_hand(fault: bool) -> tuple[Step, int]:
    model = Attention(fault)
    x = torch.randn(8, 160, 64)
    return training(model, sgd(model), lambda number: x), 10


@planted("step-outlier")
def one_step_writes_a_checkpoint(fault: bool) -> tuple[Step, int]:
    model = Net()

    def more(number: int, loss: torch.Tensor) -> None:
        if fault and number == 7:
            for _ in range(30):
                torch.linalg.svdvals(model.second.weight.detach()[:192, :192])

    return training(model, sgd(model), fixed(), more), 14


class Channels(nn.Module):
    """A convolution whose input is copied to another layout again and again, or not."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.copies = copies

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            if self.copies:
                x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).contiguous()
        return self.conv(x)


@planted("layout-copy")
def layouts_back_and_forth(fault: bool) -> tuple[Step, int]:
    model = Channels(fault)
    x = torch.randn(8, 8, 64, 64)
    return training(model, sgd(model), lambda number: x), 8


class Mixed(nn.Module):
    """Converts between types in each layer, or not."""

    def __init__(self, converts: bool) -> None:
        super().__init__()
        self.net = Net(128)
        self.converts = converts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            if self.converts:
                x = x.to(torch.float64).to(torch.float32)
        return self.net(x)


@planted("dtype-conversion")
def types_back_and_forth(fault: bool) -> tuple[Step, int]:
    model = Mixed(fault)
    return training(model, sgd(model), fixed(4096)), 8


@planted("memory-growth")
def losses_that_keep_their_graph(fault: bool) -> tuple[Step, int]:
    model = Net()
    kept: list[torch.Tensor] = []

    def more(number: int, loss: torch.Tensor) -> None:
        if fault:
            kept.append(model.first(torch.randn(512, 64)))

    return training(model, sgd(model), fixed(), more), 14
