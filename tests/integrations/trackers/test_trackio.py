"""Trackio with a folder of its own: what its storage has."""

import pytest

import kinetoscope

pytest.importorskip("torch", reason="recording needs PyTorch")
trackio = pytest.importorskip("trackio", reason="Trackio is not installed: run `make trackers`")
storage = pytest.importorskip("trackio.sqlite_storage")


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The name of a project with an active run, which is removed again."""
    name = f"profiles-{tmp_path.name}"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trackio.init(project=name, name="run", embed=False)
    yield name
    finish()
    trackio.delete_project(name, force=True)


def finish():
    """End the run, once."""
    if trackio.context_vars.current_run.get() is not None:
        trackio.finish()


def logged(project):
    finish()
    return storage.SQLiteStorage.get_logs(project, "run")


def test_scalars_report_and_tables_are_in_a_row(project, recorded):
    trackio.log({"loss": 1.0}, step=5)
    assert kinetoscope.log_to_tracker(recorded, name="first") == ["trackio"]
    row = {key: value for each in logged(project) for key, value in each.items()}
    assert row["loss"] == 1.0
    assert row["kinetoscope/step_ms"] > 0
    assert row["kinetoscope/report"]["_type"] == "trackio.html"
    assert row["kinetoscope/table_modules"]["_type"] == "trackio.table"
    assert row["kinetoscope/findings"]["_value"].startswith("### first")


def test_the_trace_is_an_artifact(project, recorded, tmp_path):
    kinetoscope.log_to_tracker(recorded, name="first")
    found = trackio.use_artifact("kinetoscope-first:latest")
    folder = found.download(str(tmp_path / "artifact"))
    with kinetoscope.open(f"{folder}/first.ktrace") as trace:
        assert trace.table("spans").num_rows == recorded.table("spans").num_rows


def test_an_incident_is_an_alert(project, incident):
    assert kinetoscope.log_to_tracker(incident) == ["trackio"]
    finish()
    (alert,) = storage.SQLiteStorage.get_alerts(project, "run")
    assert alert["title"] == "Kinetoscope: loss went up"
    assert str(incident) in alert["text"]
