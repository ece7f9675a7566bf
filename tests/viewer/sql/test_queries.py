"""SQL on the page: what may be asked, and what nobody gets at. The process that answers is a real one."""

import gc
import io
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

pytest.importorskip("duckdb")

import duckdb

from kinetoscope import ArgumentError, MissingDependencyError, StateError
from kinetoscope.viewer.server.routes import answer
from kinetoscope.viewer.sql import queries as queries_module
from kinetoscope.viewer.sql.queries import EXAMPLES, Queries, queries
from kinetoscope.viewer.sql.worker import _lacked_memory, as_csv, shown
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
    made = small_trace()
    yield made
    queries(made).close()


def ask(trace, query):
    return answer(trace, "sql", {"query": query})


def rows_of(trace, query):
    return ask(trace, query).table.to_pylist()


def test_a_query_is_answered_as_trace_sql_answers_it(trace):
    for query in (
        "select name, sum(self_ns) as self_ns from spans group by name order by name",
        "select number, duration_ns from steps order by number",
        "select count(*) as n from spans a, spans b",
    ):
        assert rows_of(trace, query) == trace.sql(query).to_pylist()


@pytest.mark.parametrize(("title", "query"), EXAMPLES)
def test_the_examples_run(trace, title, query):
    assert ask(trace, query).table.num_columns > 0


@pytest.mark.parametrize(
    "query", ["from ops", "with a as (select 1 as x) select * from a", "describe ops", "show tables", "summarize ops",
              "explain select 1", "values (1)", "SELECT 1 -- ;", "/* ; */ select 1;"],
)  # fmt: skip
def test_questions_of_every_kind_are_answered(trace, query):
    assert ask(trace, query).table.num_columns > 0


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
def test_nothing_but_one_question_is_run(trace, tmp_path, query):
    with pytest.raises(ArgumentError):
        ask(trace, query.format(folder=tmp_path))
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
        # Variables of the process that answers are no tables.
        "select * from asked",
        "select * from trace",
    ],
)
def test_no_file_no_address_and_no_variable_is_reached(trace, tmp_path, query):
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nsesame\n")
    with pytest.raises(ArgumentError) as caught:
        ask(trace, query.format(file=secret, folder=tmp_path))
    assert "sesame" not in str(caught.value)


def test_nothing_of_one_query_is_there_for_the_next(trace):
    with pytest.raises(ArgumentError):
        ask(trace, "create temp table kept as select 1")
    with pytest.raises(ArgumentError, match="kept does not exist"):
        ask(trace, "from kept")


def test_the_settings_that_shut_it_off_hold(trace):
    names = ("enable_external_access", "lock_configuration", "autoload_known_extensions", "temp_directory")
    listed = ", ".join(f"'{name}'" for name in names)
    found = rows_of(trace, f"select name, value from duckdb_settings() where name in ({listed})")
    assert {row["name"]: row["value"] for row in found} == {
        "enable_external_access": "false",
        "lock_configuration": "true",
        "autoload_known_extensions": "false",
        "temp_directory": "",
    }


@pytest.fixture(scope="module")
def limited():
    """Queries that get little memory."""
    trace = small_trace()
    found = Queries(trace, memory_bytes=64 << 20)
    yield found
    found.close()


@pytest.fixture
def short(limited):
    """The same, with half a second for each."""
    again(limited)
    limited.time_s = 0.5
    yield limited
    limited.time_s = 30


def again(limited):
    limited.time_s = 30
    return limited.ask("select 7 as x", rows=1, form="arrow")[0]["total"]


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from range(1000000000000)",
        "with recursive r as (select 1 as n union all select n + 1 from r) select count(*) from r",
    ],
)
def test_a_query_that_takes_long_is_ended_and_the_next_is_answered(short, query):
    with pytest.raises(ArgumentError, match=r"took longer than 0\.5 s"):
        short.ask(query, rows=10, form="arrow")
    assert again(short) == 1


