"""Columns as Arrow tables. Only this module, `storage` and the display rooms load pyarrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.strings import to_utf8

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.schema import Column, Table


@dataclass(frozen=True)
class Labels:
    """A column of strings that repeat: for each row the place of its string in `texts`, below 0 for null."""

    ids: NDArray[Any]
    texts: Sequence[str]


def to_arrow(table: Table, columns: Mapping[str, Any]) -> pyarrow.Table:
    """Make an Arrow table with the columns of `table` in its order.

    Args:
        table: The definition. A column type of `category` becomes a dictionary-encoded string.
        columns: For each column a numpy array, `Labels`, a list of strings (None: null), or None for all null.
            In an integer column the value that the definition calls its default is shown as null when it is -1.

    Returns:
        The table, with the unit and meaning of each column in the metadata of its field.
    """
    import pyarrow as pa

    length = max(
        (len(_values(columns[name])) for name in table.column_names if columns[name] is not None), default=0
    )
    arrays, fields = [], []
    for column in table.columns:
        array = _array(column, columns[column.name], length)
        arrays.append(array)
        metadata = (
            {"meaning": column.meaning, "unit": column.unit} if column.unit else {"meaning": column.meaning}
        )
        fields.append(pa.field(column.name, array.type, metadata=metadata))
    return pa.Table.from_arrays(
        arrays, schema=pa.schema(fields, metadata={"table": table.name, "row": table.row})
    )


def compact(labels: Labels) -> tuple[NDArray[np.int32], list[str]]:
    """Keep only the strings that occur, each once, in order of first occurrence in the string table."""
    ids = np.asarray(labels.ids)
    used = np.zeros(len(labels.texts) + 1, dtype=bool)
    used[np.where(ids < 0, len(labels.texts), ids)] = True
    place = np.full(len(labels.texts) + 1, -1, dtype=np.int32)
    places: dict[str, int] = {}
    for number in np.flatnonzero(used[:-1]).tolist():
        place[number] = places.setdefault(to_utf8(labels.texts[number]), len(places))
    return place[np.where(ids < 0, len(labels.texts), ids)], list(places)


def _values(values: Any) -> Any:
    """The part of a column that has one entry a row."""
    return values.ids if isinstance(values, Labels) else values


def _array(column: Column, values: Any, length: int) -> pyarrow.Array:
    """Make one Arrow array of the column's type."""
    import pyarrow as pa

    if values is None:
        return pa.nulls(length, _arrow_type(column.type))
    if isinstance(values, Labels):
        ids, texts = compact(values)
        indices = pa.array(ids, mask=ids < 0)
        encoded = pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))
        return encoded if column.type == "category" else encoded.dictionary_decode()
    if column.type in ("string", "text", "category"):
        strings = pa.array([None if value is None else to_utf8(value) for value in values], pa.string())
        return strings.dictionary_encode() if column.type == "category" else strings
    array = np.asarray(values)
    mask = None
    if array.dtype.kind == "i" and column.default == -1:
        mask = array == -1
        mask = mask if mask.any() else None
    elif array.dtype.kind == "f":
        mask = np.isnan(array)
        mask = mask if mask.any() else None
    return pa.array(array, _arrow_type(column.type), mask=mask)


def _arrow_type(name: str) -> pyarrow.DataType:
    """Translate a type name of the schema."""
    import pyarrow as pa

    special = {
        "category": pa.dictionary(pa.int32(), pa.string()),
        "string": pa.string(),
        "text": pa.string(),
        "bool": pa.bool_(),
    }
    return special.get(name) or pa.type_for_alias(name)
