"""The spans as a Parquet file, read again by three other tools."""

import pyarrow.parquet as pq

from kinetoscope.trace._text import from_utf8
from tests.support.hostile import HOSTILE_NAMES
from tests.support.trace_builder import TraceBuilder


def hostile_trace():
    builder = TraceBuilder()
    for place, name in enumerate(HOSTILE_NAMES):
        builder.span(name, place * 10, 5, module=builder.module("Net", name=name, parent=0 if place else -1))
    return builder.build()


def test_it_is_the_spans_table(tmp_path):
    trace = hostile_trace()
    trace.save(tmp_path / "x.parquet")
    again = pq.read_table(tmp_path / "x.parquet")
    assert again.to_pylist() == trace.table("spans").to_pylist()
    assert tuple(again.column_names) == tuple(trace.table("spans").column_names)
    assert [from_utf8(name) for name in again.column("name").to_pylist()] == list(HOSTILE_NAMES)


def test_pandas_polars_and_duckdb_read_it(tmp_path):
    import duckdb
    import pandas as pd
    import polars as pl

    path = tmp_path / "x.parquet"
    hostile_trace().save(path)
    for names in (
        pd.read_parquet(path)["name"].tolist(),
        pl.read_parquet(path)["name"].to_list(),
        [row[0] for row in duckdb.sql(f"select name from '{path}' order by start_ns").fetchall()],
    ):
        assert [from_utf8(name) for name in names] == list(HOSTILE_NAMES)


def test_an_empty_trace_is_an_empty_table(tmp_path):
    TraceBuilder().build().save(tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 0
