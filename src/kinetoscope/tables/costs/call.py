"""The operator call that cost formulas receive, and the rule that holds an operator's formula."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from kinetoscope.model.strings import parsed_json
from kinetoscope.tables.costs.operator_names import names

Shape = tuple[int, ...]

# Spellings of element types: first that of torch's traces (c10::ScalarType's name if it has one), then those of C++ compilers, which differ for
# integers, and of NCCL.
SPELLINGS = {
    "float64": "Double, double, f64",
    "float32": "Float, float, f32",
    "float16": "Half, half, f16",
    "bfloat16": "BFloat16, __nv_bfloat16, bf16",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "complex32": "complex32, complex<half>",
    "complex64": "ComplexFloat, complex<float>",
    "complex128": "ComplexDouble, complex<double>",
    "int64": "Long, long, long long, int64_t, i64",
    "int32": "Int, int, int32_t, i32",
    "int16": "Short, short",
    "int8": "Char, signed char, int8_t, i8",
    "uint8": "Byte, unsigned char, uint8_t, u8",
    "uint16": "uint16, short unsigned, unsigned short",
    "uint32": "uint32, unsigned, u32",
    "uint64": "uint64, long unsigned, unsigned long, unsigned long long, u64",
    "bool": "Bool",
}
_DTYPES = {spelled: dtype for dtype, text in SPELLINGS.items() for spelled in text.split(", ")}
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "bool": 1, "qint8": 1, "quint8": 1, "qint32": 4,
}  # fmt: skip
# torch's numbers of scalar types, as recorded for a `dtype` argument.
SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 12: "qint8", 13: "quint8", 14: "qint32",
    15: "bfloat16", 23: "float8_e5m2", 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz",
}  # fmt: skip
_BARE_POINT = re.compile(r"(?<=\d)\.(?!\d)")
# The last three come from torch before 2.0.
_NO_TENSOR = {
    "",
    *names("Scalar ScalarList TensorList GenericList Device OptionalTensorList Bool Double Int"),
}


def torch_type(recorded: str) -> str | None:
    """torch's name of an element type, from a recorder's spelling; None if it is no element type."""
    plain = recorded.replace("c10::", "").lower() if recorded.startswith("c10::") else recorded
    return plain if plain in ITEM_BYTES else _DTYPES.get(plain.removesuffix(" int"))


class Cost(NamedTuple):
    """The cost of one call.

    Attributes:
        flops: Floating-point operations; None if unknown.
        bytes: Bytes read and written; None if unknown.
    """

    flops: int | None
    bytes: int | None


FREE = Cost(0, 0)
UNKNOWN = Cost(None, None)


@dataclass(slots=True, eq=False, repr=False)
class OperatorCall:
    """One call of an operator, with its arguments in the order of its schema.

    Formulas passed to `kinetoscope.register_flops` receive it.

    Attributes:
        name: The operator's name, such as `mylib::attention`.
        overload: The overload of its schema, empty if it has none or the trace does not have it.
        shapes: For each argument a tuple of sizes for a tensor, a list of such tuples for a list of tensors, and
            None for anything else. A tensor without dimensions has `()`.
        dtypes: For each tensor argument torch's name of its element type (`float32`, `bfloat16`, `int64` ...), None for
            all other arguments, including lists of tensors.
        values: For each other argument its number, bool, string or list, None if the trace does not have it.
    """

    name: str
    shapes: list[Shape | list[Shape] | None]
    dtypes: list[str | None]
    values: list[Any]
    overload: str = ""

    def __repr__(self) -> str:
        """Show the call as it would be written."""
        return f"OperatorCall({self.name!r}, {self.shapes!r}, {self.dtypes!r}, {self.values!r})"

    def shape(self, argument: int) -> Shape:
        """The shape of a tensor argument.

        Raises:
            IndexError: There is no such argument.
            TypeError: It is not a tensor.
        """
        sizes = self.shapes[argument]
        if not isinstance(sizes, tuple):
            raise TypeError(f"argument {argument} of {self.name} is not a tensor")
        return sizes

    def shape_list(self, argument: int) -> list[Shape]:
        """The shapes of the tensors in a list argument.

        Raises:
            IndexError: There is no such argument.
            TypeError: It is not a list of tensors.
        """
        sizes = self.shapes[argument]
        if not isinstance(sizes, list):
            raise TypeError(f"argument {argument} of {self.name} is not a list of tensors")
        return sizes

    def has_tensor(self, argument: int) -> bool:
        """Whether the argument is a tensor."""
        return argument < len(self.shapes) and isinstance(self.shapes[argument], tuple)

    def value(self, argument: int, default: Any = None) -> Any:
        """The scalar, string or list passed as an argument; `default` if there is none."""
        if argument >= len(self.values) or self.values[argument] is None:
            return default
        return self.values[argument]

    def whole_list(self, argument: int, default: list[int] | None = None) -> list[int]:
        """The integers passed as an argument, such as sizes or padding; a single integer becomes a list.

        Raises:
            TypeError: It is something else, or missing without a `default`.
        """
        passed = self.value(argument, default)
        values = passed if isinstance(passed, list) else [passed]
        if not all(type(part) is int for part in values):
            raise TypeError(f"argument {argument} of {self.name} is not a list of integers: {passed!r}")
        return values

    def numel(self, argument: int) -> int:
        """The number of elements of a tensor argument."""
        return prod(self.shape(argument))

    def item_bytes(self, argument: int) -> int | None:
        """The size of one element of a tensor argument; None if its type is unknown."""
        dtype = self.dtypes[argument]
        return None if dtype is None else ITEM_BYTES.get(dtype)

    def bytes(self, argument: int) -> int | None:
        """The size of a tensor argument; None if its element type is unknown, 0 if it is not a tensor."""
        if not self.has_tensor(argument):
            return 0
        size = self.item_bytes(argument)
        return None if size is None else size * self.numel(argument)

    def has_sizes(self) -> bool:
        """Whether the shape of any tensor was recorded."""
        return any(isinstance(shape, tuple) or shape for shape in self.shapes)

    def tensors(self) -> list[int]:
        """The positions of the tensor arguments."""
        return [place for place, shape in enumerate(self.shapes) if isinstance(shape, tuple)]

    def is_complex(self, argument: int) -> bool:
        """Whether a tensor argument has complex elements."""
        dtype = self.dtypes[argument] if argument < len(self.dtypes) else None
        return dtype is not None and dtype.startswith("complex")

    def inputs(self) -> list[int]:
        """The positions of the tensors that are read: all except the `out` argument."""
        places = self.tensors()
        if len(places) > 1:
            last = self.shape(places[-1])
            empty_out = last == (0,) and any(self.numel(place) > 0 for place in places[:-1])
            if self.overload.endswith("out") or empty_out:
                places.pop()
        return places

    def moved(
        self, read: Iterable[int], written: int, like: int, *, dtype: str | None = None, more: int = 0
    ) -> int | None:
        """The bytes read from arguments plus those of the elements written.

        Args:
            read: The positions of the arguments that are read; only tensors count.
            written: The number of elements written.
            like: The argument whose element type the result has.
            dtype: The element type of the result if it differs.
            more: Additional bytes.

        Returns:
            The sum; None if an element type is unknown.
        """
        sizes = [self.bytes(place) for place in read]
        size = self.item_bytes(like) if dtype is None else ITEM_BYTES.get(dtype)
        if size is None or None in sizes:
            return None
        return sum(part for part in sizes if part is not None) + written * size + more

    def multiply_add(self, argument: int) -> int:
        """The operations of one multiply-add on elements of an argument: 2, or 8 if complex (6 to multiply, 2 to add)."""
        return 8 if self.is_complex(argument) else 2


class Inputs(NamedTuple):
    """The inputs of a call without the operator's name, parsed once for all operators called with the same inputs."""

    shapes: list[Shape | list[Shape] | None]
    dtypes: list[str | None]
    values: list[Any]