@pytest.mark.parametrize(
    "query",
    [
        "select list(range) from range(1000000000)",
        "select repeat('x', 1000000000) from range(3)",
        "select array_agg(repeat(range::varchar, 10000)) from range(1000000)",
    ],
)
def test_a_query_that_takes_much_memory_is_ended_and_the_next_is_answered(limited, query):
    with pytest.raises(ArgumentError, match="memory"):
        limited.ask(query, rows=10, form="arrow")
    assert again(limited) == 1


def test_memory_that_runs_out_is_told_as_such_though_something_else_fails_on_the_way():
    def failing_to_close(error):
        try:
            try:
                raise error
            finally:
                raise ValueError("I/O operation on closed file.")
        except ValueError as caught:
            return caught

    assert _lacked_memory(failing_to_close(MemoryError()))
    assert _lacked_memory(failing_to_close(pa.ArrowMemoryError("malloc of size 64 failed")))
    assert _lacked_memory(OSError("Out of Memory Error: failed to allocate data"))
    assert not _lacked_memory(failing_to_close(KeyError()))
    assert not _lacked_memory(duckdb.ParserException("syntax error at 'Out of Memory Error'"))


def test_the_kernel_holds_the_process_to_its_memory(limited):
    limits = Path(f"/proc/{limited._next().pid}/limits")
    if not limits.exists():
        pytest.skip("needs Linux")
    told = {"Max file size": ""}
    while told["Max file size"] != "0":  # it imports first, and reads a query when the limits are there
        told = {line[:26].strip(): line[26:47].strip() for line in limits.read_text().splitlines()}
    assert int(told["Max data size"]) < (64 << 20) + (1 << 30)
    assert again(limited) == 1


def test_a_result_without_end_gives_its_first_rows(limited):
    told, body = limited.ask(
        "select a.range as x from range(1000000) a, range(1000000) b", rows=50, form="arrow"
    )
    assert pa.ipc.open_stream(body).read_all().num_rows == 50
    assert told["total"] > 50
    assert (told["all"], told["cut"]) == (False, True)


def test_the_rows_of_a_page_are_the_first_and_all_are_counted(trace, monkeypatch):
    monkeypatch.setattr(queries_module, "MOST_ROWS", 10)
    found = ask(trace, "select range as x from range(100000) order by x desc")
    assert (found.table.num_rows, found.total) == (10, 100000)
    assert found.table.column("x").to_pylist() == list(range(99999, 99989, -1))
    assert found.table.schema.metadata[b"all"] == b"yes"


def test_a_query_can_be_stopped():
    trace = small_trace()
    asked = queries(trace)
    asked.ask("select 1", rows=1, form="arrow")
    failed = []

    def endless():
        with pytest.raises(StateError, match="was stopped") as caught:
            asked.ask("select count(*) from range(1000000000000)", rows=1, form="arrow")
        failed.append(caught.value)

    thread = threading.Thread(target=endless)
    thread.start()
    while not failed:
        answer(trace, "sql/stop", {})
        thread.join(0.05)
    thread.join()
    assert asked.ask("select 1", rows=1, form="arrow")[0]["total"] == 1
    answer(trace, "sql/stop", {})  # nothing runs: nothing happens
    assert asked.ask("select 1", rows=1, form="arrow")[0]["total"] == 1
    asked.close()


def test_a_query_that_is_stopped_before_it_is_sent_does_not_run(monkeypatch):
    asked = queries(small_trace())
    begin = asked._next

    def stopped_at_once(when):
        if when == "before":
            asked.stop()
        process = begin()
        if when == "after":
            asked.stop()
        return process

    # Without a process, with one that was ended, and with one that is to be ended.
    for when in ("before", "before", "after"):
        monkeypatch.setattr(asked, "_next", lambda when=when: stopped_at_once(when))
        with pytest.raises(StateError, match="was stopped"):
            asked.ask("select 1", rows=1, form="arrow")
        monkeypatch.undo()
        assert asked.ask("select 1", rows=1, form="arrow")[0]["total"] == 1
        asked.stop()
    asked.close()


