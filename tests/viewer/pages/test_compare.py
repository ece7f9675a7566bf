"""The page Compare: what the server says of two open traces, and the report with that page."""

import json

import pyarrow.ipc
import pytest

import kinetoscope
from kinetoscope.viewer.open_traces import Offer
from kinetoscope.viewer.pages import compare
from kinetoscope.viewer.server.report import comparison_page
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
        # One recording a side is no verdict.
        assert about["verdict"] == "cannot tell"
        assert about["headline"].startswith("time rose by about 5 %")
        assert [one.partition(":")[0] for one in about["sides"]] == ["base", "new"]
        assert about["counts"]["operators"] == "operators"
    other = told(respond(offers, "api/0/compare", {"base": "1", "new": "0"}))
    assert (other["base"], other["new"]) == (1, 0)
    assert other["headline"].startswith("time fell by about 4.8 %")


def test_the_parts_of_the_difference_add_up_to_it_and_the_small_ones_are_one(offers, monkeypatch):
    explanation = told(respond(offers, "api/1/compare", {}))["explanation"]
    parts = explanation["parts"]
    assert explanation["base_ns"] + sum(part["change_ns"] for part in parts) == pytest.approx(
        explanation["new_ns"]
    )
    monkeypatch.setattr(compare, "_MOST_PARTS", 1)
    first, rest = told(respond(offers, "api/1/compare", {}))["explanation"]["parts"]
    assert first == parts[0]
    assert (rest["what"], rest["file"]) == ("everything else", None)
    assert rest["change_ns"] == pytest.approx(sum(part["change_ns"] for part in parts[1:]))


def test_tables_are_those_of_the_comparison(offers):
    found = kinetoscope.compare(offers[0].trace, offers[1].trace)
    for name in ("times", "counts", "memory"):
        assert table(respond(offers, f"api/0/compare/{name}", {})) == found.table(name).to_pylist()


def test_a_step_of_each_is_what_its_timeline_has(offers):
    steps = told(respond(offers, "api/0/compare/steps", {}))
    assert list(steps) == ["base", "new"]
    for offer, (side, step) in zip(offers, steps.items(), strict=False):
        spans = offer.trace.table("spans").to_pylist()
        tracks = {track["id"]: track["label"] for track in step["tracks"]}
        boxes = table(respond(offers, f"api/0/compare/steps/{side}", {}))
        assert {box["track"] for box in boxes} <= set(tracks)
        outermost = [box for box in boxes if box["kind"] == "operator" and box["row"] == 0]
        assert [box["name"] for box in outermost] == ["aten::linear"] * 2
        for box in outermost:
            own = spans[box["span"]]
            assert (own["start_ns"], own["duration_ns"]) == (box["start"], box["duration"])
            assert 0 <= box["start"] - step["start_ns"] < step["duration_ns"]
        assert {box["name"] for box in boxes if box["kind"] == "module"} == {"Net", "first", "second"}


def test_any_step_that_both_have_can_be_drawn(offers):
    numbers = offers[0].trace.column("steps", "number")
    for number in (int(numbers[3]), int(numbers[-1])):
        steps = told(respond(offers, "api/0/compare/steps", {"step": str(number)}))
        assert [step["step"] for step in steps.values()] == [number, number]
        own = offers[1].trace.column("steps", "start_ns")[numbers == number]
        assert steps["new"]["start_ns"] == own[0]


@pytest.mark.parametrize(
    ("path", "query", "status", "said"),
    [
        ("compare", {"base": "7"}, 400, "base='7' is not valid: 3 traces can be compared"),
        ("compare", {"new": "-1"}, 400, "new='-1' is not valid"),
        ("compare", {"new": "2"}, 409, "bad: it is empty"),
        ("compare/nothing", {}, 404, "no such route"),
        ("compare/steps/other", {}, 404, "no such route"),
        ("compare/steps", {"step": "999"}, 400, "base has no step 999: it has "),
        ("compare/steps", {"step": "-1"}, 400, "base has no step -1: it has "),
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
    for path in ("", "/times", "/counts", "/memory", "/steps", "/steps/base", "/steps/new"):
        path = f"compare{path}"
        assert json.dumps(path) in page
    assert '"start":"#/compare"' in page
