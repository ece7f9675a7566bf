"""How the numbers of a column are written in a `.ktrace` file: `kinetoscope.trace._file` says what each encoding is.

Which one makes a column smallest depends on what it holds: counted-up ids want their steps, times the bytes of their
steps apart, names nothing. So each is tried on a sample of the column, and the smallest is taken.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow
    from numpy.typing import NDArray

_WIDTHS = (np.int8, np.int16, np.int32)
_SAMPLE = 32_768
# So many steps may be too long for a column's type; one where each thread begins, and a few more.
_JUMPS = 256
_SMALL = 1024
# What steps, and bytes apart, must each save of a value to be worth undoing when it is read.
_WORTH_BYTES = 0.05
# So many values are put together at a time, which stay in the processor's cache.
_CACHED = 65_536


def encoded(name: str, values: NDArray[Any]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Encode one column of numbers.

    Args:
        name: Its name.
        values: What it holds: whole numbers, or floating-point ones of 64 bits.

    Returns:
        How it is encoded, as the manifest says it, and the Arrow columns to write (none for a constant).
    """
    bits = as_bits(values)
    if len(bits) and (bits == bits[0]).all() and (values.dtype.kind != "f" or np.isfinite(values[0])):
        return {"constant": values[0].item()}, {}
    if len(bits) < _SMALL:
        return {}, {name: values}
    steps, planes = _best(bits)
    entry: dict[str, Any] = {}
    if steps:
        bits, jumps = _steps(bits)
        entry["delta"] = jumps
    narrow = _narrowed(bits)
    if not planes or narrow.itemsize == 1:
        return entry, {name: narrow}
    entry["planes"] = narrow.itemsize
    return entry, {f"{name}.{place}": plane for place, plane in enumerate(_planes(narrow))}


def decoded(
    name: str, kind: str, entry: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]
) -> NDArray[Any]:
    """Undo `encoded`.

    Args:
        name: The column.
        kind: Its numpy type.
        entry: What the manifest says of it.
        stored: The Arrow columns that `column_names` lists.

    Returns:
        The column.

    Raises:
        ValueError: What is stored cannot be such a column.
    """
    if "planes" in entry:
        values = _joined([stored[part] for part in column_names(name, entry)])
    else:
        values = stored[name]
    if "delta" in entry:
        values = _summed(values, entry["delta"])
    return _of_kind(name, kind, values)


def column_names(name: str, entry: Mapping[str, Any]) -> list[str]:
    """The Arrow columns that hold a column.

    Raises:
        ValueError: The encoding is none that this release knows.
    """
    width = entry.get("planes")
    if width is None:
        return [name]
    if width not in (2, 4, 8):
        raise ValueError(f"column {name} is said to be cut into {width!r} bytes")
    return [f"{name}.{place}" for place in range(width)]


def as_bits(values: NDArray[Any]) -> NDArray[np.int64]:
    """The values as signed numbers of 64 bits; what has 64 bits already keeps them."""
    return values.view(np.int64) if values.itemsize == 8 else values.astype(np.int64)


def _of_kind(name: str, kind: str, values: NDArray[Any]) -> NDArray[Any]:
    """Bring stored numbers into the type of their column, which must hold them."""
    wanted = np.dtype(kind)
    if values.dtype == wanted:
        return values
    if values.dtype.kind not in "iu":
        raise ValueError(f"column {name} holds {values.dtype} where {kind} is due")
    if wanted.itemsize == 8:
        return values.astype(np.int64, copy=False).view(wanted)
    limits = np.iinfo(wanted)
    if len(values) and (values.min() < limits.min or values.max() > limits.max):
        raise ValueError(f"column {name} holds numbers that {kind} cannot")
    return values.astype(wanted)


def _best(bits: NDArray[np.int64]) -> tuple[bool, bool]:
    """Whether to store steps, and whether bytes apart: what makes a sample smallest and is worth it."""
    middle = len(bits) // 2
    sample = np.concatenate([bits[:_SAMPLE], bits[middle : middle + _SAMPLE]])
    sizes: dict[tuple[bool, bool], float] = {}
    worth = _WORTH_BYTES * len(sample)
    for steps in (False, True):
        narrow = _narrowed(_steps(sample)[0] if steps else sample)
        sizes[steps, False] = _compressed_bytes(narrow) + steps * worth
        sizes[steps, True] = sum(_compressed_bytes(plane) for plane in _planes(narrow)) + (steps + 1) * worth
    return min(sizes, key=lambda way: sizes[way])


def _steps(bits: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[list[int]]]:
    """Each value minus the one before, and apart from them, by row, the few that would make the type wider."""
    steps = np.diff(bits, prepend=np.int64(0))
    for width in _WIDTHS:
        limits = np.iinfo(width)
        outside = (steps < limits.min) | (steps > limits.max)
        if np.count_nonzero(outside) <= _JUMPS:
            rows = np.flatnonzero(outside)
            jumps = [[row, step] for row, step in zip(rows.tolist(), steps[rows].tolist(), strict=True)]
            steps[rows] = 0
            return steps, jumps
    return steps, []


