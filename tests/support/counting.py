"""Counting operations by doing them: numbers that count what is done with them, and recordings of single calls.

counting = Counting()
x = counting.number(0.5)
1 / (1 + counting.exp(-x))
counting.count  # 4
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import kinetoscope
from kinetoscope import ProfilerActivity, Trace


class Counting:
    """How many operations its numbers took part in."""

    def __init__(self) -> None:
        self.count = 0

    def number(self, value: float = 0.5) -> Number:
        """Makes a number whose operations are counted."""
        return Number(self, float(value))

    def array(self, *sizes: int) -> np.ndarray:
        """Makes an array of them."""
        made = np.empty(sizes, dtype=object)
        for place in np.ndindex(*sizes):
            made[place] = self.number(0.25 + (sum(place) % 5) / 8)
        return made

    def function(self, result: Callable[..., float]) -> Callable[..., Number]:
        """Makes a function each value of which is one operation."""

        def apply(*arguments: Any) -> Number:
            self.count += 1
            return Number(self, result(*(float(argument) for argument in arguments)))

        return apply

    def __getattr__(self, name: str) -> Callable[..., Number]:
        """Finds a function of `math` (or `max`, `min`, `abs`)."""
        return self.function({"max": max, "min": min, "abs": abs}.get(name) or getattr(math, name))


class Number:
    """A number that counts."""

    def __init__(self, counting: Counting, value: float) -> None:
        self.counting = counting
        self.value = value

    def __float__(self) -> float:
        return self.value

    def _done(self, value: float) -> Number:
        self.counting.count += 1
        return Number(self.counting, value)

    def __add__(self, other: Any) -> Number:
        return self._done(self.value + float(other))

    def __sub__(self, other: Any) -> Number:
        return self._done(self.value - float(other))

    def __rsub__(self, other: Any) -> Number:
        return self._done(float(other) - self.value)

    def __mul__(self, other: Any) -> Number:
        return self._done(self.value * float(other))

    def __truediv__(self, other: Any) -> Number:
        return self._done(self.value / float(other))

    def __rtruediv__(self, other: Any) -> Number:
        return self._done(float(other) / self.value)

    def __neg__(self) -> Number:
        return self._done(-self.value)

    def __gt__(self, other: Any) -> bool:
        self.counting.count += 1
        return self.value > float(other)

    __radd__, __rmul__ = __add__, __mul__


@dataclass(frozen=True)
class Recorded:
    """The costs of what was recorded.

    Attributes:
        trace: The trace.
        flops: Operations in total.
        by_name: Operations of each operator that counted any, by its name without `aten::`.
        bytes: Bytes moved by each operator that counted, None where one call's are not known.
        unknown: The names of operators of unknown cost.
    """

    trace: Trace
    flops: int
    by_name: dict[str, int]
    bytes: dict[str, int | None]
    unknown: set[str]


def recorded(run: Callable[[], object], **options: Any) -> Recorded:
    """Records what `run` does, with the inputs of its operators."""
    options = {"engine": "native", "record_shapes": True, "activities": [ProfilerActivity.CPU]} | options
    with kinetoscope.profile(**options) as prof:
        run()
    return costs_in(prof.trace)


def costs_in(trace: Trace) -> Recorded:
    """Reads the costs of a trace."""
    spans, by_name, sizes, unknown = trace.columns("spans"), {}, {}, set()
    for name, flops, size in zip(
        *(spans[part].tolist() for part in ("name", "flops", "bytes_moved")), strict=True
    ):
        text = trace.strings[name].removeprefix("aten::")
        if flops < 0:
            unknown.add(text)
        if flops > 0:
            by_name[text] = by_name.get(text, 0) + flops
        if size != 0 and flops >= 0:
            before = sizes.get(text, 0)
            sizes[text] = None if size < 0 or before is None else before + size
    return Recorded(trace, sum(by_name.values()), by_name, sizes, unknown)
