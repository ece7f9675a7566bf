"""Aim: metrics, the summary as text, facts as parameters; the files as artifacts where the run has a place for them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from kinetoscope.integrations.trackers.content import OWN_NAME

if TYPE_CHECKING:
    from kinetoscope.integrations.trackers.content import Content


class AimRun:
    """Logs to a run of Aim."""

    label = "aim"

    def __init__(self, run: Any) -> None:
        self.run = run

    def log(self, content: Content) -> None:
        """Log a trace."""
        import aim

        for name, value in content.scalars.items():
            self.run.track(value, name=f"{OWN_NAME}/{name}", step=content.step)
        self.run.track(aim.Text(content.summary), name=f"{OWN_NAME}/findings", step=content.step)
        facts: dict[str, Any] = {"step": content.step, **content.scalars, **content.incident}
        facts = {name: value for name, value in facts.items() if isinstance(value, (str, int, float))}
        self.run[OWN_NAME, content.name] = facts
        if content.incident:
            self.run.log_warning(f"Kinetoscope: {content.incident_text}")
        if self.run.artifacts_uri is not None:
            # Before it returns, as the files are removed then.
            self.run.log_artifacts(str(content.files), name=f"{OWN_NAME}/{content.name}", block=True)


def active() -> list[AimRun]:
    """The runs that are open for writing in this process, by the list that Aim closes at exit."""
    aim = sys.modules.get("aim")
    opened = getattr(getattr(sys.modules.get("aim.ext.cleanup"), "AutoClean", None), "_finalizers", None)
    if aim is None or opened is None:
        return []
    found = [run for run in list(opened) if isinstance(run, aim.Run) and _is_open(run)]
    return [AimRun(run) for run in found]


def _is_open(run: Any) -> bool:
    try:
        return bool(not run.read_only and run.active)
    except Exception:  # noqa: BLE001  (what Aim raises for a run that was closed depends on its release)
        return False


def of(given: object) -> AimRun | None:
    """The tracker of a run; None if it is something else."""
    is_run = type(given).__module__.startswith("aim.") and hasattr(given, "track") and hasattr(given, "hash")
    return AimRun(given) if is_run else None
