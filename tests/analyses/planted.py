"""Small training programs, each with one planted bottleneck that can be left out."""

from __future__ import annotations

import copy
import gc
import io
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import kinetoscope
from kinetoscope.trace import Trace

Step = Callable[[int], None]
PAUSE_S = 0.01
"""How long a program waits in each step, where that is its fault."""


@dataclass(frozen=True)
class Program:
    """A program with a fault that can be left out.

    Attributes:
        make: Takes whether the fault is there, and returns what runs a step, and how many steps to record.
        threads: With how many threads operators compute, with the fault; without it with one.
        options: Further options of `kinetoscope.profile`.
    """

    make: Callable[[bool], tuple[Step, int]]
    threads: int
    options: dict[str, Any]

    def record(self, fault: bool) -> Trace:
        """The trace of some steps, after one that warms up."""
        torch.manual_seed(0)
        # The objects of the tests would make every collection of garbage take longer than a step.
        gc.collect()
        gc.freeze()
        step, count = self.make(fault)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads if fault else 1)
        try:
            step(0)
            schedule = kinetoscope.schedule(wait=0, warmup=1, active=count, repeat=1)
            activities = [kinetoscope.ProfilerActivity.CPU]
            with kinetoscope.profile(
                activities=activities, profile_memory=True, schedule=schedule, **self.options
            ) as prof:
                for number in range(count + 1):
                    step(number)
                    prof.step()
            return prof.trace
        finally:
            torch.set_num_threads(threads)
            # What one program compiles too often is given up for the next one of the same line, too.
            if "torch._dynamo" in sys.modules:
                torch._dynamo.reset()


PLANTED: dict[str, Program] = {}


def planted(code: str, *, threads: int = 1, **options: Any) -> Callable[[Any], Any]:
    """Register a program under the code of the finding that must name its fault."""

    def register(make: Any) -> Any:
        PLANTED[f"{code}:{make.__name__}"] = Program(make, threads, options)
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
    more: Callable[[int, torch.Tensor], object] | None = None,
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


def fused_sgd(model: nn.Module) -> torch.optim.Optimizer:
    """For models with many parameters, of which one at a time would be a fault."""
    return torch.optim.SGD(model.parameters(), lr=0.01, fused=True)


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


def count_pairs(number: int, most: int = 1200) -> int:
    total = 0
    for first in range(most):
        for second in range(200):
            total += first ^ second ^ number
    return total


@planted("python-bound")
def a_double_loop_in_python(fault: bool) -> tuple[Step, int]:
    model = Net()
    return training(
        model, sgd(model), fixed(), (lambda number, loss: count_pairs(number)) if fault else None
    ), 12


class PerToken(nn.Module):
    """Adds a row at a time, or all at once."""

    def __init__(self, slow: bool) -> None:
        super().__init__()
        self.net = Net()
        self.slow = slow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.slow:
            return self.net(x * 2 + 1)
        rows = [x[at] * 2 + 1 for at in range(x.shape[0])]
        return self.net(torch.stack(rows))


@planted("tiny-operators")
def rows_one_by_one(fault: bool) -> tuple[Step, int]:
    model = PerToken(fault)
    return training(model, sgd(model), fixed(512)), 12


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


@planted("many-parameter-groups")
def a_group_for_each_parameter(fault: bool) -> tuple[Step, int]:
    model = Deep()
    parameters = [*model.parameters()]
    groups = [[parameter] for parameter in parameters] if fault else [parameters]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=1e-3, fused=True)
    return training(model, optimizer, fixed(16)), 12


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
        self.net = Net(64)
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


@planted("main-process-loading")
def a_transform_of_each_sample(fault: bool) -> tuple[Step, int]:
    model = Net(1024)
    loader = DataLoader(Slow(False), batch_size=48, collate_fn=collate_slowly if fault else torch.stack)
    batches = forever(loader)
    return training(model, sgd(model), lambda number: next(batches)), 6


