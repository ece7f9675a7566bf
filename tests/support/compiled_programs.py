"""Small programs for `torch.compile`, of the kinds that people compile: models whose modules and lines a profile must find again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).relu()


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Transformer(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(causal)
        self.mlp = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return self.mlp(x)


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, kernel_size=4, stride=4)
        self.block = Transformer(causal=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.block(self.patches(image).flatten(2).transpose(1, 2))


class ResNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return functional.relu(out + x)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = cell = x.new_zeros(x.shape[1], WIDTH)
        for step in range(x.shape[0]):
            hidden, cell = self.cell(x[step], (hidden, cell))
        return hidden


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin() * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.cos() * 2


class WithFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(self.inner(x)).tanh()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.first, x, use_reentrant=False)
        return self.second(x)


class Broken(nn.Module):
    """Its graph breaks twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.gelu(self.first(x))
        torch._dynamo.graph_break()
        x = functional.gelu(self.second(x))
        torch._dynamo.graph_break()
        return functional.gelu(self.third(x))


@dataclass(frozen=True)
class CompiledProgram:
    """A program: its model, the inputs of each of its calls, and how it is compiled and called."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], list[torch.Tensor]]
    trains: bool = True
    dynamic: bool | None = None

    def compiled(self) -> Callable[[], None]:
        """Compile the model by running it once; what is returned runs each input, forward and, if it trains, backward."""
        torch.manual_seed(0)
        model = self.model().train(self.trains)
        inputs = self.inputs()
        call = torch.compile(model, dynamic=self.dynamic)

        def run() -> None:
            for one in inputs:
                if self.trains:
                    call(one).sum().backward()
                else:
                    with torch.inference_mode():
                        call(one)

        run()
        return run


def _rows(*lengths: int) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.randn(length, WIDTH) for length in lengths]


PROGRAMS = (
    CompiledProgram("mlp", Mlp, _rows(64)),
    CompiledProgram("gpt block", lambda: Transformer(causal=True), lambda: [torch.randn(2, 32, WIDTH)]),
    CompiledProgram("vit block", Vit, lambda: [torch.randn(2, 3, 16, 16)]),
    CompiledProgram("resnet block", ResNetBlock, lambda: [torch.randn(2, 16, 16, 16)]),
    CompiledProgram("lstm cell", Lstm, lambda: [torch.randn(3, 8, WIDTH)]),
    CompiledProgram("custom function", WithFunction, _rows(64)),
    CompiledProgram("checkpointed", Checkpointed, _rows(64)),
    CompiledProgram("dynamic shapes", Mlp, _rows(64, 48), dynamic=True),
    CompiledProgram("two graph breaks", Broken, _rows(64)),
    CompiledProgram("inference mode", Mlp, _rows(64), trains=False),
)