NO_INPUTS = Inputs([], [], [])


def parse_inputs(dims: str, types: str, concrete: str) -> Inputs | None:
    """Parse the three texts of a row of `shapes`; None if they are malformed."""
    sizes, names, values = parsed_json(dims), _parsed(types or "[]"), _values(concrete or "[]")
    if not (isinstance(sizes, list) and isinstance(names, list) and values is not None):
        return None
    names = names + [""] * (len(sizes) - len(names))
    shapes: list[Shape | list[Shape] | None] = []
    dtypes: list[str | None] = []
    for size, name in zip(sizes, names, strict=False):
        if not isinstance(name, str):
            return None
        shape = _shape(size, name)
        if shape is False:
            return None
        shapes.append(shape)
        dtypes.append(torch_type(name) if isinstance(shape, tuple) else None)
    return Inputs(shapes, dtypes, values + [None] * (len(shapes) - len(values)))


# Calls have few different types and scalars, but many different sizes.
_parsed = lru_cache(maxsize=1 << 12)(parsed_json)


@lru_cache(maxsize=1 << 12)
def _values(concrete: str) -> list[Any] | None:
    """The scalar arguments in a text; None if it is no list."""
    values = parsed_json(concrete)
    return [_value(value) for value in values] if isinstance(values, list) else None