@planted("python-bound")
def text_is_prepared_in_each_step(fault: bool) -> tuple[Step, int]:
    model = Net()
    text = "the quick brown fox jumps over the lazy dog " * 4000

    def count_words(number: int, loss: torch.Tensor) -> None:
        words: dict[str, int] = {}
        for word in text.split():
            words[word] = words.get(word, 0) + 1
        sorted(text)

    return training(model, sgd(model), fixed(), count_words if fault else None), 10


@planted("tiny-operators")
def a_running_mean_by_hand(fault: bool) -> tuple[Step, int]:
    model = Net(128)

    def more(number: int, loss: torch.Tensor) -> None:
        values = loss.detach().expand(400)
        mean = torch.zeros(())
        if fault:
            for at in range(len(values)):
                mean = mean * 0.9 + values[at] * 0.1
        else:
            mean = values.mean()

    return training(model, sgd(model), fixed(), more), 10


@planted("scalar-read")
def a_mask_that_is_asked_for_each_row(fault: bool) -> tuple[Step, int]:
    model = Net()
    mask = torch.rand(1500) > 0.5

    def count(number: int, loss: torch.Tensor) -> None:
        sum(1 for one in mask.unbind() if one) if fault else int(mask.sum())

    return training(model, sgd(model), fixed(), count), 10


@planted("single-tensor-optimizer")
def squares_for_each_parameter(fault: bool) -> tuple[Step, int]:
    model = Deep()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001, momentum=0.9, foreach=not fault)
    return training(model, optimizer, fixed(512)), 8


@planted("autograd-in-inference")
def evaluation_in_batches(fault: bool) -> tuple[Step, int]:
    model = Deep().eval()
    # On a busy machine, the Python around smaller operators is a finding of its own, before one without a gain.
    x = torch.randn(6144, 64)

    def step(number: int) -> None:
        with torch.inference_mode(not fault):
            for part in x.split(3072):
                model(part)

    return step, 5


