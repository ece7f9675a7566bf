"""Columns as Arrow tables. Only this module, `storage` and the display rooms load pyarrow.

`pyarrow.array` and `to_numpy` import pandas where it is installed, which takes longer than opening a trace. The functions here read and
write the memory of arrays instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError
from kinetoscope.model.dictionary import Column, Table, table_definition
from kinetoscope.model.rows import Mask, Rows, mask_of
from kinetoscope.model.strings import to_utf8

if TYPE_CHECKING:
    import pyarrow

    ArrowTable: TypeAlias = pyarrow.Table
else:
    # What all tables are. Their modules name it without loading pyarrow, which is slow.
    ArrowTable = Any


@dataclass(frozen=True)
class Labels:
    """A column of strings that repeat: for each row the place of its string in `texts`, below 0 for null."""

    ids: NDArray[Any]
    texts: Sequence[str]


def to_arrow(
    table: Table | str, columns: Mapping[str, Any], rows: NDArray[np.integer[Any]] | None = None
) -> ArrowTable:
    """Make an Arrow table with the columns of `table` in its order.

    Args:
        table: The definition, or the heading of its section in the dictionary of tables. A column type of `category` becomes a dictionary-encoded string.
        columns: For each column a numpy array, `Labels`, a list of strings (None: null), or None for all null.
            In a column of integers or truth values, -1 is shown as null where it is the default of the definition.
        rows: The rows of the table, in its order; None for all rows of the columns.

    Returns:
        The table, with the unit and meaning of each column in the metadata of its field.
    """
    import pyarrow as pa

    table = table_definition(table) if isinstance(table, str) else table
    chosen = {name: _rows_of(columns[name], rows) for name in table.column_names}
    length = max((len(_values(values)) for values in chosen.values() if values is not None), default=0)
    arrays, fields = [], []
    for column in table.columns:
        array = _array(column, chosen[column.name], length)
        arrays.append(array)
        metadata = {"meaning": column.meaning} | ({"unit": column.unit} if column.unit else {})
        fields.append(pa.field(column.name, array.type, metadata=metadata))
    return pa.Table.from_arrays(
        arrays, schema=pa.schema(fields, metadata={"table": table.name, "row": table.row})
    )


def rows_to_arrow(table: Table | str, rows: Sequence[Mapping[str, Any]]) -> ArrowTable:
    """Make an Arrow table of rows, each with a value for each column: a text or None in columns of texts, else a number."""
    table = table_definition(table) if isinstance(table, str) else table
    columns: dict[str, Any] = {}
    for column in table.columns:
        values = [row[column.name] for row in rows]
        is_text = column.type in ("category", "string")
        columns[column.name] = labels(values) if is_text else np.array(values, column.type)
    return to_arrow(table, columns)


def few_texts(ids: NDArray[Any], texts: Any) -> tuple[NDArray[np.int32], list[str]]:
    """The texts that occur, and for each id the place of its own; quick where ids are far fewer than texts."""
    used, inverse = np.unique(ids, return_inverse=True)
    return inverse.astype(np.int32), [texts[number] for number in used.tolist()]


def compact(labels: Labels) -> tuple[NDArray[np.int32], list[str]]:
    """Keep only the strings that occur, each once, in order of first occurrence in the string table."""
    ids = np.asarray(labels.ids)
    used = mask_of(np.where(ids < 0, len(labels.texts), ids), len(labels.texts) + 1)
    new_row = np.full(len(labels.texts) + 1, -1, dtype=np.int32)
    row_of: dict[str, int] = {}
    for number in np.flatnonzero(used[:-1]).tolist():
        new_row[number] = row_of.setdefault(to_utf8(labels.texts[number]), len(row_of))
    return new_row[np.where(ids < 0, len(labels.texts), ids)], list(row_of)


def _rows_of(values: Any, rows: NDArray[np.integer[Any]] | None) -> Any:
    """Some rows of a column. Not with `Table.take`, which imports pandas and `pyarrow.compute`."""
    if values is None or rows is None:
        return values
    if isinstance(values, Labels):
        return Labels(np.asarray(values.ids)[rows], values.texts)
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else np.asarray(values)[rows]


def _values(values: Any) -> Any:
    return values.ids if isinstance(values, Labels) else values


def number_array(values: NDArray[Any], *, absent: Mask | None = None) -> pyarrow.Array:
    """Make an Arrow array of numbers or truth values; those of numbers share their memory.

    Args:
        values: The values.
        absent: Which are null; None for none.

    Returns:
        An array of the type of `values`.
    """
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    is_bool = values.dtype == np.bool_
    content = np.packbits(values, bitorder="little") if is_bool else values
    validity = None
    if absent is not None and absent.any():
        validity = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    type_ = pa.bool_() if is_bool else pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, len(values), [validity, pa.py_buffer(content)])


_MOST_OFFSET = np.iinfo(np.int32).max


def array_of_any(values: list[object], type_: pyarrow.DataType) -> pyarrow.Array:
    """Make an Arrow array of values that a user chose, null for None. Few values: it imports pandas where that is installed.

    Args:
        values: The values.
        type_: The type that they are to have.

    Raises:
        pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError: A value cannot have that type.
    """
    import pyarrow as pa

    return pa.array(values).cast(type_)


def text_array(texts: Iterable[str | None]) -> pyarrow.Array:
    """Make an Arrow array of strings, null for None. Lone surrogates must be escaped, as `to_utf8` does.

    Returns:
        An array of strings, with 64-bit offsets if 32 bits are too few.
    """
    import pyarrow as pa

    encoded = [None if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *(len(text or b"") for text in encoded)])
    small = int(ends[-1]) <= _MOST_OFFSET
    validity = None
    if None in encoded:
        validity = pa.py_buffer(np.packbits([text is not None for text in encoded], bitorder="little"))
    offsets = pa.py_buffer(ends.astype(np.int32 if small else np.int64))
    content = pa.py_buffer(b"".join(text for text in encoded if text is not None))
    type_ = pa.string() if small else pa.large_string()
    return pa.Array.from_buffers(type_, len(encoded), [validity, offsets, content])


def integers(column: pyarrow.Array | pyarrow.ChunkedArray) -> Rows:
    """Return a column of integers, -1 for null."""
    values = to_numpy(column).astype(np.int64)
    if column.null_count:
        # Not `fill_null`: it imports pandas.
        values[~_valid(column)] = -1
    return values


def _valid(column: pyarrow.Array | pyarrow.ChunkedArray) -> Mask:
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    parts = [np.zeros(0, dtype=bool)]
    for chunk in chunks:
        bits = chunk.buffers()[0]
        parts.append(_bits(bits, chunk) if bits is not None else np.ones(len(chunk), dtype=bool))
    return np.concatenate(parts)


def _bits(content: pyarrow.Buffer, part: pyarrow.Array) -> Mask:
    bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
    return bits[part.offset : part.offset + len(part)].astype(bool)


def to_numpy(column: pyarrow.Array | pyarrow.ChunkedArray) -> NDArray[Any]:
    """Return a column of numbers or truth values without nulls; numbers of one chunk share its memory."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    parts = [_part_to_numpy(chunk, dtype) for chunk in chunks if len(chunk)]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


