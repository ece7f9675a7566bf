"""Sizes in bytes, and what complex numbers cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.tables.costs._call import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinetoscope.tables.costs._call import OperatorCall


def multiply_add(call: OperatorCall, argument: int) -> int:
    """Operations of one multiply-add on elements of an argument: 2, or 8 for complex ones."""
    return 8 if call.is_complex(argument) else 2


def moved(
    call: OperatorCall, read: Iterable[int], written: int, like: int, *, dtype: str | None = None
) -> int | None:
    """Bytes of the arguments `read` and of `written` elements.

    Args:
        call: The call.
        read: The places of the arguments that are read; what is no tensor counts nothing.
        written: How many elements are written.
        like: The argument whose element type the result has.
        dtype: The element type of the result where it is another one.

    Returns:
        The sum, or None where an element type is not known.
    """
    sizes = [call.bytes(place) for place in read]
    size = call.item_bytes(like) if dtype is None else ITEM_BYTES.get(dtype)
    if size is None or None in sizes:
        return None
    return sum(part for part in sizes if part is not None) + written * size
