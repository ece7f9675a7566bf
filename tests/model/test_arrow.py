"""Columns as Arrow tables."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some_numpy

import kinetoscope
from kinetoscope._errors import ArgumentError
from kinetoscope.model.arrow import Labels, compact, number_array, text_array, to_arrow, to_numpy
from kinetoscope.model.dictionary import Column, Table
from kinetoscope.model.strings import to_utf8
from tests.support.hostile import hostile_text
from tests.support.trace_builder import TraceBuilder

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


NUMBERS = st.sampled_from(
    ["int8", "uint8", "int32", "int64", "uint64", "float32", "float64", "bool"]
).flatmap(lambda dtype: some_numpy.arrays(dtype, st.integers(0, 20)))


@given(NUMBERS, st.data())
def test_numbers_become_the_array_that_arrow_makes_of_them(values, data):
    absent = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), dtype=bool
    )
    made = number_array(values, absent=absent)
    made.validate(full=True)
    assert made.type == pa.array(values).type
    assert str(made) == str(pa.array(values, mask=absent))


@given(
    st.lists(NUMBERS.filter(lambda one: one.dtype == np.int64) | st.just(np.zeros(0, np.int64)), max_size=3),
    st.data(),
)
def test_numbers_of_arrow_come_back_also_of_slices(parts, data):
    whole = pa.chunked_array([pa.array(part) for part in parts], pa.int64())
    offset = data.draw(st.integers(0, len(whole)))
    assert to_numpy(whole.slice(offset)).tolist() == whole.slice(offset).to_pylist()


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 40))
def test_truth_values_come_back_also_of_slices(values, offset):
    found = to_numpy(pa.chunked_array([pa.array(values, pa.bool_()).slice(offset)]))
    assert found.dtype == bool
    assert found.tolist() == values[offset:]


@given(st.lists(st.none() | hostile_text, max_size=8))
def test_texts_become_the_array_that_arrow_makes_of_them(texts):
    valid = [None if text is None else to_utf8(text) for text in texts]
    made = text_array(valid)
    made.validate(full=True)
    assert made.equals(pa.array(valid, pa.string()))


def test_a_number_that_its_column_cannot_hold_is_an_error():
    table = Table("things", "A thing.", (Column("small", "int8", "", "Small."),))
    with pytest.raises(ArgumentError, match="cannot hold 300"):
        to_arrow(table, {"small": np.array([1, -1, 300])})


@pytest.mark.parametrize("kind", ["string", "category"])
def test_rows_are_chosen_in_their_order_from_every_form_of_column(kind):
    columns = tuple(Column(name, kind, "", "A text.") for name in ("labels", "texts", "nothing"))
    table = Table("things", "A thing.", (*columns, Column("number", "int64", "", "A number.", default=-1)))
    made = {
        "labels": Labels(np.array([1, -1, 0, 1]), ["never", "often"]),
        "texts": ["d", None, "b", "d"],
        "nothing": None,
        "number": np.array([10, -1, 30, 40]),
    }
    rows = np.array([3, 1, 0, 1])
    assert to_arrow(table, made, rows).to_pylist() == to_arrow(table, made).take(pa.array(rows)).to_pylist()
    assert to_arrow(table, made, rows[:0]).num_rows == 0


@pytest.mark.parametrize("rows", [10_000, 10_001])
def test_strings_are_the_same_however_they_are_decoded(rows):
    table = Table("things", "A thing.", (Column("name", "string", "", "Its name."),))
    ids = np.arange(rows) % 4 - 1
    column = to_arrow(table, {"name": Labels(ids, ["a", "", "\udc80"])}).column("name")
    texts = [None, "a", "", to_utf8("\udc80")]
    assert column.to_pylist() == [texts[place] for place in (ids + 1).tolist()]


def test_a_truth_value_is_null_where_it_is_unknown():
    table = Table("things", "A thing.", (Column("yes", "bool", "", "A flag."),))
    assert to_arrow(table, {"yes": np.array([1, -1, 0])}).column("yes").to_pylist() == [True, None, False]


def test_findings_of_a_file_do_not_load_pandas(tmp_path):
    builder = TraceBuilder()
    for step in range(8):
        builder.step(step, step * 10_000_000, 10_000_000)
        builder.span("aten::mm", step * 10_000_000, 2_000_000, stack=builder.stack(("train.py", 3, "train")))
    builder.build().save(tmp_path / "slow.ktrace")
    program = (
        "import sys, kinetoscope\n"
        f"with kinetoscope.open({str(tmp_path / 'slow.ktrace')!r}) as trace:\n"
        f"    assert trace.findings().num_rows == 1\n    trace.save({str(tmp_path / 'again.ktrace')!r})\n"
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    pytest.importorskip("pandas", reason="without pandas nothing can load it")


def test_arrays_are_made_in_one_place():
    rooms = Path(kinetoscope.__file__).parent
    others = [path for path in rooms.rglob("*.py") if path != rooms / "model" / "arrow.py"]
    assert [str(path) for path in others if "pa.array(" in path.read_text(encoding="utf-8")] == []
