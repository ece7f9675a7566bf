"""Tables as frames of pandas and polars, and SQL over them."""

import pytest

from kinetoscope.trace.tables import TABLES
from tests.support.hostile import HOSTILE_NAMES
from tests.support.on_demand import OnDemand
from tests.support.trace_builder import TraceBuilder

pandas = OnDemand("pandas", "frames are those of pandas")
polars = OnDemand("polars", "frames are those of polars")


def trace():
    builder = TraceBuilder().step(0, 0, 1000)
    for place, name in enumerate(HOSTILE_NAMES):
        builder.span(name, 10 + place * 10, 5, sequence=place or -1)
    builder.allocate(12, 0x10, 64)
    return builder.build()


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_becomes_a_frame(name):
    table = trace().table(name)
    pandas_frame, polars_frame = trace().to_pandas(name), trace().to_polars(name)
    assert isinstance(pandas_frame, pandas.DataFrame)
    assert isinstance(polars_frame, polars.DataFrame)
    assert len(pandas_frame) == len(polars_frame) == table.num_rows
    assert list(pandas_frame) == polars_frame.columns == table.column_names


def test_integers_with_nulls_stay_integers():
    frame = trace().to_pandas("spans")
    assert str(frame["sequence"].dtype) == "Int64"
    assert str(frame["parent"].dtype) == "Int32"
    assert str(frame["start_ns"].dtype) == "int64"
    assert frame["sequence"].isna().tolist()[:3] == [True, True, False]


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_can_be_named_in_sql(name):
    assert trace().sql(f"select count(*) as n from {name}").to_pylist() == [
        {"n": trace().table(name).num_rows}
    ]


def test_sql_joins_tables_and_knows_them_all():
    found = trace().sql(
        "select s.name, p.kind as around from spans s join spans p on s.parent = p.id where s.sequence = 1"
    )
    assert found.to_pylist() == [{"name": HOSTILE_NAMES[1], "around": "step"}]
    assert {row["name"] for row in trace().sql("show tables").to_pylist()} == set(TABLES)
