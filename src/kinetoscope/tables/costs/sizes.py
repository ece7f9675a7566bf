"""Sizes of results: their elements, their element type, and the bytes a call moves."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinetoscope.tables.costs.call import OperatorCall, Shape

_RANK = {"b": 0, "u": 1, "i": 1, "q": 1, "f": 2, "c": 3}


def broadcast(*shapes: Shape) -> Shape:
    """The sizes that tensors of these sizes have together.

    Raises:
        ValueError: They do not fit each other.
    """
    length = max(map(len, shapes), default=0)
    out = [1] * length
    for shape in shapes:
        for place, size in enumerate(shape, length - len(shape)):
            if size != 1 and out[place] not in (1, size):
                raise ValueError(f"{shapes} do not fit each other")
            if size != 1:
                out[place] = size
    return tuple(out)


def inputs_of(call: OperatorCall) -> list[int]:
    """The places of the tensors that are read: all but the one given as `out`."""
    places = call.tensors()
    if len(places) > 1:
        last = call.shape(places[-1])
        empty_out = last == (0,) and any(prod(call.shape(place)) > 0 for place in places[:-1])
        if call.overload.endswith("out") or empty_out:
            places.pop()
    return places


def result_dtype(call: OperatorCall, places: Iterable[int]) -> str | None:
    """The element type of a pointwise result of some arguments, by torch's rules; None where one is not known.

    The highest kind among truth values, integers, real and complex numbers decides; of tensors of that kind those
    with dimensions go before those without, and the larger type before the smaller.
    """
    best: tuple[int, bool, int] | None = None
    found = None
    for place in places:
        dtype = call.dtypes[place]
        if dtype is None:
            return None
        dimensional = bool(call.shape(place))
        kind = _RANK.get("b" if dtype == "bool" else "f" if dtype == "bfloat16" else dtype[0], 0)
        key = (kind, dimensional, ITEM_BYTES.get(dtype, 0))
        if best is None or _goes_first(key, best):
            best, found = key, dtype
    return found


def _goes_first(key: tuple[int, bool, int], best: tuple[int, bool, int]) -> bool:
    """Whether a type decides before the best so far: a tensor without dimensions only by its kind."""
    if key[1] != best[1] and key[0] != best[0]:
        return key[0] > best[0]
    return key > best


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


def multiply_add(call: OperatorCall, argument: int) -> int:
    """Operations of one multiply-add on elements of an argument: 2, or 8 for complex ones (6 to multiply, 2 to add)."""
    return 8 if call.is_complex(argument) else 2


def per_dimension(value: object, count: int) -> list[int]:
    """A setting such as a stride for each of `count` dimensions, given once or for each.

    Raises:
        ValueError: It is neither.
    """
    values = [part for part in (value if isinstance(value, list) else [value]) if type(part) is int]
    if len(values) == 1:
        values = values * count
    if len(values) != count:
        raise ValueError(f"{value!r} is not one whole number for each of {count} dimensions")
    return values
