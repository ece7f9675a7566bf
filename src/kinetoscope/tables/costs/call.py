"""The call of an operator as formulas get it, and the rules that map operators to formulas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from kinetoscope.model.strings import parsed_json
from kinetoscope.tables.costs.operator_names import names

# One distinct call of an operator, as formulas see it: sizes, element types and scalar arguments.

Shape = tuple[int, ...]

# How element types are spelled: first the way of torch's traces, c10::ScalarType's where it has a name, then those of C++, which differ between
# compilers for integers, and of NCCL.
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
# The numbers of torch's scalar types, as they are recorded for an argument `dtype`.
SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 12: "qint8", 13: "quint8", 14: "qint32",
    15: "bfloat16", 23: "float8_e5m2", 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz",
}  # fmt: skip
_BARE_POINT = re.compile(r"(?<=\d)\.(?!\d)")
# The last three are of torch before 2.0.
_NO_TENSOR = {
    "",
    *names("Scalar ScalarList TensorList GenericList Device OptionalTensorList Bool Double Int"),
}


def torch_type(recorded: str) -> str | None:
    """The element type as torch spells it, from how a recorder does; None where it is none."""
    plain = recorded.replace("c10::", "").lower() if recorded.startswith("c10::") else recorded
    return plain if plain in ITEM_BYTES else _DTYPES.get(plain.removesuffix(" int"))


class Cost(NamedTuple):
    """What one call costs.

    Attributes:
        flops: Floating-point operations; None where they cannot be known.
        bytes: Bytes read and written; None where they cannot be known.
    """

    flops: int | None
    bytes: int | None


FREE = Cost(0, 0)
UNKNOWN = Cost(None, None)


@dataclass(slots=True, eq=False, repr=False)
class OperatorCall:
    """One call of an operator, by its arguments in the order of its schema.

    This is what a formula given to `kinetoscope.register_flops` receives.

    Attributes:
        name: The operator's name, such as `mylib::attention`.
        overload: The overload of its schema, empty where it has none or the trace does not say.
        shapes: For each argument a tuple of sizes for a tensor, a list of such tuples for a list of tensors, and
            None for anything else. A tensor without dimensions has `()`.
        dtypes: For each argument the element type as torch spells it (`float32`, `bfloat16`, `int64` ...), None for
            what is no tensor and for lists of tensors.
        values: For each argument the number, truth value, string or list that was passed where it is none of these
            tensors, and None where the trace does not say.
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
        """The sizes of a tensor argument.

        Raises:
            IndexError: There is no such argument.
            TypeError: It is no tensor.
        """
        sizes = self.shapes[argument]
        if not isinstance(sizes, tuple):
            raise TypeError(f"argument {argument} of {self.name} is not a tensor")
        return sizes

    def shape_list(self, argument: int) -> list[Shape]:
        """The sizes of each tensor of a list argument.

        Raises:
            IndexError: There is no such argument.
            TypeError: It is no list of tensors.
        """
        sizes = self.shapes[argument]
        if not isinstance(sizes, list):
            raise TypeError(f"argument {argument} of {self.name} is not a list of tensors")
        return sizes

    def has_tensor(self, argument: int) -> bool:
        """Whether a tensor was passed as this argument."""
        return argument < len(self.shapes) and isinstance(self.shapes[argument], tuple)

    def value(self, argument: int, default: Any = None) -> Any:
        """The scalar, string or list passed as an argument, or `default` where there is none."""
        if argument >= len(self.values) or self.values[argument] is None:
            return default
        return self.values[argument]

    def whole_list(self, argument: int, default: list[int] | None = None) -> list[int]:
        """The whole numbers passed as an argument, such as sizes or a padding; one number is a list of one.

        Raises:
            TypeError: It is something else, or nothing and there is no `default`.
        """
        passed = self.value(argument, default)
        values = passed if isinstance(passed, list) else [passed]
        if not all(type(part) is int for part in values):
            raise TypeError(f"argument {argument} of {self.name} is not a list of integers: {passed!r}")
        return values

    def numel(self, argument: int) -> int:
        """How many elements a tensor argument has."""
        return prod(self.shape(argument))

    def item_bytes(self, argument: int) -> int | None:
        """The size of one element of a tensor argument, None where its type is not known."""
        dtype = self.dtypes[argument]
        return None if dtype is None else ITEM_BYTES.get(dtype)

    def bytes(self, argument: int) -> int | None:
        """The size of a tensor argument, None where its element type is not known; 0 for what is no tensor."""
        if not self.has_tensor(argument):
            return 0
        size = self.item_bytes(argument)
        return None if size is None else size * self.numel(argument)

    def has_sizes(self) -> bool:
        """Whether the sizes of any tensor were recorded."""
        return any(isinstance(shape, tuple) or shape for shape in self.shapes)

    def tensors(self) -> list[int]:
        """The places of the tensor arguments."""
        return [place for place, shape in enumerate(self.shapes) if isinstance(shape, tuple)]

    def is_complex(self, argument: int) -> bool:
        """Whether a tensor argument has complex elements."""
        dtype = self.dtypes[argument] if argument < len(self.dtypes) else None
        return dtype is not None and dtype.startswith("complex")

    def inputs(self) -> list[int]:
        """The places of the tensors that are read: all but the one given as `out`."""
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
        """Bytes of the arguments `read` and of `written` elements.

        Args:
            read: The places of the arguments that are read; what is no tensor counts nothing.
            written: How many elements are written.
            like: The argument whose element type the result has.
            dtype: The element type of the result where it is another one.
            more: Further bytes.

        Returns:
            The sum, or None where an element type is not known.
        """
        sizes = [self.bytes(place) for place in read]
        size = self.item_bytes(like) if dtype is None else ITEM_BYTES.get(dtype)
        if size is None or None in sizes:
            return None
        return sum(part for part in sizes if part is not None) + written * size + more

    def multiply_add(self, argument: int) -> int:
        """Operations of one multiply-add on elements of an argument: 2, or 8 for complex ones (6 to multiply, 2 to add)."""
        return 8 if self.is_complex(argument) else 2


