"""SQL of agents: what a query may do, and what it cannot reach. The process that runs it is a real one."""

import pytest

pytest.importorskip("duckdb")

from kinetoscope import ArgumentError, MissingDependencyError
from kinetoscope.integrations import read_only_query as module
from kinetoscope.integrations.read_only_query import read_only_query
from tests.support.trace_builder import TraceBuilder


def small_trace():
    builder = TraceBuilder()
    for step in range(3):
        builder.step(step, step * 1000, 1000)
        builder.span("aten::mm", step * 1000 + 100, 300)
        builder.span("=cmd()", step * 1000 + 500, 10)
    return builder.build()


@pytest.fixture(scope="module")
def trace():
    return small_trace()


def rows_of(trace, query):
    return read_only_query(trace, query, 50)[0].to_pylist()


def test_rows_are_those_of_trace_sql(trace):
    for query in (
        "select name, sum(self_ns) as self_ns from spans group by name order by name",
        "select number, duration_ns from steps order by number",
        "select count(*) as n from spans a, spans b",
    ):
        assert rows_of(trace, query) == trace.sql(query).to_pylist()


@pytest.mark.parametrize(
    "query", ["from ops", "with a as (select 1 as x) select * from a", "describe ops", "show tables", "summarize ops",
              "explain select 1", "values (1)", "SELECT 1 -- ;", "/* ; */ select 1;"],
)  # fmt: skip
def test_queries_of_every_kind_that_read_run(trace, query):
    assert rows_of(trace, query)


@pytest.mark.parametrize(
    "query",
    [
        "copy ops to '{folder}/x.csv'",
        "explain analyze copy ops to '{folder}/x.csv'",
        "export database '{folder}/x'",
        "attach '{folder}/x.db' as x",
        "create table x as select 1",
        "create secret x (type http, bearer_token 'x')",
        "insert into ops values (1)",
        "with x as (insert into ops values (1)) select 1",
        "update ops set name = 'x'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set memory_limit = '100GB'",
        "pragma memory_limit = '100GB'",
        "pragma database_list",
        "prepare x as select 1",
        "select 1; select 2",
        "select 1; copy ops to '{folder}/x.csv'",
        "",
        "no sql at all",
    ],
)
def test_a_query_that_does_more_than_read_is_rejected(trace, tmp_path, query):
    with pytest.raises(ArgumentError):
        rows_of(trace, query.format(folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "query",
    [
        "select * from '{file}'",
        "select * from read_csv('{file}')",
        "select * from read_text('{file}')",
        "select * from read_blob('{file}')",
        "select * from read_parquet('{file}')",
        "select * from sniff_csv('{file}')",
        "select * from parquet_metadata('{file}')",
        "select * from glob('{folder}/*')",
        "select * from query('select * from read_text(''{file}'')')",
        "select * from query_table('{file}')",
        "select getenv('HOME')",
        "select * from read_csv('http://127.0.0.1:9/x.csv')",
        "select * from 'https://127.0.0.1:9/x.parquet'",
        # Variables of the process that runs it are no tables.
        "select * from request",
        "select * from connection",
    ],
)
def test_no_file_address_or_variable_is_reached(trace, tmp_path, query):
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nsesame\n")
    with pytest.raises(ArgumentError) as caught:
        rows_of(trace, query.format(file=secret, folder=tmp_path))
    assert "sesame" not in str(caught.value)


def test_the_settings_that_confine_a_query_hold(trace):
    names = ("enable_external_access", "lock_configuration", "autoload_known_extensions", "temp_directory")
    listed = ", ".join(f"'{name}'" for name in names)
    found = rows_of(trace, f"select name, value from duckdb_settings() where name in ({listed})")
    assert {row["name"]: row["value"] for row in found} == {
        "enable_external_access": "false",
        "lock_configuration": "true",
        "autoload_known_extensions": "false",
        "temp_directory": "",
    }


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from range(1000000000000)",
        "with recursive r as (select 1 as n union all select n + 1 from r) select count(*) from r",
        "select list_sum(range(1000000000))",
    ],
)
def test_a_query_ends_at_its_time_limit(trace, query):
    with pytest.raises(ArgumentError, match=r"took longer than 1 s|exceeded the memory limit"):
        read_only_query(trace, query, 10, time_s=1.0)


@pytest.mark.parametrize(
    "query",
    [
        "select list(range) from range(1000000000)",
        "select repeat('x', 1000000000) from range(3)",
        "select array_agg(repeat(range::varchar, 10000)) from range(1000000)",
    ],
)
def test_a_query_ends_at_its_memory_limit(trace, query):
    with pytest.raises(ArgumentError, match=r"exceeded the memory limit of 64 MiB"):
        read_only_query(trace, query, 10, memory_bytes=64 << 20)


def test_the_first_rows_of_an_endless_result_are_returned(trace):
    query = "select a.range as x from range(1000000) a, range(1000000) b"
    rows, counted = read_only_query(trace, query, 50)
    assert rows.num_rows == 50
    assert counted > 1_000_000


def test_a_query_as_long_as_a_book_is_rejected(trace):
    with pytest.raises(ArgumentError, match="at most 50,000"):
        read_only_query(trace, "select 1 --" + "x" * 50_000, 10)


def test_without_duckdb_it_says_what_to_install(trace, monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="kinetoscope\\[sql\\]"):
        read_only_query(trace, "select 1", 10)