def test_the_process_and_its_files_go_with_the_trace():
    trace = small_trace()
    rows_of(trace, "from spans")
    folder, process = queries(trace)._folder, queries(trace)._next()
    assert (folder / "spans.arrow").exists()
    assert folder.stat().st_mode & 0o077 == 0
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    del trace
    gc.collect()
    assert process.poll() is not None
    assert not folder.exists()


def test_what_a_page_cannot_show_becomes_text_and_numbers_stay_exact():
    table = pa.table({
        "small": pa.array([1, None], pa.int8()),
        "large": pa.array([2**53, 1], pa.int64()),
        "safe": pa.array([2**53 - 1, 1], pa.uint64()),
        "whole": pa.array([5, None], pa.decimal128(38, 0)),
        "huge": pa.array([10**30, 1], pa.decimal128(38, 0)),
        "list": pa.array([[1, 2], None]),
        "word": pa.array(["a", None]).dictionary_encode(),
        "none": pa.nulls(2),
        "yes": pa.array([True, None]),
    })  # fmt: skip
    assert shown(table).to_pylist() == [
        {"small": 1, "large": str(2**53), "safe": 2**53 - 1, "whole": 5, "huge": "1" + "0" * 30,
         "list": "[1, 2]", "word": "a", "none": None, "yes": True},
        {"small": None, "large": "1", "safe": 1, "whole": None, "huge": "1",
         "list": None, "word": None, "none": None, "yes": None},
    ]  # fmt: skip


def test_columns_of_one_name_are_told_apart_and_units_are_read_from_names():
    table = pa.Table.from_arrays([pa.array([1])] * 5, ["a", "a", "self_ns", "peak_bytes", "of_peak_percent"])
    found = shown(table)
    assert found.column_names == ["a", "a_2", "self_ns", "peak_bytes", "of_peak_percent"]
    units = [(field.metadata or {}).get(b"unit", b"").decode() for field in found.schema]
    assert units == ["", "", "ns", "bytes", "%"]


def test_all_rows_come_as_csv_in_which_nothing_is_a_formula(trace):
    file = answer(trace, "sql/csv", {"query": "select name, duration_ns from spans order by start_ns, name"})
    found = pyarrow.csv.read_csv(io.BytesIO(file.file.read())).to_pylist()
    expected = trace.sql("select name, duration_ns from spans order by start_ns, name").to_pylist()
    assert [row["duration_ns"] for row in found] == [row["duration_ns"] for row in expected]
    assert [row["name"].removeprefix("'") for row in found] == [row["name"] for row in expected]
    assert not [row for row in found if row["name"].startswith("=")]
    assert as_csv(pa.table({"a": [-1, 2]})) == b'"a"\n-1\n2\n'


def test_too_many_rows_for_a_file_are_refused(trace, monkeypatch):
    monkeypatch.setattr(queries_module, "MOST_CSV_ROWS", 10)
    with pytest.raises(ArgumentError, match="more than 10 rows: add a `limit`"):
        answer(trace, "sql/csv", {"query": "select * from range(11)"})


def test_what_can_be_asked_is_listed(trace):
    found = answer(trace, "sql/about", {})
    assert found["problem"] is None
    assert [table["name"] for table in found["tables"]] == list(trace.table_names)
    assert found["tables"][0]["columns"][0]["name"] == "name"
    assert len(found["examples"]) == len(EXAMPLES)


def test_without_duckdb_it_says_what_to_install(trace, monkeypatch):
    monkeypatch.setattr(queries_module, "is_installed", lambda: False)
    assert "kinetoscope[sql]" in answer(trace, "sql/about", {})["problem"]
    with pytest.raises(MissingDependencyError, match=r"kinetoscope\[sql\]"):
        ask(trace, "select 1")


def test_a_query_as_long_as_a_book_is_refused(trace):
    with pytest.raises(ArgumentError, match="characters"):
        ask(trace, "select 1 --" + "x" * 100_000)