class Inputs(NamedTuple):
    """The inputs of a call without the operator's name, parsed once for all operators that were called alike."""

    shapes: list[Shape | list[Shape] | None]
    dtypes: list[str | None]
    values: list[Any]


NO_INPUTS = Inputs([], [], [])


def parse_inputs(dims: str, types: str, concrete: str) -> Inputs | None:
    """Read the three texts of a row of `shapes`; None where they are not what a recorder writes."""
    sizes, names, values = (parsed_json(text) for text in (dims, types or "[]", concrete or "[]"))
    if not (isinstance(sizes, list) and isinstance(names, list) and isinstance(values, list)):
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
    return Inputs(shapes, dtypes, [_value(value) for value in values] + [None] * (len(shapes) - len(values)))


def _shape(size: Any, type_name: str) -> Any:
    """The sizes of one argument: a tuple, a list of tuples or None; False where they are no sizes."""
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
    """Whether all are whole numbers that a dimension can have."""
    return all(type(size) is int and size >= 0 for size in sizes)


def _value(text: Any) -> Any:
    """A scalar argument as Python value; what is no literal stays text, and nothing is None."""
    if not isinstance(text, str):
        return text if isinstance(text, (bool, int, float)) else None
    if text == "":
        return None
    # The recorder writes floats as C++ does (`1.`) and truth values as Python does, also inside lists.
    spelled = _BARE_POINT.sub(".0", text).replace("True", "true").replace("False", "false")
    try:
        value = json.loads(spelled)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, list):
        # Formulas multiply with these: a text or a list among them would be repeated, not multiplied.
        return value if all(isinstance(part, (bool, int, float)) for part in value) else text
    return text if isinstance(value, dict) else value


Formula = Callable[[OperatorCall], Cost]


class CostRule(NamedTuple):
    """How the cost of one operator is found.

    Attributes:
        formula: Gives the cost of a call; may raise LookupError, TypeError or ValueError where a call is not as it
            must be.
        family: The family of operators, such as `matmul`.
        deferred: True for an operator that is usually made of others that are recorded too: its own formula counts only
            where those account for less than half of it.
    """

    formula: Formula
    family: str
    deferred: bool = False


_RANK = {"b": 0, "u": 1, "i": 1, "q": 1, "f": 2, "c": 3}


def result_dtype(call: OperatorCall, places: Iterable[int]) -> str | None:
    """The element type of a pointwise result of some arguments, by torch's rules; None where one is not known.

    The highest kind among truth values, integers, real and complex numbers decides; of tensors of that kind those
    with dimensions go before those without, and the larger type before the smaller.
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
