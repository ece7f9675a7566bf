"""Aim with a repository of its own: what its queries find."""

import pytest

import kinetoscope

pytest.importorskip("torch", reason="recording needs PyTorch")
aim = pytest.importorskip("aim", reason="Aim is not installed: run `make trackers`")


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def run(tmp_path):
    """A run that is open."""
    started = aim.Run(repo=str(tmp_path), system_tracking_interval=None, log_system_params=False)
    started.set_artifacts_uri(f"file://{tmp_path}/artifacts")
    yield started
    started.close()


def test_the_open_run_has_metrics_texts_and_files(run, recorded, tmp_path):
    assert kinetoscope.log_to_tracker(recorded, name="first") == ["aim"]
    metrics = {metric.name: metric.values.last()[1] for metric in run.metrics()}
    assert metrics["kinetoscope/step_ms"] > 0
    assert run["kinetoscope", "first"]["step"] == 5
    (path,) = (tmp_path / "artifacts").rglob("first.ktrace")
    with kinetoscope.open(path) as trace:
        assert trace.table("spans").num_rows == recorded.table("spans").num_rows


def test_an_incident_has_its_facts(run, incident):
    assert kinetoscope.log_to_tracker(incident) == ["aim"]
    facts = run["kinetoscope", f"{incident.parent.name}-rank0"]
    assert facts["reason"] == "loss went up"
    assert facts["path"] == str(incident)


def test_a_run_that_is_closed_is_not_active(run, recorded):
    run.close()
    with pytest.raises(kinetoscope.StateError):
        kinetoscope.log_to_tracker(recorded)
