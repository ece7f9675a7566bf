"""Tables as Arrow files, read by other tools."""

import json

import pyarrow as pa
import pytest
from hypothesis import given

from kinetoscope import ArgumentError, FormatError
from kinetoscope.model.strings import from_utf8
from kinetoscope.trace import open as open_trace
from tests.support.any_trace import any_traces
from tests.support.hostile import HOSTILE_NAMES
from tests.support.trace_builder import TraceBuilder


def hostile_trace():
    builder = TraceBuilder()
    for place, name in enumerate(HOSTILE_NAMES):
        builder.span(name, place * 10, 5)
    return builder.know("distributedInfo", {"rank": 3}).build()


@given(any_traces())
def test_any_table_survives_with_its_types(tmp_path_factory, trace):
    folder = tmp_path_factory.mktemp("arrow")
    for table in ("spans", "allocations", "ops"):
        trace.save(folder / "x.arrow", table=table)
        again = pa.ipc.open_file(folder / "x.arrow").read_all()
        assert again.schema.equals(trace.table(table).schema, check_metadata=False)
        assert again.to_pylist() == trace.table(table).to_pylist()


def test_the_file_says_what_its_columns_mean_and_of_which_run_it_is(tmp_path):
    hostile_trace().save(tmp_path / "x.feather")
    schema = pa.ipc.open_file(tmp_path / "x.feather").schema
    assert schema.metadata[b"table"] == b"spans"
    assert json.loads(schema.metadata[b"kinetoscope.info"])["distributedInfo"] == {"rank": 3}
    assert schema.field("start_ns").metadata[b"unit"] == b"ns"


def test_pandas_polars_and_duckdb_read_it(tmp_path):
    import duckdb
    import pandas as pd
    import polars as pl

    path = tmp_path / "x.feather"
    hostile_trace().save(path)
    table = pa.ipc.open_file(path).read_all()
    assert table.num_rows == len(HOSTILE_NAMES)
    for names in (
        pd.read_feather(path)["name"].tolist(),
        pl.read_ipc(path)["name"].to_list(),
        [row[0] for row in duckdb.from_arrow(table).order("start_ns").project("name").fetchall()],
    ):
        assert [from_utf8(name) for name in names] == list(HOSTILE_NAMES)


def test_it_cannot_be_opened_as_a_trace_and_says_so(tmp_path):
    hostile_trace().save(tmp_path / "x.arrow")
    with pytest.raises(FormatError, match="an Arrow file contains one table and not a trace"):
        open_trace(tmp_path / "x.arrow")


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("x.arrow", "nonsense", "there is no table 'nonsense'; choose one of: ops,"),
        ("x.ktrace", "ops", r"\.ktrace files contain all tables, so table='ops' cannot be chosen; .*: \.parquet, \.arrow"),
        ("x.json.gz", "spans", r"\.json\.gz files contain all tables"),
        ("x.xlsx", None, r"x\.xlsx: unknown suffix; use one of: \.ktrace, .*\.tables.*\.feather"),
        ("parquet", None, "unknown suffix"),
    ],
)  # fmt: skip
def test_what_cannot_be_saved_so_is_refused(tmp_path, name, table, message):
    with pytest.raises(ArgumentError, match=message):
        hostile_trace().save(tmp_path / name, table=table)
    assert list(tmp_path.iterdir()) == []
