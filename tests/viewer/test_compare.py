"""The page Compare: what the server says of two open traces, and the report with that page."""

import json

import pyarrow.ipc
import pytest

import kinetoscope
from kinetoscope.viewer.report import comparison_page
from kinetoscope.viewer.server.open_traces import Offer
from kinetoscope.viewer.server.routes import respond
from tests.comparison.test_runs import built


@pytest.fixture(scope="module")
def offers():
    """Two traces of one program, the second 5 % slower with another call of a layer, and a file that could not be read."""
    return [
        Offer("base", built(1)),
        Offer("new", built(2, slower=0.05, line=40)),
        Offer("bad", problem="bad: it is empty"),
    ]


def told(response):
    return json.loads(response.body)


def table(response):
    with pyarrow.ipc.open_stream(response.body) as reader:
        return reader.read_all().to_pylist()


def test_the_second_trace_is_compared_with_the_first(offers):
    # Whichever is looked at.
    for number in (0, 1):
        about = told(respond(offers, f"api/{number}/compare", {}))
        assert (about["base"], about["new"], about["traces"]) == (0, 1, ["base", "new", "bad"])
        assert about["verdict"] == "slower"
        assert [one.partition(":")[0] for one in about["sides"]] == ["base", "new"]
        assert about["counts"]["operators"] == "operators"
    other = told(respond(offers, "api/0/compare", {"base": "1", "new": "0"}))
    assert (other["verdict"], other["base"], other["new"]) == ("faster", 1, 0)


def test_tables_are_those_of_the_comparison(offers):
    found = kinetoscope.compare(offers[0].trace, offers[1].trace)
    for name in ("times", "counts", "memory"):
        assert table(respond(offers, f"api/0/compare/{name}", {})) == found.table(name).to_pylist()


def test_a_step_of_each_has_its_outermost_operators(offers):
    steps = told(respond(offers, "api/0/compare/steps", {}))
    for offer, step in zip(offers, steps, strict=False):
        spans = offer.trace.table("spans").to_pylist()
        assert [one["name"] for one in step["spans"]] == ["aten::linear"] * 2
        assert [one["module"] for one in step["spans"]] == ["first", "second"]
        for one in step["spans"]:
            assert spans[one["span"]]["start_ns"] == step["start_ns"] + one["start_ns"]
            assert one["start_ns"] + one["duration_ns"] <= step["duration_ns"]


@pytest.mark.parametrize(
    ("path", "query", "status", "said"),
    [
        ("compare", {"base": "7"}, 400, "base='7' is not valid: 3 traces can be compared"),
        ("compare", {"new": "-1"}, 400, "new='-1' is not valid"),
        ("compare", {"new": "2"}, 409, "bad: it is empty"),
        ("compare/nothing", {}, 404, "no such route"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(offers, path, query, status, said):
    response = respond(offers, f"api/0/{path}", query)
    assert response.status == status
    assert said in told(response)["error"]


def test_one_trace_has_nothing_to_be_compared_with(offers):
    assert respond(offers[:1], "api/0/compare", {}).status == 400


def test_a_report_carries_the_page(offers):
    traces = [offer.trace for offer in offers[:2]]
    page = comparison_page(kinetoscope.compare(*traces), *traces)
    for path in ("compare", "compare/times", "compare/counts", "compare/memory", "compare/steps"):
        assert json.dumps(path) in page
    assert '"start":"#/compare"' in page
