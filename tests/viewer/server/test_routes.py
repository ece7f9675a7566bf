"""What the server says, without a server: which paths there are, what headers answers have, what is said of errors."""

import json
import re

import pytest

from kinetoscope.viewer.open_traces import Offer
from kinetoscope.viewer.server import routes as respond_module
from kinetoscope.viewer.server.routes import content_policy, disposition, page_text, respond
from tests.support.trace_builder import TraceBuilder


@pytest.fixture
def trace():
    return TraceBuilder().span("aten::mm", 0, 100).build()


def told(response):
    return json.loads(response.body)


def test_traces_are_listed_with_what_a_page_needs_to_know_when_to_ask_again(trace):
    offers = [Offer("a", trace, version=3, live=True), Offer("b", problem="b: it is empty"), ("c", trace)]
    assert told(respond(offers, "api/traces", {})) == [
        {"name": "a", "live": True, "version": 3, "readable": True, "problem": None},
        {"name": "b", "live": False, "version": 1, "readable": False, "problem": "b: it is empty"},
        {"name": "c", "live": False, "version": 1, "readable": True, "problem": None},
    ]


def test_a_trace_that_cannot_be_read_says_so_and_the_others_answer(trace):
    offers = [Offer("bad", problem="bad: it is empty"), Offer("good", trace)]
    refused = respond(offers, "api/0/tracks", {})
    assert (refused.status, told(refused)) == (409, {"error": "bad: it is empty"})
    assert respond(offers, "api/1/tracks", {}).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "static/index.html",
        "index.html",
        "api",
        "api/",
        "api/0",
        "api/0/",
        "api/1/tracks",
        "api/-1/tracks",
        "api/٠/tracks",
        "api/0000000/tracks",
        "api/0/../../etc/passwd",
        "api/0/table",
        "api/0/nothing",
        "api/0/span/",
        "api/0/span/../../x",
        "api/0/table/../ops",
        "api/0/table//etc/passwd",
        "api/0/export/",
        "api/0/export/../../etc/passwd",
        "api/0/export/ktrace/../../x",
        "api/0/sql",
    ],
)
def test_paths_that_are_not_routes_are_not_found(trace, path):
    refused = respond([("t", trace)], path, {})
    assert refused.status in (400, 404)
    assert list(told(refused)) == ["error"]
    assert refused.file is None


def test_a_question_with_a_wrong_option_is_refused_in_one_sentence(trace):
    refused = respond([("t", trace)], "api/0/table/ops", {"no_such_option": "1"})
    assert refused.status == 400
    assert "no_such_option" in told(refused)["error"]


def test_the_page_may_run_its_own_script_and_ask_its_own_server_and_nothing_else():
    page = respond([], "", {})
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "http" not in policy
    # The script and the style of the page are named by their checksums.
    assert policy.count("'sha256-") == 2


def test_a_policy_names_exactly_the_scripts_of_a_page():
    page = '<script type="module">a()</script><style>b{}</style>'
    assert content_policy(page, "").count("'sha256-") == 2


def test_answers_are_inert_wherever_they_are_opened(trace):
    for path in ("api/traces", "api/0/tracks", "api/0/table/ops", "api/9/x", "x"):
        policy = respond([("t", trace)], path, {}).headers["Content-Security-Policy"]
        assert policy == "default-src 'none'; frame-ancestors 'none'; sandbox"


def test_a_mistake_of_ours_is_not_told_as_an_unknown_question(trace, monkeypatch):
    def wrong(*_):
        raise KeyError("x")

    monkeypatch.setattr(respond_module, "answer", wrong)
    with pytest.raises(KeyError):
        respond([("t", trace)], "api/0/tracks", {})


def test_a_full_disk_is_an_error_response(trace, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "run.ktrace")

    monkeypatch.setattr(respond_module, "answer", full)
    refused = respond([("t", trace)], "api/0/export/ktrace", {})
    assert refused.status == 500
    assert told(refused)["error"] == "run.ktrace: No space left on device"


@pytest.mark.parametrize(
    "name",
    [
        'a"; filename=b',
        "a\r\nSet-Cookie: x=1",
        "../../.bashrc",
        ".profile",
        "日本.ktrace",
        "\u202egnp.exe",
        "\ud800",
        "",
    ],
)
def test_a_hostile_name_stays_within_its_header(name):
    header = disposition(name)
    assert re.fullmatch(
        r"attachment; filename=\"[A-Za-z0-9_-][A-Za-z0-9._-]*\"; filename\*=UTF-8''[A-Za-z0-9._~%-]*", header
    )


def test_the_page_is_small_enough_to_be_part_of_every_report():
    assert len(page_text().encode()) < 400_000