class MaskedAttention(Attention):
    """The same with a causal mask, and more than one head."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 32)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        if not self.by_hand:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        weights = torch.matmul(q, k.transpose(-2, -1)) / 6.0
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return torch.matmul(functional.softmax(weights.masked_fill(hidden, float("-inf")), -1), v)


@planted("unfused-attention")
def causal_attention_by_hand(fault: bool) -> tuple[Step, int]:
    model = MaskedAttention(fault)
    x = torch.randn(4, 128, 64)
    return training(model, sgd(model), lambda number: x), 10


class Normalized(nn.Module):
    """Layers with a normalization of the mean of squares after each, by hand or fused."""

    def __init__(self, by_hand: bool, *, center: bool = False) -> None:
        super().__init__()
        self.net = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.weight = nn.Parameter(torch.ones(64))
        self.by_hand, self.center = by_hand, center

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        if not self.by_hand:
            return (
                functional.layer_norm(x, (64,), self.weight)
                if self.center
                else functional.rms_norm(x, (64,), self.weight)
            )
        if self.center:
            x = x - x.mean(-1, keepdim=True)
            return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.net:
            x = self.normalize(layer(x))
        return x


@planted("unfused-normalization")
def mean_of_squares_by_hand(fault: bool) -> tuple[Step, int]:
    model = Normalized(fault)
    return training(model, sgd(model), fixed(1024)), 10


@planted("unfused-normalization")
def layer_norm_by_hand(fault: bool) -> tuple[Step, int]:
    model = Normalized(fault, center=True)
    return training(model, sgd(model), fixed(1024)), 10


@planted("step-outlier")
def some_steps_evaluate(fault: bool) -> tuple[Step, int]:
    model = Net()
    x = torch.randn(1024, 64)

    def more(number: int, loss: torch.Tensor) -> None:
        if fault and number in (5, 10):
            with torch.no_grad():
                for _ in range(5):
                    model.second(model.first(x))

    return training(model, sgd(model), fixed(64), more), 14


@planted("first-step")
def tables_are_made_at_first_use(fault: bool) -> tuple[Step, int]:
    model = Net()
    table: list[torch.Tensor] = []

    def more(number: int, loss: torch.Tensor) -> None:
        if fault and number == 1 and len(table) < 2:
            table.append(torch.linalg.svdvals(torch.randn(500, 500)))
            table.append(torch.linalg.svdvals(torch.randn(400, 400)))

    return training(model, sgd(model), fixed(64), more), 12


@planted("gc-pause", garbage_collection=True)
def garbage_is_collected_in_each_step(fault: bool) -> tuple[Step, int]:
    model = Net()
    cache = [[number] for number in range(100_000)]

    def more(number: int, loss: torch.Tensor) -> None:
        if fault and cache:
            gc.collect()

    return training(model, sgd(model), fixed(), more), 6


@planted("output-in-step")
def tensors_are_printed(fault: bool) -> tuple[Step, int]:
    model = Net()
    return training(
        model, sgd(model), fixed(), (lambda number, loss: repr(model.first.weight)) if fault else None
    ), 10


@planted("output-in-step", python_calls=True)
def a_checkpoint_is_saved_in_each_step(fault: bool) -> tuple[Step, int]:
    model = Net()
    return training(
        model,
        sgd(model),
        fixed(),
        (lambda number, loss: torch.save(model.state_dict(), io.BytesIO())) if fault else None,
    ), 10


@planted("output-in-step")
def the_model_is_copied_in_each_step(fault: bool) -> tuple[Step, int]:
    model = nn.ModuleList(nn.Linear(64, 64) for _ in range(80))
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), model[0])
    return training(
        net, sgd(net), fixed(16384), (lambda number, loss: copy.deepcopy(model)) if fault else None
    ), 10


class Letters(nn.Module):
    """Goes through a sequence with a cell for each step of it, or with a layer."""

    def __init__(self, step_by_step: bool) -> None:
        super().__init__()
        self.step_by_step = step_by_step
        self.cell = nn.GRUCell(64, 64) if step_by_step else nn.GRU(64, 64, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.step_by_step:
            return self.cell(x)[0]
        state, states = torch.zeros(len(x), 64), []
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
            states.append(state)
        return torch.stack(states, 1)


@planted("tiny-operators")
def a_cell_for_each_step_of_a_sequence(fault: bool) -> tuple[Step, int]:
    model = Letters(fault)
    x = torch.randn(64, 40, 64)
    return training(model, sgd(model), lambda number: x), 8


@planted("memory-peak")
def distances_of_all_pairs(fault: bool) -> tuple[Step, int]:
    model = nn.Linear(64, 8)
    x = torch.randn(2304, 64)

    def step(number: int) -> None:
        with torch.no_grad():
            points = model(x)
            parts = [points] if fault else points.split(256)
            for part in parts:
                torch.cdist(part, points).min()

    return step, 6


class Checkpointed(nn.Module):
    """Computes its activations again in backward, or keeps them."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.net = Net()
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.net, x, use_reentrant=False) if self.again else self.net(x)


@planted("recomputation-cost")
def every_layer_is_computed_again(fault: bool) -> tuple[Step, int]:
    model = Checkpointed(fault)
    return training(model, sgd(model), fixed()), 12


@planted("thread-oversubscription", threads=64)
def more_threads_than_processors(fault: bool) -> tuple[Step, int]:
    # Small enough that operators of elements use one thread: a machine is not made to crawl.
    model = Net(160)
    return training(model, sgd(model), fixed(192)), 8


@planted("profiler-cost", python_calls=True)
def every_call_of_a_small_function_is_recorded(fault: bool) -> tuple[Step, int]:
    model = Net(512)

    def add(one: int) -> int:
        return one + 1

    def more(number: int, loss: torch.Tensor) -> None:
        total = 0
        for _ in range(80_000 if fault else 20):
            total = add(total)

    return training(model, sgd(model), fixed(), more), 8


