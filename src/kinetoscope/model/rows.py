"""Row numbers, with one type per table so that mypy rejects mix-ups, and operations on arrays of them.

A row number is the index of a row in the stored table that its type names, from 0; -1 means none. Columns hold them as int32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core

Rows = NDArray[np.int64]
"""Row numbers, or one integer per row, such as its time."""
Mask = NDArray[np.bool_]
"""One bool per row: whether it is chosen."""
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
        count: The length of each run.

    Returns:
        For each row its run and its row number.
    """
    run = np.repeat(np.arange(len(count)), count)
    return run, np.arange(len(run)) + (first - (np.cumsum(count) - count))[run]


def look_up(rows: NDArray[np.integer], values: NDArray[Any], none: Any = -1) -> NDArray[Any]:
    """Look up `values` at some rows, and `none` where the row is -1."""
    kind = np.result_type(values, np.int32)
    if len(values) == 0:
        return np.full(len(rows), none, kind)
    # -1 takes the last value, which the next lines replace.
    looked_up: NDArray[Any] = values.take(rows).astype(kind, copy=False)
    looked_up[rows < 0] = none
    return looked_up


def as_columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """Transpose rows into named columns."""
    # `zip(*rows)` takes several times as long for many rows.
    listed = list(rows)
    return {name: [row[index] for row in listed] for index, name in enumerate(names)}


def mask_of(rows: NDArray[Any] | Sequence[int], length: int) -> Mask:
    """A mask of `length` rows that is True at `rows`; -1 is the last one."""
    mask = np.zeros(length, dtype=np.bool_)
    mask[rows] = True
    return mask


def places_of(rows: NDArray[np.integer], length: int) -> NDArray[np.int32]:
    """For each of `length` rows its first index in `rows`, -1 if it is not there; the last entry stands for row -1."""
    numbers = np.full(length + 1, -1, dtype=np.int32)
    numbers[rows[::-1]] = np.arange(len(rows), dtype=np.int32)[::-1]
    numbers[-1] = -1
    return numbers


def begins_run(*keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark rows with another key than the previous row, including the first row."""
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
    """Mark rows with another key than the next row, including the last row."""
    return np.append(begins_run(*keys)[1:], True)[: len(keys[0])]


def hashed(*keys: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A hash of the keys of each row, such that sums of hashes also differ for different rows."""
    numbers = np.zeros(len(keys[0]), np.uint64)
    for key in keys:
        numbers = (numbers ^ key.astype(np.int64).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        # The low bits of a product depend only on the low bits of its factors.
        numbers = (numbers ^ (numbers >> np.uint64(32)) ^ np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
        numbers ^= numbers >> np.uint64(29)
    return numbers


def distinct(values: NDArray[np.int32] | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sorted distinct values, and for each value its index in them: `np.unique` without sorting all values."""
    numbers = np.ascontiguousarray(values, dtype=np.int64)
    group, first = _core.group([numbers])
    unsorted = numbers[first]
    order = np.argsort(unsorted)
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return unsorted[order], position[group]


def distinct_sorted(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sorted distinct values of a concatenation of a few sorted parts: several times as fast as `np.unique`."""
    # A stable sort merges sorted parts.
    ordered = np.sort(values, kind="stable")
    return np.asarray(ordered[begins_run(ordered)], dtype=np.int64)


def outline(holders: Sequence[int], rows: Iterable[int]) -> list[tuple[int, int]]:
    """Order rows as an outline: each row followed by its children in the order of `rows`; return rows with depths.

    Args:
        holders: For each row its parent, -1 for none.
        rows: All rows. Rows in a cycle come last.
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
