"""Requests from their marks: parts that add up to the nanosecond, whatever runs where and when."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.analyses.account import accounts
from kinetoscope.ledger.parts import REQUEST_PARTS
from kinetoscope.model.nesting import GARBAGE_COLLECTION
from kinetoscope.tables.host.requests import request_at, requests_as_steps
from tests.support.request_marks import begin_mark, end_mark, run_mark, submit_mark
from tests.support.server_trace import Server
from tests.support.trace_builder import TraceBuilder


def parts(row):
    return {part.removesuffix("_ns"): row[part] for part in REQUEST_PARTS if row[part]}


def test_each_moment_of_a_request_is_in_one_part():
    server = Server()
    server.mark(begin_mark(0, "generate", '{"tokens": 8}'), 100, 50).operator(110, 20)
    server.mark(GARBAGE_COLLECTION, 135, 5)
    server.mark(submit_mark(0), 148)
    # Another request runs on its thread while it waits for the pool, and when the pool's work is done.
    server.mark(begin_mark(1, "other", ""), 150, 100).mark(end_mark(1, "finished", ""), 250)
    server.mark(run_mark(0), 180, 40, thread=1).operator(190, 30, thread=1)
    server.mark(run_mark(0), 260, 40).mark(end_mark(0, "error", '{"status_code": 500}'), 300)
    first, second = server.rows()
    assert {name: first[name] for name in ("name", "status", "start_ns", "duration_ns", "stretches", "threads")} == {
        "name": "generate", "status": "error", "start_ns": 100, "duration_ns": 200, "stretches": 3, "threads": 2,
    }  # fmt: skip
    assert json.loads(first["arguments"]) == {"tokens": 8, "status_code": 500}
    assert parts(first) == {
        "compute": 50, "garbage": 5, "host_wait": 25 + 10 + 40 - 0, "executor": 30, "others": 30, "waiting": 10,
    }  # fmt: skip
    assert sum(parts(first).values()) == 200
    assert parts(second) == {"host_wait": 100}


def test_a_number_is_used_again_and_a_name_can_come_at_the_end():
    server = Server()
    for start in (0, 100):
        server.mark(begin_mark(0, "GET", ""), start, 10)
        server.mark(end_mark(0, "finished", '{"name": "GET /items/{id}"}'), start + 10)
    assert [(row["name"], row["arguments"], row["start_ns"], row["duration_ns"]) for row in server.rows()] == [
        ("GET /items/{id}", "", 0, 10), ("GET /items/{id}", "", 100, 10),
    ]  # fmt: skip


def test_what_began_before_the_recording_or_goes_on_after_it_says_so():
    server = Server().mark(run_mark(4), 50, 10).mark(end_mark(4, "finished", ""), 60)
    server.mark(end_mark(5, "finished", ""), 70).mark(begin_mark(6, "late", ""), 80, 20)
    before, after = server.rows()
    assert (before["name"], before["start_ns"], before["duration_ns"], before["status"]) == (
        "",
        0,
        60,
        "finished",
    )
    assert (after["name"], after["status"], after["duration_ns"]) == ("late", "unfinished", 20)
    names = server.builder.build().table("request_names")
    assert names.num_rows == 0


def test_percentiles_and_what_the_slowest_tenth_has_more_of():
    server = Server()
    for number in range(20):
        start, slow = number * 1_000, 300 if number == 7 else 0
        server.mark(begin_mark(0, "generate", ""), start, 100 + slow).operator(start + 10, 50 + slow)
        server.mark(end_mark(0, "canceled" if number == 3 else "finished", ""), start + 100 + slow)
    every, slowest = server.builder.build().table("request_names").to_pylist()
    assert (every["of"], every["count"], every["errors"], every["total_ns"]) == ("all", 20, 1, 2_300)
    assert (every["p50_ns"], every["p99_ns"], every["max_ns"]) == (100, 400, 400)
    assert (slowest["of"], slowest["count"]) == ("slowest", 2)
    assert slowest["compute_ns"] - every["compute_ns"] == pytest.approx(150 - 15)


def test_operators_are_summed_by_the_module_that_they_ran_in():
    server = Server()
    layer = server.builder.module("Linear")
    server.operator(10, 5)  # of no request
    for number, start in enumerate((100, 200)):
        server.mark(begin_mark(number, "generate", ""), start, 50)
        server.operator(start + 5, 10, module=layer).operator(start + 20, 3)
        server.mark(end_mark(number, "finished", ""), start + 50)
    rows = server.builder.build().table("request_modules").to_pylist()
    assert [(row["name"], row["module"], row["requests"], row["count"], row["self_ns"]) for row in rows] == [
        ("generate", "Linear", 2, 2, 20), ("generate", None, 2, 2, 6),
    ]  # fmt: skip


TIMES = st.integers(0, 60)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 1), TIMES, st.integers(0, 20), st.sampled_from(["run", "submit", "operator", "end"])
        ),
        max_size=25,
    )
)  # fmt: skip
def test_parts_add_up_whatever_was_recorded(events):
    server = Server()
    for number in range(3):
        server.mark(begin_mark(number, "any", ""), number, 1)
    for number, thread, start, duration, what in events:
        if what == "operator":
            server.operator(start, duration, thread)
        elif what == "run":
            server.mark(run_mark(number), start, duration, thread)
        else:
            server.mark(
                submit_mark(number) if what == "submit" else end_mark(number, "finished", ""),
                start,
                0,
                thread,
            )
    trace = server.builder.build()
    rows = trace.table("requests").to_pylist()
    for row in rows:
        assert all(row[part] >= 0 for part in REQUEST_PARTS)
        assert sum(row[part] for part in REQUEST_PARTS) == row["duration_ns"]
    for one in accounts(trace) if len(requests_as_steps(trace)) else ():
        assert (one.cells.time_ns > 0).all()
        assert one.entry_ns.sum(axis=1).tolist() == [rows[at]["duration_ns"] for at in one.work.row.tolist()]
    of = request_at(trace, trace.column("spans", "thread"), trace.column("spans", "start_ns"))
    assert set(of.tolist()) <= set(range(-1, len(rows)))


def test_a_trace_without_requests_has_empty_tables():
    trace = TraceBuilder().span("aten::mm", 0, 10).build()
    for name in ("requests", "request_names", "request_modules"):
        assert trace.table(name).num_rows == 0
