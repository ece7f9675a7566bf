"""MLflow with a SQLite file: its client finds what was logged."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest

import kinetoscope
from kinetoscope.integrations.trackers.log import active_trackers

pytest.importorskip("torch", reason="recording needs PyTorch")
mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: run `make trackers`")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """An active run in a database of its own."""
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment("profiles")
    with mlflow.start_run() as started:
        yield started.info.run_id
    mlflow.set_tracking_uri(None)


pytestmark = pytest.mark.filterwarnings("ignore")


def test_metrics_tables_and_files_are_in_the_active_run(run, recorded, tmp_path):
    assert kinetoscope.log_to_tracker(recorded, name="first") == ["mlflow"]
    client = mlflow.MlflowClient()
    (step,) = client.get_metric_history(run, "kinetoscope/step_ms")
    assert step.step == 5
    assert step.value > 0
    names = {file.path for file in client.list_artifacts(run, "kinetoscope/first")}
    assert {name.rpartition("/")[2] for name in names} >= {
        "first.ktrace",
        "report.html",
        "findings.md",
        "modules.json",
    }
    modules = mlflow.load_table("kinetoscope/first/modules.json", run_ids=[run])
    assert sorted(modules["path"]) == sorted(row["path"] for row in recorded.table("modules").to_pylist())
    local = client.download_artifacts(run, "kinetoscope/first/first.ktrace", str(tmp_path))
    with kinetoscope.open(local) as trace:
        assert trace.table("spans").num_rows == recorded.table("spans").num_rows


def test_an_incident_is_in_the_tags(run, incident):
    assert kinetoscope.log_to_tracker(incident) == ["mlflow"]
    tags = mlflow.MlflowClient().get_run(run).data.tags
    assert tags["kinetoscope.incident"].startswith("loss went up")
    assert tags["kinetoscope.incident_recording"] == str(incident)


def test_the_run_is_found_from_another_thread_and_by_its_id(run, recorded):
    found = []
    thread = threading.Thread(target=lambda: found.extend(one.run_id for one in active_trackers()))
    thread.start()
    thread.join()
    assert found == [run]
    mlflow.end_run()
    ended = mlflow.get_run(run)
    assert kinetoscope.log_to_tracker(recorded, ended) == ["mlflow"]


def test_a_program_that_crashes_has_its_incident_in_the_run_that_has_ended(tmp_path):
    program = f"""
        import mlflow, torch, kinetoscope
        mlflow.set_tracking_uri("sqlite:///{tmp_path}/mlflow.db")
        recorder = kinetoscope.leave_on(folder="{tmp_path}/jobs")
        model = torch.nn.Linear(8, 8)
        with mlflow.start_run() as run:
            recorder.on_incident(lambda path: kinetoscope.log_to_tracker(path, run))
            for _ in range(10):
                recorder.step()
                model(torch.randn(4, 8)).sum().backward()
            raise ValueError("boom")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    # MLflow tells child processes of the experiments of this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.stderr.endswith("ValueError: boom\n")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs(["0"])
    assert run.data.tags["kinetoscope.incident"].startswith("crash: ValueError: boom")
    assert client.list_artifacts(run.info.run_id, "kinetoscope")