def _shape(size: Any, type_name: str) -> Any:
    """The shape of one argument: a tuple, a list of tuples or None; False if malformed."""
    if not isinstance(size, list):
        return False
    if size and all(isinstance(part, list) for part in size):
        inner = [tuple(part) for part in size]
        return inner if all(map(_are_sizes, inner)) else False
    if not _are_sizes(size):
        return False
    if type_name in _NO_TENSOR and not size:
        return [] if type_name == "TensorList" else None
    return tuple(size)


def _are_sizes(sizes: Any) -> bool:
    return all(type(size) is int and size >= 0 for size in sizes)


def _value(text: Any) -> Any:
    """A scalar argument as a Python value; text that is no literal stays text, and empty text is None."""
    if not isinstance(text, str):
        return text if isinstance(text, (bool, int, float)) else None
    if text == "":
        return None
    # The recorder writes floats as C++ does (`1.`) and bools as Python does, also inside lists.
    spelled = _BARE_POINT.sub(".0", text).replace("True", "true").replace("False", "false")
    try:
        value = json.loads(spelled)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, list):
        # Formulas multiply these values: Python would repeat a string or a list instead.
        return value if all(isinstance(part, (bool, int, float)) for part in value) else text
    return text if isinstance(value, dict) else value


Formula = Callable[[OperatorCall], Cost]


class CostRule(NamedTuple):
    """How the cost of an operator is computed.

    Attributes:
        formula: Returns the cost of a call; may raise LookupError, TypeError or ValueError for malformed calls.
        family: The family of operators, such as `matmul`.
        deferred: True for an operator that usually calls others, which are recorded too: its own formula counts only
            if they account for less than half of its operations.
    """

    formula: Formula
    family: str
    deferred: bool = False


_RANK = {"b": 0, "u": 1, "i": 1, "q": 1, "f": 2, "c": 3}


def result_dtype(call: OperatorCall, places: Iterable[int]) -> str | None:
    """The element type of a pointwise result by torch's promotion rules; None if an argument's type is unknown.

    The highest kind wins: bool, integer, real, complex. Within a kind, tensors with dimensions take precedence over
    those without, then larger types over smaller ones.
    """
    ranked: list[tuple[int, bool, int, str]] = []
    for place in places:
        dtype = call.dtypes[place]
        if dtype is None:
            return None
        kind = _RANK.get("b" if dtype == "bool" else "f" if dtype == "bfloat16" else dtype[0], 0)
        ranked.append((kind, bool(call.shape(place)), ITEM_BYTES.get(dtype, 0), dtype))
    return max(ranked, key=lambda entry: entry[:3])[3] if ranked else None


def per_dimension(value: object, count: int) -> list[int]:
    """A setting such as a stride for each of `count` dimensions, from one integer or a list.

    Raises:
        ValueError: The list has another length.
    """
    values = [part for part in (value if isinstance(value, list) else [value]) if type(part) is int]
    if len(values) == 1:
        values = values * count
    if len(values) != count:
        raise ValueError(f"{value!r} is not one whole number for each of {count} dimensions")
    return values
