"""What is logged of a trace, without any tracker."""

import json

import pytest

import kinetoscope
from kinetoscope.integrations.trackers.log import make_content, opened
from tests.support.request_marks import begin_mark, end_mark
from tests.support.server_trace import Server


def content_of(source, folder, name=None):
    trace, facts, own_name = opened(source)
    return make_content(trace, facts, name or own_name, folder)


def test_the_numbers_are_those_of_the_tables(recorded, tmp_path):
    made = content_of(recorded, tmp_path)
    rows = [row for row in recorded.table("steps").to_pylist() if not row["start_up"]]
    ordered = sorted(row["duration_ns"] for row in rows)
    assert ordered[0] <= made.scalars["step_ms"] * 1e6 <= ordered[-1]
    waited = sum(row["data_wait_ns"] for row in rows)
    whole = sum(row["duration_ns"] for row in rows)
    assert made.scalars["data_wait_percent"] == pytest.approx(100 * waited / whole)
    assert made.scalars["data_wait_ms"] == pytest.approx(waited / len(rows) / 1e6)
    kind = recorded.account().kinds[0]
    expected = None if kind.floor_ns is None else pytest.approx(100 * kind.floor_ns / kind.duration_ns)
    assert made.scalars.get("floor_percent") == expected
    assert made.step == max(row["number"] for row in recorded.table("steps").to_pylist())
    assert not any(name.startswith("recording_overhead") for name in made.scalars)


def test_the_summary_of_a_server_is_about_its_requests(tmp_path):
    server = Server()
    server.mark(begin_mark(0, "generate", ""), 0, 2_000_000).operator(0, 2_000_000)
    server.mark(end_mark(0, "finished", ""), 2_000_000)
    assert "1 request, 2 ms each" in content_of(server.builder.build(), tmp_path, "server").summary


def test_the_tables_have_milliseconds(recorded, tmp_path):
    made = content_of(recorded, tmp_path).tables
    modules = made["modules"]
    times = dict(zip(modules.column("path").to_pylist(), modules.column("total_ms").to_pylist(), strict=True))
    expected = {row["path"]: row["total_ns"] / 1e6 for row in recorded.table("modules").to_pylist()}
    assert times == expected
    assert sorted(times.values(), reverse=True) == list(times.values())
    codes = [row["code"] for row in recorded.findings().to_pylist()]
    assert made["findings"].column("code").to_pylist() == codes


def test_the_files_are_the_trace_and_a_report(recorded, tmp_path):
    made = content_of(recorded, tmp_path, "ep 1/a: b")
    assert {path.name for path in tmp_path.iterdir()} == {"ep-1-a-b.ktrace", "report.html"}
    with kinetoscope.open(made.trace) as again:
        assert again.table("spans").num_rows == recorded.table("spans").num_rows
    assert "kinetoscope-report" in made.report.read_text()
    assert made.summary.startswith("### ep-1-a-b\n")


def test_an_incident_has_its_reason_and_path(incident, tmp_path):
    made = content_of(incident, tmp_path)
    assert made.incident["reason"] == "loss went up"
    assert made.incident["path"] == str(incident)
    assert made.incident_text.startswith("loss went up (step 5, rank 0). Recording: ")
    assert json.loads((tmp_path / "incident.json").read_text())["reason"] == "loss went up"
    assert made.trace.name == f"{incident.parent.name}-rank0.ktrace"
    assert made.step == max(row["number"] for row in opened(incident)[0].table("steps").to_pylist())


def test_the_folder_of_an_incident_stands_for_its_first_rank(incident):
    trace, facts, _ = opened(incident.parent)
    assert facts["path"] == str(incident)
    assert str(trace.path) == str(incident)


def test_the_measured_overhead_is_logged_with_its_interval(incident, tmp_path):
    facts = json.loads(incident.with_suffix(".json").read_text())
    incident.with_suffix(".json").write_text(json.dumps({**facts, "overhead_shares": [0.006, 0.004, 0.008]}))
    scalars = content_of(incident, tmp_path).scalars
    found = {name: value for name, value in scalars.items() if name.startswith("recording_overhead_percent")}
    assert found == pytest.approx(
        {
            "recording_overhead_percent": 0.6,
            "recording_overhead_percent_low": 0.4,
            "recording_overhead_percent_high": 0.8,
        }
    )


def test_other_things_are_refused(tmp_path):
    with pytest.raises(kinetoscope.ArgumentError, match="has no recordings of ranks"):
        opened(tmp_path)
    with pytest.raises(kinetoscope.ArgumentError, match=r"log_to_tracker\(3\): need a trace"):
        opened(3)
