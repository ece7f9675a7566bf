"""Options of tables: what there is not is refused with what there is, in the words of the table."""

import pytest

from kinetoscope._errors import ArgumentTypeError
from kinetoscope.trace.tables import TABLES
from kinetoscope.viewer.server.routes import respond
from tests.support.trace_builder import TraceBuilder


@pytest.fixture
def trace():
    builder = TraceBuilder().step(3, 0, 100)
    builder.span("aten::mm", 0, 10, module=builder.module("Net")).span("aten::add", 20, 5)
    return builder.build()


@pytest.mark.parametrize("name", TABLES)
def test_no_table_has_an_option_that_it_does_not_name(trace, name):
    with pytest.raises(ArgumentTypeError, match=f"the table '{name}' has no option 'color': its o.* where$"):
        trace.table(name, color="red")


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ({"name": "aten::mm"}, ["aten::mm"]),
        ({"name": ["aten::mm", "aten::add"], "duration_ns": 5}, ["aten::add"]),
        ({"module": None, "step": 3, "kind": "operator"}, ["aten::add"]),
        ({"module": (None, "Net"), "kind": {"operator"}}, ["aten::mm", "aten::add"]),
        ({"duration_ns": "10"}, ["aten::mm"]),
        ({"name": []}, []),
        ({}, ["ProfilerStep#3", "aten::mm", "aten::add"]),
    ],
)
def test_where_keeps_rows_with_these_values(trace, where, names):
    assert trace.table("spans", where=where)["name"].to_pylist() == names


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("table/spans", {"by": "name"}, "the table 'spans' has no option 'by'"),
        ("table/spans", {"rows": "3"}, "rows=3 is not valid"),
        ("table/memory_peak", {"at_ns": "soon"}, "at_ns='soon' is not valid: need a whole number"),
        ("table/ops", {"where": "x"}, "where='x' is not valid"),
    ],
)
def test_the_viewer_says_what_the_table_says(trace, path, query, said):
    response = respond([("trace", trace)], f"api/0/{path}", query)
    assert response.status == 400
    assert said.encode() in response.body


def test_the_viewer_has_the_options_of_tables(trace):
    assert respond([("trace", trace)], "api/0/table/ops", {"by": "module"}).status == 200
