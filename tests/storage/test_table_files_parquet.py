"""Tables as Parquet files, read by three other tools."""

import json

import pyarrow.parquet as pq
from hypothesis import given

from kinetoscope.model.strings import from_utf8
from kinetoscope.storage import table_files
from tests.support.any_trace import any_traces
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


@given(any_traces())
def test_any_table_survives_with_its_types(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("parquet") / "x.parquet"
    for table in ("spans", "ops", "counters", "copies"):
        trace.save(path, table=table)
        again = pq.read_table(path)
        assert again.schema.equals(trace.table(table).schema, check_metadata=False)
        assert again.to_pylist() == trace.table(table).to_pylist()


def test_large_tables_are_written_a_group_of_rows_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "ROW_GROUP_ROWS", 5)
    trace = hostile_trace()
    trace.save(tmp_path / "x.parquet")
    file = pq.ParquetFile(tmp_path / "x.parquet")
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [5, 5, 2]
    assert file.read().to_pylist() == trace.table("spans").to_pylist()


def test_the_file_says_what_its_columns_mean_and_of_which_run_it_is(tmp_path):
    hostile_trace().save(tmp_path / "x.parquet")
    schema = pq.read_schema(tmp_path / "x.parquet")
    assert schema.field("self_ns").metadata[b"unit"] == b"ns"
    assert json.loads(schema.metadata[b"kinetoscope.info"])["process"] == 4242
