"""Reports: what stands in the file. What the page answers from it is tested with the same vectors in TypeScript."""

import base64
import html
import json
import re
import zlib
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.viewer.server.report import (
    answer_with_report,
    report,
    report_page,
    requests_of,
    spelled,
    write_memory_page,
)
from kinetoscope.viewer.server.routes import ROUTES, answer, encoded, page_text
from tests.support.report_vectors import MOST_CUT, PATH, everything, parts_of, vectors
from tests.support.trace_builder import TraceBuilder


@pytest.fixture(scope="module")
def trace():
    return everything()


def block(letters):
    """A block as the page unpacks it."""
    return zlib.decompress(base64.b64decode(letters))


def test_the_vectors_are_what_is_written_and_answered_now():
    golden = json.loads(PATH.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(vectors()))
    for one, other in zip(golden, now, strict=True):
        # Another release of zlib may make other bytes of the same.
        assert list(map(block, one.pop("blocks"))) == list(map(block, other.pop("blocks")))
        assert one == other


def test_it_carries_the_responses_of_the_server(trace):
    directory, blocks = parts_of(report_page(trace, "run.ktrace"))
    carried = 0
    for path, query in requests_of(trace):
        held = directory["parts"][spelled(path, query)]
        if "error" in held:
            continue
        at, length = held["at"]
        assert block(blocks[held["block"]])[at : at + length] == encoded(answer(trace, path, query)).body
        carried += 1
    assert carried > 10


def test_every_request_of_a_page_has_a_response(trace):
    errors = {
        key: held["error"]
        for key, held in parts_of(report_page(trace, "x"))[0]["parts"].items()
        if "error" in held
    }
    assert errors == {}
    assert {path.partition("/")[0] for path, _ in requests_of(trace)} <= {
        key.partition("/")[0] for key in ROUTES
    }


@pytest.mark.parametrize(
    ("path", "query", "text"),
    [
        ("table/ops", {}, "table/ops"),
        ("x", {"b": "2", "a": "", "c": "a&b=ü ~(1)"}, "x?b=2&c=a%26b%3D%C3%BC%20~(1)"),
    ],
)
def test_a_request_is_spelled_as_the_page_spells_it(path, query, text):
    assert spelled(path, query) == text


def test_a_cut_report_holds_what_begins_first_and_says_so(trace):
    directory, _ = parts_of(report_page(trace, "x", MOST_CUT))
    before = directory["cut"]["before_ns"]
    starts = trace.column("spans", "start_ns")
    assert directory["cut"]["spans"] == int((starts < before).sum())
    assert 0 < directory["cut"]["spans"] <= MOST_CUT
    assert parts_of(report_page(trace, "x"))[0]["cut"] is None


def test_the_policy_of_a_report_forbids_requests(trace):
    page = report_page(trace, "x")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    # The policy stands before everything that it is about.
    assert page.index("Content-Security-Policy") < page.index("<script")
    assert page.count('<script type="module">') == page_text().count('<script type="module">') == 1


def test_hostile_names_stay_within_their_data():
    name = "</script><script>alert(1)</script><!--"
    page = report_page(TraceBuilder().span(name, 0, 10).know("x", name).build(), name)
    assert "alert(1)</script>" not in page
    assert "&lt;/script&gt;" in page.partition("</title>")[0]
    directory, _ = parts_of(page)
    assert directory["name"] == name


def test_an_empty_trace_has_a_report():
    directory, _ = parts_of(report_page(TraceBuilder().build(), "empty"))
    assert directory["timeline"]["tracks"] == []


def test_a_file_is_written_whole_or_not_at_all(trace, tmp_path):
    path = tmp_path / "report.html"
    assert report(trace, path) == path
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    with pytest.raises(FileNotFoundError):
        report(tmp_path / "no.ktrace", tmp_path / "other.html")
    assert [found.name for found in tmp_path.iterdir()] == ["report.html"]


