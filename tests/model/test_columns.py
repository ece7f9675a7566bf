"""Columns that are computed when they are first asked for."""

import threading

import numpy as np
import pytest

from kinetoscope import ArgumentError
from kinetoscope.model.columns import Columns
from kinetoscope.model.dictionary import Column, Table

TABLE = Table(
    "boxes",
    "A box.",
    (
        Column("size", "int32", "", "Its size.", 0),
        Column("parent", "int32", "row of boxes", "The box around it."),
        Column("label", "text", "", "What it says."),
        Column("area", "int64", "", "Its area.", 0, derived=True),
        Column("volume", "int64", "", "Its volume.", 0, derived=True),
    ),
)


def boxes(**given):
    length = len(next(iter(given.values()))) if given else 0
    return Columns(TABLE, length, given, threading.RLock())


def test_given_values_take_the_type_of_the_definition():
    columns = boxes(size=[1, 2, 3])
    assert columns["size"].dtype == np.int32
    assert len(columns) == 3


def test_a_column_nobody_knows_has_its_default():
    columns = boxes(size=[1, 2])
    assert columns["parent"].tolist() == [-1, -1]
    assert columns["label"] == ["", ""]
    assert columns.given == ("size",)


def test_a_source_runs_once_and_only_when_needed():
    columns, calls = boxes(size=[2, 3]), []

    def compute():
        calls.append(1)
        return {"area": columns["size"] ** 2, "volume": columns["size"] ** 3}

    columns.source(("area", "volume"), compute)
    assert calls == []
    assert columns["volume"].tolist() == [8, 27]
    assert columns["area"].tolist() == [4, 9]
    assert calls == [1]
    assert columns.given == ("size",)


def test_what_was_given_is_not_computed():
    columns = boxes(size=[2], area=[5])
    columns.source(("area",), lambda: pytest.fail("computed although given"))
    assert columns["area"].tolist() == [5]
    assert columns.given == ("size", "area")


def test_a_given_function_loads_its_column_when_needed():
    columns = Columns(TABLE, 2, {"size": lambda: np.array([4, 5])}, threading.RLock())
    assert columns["size"].tolist() == [4, 5]
    assert columns["size"].dtype == np.int32
    assert columns.given == ("size",)


@pytest.mark.parametrize("first", ["length", "parent", "label", "volume"])
def test_without_a_length_it_is_that_of_the_first_given_column(first):
    given = {"size": lambda: [4, 5, 6], "parent": lambda: [-1, 0]}
    columns = Columns(TABLE, None, given, threading.RLock())
    if first != "parent":
        assert (len(columns) if first == "length" else len(columns[first])) == 3
        with pytest.raises(ArgumentError, match="boxes.parent has 2 values, but the table has 3 rows"):
            columns["parent"]
    else:
        columns["parent"]
        with pytest.raises(ArgumentError, match="boxes.size has 3 values, but the table has 2 rows"):
            columns["size"]


def test_a_source_runs_once_for_many_threads():
    columns, calls = boxes(size=[1]), []
    started = threading.Barrier(8)
    columns.source(("area",), lambda: calls.append(1) or {"area": np.ones(1)})

    def ask():
        started.wait()
        columns["area"]

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


def test_the_names_are_all_those_of_the_definition():
    assert list(boxes(size=[1])) == ["size", "parent", "label", "area", "volume"]


def test_an_unknown_column_names_the_known_ones():
    with pytest.raises(ArgumentError, match=r"'boxes' has no column 'colour'.*size, parent, label"):
        boxes(size=[1])["colour"]
    with pytest.raises(ArgumentError, match="'colour'"):
        boxes(colour=[1])


def test_columns_of_another_length_or_shape_are_refused():
    with pytest.raises(ArgumentError, match=r"boxes.parent has 1 values, but the table has 2 rows"):
        boxes(size=[1, 2], parent=[0])
    with pytest.raises(ArgumentError, match="one dimension, not 2"):
        boxes(size=[[1, 2]])
