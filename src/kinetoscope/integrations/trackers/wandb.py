"""Weights & Biases: panels and scalars in the run's row that is under way, an artifact of type `profile`, an alert for an incident."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from kinetoscope.integrations.trackers.content import OWN_NAME

if TYPE_CHECKING:
    from kinetoscope.integrations.trackers.content import Content

_LONGEST_TITLE = 63


class WandbRun:
    """Logs to a run of W&B."""

    label = "wandb"

    def __init__(self, run: Any) -> None:
        self.run = run

    def log(self, content: Content) -> None:
        """Log a trace."""
        import wandb

        row: dict[str, Any] = {f"{OWN_NAME}/{name}": value for name, value in content.scalars.items()}
        row[f"{OWN_NAME}/report"] = wandb.Html(str(content.report), inject=False)
        for name, table in content.tables.items():
            row[f"{OWN_NAME}/{name}"] = wandb.Table(
                columns=table.columns, data=table.rows, allow_mixed_types=True
            )
        # Not committed: the row goes with the next one of the job, whose steps stay as they are.
        self.run.log(row, commit=False)
        artifact = wandb.Artifact(
            f"{OWN_NAME}-{content.name}",
            type="profile",
            metadata={**content.scalars, "step": content.step, **content.incident},
        )
        artifact.add_dir(str(content.files))
        self.run.log_artifact(artifact)
        self.run.summary.update({f"{OWN_NAME}/{name}": value for name, value in content.scalars.items()})
        if content.incident:
            facts = {
                f"{OWN_NAME}/incident": str(content.incident["reason"]),
                f"{OWN_NAME}/incident_recording": content.incident["path"],
                f"{OWN_NAME}/recording_overhead": str(content.incident.get("overhead", "")),
            }
            self.run.summary.update(facts)
            title = f"Kinetoscope: {content.incident['reason']} in {self.run.name or self.run.id}"
            self.run.alert(title=title[:_LONGEST_TITLE], text=content.incident_text)


def active() -> list[WandbRun]:
    """The run that `wandb.init` started, unless it has ended."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    return [] if run is None else [WandbRun(run)]


def of(source: object) -> WandbRun | None:
    """The tracker of a run; None if it is something else."""
    is_run = (
        type(source).__module__.startswith("wandb.")
        and hasattr(source, "log_artifact")
        and hasattr(source, "alert")
    )
    return WandbRun(source) if is_run else None
