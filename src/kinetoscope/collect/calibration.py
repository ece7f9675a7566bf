"""Calibration: run operators of each family at several sizes, record them as any program is recorded, and fit how fast this machine runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from kinetoscope.collect.process.machine import store_calibration
from kinetoscope.collect.request.activities import ProfilerActivity
from kinetoscope.collect.session.profile import profile
from kinetoscope.tables.costs.attainable import measured

Call = Callable[[], object]

LONGEST_S = 8.0
"""Workloads that would start later are left out; those of each family are sorted by size."""
_EACH_S = 0.02
_LEAST_CALLS, _MOST_CALLS = 5, 100
_SIZES = 7


def calibrate(
    threads: int | None = None, longest_s: float = LONGEST_S, now_s: Callable[[], float] = time.monotonic
) -> tuple[Path, int]:
    """Measure how fast this machine runs operators, and cache the result for later recordings.

    Args:
        threads: Number of threads of each operator, which torch keeps using afterwards; None for torch's current number.
        longest_s: About how long the measurement may take, in seconds.
        now_s: A clock that returns seconds.

    Returns:
        The file with the result, and the number of threads.

    Raises:
        OSError: The file cannot be written.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    until = now_s() + longest_s
    host = profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True)
    with torch.random.fork_rng(devices=[]), host as recording:
        for call in _workloads():
            if now_s() > until:
                break
            _repeat(call, now_s)
    with recording.trace as trace:
        return store_calibration(measured(trace)), torch.get_num_threads()


def _repeat(call: Call, now_s: Callable[[], float]) -> None:
    until = now_s() + _EACH_S
    for number in range(_MOST_CALLS):
        if number >= _LEAST_CALLS and now_s() > until:
            return
        call()


def _workloads() -> Iterator[Call]:
    tensor = torch.zeros(1)
    yield lambda: tensor.add_(1)
    for grow in range(_SIZES):
        yield from _memory(2048 * 8**grow)
        yield from _products(grow)
        if grow < len(_IMAGES):
            yield from _layers(*_IMAGES[grow])


def _memory(count: int) -> Iterator[Call]:
    if count > 2**26:
        return
    source, target = torch.rand(count), torch.empty(count)
    yield partial(torch.mul, source, 2.0, out=target)
    yield partial(target.fill_, 1.0)
    yield source.sum
    if count > 2**22:
        return
    yield partial(torch.sigmoid, source, out=target)
    yield target.uniform_
    rows = source.view(-1, 64)
    index = torch.randint(len(rows), (len(rows),))
    yield partial(torch.index_select, rows, 0, index)
    yield partial(torch.embedding, rows, index)
    for width in (64, 1024):
        if width <= count <= 2**20:
            grid = source.view(-1, width).clone().requires_grad_()
            norm = nn.LayerNorm(width)
            yield from _with_gradient(partial(torch.softmax, grid, 1), grid)
            yield from _with_gradient(partial(torch.log_softmax, grid, 1), grid)
            yield from _with_gradient(partial(norm, grid), grid)


def _products(grow: int) -> Iterator[Call]:
    for width in (16 * 2**grow, 24 * 2**grow):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            if width <= (512 if dtype == torch.float64 else 1024):
                square = torch.rand(width, width).to(dtype)
                yield partial(torch.mm, square, square)
    length = 64 * 4**grow
    if length <= 2**16:
        yield partial(torch.fft.rfft, torch.rand(16, length))
        yield partial(torch.fft.fft, torch.rand(16, length, dtype=torch.complex64))


_IMAGES = ((1, 16, 16), (4, 32, 16), (8, 64, 16), (8, 64, 32), (16, 128, 32))


def _layers(batch: int, channels: int, side: int) -> Iterator[Call]:
    for dtype in (torch.float32, torch.bfloat16):
        image = torch.rand(batch, channels, side, side).to(dtype).requires_grad_()
        for size in (1, 3):
            layer = nn.Conv2d(channels, channels, size, padding=size // 2, bias=False).to(dtype)
            yield from _with_gradient(partial(layer, image), image)
        heads = torch.rand(batch, 4, 4 * side, 32).to(dtype).requires_grad_()
        yield from _with_gradient(
            partial(functional.scaled_dot_product_attention, heads, heads, heads), heads
        )
    plain = torch.rand(batch, channels, side, side, requires_grad=True)
    yield from _with_gradient(partial(nn.BatchNorm2d(channels), plain), plain)
    yield from _with_gradient(partial(functional.max_pool2d, plain, 2), plain)
    yield from _with_gradient(partial(functional.avg_pool2d, plain, 2), plain)
    words, layer = torch.rand(side, batch, channels, requires_grad=True), nn.LSTM(channels, channels)
    yield from _with_gradient(lambda: layer(words)[0], words)


def _with_gradient(forward: Callable[[], torch.Tensor], source: torch.Tensor) -> Iterator[Call]:
    def backward() -> None:
        output = forward()
        torch.autograd.grad(output, source, output.detach())

    yield backward
