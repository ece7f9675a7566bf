"""MLflow: metrics, tables and the files as artifacts of the run; the tags of an incident."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from kinetoscope.integrations.trackers.content import OWN_NAME

if TYPE_CHECKING:
    from kinetoscope.integrations.trackers.content import Content

_LONGEST_TAG = 5000


class MlflowRun:
    """Logs to a run of MLflow by its id, which also works on other threads and after the run has ended."""

    label = "mlflow"

    def __init__(self, run_id: str, client: Any = None) -> None:
        self.run_id = run_id
        self._client = client

    def log(self, content: Content) -> None:
        """Log a trace."""
        from mlflow import MlflowClient
        from mlflow.entities import Metric, RunTag

        client = self._client or MlflowClient()
        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(f"{OWN_NAME}/{name}", value, now_ms, content.step)
            for name, value in content.scalars.items()
        ]
        tags = []
        if content.incident:
            tags = [
                RunTag(f"{OWN_NAME}.incident", content.incident_text[:_LONGEST_TAG]),
                RunTag(f"{OWN_NAME}.incident_recording", content.incident["path"]),
                RunTag(f"{OWN_NAME}.recording_overhead", str(content.incident.get("overhead", ""))),
            ]
        client.log_batch(self.run_id, metrics=metrics, tags=tags)
        folder = f"{OWN_NAME}/{content.name}"
        client.log_text(self.run_id, content.summary, f"{folder}/findings.md")
        for name, table in content.tables.items():
            if table.rows:
                client.log_table(self.run_id, table.as_columns(), f"{folder}/{name}.json")
        client.log_artifacts(self.run_id, str(content.files), folder)


def active() -> list[MlflowRun]:
    """The run of this thread or, without one, the latest that another thread has not ended."""
    mlflow = sys.modules.get("mlflow")
    fluent = sys.modules.get("mlflow.tracking.fluent")
    if mlflow is None or fluent is None:
        return []
    run = mlflow.active_run()
    if run is None and (latest := getattr(fluent, "_get_latest_active_run", None)) is not None:
        run = latest()
    return [] if run is None else [MlflowRun(run.info.run_id)]


def of(source: object) -> MlflowRun | None:
    """The tracker of a run, or of Lightning's and Composer's loggers of MLflow; None if it is something else."""
    if type(source).__module__.startswith("mlflow.") and hasattr(source, "info"):
        return MlflowRun(source.info.run_id)
    for client_name, id_name in (("experiment", "run_id"), ("_mlflow_client", "_run_id")):
        if type(source).__name__.lower() == "mlflowlogger" and hasattr(source, client_name):
            client, run_id = getattr(source, client_name), getattr(source, id_name, None)
            return MlflowRun(run_id, client) if run_id else None
    return None