def in_two_parts(x: torch.Tensor, weight: torch.Tensor, fault: bool) -> torch.Tensor:
    y = torch.relu(x @ weight)
    if fault:
        torch._dynamo.graph_break()
    return torch.relu(y @ weight)


@planted("graph-breaks")
def a_break_in_a_compiled_function(fault: bool) -> tuple[Step, int]:
    compiled = torch.compile(in_two_parts, backend="eager")
    x, weight = torch.randn(256, 64), torch.randn(64, 64)

    def step(number: int) -> None:
        with torch.no_grad():
            compiled(x, weight, fault)

    return step, 8


# Not a float: torch 2.7 compiles once for all of them.
def scaled(x: torch.Tensor, factor: int) -> torch.Tensor:
    return torch.relu(x) * factor


@planted("recompiles")
def a_number_that_changes(fault: bool) -> tuple[Step, int]:
    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    # The Python of each call is a finding of its own where it takes more than a tenth of the step, also on a machine with slow Python.
    x = torch.randn(2048, 2048)

    def step(number: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                compiled(x, 2 + (number if fault else 0))

    return step, 6


@planted("recompile-limit")
def numbers_that_never_end(fault: bool) -> tuple[Step, int]:
    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    x = torch.randn(256, 256)
    called: list[int] = []

    def step(number: int) -> None:
        with torch.no_grad():
            for _ in range(2):
                called.append(number)
                compiled(x, len(called) if fault else 2)

    return step, 6


@planted("layout-copy")
def a_transposed_matrix_in_each_layer(fault: bool) -> tuple[Step, int]:
    model = nn.Linear(64, 64)
    x = torch.randn(64, 4096)

    def step(number: int) -> None:
        with torch.no_grad():
            for _ in range(4):
                y = x.t().contiguous() if fault else x.t()
                model(y)

    return step, 8


@planted("dtype-conversion")
def a_table_in_half_precision(fault: bool) -> tuple[Step, int]:
    table = torch.randn(16384, 256, dtype=torch.float16 if fault else torch.float32)
    model = nn.Linear(256, 64)

    def step(number: int) -> None:
        with torch.no_grad():
            model(table.float())

    return step, 10


@planted("memory-growth")
def outputs_are_collected(fault: bool) -> tuple[Step, int]:
    model = Net()
    x = torch.randn(1024, 64)
    outputs: list[torch.Tensor] = []

    def step(number: int) -> None:
        with torch.no_grad():
            y = functional.gelu(model.second(functional.gelu(model.first(x))))
            if fault:
                outputs.append(y)

    return step, 12


@planted("slowing-steps")
def features_are_concatenated(fault: bool) -> tuple[Step, int]:
    model = Net(128)
    seen = [torch.zeros(0, 64)]
    x = torch.randn(512, 64)
    found = torch.randn(12288, 64)

    def more(number: int, loss: torch.Tensor) -> None:
        seen[0] = torch.cat([seen[0] if fault else found[:64], found])

    return training(model, sgd(model), lambda number: x, more), 30


@planted("slowing-steps")
def a_state_that_keeps_its_graph(fault: bool) -> tuple[Step, int]:
    model = nn.Linear(384, 384)
    state = [torch.zeros(384, 384)]
    x = torch.randn(384, 384)

    def step(number: int) -> None:
        state[0] = torch.tanh(model(x) + state[0])
        torch.autograd.grad(state[0].square().mean(), list(model.parameters()), retain_graph=True)
        if not fault:
            state[0] = state[0].detach()

    return step, 40


@planted("repeated-backward")
def gradients_of_single_samples(fault: bool) -> tuple[Step, int]:
    model = Net(1024)
    parameters = list(model.parameters())
    x = torch.randn(24, 64)

    def step(number: int) -> None:
        losses = model(x).square().flatten()
        for loss in losses if fault else [losses.sum()]:
            torch.autograd.grad(loss, parameters, retain_graph=True)

    return step, 8


@planted("evaluation-in-step")
def validation_in_each_step(fault: bool) -> tuple[Step, int]:
    model, critic = Net(), nn.Linear(1, 1)
    train = training(model, sgd(model), fixed())
    held_out = torch.randn(256, 64)

    def validate() -> torch.Tensor:
        with torch.no_grad():
            return model(held_out).mean()

    def step(number: int) -> None:
        train(number)
        if fault:
            validate()
            return
        # As in adversarial training: the critic learns from what the model makes.
        with torch.no_grad():
            made = model(held_out)
        critic(made).mean().backward()

    return step, 10


@planted("anomaly-detection")
def gradients_are_checked(fault: bool) -> tuple[Step, int]:
    model = Deep()
    train = training(model, fused_sgd(model), fixed(256))

    def step(number: int) -> None:
        with torch.autograd.set_detect_anomaly(fault):
            train(number)

    return step, 8


@planted("gil-contention")
def a_thread_that_tokenizes(fault: bool) -> tuple[Step, int]:
    model = Net()
    train = training(model, sgd(model), fixed())

    def tokenize(done: threading.Event) -> None:
        while not done.is_set():
            # Short, so that the loop does not wait for its end.
            count_pairs(1, 20)

    def step(number: int) -> None:
        done = threading.Event()
        thread = threading.Thread(target=tokenize, args=(done,))
        if fault:
            thread.start()
        train(number)
        done.set()
        if fault:
            thread.join()

    # Too few samples say nothing: a step takes a few milliseconds.
    return step, 30


@planted("optimizer-rebuilt")
def a_new_optimizer_for_each_rate(fault: bool) -> tuple[Step, int]:
    model = Deep()
    x = torch.randn(512, 64)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step(number: int) -> None:
        nonlocal optimizer
        if fault:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.001 / (1 + number), fused=True)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, 10


