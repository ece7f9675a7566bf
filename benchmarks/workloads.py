"""The profiled program: a training step of many tiny operators, close to the worst case for profilers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

import kinetoscope

EVERYTHING = {"record_shapes": True, "profile_memory": True, "with_stack": True}


class TinyLayer(nn.Module):
    """Attention and a two-layer perceptron, 32 wide."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add the outputs of both parts to the residual stream."""
        normal = self.first_norm(x)
        query, key, value = (
            project(normal).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        weights = torch.softmax(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, dim=-1)
        x = x + self.out((weights @ value).transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.second_norm(x))))


def tiny_training_step(width: int = 32, layers: int = 4) -> Callable[[], None]:
    """Build a small transformer, and return its training step: forward, backward and AdamW."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(64, width), *(TinyLayer(width, 4) for _ in range(layers)), nn.Linear(width, 64)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, targets = torch.randint(64, (2, 8)), torch.randint(64, (16,))

    def step() -> None:
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def recorder(theirs: bool, **flags: bool | int) -> Callable[[], "kinetoscope.profile | torch_profile"]:
    """Return a function that creates a CPU session of either profiler with the same flags."""
    kind = torch_profile if theirs else kinetoscope.profile
    return lambda: kind(activities=[ProfilerActivity.CPU], **flags)


@contextmanager
def collecting(theirs: bool, **flags: bool | int) -> Iterator[object]:
    """Record and discard the result, for benchmarks of recording only."""
    with recorder(theirs, **flags)() as session:
        yield session


def operators_of(step: Callable[[], None]) -> int:
    """Return the number of records per step."""
    with recorder(theirs=False)() as session:
        step()
    return len(session.events())


def record_operators(session: "kinetoscope.profile | torch_profile", operators: int) -> None:
    """Start a session, and run tiny training steps until about `operators` operators were recorded."""
    step = tiny_training_step()
    step()
    steps = max(1, round(operators / operators_of(step)))
    session.start()
    for _ in range(steps):
        step()
