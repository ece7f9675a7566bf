"""The folder of an incident: which ranks it has, and what they say."""

import json

import pytest

import kinetoscope
from kinetoscope.storage.incident_files import incident_facts, incident_recordings
from tests.support.trace_builder import TraceBuilder


@pytest.fixture
def folder(tmp_path):
    for rank in (0, 10, 2):
        (tmp_path / f"rank{rank}.recording").touch()
    (tmp_path / "rank1.steps").touch()
    return tmp_path


def tell(folder, rank, **facts):
    (folder / f"rank{rank}.json").write_text(json.dumps({"rank": rank, **facts}))


def test_recordings_are_in_order_of_their_ranks(folder):
    assert [path.name for path in incident_recordings(folder)] == [
        f"rank{rank}.recording" for rank in (0, 2, 10)
    ]
    assert incident_recordings(folder / "nothing") == []


def test_the_rank_that_began_it_says_what_happened(folder):
    tell(folder, 0, reason="hang", what="rank 2 has an incident", because_of_rank=2)
    tell(
        folder, 2, reason="hang", what="step 7 has not ended", step=7, time_s=5.0, overhead="0.5 %", stacks={}
    )
    (folder / "incident.json").write_text('{"missing": [11]}')
    found = incident_facts(incident_recordings(folder))
    assert {name: value for name, value in found.items() if name != "ranks"} == {
        "reason": "hang", "what": "step 7 has not ended", "step": 7, "time_s": 5.0, "overhead": "0.5 %", "rank": 2, "missing": [11],
    }  # fmt: skip
    assert sorted(found["ranks"]) == ["0", "2"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"steps": [1]}'])
def test_other_files_say_nothing(folder, text):
    (folder / "rank0.json").write_text(text)
    assert incident_facts(incident_recordings(folder)) is None


def test_the_overview_says_what_happened_on_which_ranks():
    trace = TraceBuilder().span("aten::mm", 0, 10).build()
    assert trace.overview().incident is None
    ranks = {
        "0": {"rank": 0, "reason": "slow", "what": "slow steps", "step": 1200},
        "1": {"rank": 1, "reason": "slow"},
    }
    trace.info["incident"] = {
        "reason": "slow", "what": "slow steps", "step": 1200, "overhead": "0.6 %", "ranks": ranks, "missing": [2, 3],
    }  # fmt: skip
    found = trace.overview()
    del found.__dict__["incident"]
    assert found.incident.title == "slow in step 1,200: slow steps"
    assert found.incident.notes == [
        "rank 0 in step 1,200: slow steps",
        "rank 1: slow",
        "nothing is known of ranks 2, 3: no answer, and no ring on this machine",
        "recording cost 0.6 %",
    ]
    assert kinetoscope.Trace is type(trace)
