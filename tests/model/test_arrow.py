"""Columns as Arrow tables."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.arrow import Labels, compact, to_arrow
from kinetoscope.model.schema import Column, Table
from kinetoscope.model.strings import to_utf8
from tests.support.hostile import hostile_text

TABLE = Table(
    "things",
    "A thing.",
    (
        Column("count", "int64", "", "With null."),
        Column("size", "int64", "bytes", "Without.", 0),
        Column("share", "float64", "%", "A share."),
        Column("label", "category", "", "A label."),
        Column("text", "string", "", "A text."),
        Column("yes", "bool", "", "A flag."),
    ),
)


def test_types_and_nulls():
    table = to_arrow(
        TABLE,
        {
            "count": np.array([3, -1]),
            "size": np.array([-1, 0]),
            "share": np.array([np.nan, 1.5]),
            "label": Labels(np.array([-1, 1]), ["a", "b"]),
            "text": Labels(np.array([1, -1]), ["a", "b"]),
            "yes": np.array([True, False]),
        },
    )
    assert table.to_pydict() == {
        "count": [3, None], "size": [-1, 0], "share": [None, 1.5], "label": [None, "b"], "text": ["b", None],
        "yes": [True, False],
    }  # fmt: skip
    assert table.schema.metadata == {b"table": b"things", b"row": b"A thing."}


def test_columns_nobody_knows_are_null_and_have_their_type():
    columns = dict.fromkeys(TABLE.column_names) | {"size": np.array([1, 2])}
    table = to_arrow(TABLE, columns)
    assert table.column("label").to_pylist() == [None, None]
    assert str(table.schema.field("share").type) == "double"


@given(st.lists(hostile_text, min_size=1, max_size=8), st.data())
def test_labels_keep_the_text_of_each_row_and_no_text_twice(texts, data):
    ids = np.array(data.draw(st.lists(st.integers(-1, len(texts) - 1), max_size=20)), np.int32)
    places, kept = compact(Labels(ids, texts))
    assert len(set(kept)) == len(kept)
    expected = [None if number < 0 else to_utf8(texts[number]) for number in ids.tolist()]
    assert [None if place < 0 else kept[place] for place in places.tolist()] == expected
    assert set(kept) == {text for text in expected if text is not None}