def _summed(steps: NDArray[Any], jumps: list[list[int]]) -> NDArray[np.int64]:
    """Undo `_steps`: sums begin anew at each jump, from what they had come to and its length."""
    values = np.empty(len(steps), dtype=np.int64)
    begin, base = 0, 0
    for row, step in [*jumps, [len(steps), 0]]:
        if not begin <= row <= len(steps):
            raise ValueError(f"a step is said to be at row {row}")
        part = values[begin:row]
        np.cumsum(steps[begin:row], out=part)
        part += np.int64(base)
        begin, base = row, int(values[row - 1] if row else 0) + step
        base = (base + (1 << 63)) % (1 << 64) - (1 << 63)
    return values


def _narrowed(bits: NDArray[np.int64]) -> NDArray[Any]:
    """The same numbers in the narrowest type that holds them all."""
    low, high = bits.min(), bits.max()
    for width in _WIDTHS:
        limits = np.iinfo(width)
        if low >= limits.min and high <= limits.max:
            return bits.astype(width)
    return bits


def _planes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The lowest bytes of all values, then the next ones, and so on: one row each."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little.view(np.uint8).reshape(len(values), values.itemsize).T)


def _joined(planes: list[NDArray[Any]]) -> NDArray[Any]:
    """Undo `_planes`."""
    if any(plane.dtype != np.uint8 or len(plane) != len(planes[0]) for plane in planes):
        raise ValueError("the bytes of a column are not as they must be")
    together = np.empty((len(planes[0]), len(planes)), dtype=np.uint8)
    for begin in range(0, len(together), _CACHED):
        for place, plane in enumerate(planes):
            together[begin : begin + _CACHED, place] = plane[begin : begin + _CACHED]
    return together.reshape(-1).view(np.dtype(f"<i{len(planes)}"))


def _compressed_bytes(values: NDArray[Any]) -> int:
    """How many bytes zstd makes of the values."""
    return len(_zstd().compress(np.ascontiguousarray(values)))


@cache
def _zstd() -> pyarrow.Codec:
    """The compression that the files use."""
    import pyarrow as pa

    return pa.Codec("zstd")


def unpacked_bytes(content: memoryview) -> int:
    """How many bytes an Arrow file becomes when it is read, found without unpacking any of it.

    Args:
        content: The file: record batches whose buffers may be compressed, and no dictionaries.

    Raises:
        ValueError: It has dictionaries, or says something impossible.
        struct.error: It is cut short or damaged.
    """
    footer = len(content) - 10 - _number(content, "<i", len(content) - 10)
    fields = _Flat(content, footer + _number(content, "<I", footer))
    if fields.vector(2)[1]:
        raise ValueError("an Arrow file has dictionaries, which no trace has")
    begin, count = fields.vector(3)
    total = 0
    for block in range(begin, begin + 24 * count, 24):
        offset, head, _ = struct.unpack_from("<qi4xq", content, block)
        # Behind a mark of four bytes and the length of the message.
        message = _Flat(content, offset + 8 + _number(content, "<I", offset + 8))
        batch = message.table(2)
        place = batch.field(0)
        rows = _number(content, "<q", place) if place else 0
        size = 0
        compressed = batch.field(3) != 0
        first, buffers = batch.vector(2)
        for entry in range(first, first + 16 * buffers, 16):
            start, length = struct.unpack_from("<qq", content, entry)
            if compressed and length > 0:
                told = _number(content, "<q", offset + head + start)
                length = length - 8 if told == -1 else told
            if length < 0:
                raise ValueError("an Arrow file has a buffer of less than no bytes")
            size += length
        if rows < 0:
            raise ValueError("an Arrow file has fewer than no rows")
        # Types without buffers have rows, too.
        total += max(size, rows)
    return total


def _number(content: memoryview, form: str, place: int) -> int:
    """One number, which must lie within the content."""
    if place < 0:
        raise ValueError("an Arrow file refers to what lies before it")
    found: int = struct.unpack_from(form, content, place)[0]
    return found


class _Flat:
    """A table of a FlatBuffer, the form of Arrow's metadata."""

    def __init__(self, content: memoryview, place: int) -> None:
        self._content, self._place = content, place
        self._fields = place - _number(content, "<i", place)

    def field(self, number: int) -> int:
        """Where a field lies; 0 if it is not there."""
        slot = 4 + 2 * number
        if slot >= _number(self._content, "<H", self._fields):
            return 0
        offset = _number(self._content, "<H", self._fields + slot)
        return self._place + offset if offset else 0

    def table(self, number: int) -> _Flat:
        """A field that is a table."""
        place = self.field(number)
        if not place:
            raise ValueError("an Arrow file lacks a part")
        return _Flat(self._content, place + _number(self._content, "<I", place))

    def vector(self, number: int) -> tuple[int, int]:
        """Where the entries of a field begin that is a list, and how many there are."""
        place = self.field(number)
        if not place:
            return 0, 0
        place += _number(self._content, "<I", place)
        return place + 4, _number(self._content, "<I", place)
