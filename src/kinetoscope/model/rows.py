"""Row numbers: their types, of which mypy refuses one table's where another's is needed, runs of rows, and rows with equal numbers.

A row number is the place of a row in the stored table of its type's name, from 0; -1 means none. Columns hold them as int32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core

Rows = NDArray[np.int64]
"""Numbers of rows, or a number for each row, such as its time."""
Mask = NDArray[np.bool_]
"""For each row whether it is chosen."""
SpanRow = NewType("SpanRow", int)
ThreadRow = NewType("ThreadRow", int)
ProcessRow = NewType("ProcessRow", int)
StackRow = NewType("StackRow", int)
FrameRow = NewType("FrameRow", int)
ModuleRow = NewType("ModuleRow", int)
ShapesRow = NewType("ShapesRow", int)
AllocationRow = NewType("AllocationRow", int)
StringRow = NewType("StringRow", int)


def rows_of_runs(
    first: NDArray[np.integer], count: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """List the rows of several runs of rows, one run after the other.

    Args:
        first: The first row of each run.
        count: How many rows each has.

    Returns:
        For each row the run that it is of, and its number.
    """
    run = np.repeat(np.arange(len(count)), count)
    return run, np.arange(len(run)) + (first - (np.cumsum(count) - count))[run]


def look_up(rows: NDArray[np.integer], values: NDArray[Any], none: Any = -1) -> NDArray[Any]:
    """Look up `values` at some rows, and `none` where the row is -1."""
    kind = np.result_type(values, np.int32)
    if len(values) == 0:
        return np.full(len(rows), none, kind)
    # Of -1 it takes the last value, which is replaced.
    looked_up: NDArray[Any] = values.take(rows).astype(kind, copy=False)
    looked_up[rows < 0] = none
    return looked_up


def as_columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """Rows with a value for each of some columns, as these columns."""
    # Not `zip(*rows)`, which takes several times as long for many rows.
    listed = list(rows)
    return {name: [row[index] for row in listed] for index, name in enumerate(names)}


def mask_of(rows: NDArray[Any] | Sequence[int], length: int) -> Mask:
    """For each of `length` rows whether it is one of some; -1 is the last of them."""
    mask = np.zeros(length, dtype=np.bool_)
    mask[rows] = True
    return mask


def places_of(rows: NDArray[np.integer], length: int) -> NDArray[np.int32]:
    """For each of `length` rows its first place among some, -1 for others, as for the row -1."""
    numbers = np.full(length + 1, -1, dtype=np.int32)
    numbers[rows[::-1]] = np.arange(len(rows), dtype=np.int32)[::-1]
    numbers[-1] = -1
    return numbers


def begins_run(*keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows have another key than the row before them; the first has."""
    begins = np.ones(len(keys[0]), dtype=np.bool_)
    begins[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return begins


def divided(
    amounts: NDArray[np.int64], of: NDArray[np.int64], part: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Divide integers into integer parts by shares, rounded so that the parts of each integer add up to it.

    Args:
        amounts: The integers to divide.
        of: For each part the index of its integer in `amounts`; ascending.
        part: For each part its share of that integer, from 0 to 1; the shares of one integer add up to 1.

    Returns:
        The parts, in the order of `of`.
    """
    if len(of) == 0:
        return np.zeros(0, np.int64)
    first = begins_run(of)
    last = np.append(first[1:], True)
    until = np.cumsum(part)
    start = (until - part)[first][np.cumsum(first) - 1]
    edge = np.round(amounts[of] * np.clip(until - start, 0.0, 1.0)).astype(np.int64)
    edge[last] = amounts[of[last]]
    return np.asarray(edge - np.where(first, 0, np.append(0, edge[:-1])), dtype=np.int64)


def ends_run(*keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows have another key than the row after them; the last has."""
    return np.append(begins_run(*keys)[1:], True)[: len(keys[0])]


def hashed(*keys: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A number for the keys of each row: other keys have another one with near certainty, and sums of such numbers differ, too."""
    numbers = np.zeros(len(keys[0]), np.uint64)
    for key in keys:
        numbers = (numbers ^ key.astype(np.int64).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        # The low bits of a product depend on the low bits of its factors only.
        numbers = (numbers ^ (numbers >> np.uint64(32)) ^ np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
        numbers ^= numbers >> np.uint64(29)
    return numbers


def distinct(values: NDArray[np.int32] | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct ones of some numbers in order, and for each number its place in them: `np.unique`, without sorting all numbers."""
    numbers = np.ascontiguousarray(values, dtype=np.int64)
    group, first = _core.group([numbers])
    unsorted = numbers[first]
    order = np.argsort(unsorted)
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return unsorted[order], position[group]


def distinct_sorted(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct ones of some numbers in order, made of a few parts that are in order: several times as fast as `np.unique`."""
    # A stable sort merges such parts.
    ordered = np.sort(values, kind="stable")
    return np.asarray(ordered[begins_run(ordered)], dtype=np.int64)


def outline(holders: Sequence[int], rows: Iterable[int]) -> list[tuple[int, int]]:
    """Order some rows as an outline: each followed by those that it holds, in the order of `rows`, and the depth of each.

    Args:
        holders: For each row the one that holds it, -1 without.
        rows: All rows. Those that hold each other in a circle come last.
    """
    held: dict[int, list[int]] = {}
    for row in rows:
        held.setdefault(holders[row], []).append(row)
    ordered: list[tuple[int, int]] = []
    waiting = [(row, 0) for row in reversed(held.pop(-1, []))]
    while waiting:
        row, depth = waiting.pop()
        ordered.append((row, depth))
        waiting += [(inner, depth + 1) for inner in reversed(held.pop(row, []))]
    return ordered + [(row, 0) for left in held.values() for row in left]