@planted("input-wait")
def an_iterator_for_each_batch(fault: bool) -> tuple[Step, int]:
    model = Net()
    if not fault:
        return training(model, sgd(model), fixed()), 8
    loader = DataLoader(Slow(False), batch_size=64, num_workers=1, multiprocessing_context="fork")
    return training(model, sgd(model), lambda number: next(iter(loader))), 8


@planted("zero-grad-fill")
def gradients_are_filled_by_hand(fault: bool) -> tuple[Step, int]:
    model = nn.Sequential(nn.Embedding(40_000, 64), nn.Flatten(), nn.Linear(512, 8))
    optimizer = sgd(model)
    words = torch.randint(40_000, (64, 8))

    def step(number: int) -> None:
        model(words).square().mean().backward()
        optimizer.step()
        for parameter in model.parameters():
            if fault and parameter.grad is not None:
                parameter.grad.zero_()
            else:
                parameter.grad = None

    return step, 12


@planted("tiny-operators")
def a_penalty_of_each_parameter(fault: bool) -> tuple[Step, int]:
    model = Deep()
    x = torch.randn(256, 64)
    optimizer = fused_sgd(model)

    def step(number: int) -> None:
        loss = model(x).square().mean()
        if fault:
            for parameter in model.parameters():
                loss = loss + 1e-4 * torch.norm(parameter) ** 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, 10


@planted("double-precision", record_shapes=True)
def a_model_in_64_bits(fault: bool) -> tuple[Step, int]:
    kind = torch.float64 if fault else torch.float32
    model = Net().to(kind)
    x = torch.randn(192, 64, dtype=kind)
    return training(model, sgd(model), lambda number: x), 10


