"""Notes on the timeline: stored beside the file of a trace, in reports, and in `trace.notes`."""

import json

import pytest

import kinetoscope
from kinetoscope import ArgumentError
from kinetoscope.storage.notes import Note
from kinetoscope.viewer.server.report import report_page
from kinetoscope.viewer.server.routes import answer, store_notes
from kinetoscope.viewer.timeline.notes import store
from tests.support.trace_builder import TraceBuilder

BODY = json.dumps({"notes": [{"start_ns": 5, "end_ns": 9, "text": "look here", "span": 0}]}).encode()


@pytest.fixture
def saved(tmp_path):
    TraceBuilder().span("aten::mm", 0, 100).build().save(tmp_path / "run.ktrace")
    with kinetoscope.open(tmp_path / "run.ktrace") as trace:
        yield trace


def test_notes_are_stored_beside_the_trace_and_part_of_its_report(saved):
    assert answer(saved, "notes", {}) == {"notes": [], "file": "run.ktrace.notes.json"}
    found = store(saved, BODY)
    assert found == answer(saved, "notes", {})
    assert saved.notes == [Note(5, 9, "look here", 0)]
    assert "notes" in report_page(saved, "run").partition('"parts":')[2]


def test_a_trace_without_a_file_has_no_notes_and_takes_none():
    trace = TraceBuilder().build()
    assert answer(trace, "notes", {}) == {"notes": [], "file": None}
    assert trace.notes == []
    with pytest.raises(ArgumentError, match="save it first"):
        store(trace, BODY)


def test_the_server_says_why_notes_were_not_stored(saved, tmp_path):
    def status(number, body):
        found = store_notes([("run", saved)], number, body)
        return found.status, json.loads(found.body)

    assert status(0, BODY)[0] == 200
    assert status(1, BODY) == (404, {"error": "There is no such trace."})
    assert status(0, b"[]")[0] == 400
    assert saved.notes == [Note(5, 9, "look here", 0)]
    (tmp_path / "run.ktrace.notes.json").unlink()
    (tmp_path / "run.ktrace.notes.json").mkdir()
    code, found = status(0, BODY)
    assert (code, "run.ktrace.notes.json" in found["error"]) == (500, True)
