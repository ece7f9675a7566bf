"""`log_to_tracker`: find the trackers, and log a trace to each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.collect import warn_user
from kinetoscope.flight.flight import current_recorder
from kinetoscope.integrations.trackers.content import make_content, opened
from kinetoscope.integrations.trackers.kinds import KINDS, Tracker

if TYPE_CHECKING:
    import os

    from kinetoscope.trace import Trace


# What the loggers of trainers call the run or writer in them.
_INSIDE = ("experiment", "tracker", "writer", "tb_writer", "run")


def active_trackers() -> list[Tracker]:
    """The active runs of this process. Only trackers that the program has imported can have any."""
    return [tracker for kind in KINDS for tracker in kind.active()]


def trackers_of(source: object) -> list[Tracker]:
    """The trackers of a run, a writer, a logger of a trainer, or a list of these; an empty list if it is none."""
    if isinstance(source, (list, tuple)):
        return _each_once(tracker for element in source for tracker in trackers_of(element))
    for kind in KINDS:
        if (tracker := kind.of(source)) is not None:
            return [tracker]
    for name in _INSIDE:
        inside = getattr(source, name, None)
        if inside is not None and not callable(inside):
            for kind in KINDS:
                if (tracker := kind.of(inside)) is not None:
                    return [tracker]
    return []


def _each_once(trackers: Iterable[Tracker]) -> list[Tracker]:
    """Leave out what is in there a second time."""
    tracker_of: dict[object, Tracker] = {}
    for tracker in trackers:
        key = getattr(tracker, "run_id", None) or id(
            getattr(tracker, "run", None) or getattr(tracker, "writer", tracker)
        )
        tracker_of.setdefault((tracker.label, key), tracker)
    return list(tracker_of.values())


def log_to_tracker(
    trace: Trace | str | os.PathLike[str], tracker: object = None, *, name: str | None = None
) -> list[str]:
    """Log a trace to the experiment trackers of the running job.

    W&B and MLflow get it in their active run, TensorBoard by its writer: scalars (`kinetoscope/step_ms`,
    `data_wait_ms`, `data_wait_percent`, `floor_percent`, `mfu_percent`; those that are known), the report as HTML, the tables of
    modules and findings, and the trace as a file. For an incident of `leave_on` also its reason, the path of its recording and
    what recording cost.

    Args:
        trace: A trace, its path, or the folder of an incident.
        tracker: A run of W&B or MLflow, a `SummaryWriter`, a trainer's logger of one of these, or a list of them.
            None: every active run. TensorBoard has no active writer and is always given.
        name: The name of the trace in the tracker; by default that of its file, or of the program.

    Returns:
        The trackers that have it, such as `["wandb", "mlflow"]`. What fails in one of them is a warning, and the others get it.

    Raises:
        ArgumentError: `trace` is neither a trace nor a path, or `tracker` is not one of these.
        StateError: No run is active, and none is given.
        FormatError: The file is not a trace.
        OSError: It cannot be read.
    """
    chosen = active_trackers() if tracker is None else trackers_of(tracker)
    if tracker is not None and not chosen:
        raise ArgumentError(
            f"tracker={tracker!r} is not one that Kinetoscope logs to: pass a run of wandb or mlflow, a SummaryWriter, or "
            "a list of these."
        )
    if not chosen:
        raise StateError(
            "log_to_tracker found no active run of wandb or mlflow: start one first (wandb.init(), mlflow.start_run() "
            "...), or pass tracker=..., for TensorBoard its SummaryWriter."
        )
    return _log(chosen, trace, name)


def _log(trackers: Iterable[Tracker], source: Trace | str | os.PathLike[str], name: str | None) -> list[str]:
    """Log to each; return the labels of those that have it."""
    trace, facts, own_name = opened(source)
    done = []
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        content = make_content(trace, facts, name or own_name, Path(folder))
        for tracker in trackers:
            try:
                tracker.log(content)
            except Exception as error:  # noqa: BLE001  (whatever a tracker does, the job goes on)
                warn_user(f"the trace was not logged to {tracker.label}: {type(error).__name__}: {error}")
            else:
                done.append(tracker.label)
    return done


class TrainerLog:
    """Logs the traces of a trainer, and the incidents of its job. A failure is one warning.

    Args:
        chosen: True for every active run and the trainer's own loggers; else a tracker, or a list of trackers.
    """

    def __init__(self, chosen: object) -> None:
        self.chosen = chosen
        self._recorder: object = None

    def log(self, trace: Trace | Path, name: str | None, loggers: Callable[[], Iterable[Any]]) -> None:
        """Log a trace, or an incident by its path; `loggers` returns those of the trainer."""
        try:
            _log(self.trackers(loggers), trace, name)
        except Exception as error:  # noqa: BLE001  (whatever fails, training goes on)
            warn_user(f"the trace was not logged to a tracker: {type(error).__name__}: {error}")

    def log_incidents(self, loggers: Callable[[], Iterable[Any]]) -> None:
        """Log the incidents of this process from now on, if `leave_on` records it."""
        recorder = current_recorder()
        if recorder is not None and recorder is not self._recorder:
            self._recorder = recorder
            recorder.on_incident(lambda path: self.log(path, None, loggers))

    def trackers(self, loggers: Callable[[], Iterable[Any]]) -> list[Tracker]:
        """The trackers that are there now.

        Raises:
            StateError: There are none.
        """
        if self.chosen is not True:
            return trackers_of(self.chosen)
        trackers = _each_once([*active_trackers(), *trackers_of(list(loggers()))])
        if not trackers:
            raise StateError("no run of a tracker is active")
        return trackers


def checked_tracker(chosen: object) -> TrainerLog | None:
    """Check the argument `log_to_tracker` of a trainer's profiler.

    Raises:
        ArgumentError: It is neither a switch nor a tracker.
    """
    if chosen is False or chosen is None:
        return None
    if chosen is not True and not trackers_of(chosen):
        raise ArgumentError(
            f"log_to_tracker={chosen!r} is not valid: need True for the active runs, a run, a SummaryWriter, or a list of these."
        )
    return TrainerLog(chosen)