@planted("hot-line", record_shapes=True)
def a_transform_of_a_prime_length(fault: bool) -> tuple[Step, int]:
    model = Net()
    signal = torch.randn(16, 32_749 if fault else 32_768)
    batch = torch.randn(192, 64)

    def transformed(number: int) -> torch.Tensor:
        return batch + torch.fft.rfft(signal).abs().mean()

    return training(model, sgd(model), transformed), 8


@planted("hot-line", record_shapes=True)
def a_dense_gradient_of_a_large_table(fault: bool) -> tuple[Step, int]:
    words = nn.Embedding(60_000, 64, sparse=not fault)
    model = nn.Sequential(words, nn.Flatten(), nn.Linear(512, 64))
    optimizer = sgd(model)

    def step(number: int) -> None:
        model(torch.randint(60_000, (64, 8))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, 10


@planted("hot-line", record_shapes=True)
def a_result_of_which_few_rows_are_used(fault: bool) -> tuple[Step, int]:
    body, head = nn.Linear(64, 32), nn.Linear(32, 5000)
    optimizer = sgd(nn.Sequential(body, head))
    rows = torch.randn(512, 64)

    def step(number: int) -> None:
        hidden = torch.relu(body(rows))
        chosen = head(hidden)[::64] if fault else head(hidden[::64])
        chosen.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, 10


def neighbors() -> torch.Tensor:
    """A graph of 640 nodes as a matrix."""
    return (torch.rand(640, 640) < 0.05).float()


class GraphLayer(nn.Module):
    """A layer of a graph network, which normalizes the graph itself or is given it normalized."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again, self.linear = again, nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        if self.again:
            graph = graph / graph.sum(1, keepdim=True).clamp(min=1.0)
        return torch.relu(graph @ self.linear(x))


@planted("hot-line", tensor_versions=True)
def a_graph_that_each_layer_normalizes(fault: bool) -> tuple[Step, int]:
    layers, graph, x = nn.ModuleList(GraphLayer(fault) for _ in range(4)), neighbors(), torch.randn(640, 16)
    once = graph / graph.sum(1, keepdim=True).clamp(min=1.0)
    optimizer = sgd(layers)

    def step(number: int) -> None:
        rows = x
        for layer in layers:
            rows = layer(rows, graph if fault else once)
        rows.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, 10


@planted("hot-line", tensor_versions=True)
def a_forward_pass_done_twice(fault: bool) -> tuple[Step, int]:
    model = Net()
    optimizer, x = sgd(model), torch.randn(192, 64)

    def step(number: int) -> None:
        result = model(x + number)
        # Such as for a metric.
        again = model(x + number) if fault else result
        torch.maximum(result.square().mean(), again.detach().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, 10


@planted("hot-line", tensor_versions=True)
def a_teacher_that_never_changes(fault: bool) -> tuple[Step, int]:
    model, teacher, x = Net(), Net(), torch.randn(192, 64)
    optimizer = sgd(model)
    with torch.no_grad():
        once = teacher(x)

    def wanted() -> torch.Tensor:
        with torch.no_grad():
            return teacher(x)

    def step(number: int) -> None:
        (model(x) - (wanted() if fault else once)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, 10


@planted("hot-line", tensor_versions=True)
def a_buffer_that_is_filled_and_overwritten(fault: bool) -> tuple[Step, int]:
    model, rows = Net(), torch.randn(2**23)
    buffer = torch.zeros(2**23)

    def batch(number: int) -> torch.Tensor:
        if fault:
            buffer.zero_()
        buffer.copy_(rows)
        return buffer[: 192 * 64].view(192, 64)

    return training(model, sgd(model), batch), 10


@planted("hot-line", tensor_versions=True)
def a_batch_of_short_sequences_in_long_rows(fault: bool) -> tuple[Step, int]:
    model = nn.Sequential(nn.Embedding(500, 64), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
    optimizer = sgd(model)

    def step(number: int) -> None:
        rows = torch.zeros(16, 200 if fault else 40, dtype=torch.long)
        rows[:, :40] = torch.randint(1, 500, (16, 40))
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, 10


@planted("python-bound", record_shapes=True)
def a_pause_in_each_step(fault: bool) -> tuple[Step, int]:
    model = Net()

    def pause(number: int, loss: torch.Tensor) -> None:
        if fault:
            select.select([], [], [], PAUSE_S)

    return training(model, sgd(model), fixed(), pause), 20


@planted("python-bound", record_shapes=True)
def a_process_for_each_step(fault: bool) -> tuple[Step, int]:
    model = Net()

    def call(number: int, loss: torch.Tensor) -> None:
        if fault:
            subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)

    return training(model, sgd(model), fixed(), call), 10


@planted("python-bound", record_shapes=True)
def an_answer_from_a_server(fault: bool) -> tuple[Step, int]:
    model = Net()

    def ask(number: int, loss: torch.Tensor) -> None:
        if fault:
            mine, theirs = socket.socketpair()
            with mine, theirs:
                server = threading.Timer(PAUSE_S, theirs.send, (b"1",))
                server.start()
                mine.recv(1)
                server.join()

    return training(model, sgd(model), fixed(), ask), 20


@planted("python-bound", record_shapes=True)
def an_answer_from_a_pipe(fault: bool) -> tuple[Step, int]:
    model = Net()

    def ask(number: int, loss: torch.Tensor) -> None:
        if fault:
            ours, theirs = os.pipe()
            with os.fdopen(ours, "rb") as source, os.fdopen(theirs, "wb", buffering=0) as sink:
                writer = threading.Timer(PAUSE_S, sink.write, (b"1",))
                writer.start()
                source.read(1)
                writer.join()

    return training(model, sgd(model), fixed(), ask), 20


@planted("python-bound", record_shapes=True)
def a_lock_that_another_thread_releases(fault: bool) -> tuple[Step, int]:
    model, lock = Net(), threading.Lock()

    def take(number: int, loss: torch.Tensor) -> None:
        if fault:
            lock.acquire()
            other = threading.Timer(PAUSE_S, lock.release)
            other.start()
            with lock:
                other.join()

    return training(model, sgd(model), fixed(), take), 20


def evaluating(model: nn.Module, score: Callable[[torch.Tensor], object], every: int = 4) -> Step:
    """Training steps, and an evaluation of the model in place of every so manieth."""
    train, held_back = training(model, sgd(model), fixed()), torch.randn(512, 64)

    def step(number: int) -> None:
        if number % every:
            train(number)
            return
        with torch.no_grad():
            score(model(held_back))

    return step


@planted("python-bound")
def every_fourth_step_scores_in_python(fault: bool) -> tuple[Step, int]:
    def score(scores: torch.Tensor) -> object:
        return count_pairs(int(scores[0] > 0)) if fault else torch.sort(scores, 0)

    return evaluating(Net(), score), 24


@planted("hot-line", record_shapes=True)
def every_fourth_step_transforms_a_prime_length(fault: bool) -> tuple[Step, int]:
    signal = torch.randn(4, 262_139 if fault else 262_144)
    return evaluating(Net(), lambda scores: torch.fft.rfft(signal).abs().sum() + scores.sum()), 24


@planted("batch-of-one", record_shapes=True)
def a_model_that_scores_one_item_at_a_time(fault: bool) -> tuple[Step, int]:
    model, items = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)), torch.randn(64, 16)

    def step(number: int) -> None:
        with torch.no_grad():
            scores = torch.cat([model(item[None]) for item in items]) if fault else model(items)
            scores.amax()

    return step, 10


@planted("growing-prefix", record_shapes=True)
def a_sequence_that_is_computed_again_for_each_position(fault: bool) -> tuple[Step, int]:
    model, tokens = Net(), torch.randn(128, 32, 64)

    def step(number: int) -> None:
        with torch.no_grad():
            for position in range(1, 33):
                model(tokens[:, :position] if fault else tokens[:, position - 1 : position])

    return step, 10