def _part_to_numpy(part: pyarrow.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array of numbers or truth values that is not empty."""
    content = part.buffers()[1]
    if dtype == np.bool_:
        return _bits(content, part)
    return np.frombuffer(content, dtype, len(part), part.offset * dtype.itemsize)


def labels(values: Iterable[str | None]) -> Labels:
    """Strings that repeat, as places in a list of the different ones."""
    row_of: dict[str, int] = {}
    ids = [-1 if value is None else row_of.setdefault(value, len(row_of)) for value in values]
    return Labels(np.array(ids, dtype=np.int32), list(row_of))


# Arrow decodes many rows faster, but loads `pyarrow.compute` for it, which takes half as long as opening a small trace.
_FEW_ROWS = 10_000


def _array(column: Column, values: Any, length: int) -> pyarrow.Array:
    import pyarrow as pa

    type_ = _arrow_type(column.type)
    if values is None:
        return pa.nulls(length, type_)
    if column.type == "category" and not isinstance(values, Labels):
        values = labels(values)
    if isinstance(values, Labels):
        ids, texts = compact(values)
        if column.type != "category" and len(ids) <= _FEW_ROWS:
            return text_array(map([*texts, None].__getitem__, ids.tolist()))
        encoded = pa.DictionaryArray.from_arrays(number_array(ids, absent=ids < 0), text_array(texts))
        return encoded if column.type == "category" else encoded.dictionary_decode()
    if column.type in ("string", "text"):
        return text_array(None if value is None else to_utf8(value) for value in values)
    array = np.asarray(values)
    absent = None
    if array.dtype.kind == "i" and column.default == -1:
        absent = array == -1
    elif array.dtype.kind == "f":
        absent = np.isnan(array)
    converted = array.astype(type_.to_pandas_dtype(), copy=False)
    if converted is not array and converted.dtype.kind in "iu":
        lost = converted != array if absent is None else (converted != array) & ~absent
        if lost.any():
            raise ArgumentError(
                f"column {column.name} is of type {column.type}, which cannot hold {array[lost][0]}: give it a larger type"
            )
    return number_array(converted, absent=absent)


def _arrow_type(name: str) -> pyarrow.DataType:
    import pyarrow as pa

    special = {
        "category": pa.dictionary(pa.int32(), pa.string()),
        "string": pa.string(),
        "text": pa.string(),
        "bool": pa.bool_(),
    }
    return special.get(name) or pa.type_for_alias(name)
