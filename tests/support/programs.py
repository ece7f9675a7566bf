"""Small real programs that both profilers record in the differential tests. Each is built once and run many times."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Program = Callable[[], object]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Adds a maker of programs to the list under its own name."""
    PROGRAMS[make.__name__] = make
    return make


def training_step(model: nn.Module, make_loss: Callable[[], torch.Tensor], **options: object) -> Program:
    """One step of AdamW: zero_grad, forward, backward, step."""
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step() -> None:
        optimizer.zero_grad()
        make_loss().backward()
        optimizer.step()

    return step


class Attention(nn.Module):
    """A pre-norm transformer block, written out so that many small operators run."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).split(width, -1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Transformer(nn.Module):
    """Embedding, some blocks in a ModuleList, and a head."""

    def __init__(self, layers: int = 2, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.layers = nn.ModuleList(Attention(width) for _ in range(layers))
        self.head = nn.Linear(width, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@program
def mlp_training() -> Program:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.ones(5, 8), torch.zeros(5, dtype=torch.long)
    return training_step(model, lambda: functional.cross_entropy(model(x), y))


@program
def transformer_training() -> Program:
    model = Transformer()
    tokens = torch.arange(16).view(2, 8)
    return training_step(model, lambda: functional.cross_entropy(model(tokens).view(-1, 64), tokens.view(-1)))


@program
def convolutional_training() -> Program:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, groups=2),
        nn.Flatten(),
        nn.LazyLinear(3),
    )
    x = torch.ones(2, 1, 12, 12)
    model(x)
    return training_step(model, lambda: model(x).square().mean(), foreach=True)


@program
def recurrent_training() -> Program:
    model = nn.LSTM(6, 8, num_layers=2, batch_first=True)
    x = torch.ones(3, 5, 6)
    return training_step(model, lambda: model(x)[0].square().sum())


@program
def custom_autograd_function() -> Program:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            (x,) = ctx.saved_tensors
            return gradient * 3 * x * x

    x = torch.ones(4, requires_grad=True)
    return lambda: Cube.apply(x).sum().backward()


@program
def checkpointing() -> Program:
    from torch.utils.checkpoint import checkpoint

    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x = torch.ones(3, 8, requires_grad=True)
    return lambda: checkpoint(block, x, use_reentrant=False).sum().backward()


@program
def checkpointing_reentrant() -> Program:
    from torch.utils.checkpoint import checkpoint

    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x = torch.ones(3, 8, requires_grad=True)
    return lambda: checkpoint(block, x, use_reentrant=True).sum().backward()


@program
def function_transforms() -> Program:
    weight, batch = torch.ones(4, 3), torch.ones(6, 3)

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(w @ x).sum()

    return lambda: torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, batch)


@program
def scripted() -> Program:
    def loop(x: torch.Tensor, steps: int) -> torch.Tensor:
        for _ in range(steps):
            x = torch.relu(x) + 1
        return x.sum()

    with warnings.catch_warnings():
        # torch.jit is deprecated; programs that use it are still out there.
        warnings.simplefilter("ignore", DeprecationWarning)
        relu_sum = torch.jit.script(loop)

    x = torch.ones(3, 3)
    return lambda: relu_sum(x, 3)


@program
def inference() -> Program:
    model = Transformer(layers=1).eval()
    tokens = torch.arange(8).view(1, 8)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return model(tokens).argmax(-1)

    return run


@program
def fourier_and_complex() -> Program:
    x = torch.linspace(0, 1, 64, requires_grad=True)
    return lambda: (torch.fft.ifft(torch.fft.fft(x) * 1j).real + x).sum().backward()


@program
def sparse_and_scatter() -> Program:
    bag = nn.EmbeddingBag(10, 4, sparse=True)
    index, offsets = torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2])

    def run() -> torch.Tensor:
        bag(index, offsets).sum().backward()
        sums = torch.zeros(3, 4).scatter_add_(0, torch.tensor([[0, 1, 2, 0]]), torch.ones(1, 4))
        return torch.sparse.mm(torch.eye(3).to_sparse(), sums)

    return run


@program
def mixed_precision() -> Program:
    model = nn.Linear(8, 8)
    x = torch.ones(4, 8)

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(x).float().sum().backward()

    return run


@program
def nested_ranges() -> Program:
    x = torch.ones(3)

    def run() -> None:
        with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
            x + 1
        torch.cat([x, x, x]).view(3, 3).tolist()

    return run
