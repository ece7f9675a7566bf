"""Trackio: scalars, the report and tables in a row of the run, an artifact of type `profile`, an alert for an incident."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from kinetoscope.integrations.trackers.content import OWN_NAME

if TYPE_CHECKING:
    from kinetoscope.integrations.trackers.content import Content


class TrackioRun:
    """Logs to a run of Trackio."""

    label = "trackio"

    def __init__(self, run: Any) -> None:
        self.run = run

    def log(self, content: Content) -> None:
        """Log a trace."""
        import trackio

        row: dict[str, Any] = {f"{OWN_NAME}/{name}": value for name, value in content.scalars.items()}
        row[f"{OWN_NAME}/findings"] = trackio.Markdown(content.summary)
        row[f"{OWN_NAME}/report"] = trackio.Html(str(content.report), inject=False)
        for name, table in content.tables.items():
            if table.rows:
                row[f"{OWN_NAME}/table_{name}"] = trackio.Table(columns=table.columns, data=table.rows)
        self.run.log(row, step=content.step)
        artifact = trackio.Artifact(
            f"{OWN_NAME}-{content.name}", type="profile", metadata=dict(content.incident)
        )
        artifact.add_dir(str(content.files))
        self.run.log_artifact(artifact)
        if content.incident:
            self.run.alert(f"Kinetoscope: {content.incident['reason']}", content.incident_text)


def active() -> list[TrackioRun]:
    """The run that `trackio.init` started in this context, unless it has ended."""
    current = getattr(sys.modules.get("trackio.context_vars"), "current_run", None)
    run = None if current is None else current.get()
    return [] if run is None else [TrackioRun(run)]


def of(given: object) -> TrackioRun | None:
    """The tracker of a run; None if it is something else."""
    return TrackioRun(given) if type(given).__module__ == "trackio.run" and hasattr(given, "log") else None
