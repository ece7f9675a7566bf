import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.tables.host.ops import WAYS
from kinetoscope.viewer.pages.operators import reported
from kinetoscope.viewer.server.routes import answer
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.rich_trace import rich_trace
from tests.support.trace_builder import TraceBuilder


def trained():
    builder = TraceBuilder()
    net = builder.module("Net")
    first, second = (builder.module("Linear", name=name, parent=net) for name in ("a", "b"))
    user = builder.stack(("train.py", 3, "main"), ("model.py", 7, "forward"))
    library = builder.stack(
        ("train.py", 3, "main"), ("model.py", 7, "forward"), ("torch/nn/functional.py", 9, "linear")
    )
    small, large = builder.shapes([[2, 3]]), builder.shapes([[20, 30]])
    builder.span("aten::mm", 0, 10, module=first, stack=user, shapes=small)
    builder.span("aten::mm", 10, 30, module=second, stack=library, shapes=large)
    builder.span("aten::mm", 40, 5, module=second, shapes=large)
    builder.span("aten::add", 50, 5)
    return builder.build()


def rows(trace, **query):
    return answer(trace, "operators", query).table.to_pylist()


def test_by_name_it_is_the_table_of_operators():
    trace = trained()
    assert [{**row, "place": None} for row in trace.table("ops").to_pylist()] == [
        {**row} for row in rows(trace)
    ]


@pytest.mark.parametrize(
    ("way", "places"),
    [
        ("shape", {"[[20, 30]]": 35, "[[2, 3]]": 10}),
        ("module", {"b": 35, "a": 10}),
        ("line", {"model.py(7): forward": 40, None: 5}),
        ("stack", {"model.py(7): forward ← train.py(3): main": 40, None: 5}),
    ],
)
def test_rows_of_one_name_are_told_apart_by_place(way, places):
    found = {row["place"]: row["self_ns"] for row in rows(trained(), by=way) if row["name"] == "aten::mm"}
    assert found == places


@settings(max_examples=examples(60), deadline=None)
@given(any_traces(max_spans=20), st.sampled_from(WAYS[1:]))
def test_rows_by_place_add_up_to_those_by_name(trace, way):
    whole = {(row["name"], row["kind"]): row for row in rows(trace)}
    parts = rows(trace, by=way)
    for key, row in whole.items():
        mine = [part for part in parts if (part["name"], part["kind"]) == key]
        for column in ("count", "self_ns", "device_self_ns"):
            assert sum(part[column] for part in mine) == row[column]
        assert max(part["max_ns"] for part in mine) == row["max_ns"]
        assert sum(part["total_ns"] for part in mine) >= row["total_ns"]
    assert {(part["name"], part["kind"]) for part in parts} == set(whole)


@settings(max_examples=examples(60), deadline=None)
@given(any_traces(max_spans=20), st.sampled_from(WAYS[1:]))
def test_calls_and_durations_of_a_row_by_place_are_found_again(trace, way):
    for row in rows(trace, by=way):
        query = {"name": row["name"], "kind": row["kind"], "by": way}
        if row["place"] is not None:
            query["place"] = row["place"]
        found = answer(trace, "instances", query)
        assert found.total == row["count"]
        assert sum(found.table["self_ns"].to_pylist()) == row["self_ns"]
        assert answer(trace, "histogram", query)["max_ns"] == row["max_ns"]


def test_calls_of_a_bar_are_those_counted_in_it():
    trace, query = trained(), {"name": "aten::mm", "kind": "operator"}
    told = answer(trace, "histogram", query)
    edges = told["edges_ns"]
    for low, high, count in zip(edges, edges[1:], told["counts"], strict=False):
        bar = answer(trace, "instances", {**query, "from_ns": str(low), "below_ns": str(high)})
        assert bar.total == count


def test_calls_of_python_stand_apart():
    assert rows(rich_trace(), of="calls") == []


def test_every_request_of_a_report_has_a_response():
    trace = trained()
    asked = reported(trace)
    for path, query in asked:
        answer(trace, path, query)
    assert ("operators", {"by": "stack"}) in asked
    assert ("histogram", {"name": "aten::mm", "kind": "operator"}) in asked