def test_it_is_named_after_its_file(trace, tmp_path):
    trace.save(tmp_path / "run.ktrace")
    kinetoscope.report(str(tmp_path / "run.ktrace"), tmp_path / "a.html")
    assert "<title>run.ktrace · Kinetoscope</title>" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_a_report_carries_the_licenses_of_what_is_in_it(tmp_path):
    lock = json.loads((Path(__file__).parents[3] / "web" / "package-lock.json").read_text())
    text = report(TraceBuilder().span("aten::mm", 0, 100).build(), tmp_path / "report.html").read_text()
    banner = text[: text.index("<html")]
    # A comment of its own that ends where it should.
    assert banner.count("-->") == 1
    assert banner.rstrip().endswith("-->")
    assert "Permission is hereby granted, free of charge" in banner
    bundled = [name for name, known in lock["packages"].items() if name and not known.get("dev")]
    assert len(bundled) >= 3
    for name in bundled:
        assert (
            f"{name.removeprefix('node_modules/')} {lock['packages'][name]['version']}: Copyright" in banner
        )


def test_a_report_may_have_some_pages_only(trace, tmp_path):
    directory, _ = parts_of(report_page(trace, "x", pages=["memory"]))
    assert {key.partition("/")[0].partition("?")[0] for key in directory["parts"]} == {
        "advice",
        "empty",
        "memory",
        "source",
    }
    assert directory["timeline"] is None
    text = report(trace, tmp_path / "memory.html", pages=["memory"]).read_text(encoding="utf-8")
    assert len(text) < len(report_page(trace, "x"))
    for pages in ([], ["memory", "nothing"]):
        with pytest.raises(kinetoscope.ArgumentError, match="choose one or more of overview, timeline"):
            report(trace, tmp_path / "other.html", pages=pages)
    assert not (tmp_path / "other.html").exists()


def memories():
    """Memory of three devices: most on the second."""
    builder = TraceBuilder().know("profile_memory", True).span("aten::empty", 0, 100)
    for device, size in (((0, 0), 400), ((1, 0), 9000), ((1, 1), 500)):
        builder.allocate(10, 0x10, size, device=device)
    return builder.build()


@pytest.mark.parametrize(
    ("device", "key"),
    [(None, "cuda%3A0"), ("cpu", "cpu"), ("cuda", "cuda%3A0"), ("cuda:1", "cuda%3A1")],
)
def test_a_memory_page_shows_one_device_at_first(tmp_path, device, key):
    write_memory_page(memories(), tmp_path / "m.html", device)
    directory, _ = parts_of((tmp_path / "m.html").read_text(encoding="utf-8"))
    assert (directory["start"], directory["notice"]) == (f"#/memory?device={key}", "")
    assert {name.partition("/")[0].partition("?")[0] for name in directory["parts"]} >= {"empty", "memory"}
    assert directory["timeline"] is None


def test_a_notice_cannot_become_part_of_the_page(tmp_path):
    hostile = "</script><script>alert(1)</script>\ud800"
    write_memory_page(memories(), tmp_path / "m.html", notice=hostile)
    text = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert parts_of(text)[0]["notice"].startswith("</script><script>alert(1)</script>")


def test_a_memory_page_of_nothing_is_a_page(tmp_path):
    write_memory_page(TraceBuilder().know("profile_memory", True).build(), tmp_path / "m.html")
    assert parts_of((tmp_path / "m.html").read_text(encoding="utf-8"))[0]["start"] == ""


def test_a_memory_page_needs_memory_and_a_device_that_has_some(trace, tmp_path):
    with pytest.raises(kinetoscope.StateError, match="profile_memory=True"):
        write_memory_page(TraceBuilder().span("aten::add", 0, 5).build(), tmp_path / "m.html")
    with pytest.raises(kinetoscope.ArgumentError, match=r"device='xpu'.*cpu, cuda:0, cuda:1"):
        write_memory_page(memories(), tmp_path / "m.html", "xpu")
    assert list(tmp_path.iterdir()) == []


def test_a_report_of_a_part_is_exported(trace):
    number = int(trace.column("steps", "number")[1])
    found = answer_with_report(trace, "export/report", {"steps": str(number)})
    directory, _ = parts_of(found.file.read().decode())
    assert (found.name, directory["name"]) == (f"trace.steps-{number}.html", f"trace.steps-{number}")
    assert answer_with_report(trace, "overview", {})["steps"]["count"] == len(trace.columns("steps"))
