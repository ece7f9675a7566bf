"""`log_to_tracker`: finds the trackers, and logs a trace to each: numbers, two tables, a summary, and files (report, trace, facts of an incident).

W&B gets panels and scalars in the current row of the run, an artifact of type `profile`, and an alert for an incident. MLflow gets metrics, tables and files
as artifacts of the run, and tags for an incident. TensorBoard gets scalars and a summary as text, by any `SummaryWriter`; the files go into its folder, because
it shows no files.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from kinetoscope._errors import ArgumentError, ArgumentTypeError, StateError
from kinetoscope.analyses.findings import Report, examine, finding_blocks, table_of
from kinetoscope.collect import warn_user
from kinetoscope.display.arrow_text import choose_columns, json_rows, sort_rows
from kinetoscope.display.blocks import Block, BlockColumn, Heading, Paragraph, TableBlock, as_markdown
from kinetoscope.flight.flight import current_recorder
from kinetoscope.ledger.steps import steps
from kinetoscope.model import units
from kinetoscope.model.arrow import ArrowTable
from kinetoscope.storage.incident_files import SUFFIX, incident_recordings, rank_facts
from kinetoscope.tables.host.modules import modules
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace
from kinetoscope.viewer.server.report import report_page

OWN_NAME = "kinetoscope"
"""The prefix of all names in a tracker."""

REPORT = "report.html"
INCIDENT = "incident.json"

_LONGEST_NAME = 100
_MOST_MODULES = 200
_MODULE_COLUMNS = (
    "path",
    "class",
    "total_ns",
    "self_ns",
    "forward_ns",
    "backward_ns",
    "python_ns",
    "device_ns",
)
_FINDING_COLUMNS = (
    "code", "severity", "finding", "share_percent", "gain_percent", "advice", "file", "line", "module",
)  # fmt: skip
# With more, reports have tens of MB, which browsers and trackers show slowly.
_MOST_ITEMS = 200_000
# The report of an incident has its last steps only; the trace has all.
_MOST_INCIDENT_STEPS = 20


@dataclass(frozen=True)
class Content:
    """What is logged of one trace.

    Attributes:
        name: The name of the trace, without folder and suffix.
        step: The number of its last step, 0 without steps.
        scalars: Numbers by name; unknown ones are missing.
        tables: The tables `modules` and `findings`, with times in milliseconds.
        summary: The step time and the findings, as Markdown.
        incident: The metadata of the incident; empty without one.
        files: A folder with the trace, the report and, for an incident, its metadata.
        trace: The trace in this folder.
        report: The report in this folder.
    """

    name: str
    step: int
    scalars: dict[str, float]
    tables: dict[str, ArrowTable]
    summary: str
    incident: dict[str, Any]
    files: Path
    trace: Path
    report: Path

    @property
    def incident_text(self) -> str:
        """What happened and where the recording is, in one sentence."""
        facts = self.incident
        cause = f"{facts['reason']}: {facts['what']}" if facts.get("what") else str(facts["reason"])
        rank = f", rank {facts['rank']}" if "rank" in facts else ""
        return f"{cause} (step {facts.get('step', 'unknown')}{rank}). Recording: {facts['path']}"


def opened(source: object) -> tuple[Trace, dict[str, Any], str]:
    """Open what is to be logged.

    Args:
        source: A trace; its path; or the folder of an incident, or a recording in one.

    Returns:
        The trace, the metadata of the incident (empty for other traces), and a name.

    Raises:
        ArgumentError: It is none of these.
        FormatError: The file is not a trace.
        OSError: It cannot be read.
    """
    if isinstance(source, Trace):
        facts = {} if source.path is None else _incident_facts(Path(source.path))
        return source, facts, _name_of(source, facts)
    if not isinstance(source, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"log_to_tracker({source!r}): need a trace, its path, or the folder of an incident."
        )
    path = Path(source)
    if path.is_dir() and path.suffix != ".tables":
        recordings = incident_recordings(path)
        if not recordings:
            raise ArgumentError(
                f"{path} has no recordings of ranks, so it is not the folder of an incident: pass a trace, or its path."
            )
        path = recordings[0]
    trace = open_trace(path)
    facts = _incident_facts(path)
    return trace, facts, _name_of(trace, facts)


def _incident_facts(path: Path) -> dict[str, Any]:
    facts = rank_facts(path) if path.suffix == SUFFIX else {}
    return {**facts, "path": str(path)} if facts else {}


def _name_of(trace: Trace, facts: Mapping[str, Any]) -> str:
    if facts:
        return f"{Path(facts['path']).parent.name}-rank{facts.get('rank', 0)}"
    # A session's recording has a name that says nothing.
    if trace.path is not None and (path := Path(trace.path)).suffix != ".recording":
        return path.name.removesuffix(".ktrace")
    return Path("".join(trace.run_info.program[:1])).stem


def make_content(trace: Trace, facts: Mapping[str, Any], name: str, folder: Path) -> Content:
    """Compute what is logged, and write the files.

    Args:
        trace: The trace.
        facts: The metadata of its incident; empty without one.
        name: Its name in the tracker.
        folder: An empty folder for the files.

    Raises:
        OSError: The files cannot be written.
    """
    # Names of artifacts allow no other characters.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_LONGEST_NAME].strip(".-") or "trace"
    full_trace = trace
    numbers = np.unique(trace.columns("steps")["number"]).tolist()
    if facts and len(numbers) > _MOST_INCIDENT_STEPS:
        trace = trace.select_steps(numbers[-_MOST_INCIDENT_STEPS:])
    findings = examine(trace)
    saved = folder / f"{name}.ktrace"
    full_trace.save(saved)
    if facts:
        (folder / INCIDENT).write_text(json.dumps(dict(facts), indent=1, default=str))
    report = folder / REPORT
    report.write_text(report_page(trace, name, most=_MOST_ITEMS), "utf-8", "replace")
    scalars = _scalars(trace, findings, facts)
    return Content(
        name=name,
        step=numbers[-1] if numbers else int(facts.get("step") or 0),
        scalars=scalars,
        tables={
            "modules": _table(sort_rows(modules(trace), "total_ns").slice(0, _MOST_MODULES), _MODULE_COLUMNS),
            "findings": _table(table_of(findings), _FINDING_COLUMNS),
        },
        summary=_summary(name, findings),
        incident=dict(facts),
        files=folder,
        trace=saved,
        report=report,
    )


def _scalars(trace: Trace, report: Report, facts: Mapping[str, Any]) -> dict[str, float]:
    overview = trace.overview()
    values: dict[str, float | None] = {}
    if overview.steps is not None:
        values["step_ms"] = overview.steps.mean_ns / 1e6
        rows = [row for row in steps(trace).to_pylist() if not row["start_up"]]
        waited_ns = sum(row["data_wait_ns"] or 0 for row in rows)
        whole_ns = sum(row["duration_ns"] for row in rows)
        values["data_wait_ms"] = waited_ns / len(rows) / 1e6 if rows else None
        values["data_wait_percent"] = 100 * waited_ns / whole_ns if whole_ns else None
        values["mfu_percent"] = overview.work.mfu_percent
    if report.account is not None and report.account.kinds:
        kind = report.account.kinds[0]
        values["floor_percent"] = (
            None if kind.floor_ns is None or not kind.duration_ns else 100 * kind.floor_ns / kind.duration_ns
        )
    # The overhead of recording on steps, with its 95 % interval, as measured by the flight recorder.
    for name, share in zip(("", "_low", "_high"), facts.get("overhead_shares") or (), strict=False):
        values[f"recording_overhead_percent{name}"] = 100 * share
    return {
        name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)
    }


def _table(table: ArrowTable, columns: tuple[str, ...]) -> ArrowTable:
    """Choose columns; nanoseconds become milliseconds."""
    import pyarrow

    columns_of: dict[str, list[Any]] = {name: [] for name in columns}
    for row in json_rows(choose_columns(table, columns)):
        for name, values in columns_of.items():
            values.append(row[name] / 1e6 if name.endswith("_ns") and row[name] is not None else row[name])
    return pyarrow.table({re.sub("_ns$", "_ms", name): values for name, values in columns_of.items()})


def _summary(name: str, report: Report) -> str:
    blocks: list[Block] = [Heading(name)]
    if report.unit.repeats and report.count:
        count = units.count(report.count, report.unit.noun)
        blocks.append(Paragraph(f"{count}, {units.duration(report.duration_ns / report.count)} each"))
    return as_markdown([*blocks, *finding_blocks(report, most=0)])


_LONGEST_TITLE = 63
_LONGEST_TAG = 5000
_MOST_ROWS = 30


@dataclass(frozen=True)
class WandbRun:
    """Logs to a run of W&B."""

    run: Any
    label: ClassVar[str] = "wandb"

    def log(self, content: Content) -> None:
        """Log a trace."""
        import wandb

        row: dict[str, Any] = {f"{OWN_NAME}/{name}": value for name, value in content.scalars.items()}
        row[f"{OWN_NAME}/report"] = wandb.Html(str(content.report), inject=False)
        for name, table in content.tables.items():
            row[f"{OWN_NAME}/{name}"] = wandb.Table(
                columns=table.column_names, data=_rows(table), allow_mixed_types=True
            )
        # Not committed: the values go into the job's next row, so that its step numbers do not change.
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

    @classmethod
    def active(cls) -> list[Self]:
        """The run that `wandb.init` started, unless it has ended."""
        run = getattr(sys.modules.get("wandb"), "run", None)
        return [] if run is None else [cls(run)]

    @classmethod
    def of(cls, source: object) -> Self | None:
        """The tracker of a run; None if it is something else."""
        is_run = (
            type(source).__module__.startswith("wandb.")
            and hasattr(source, "log_artifact")
            and hasattr(source, "alert")
        )
        return cls(source) if is_run else None


@dataclass(frozen=True)
class MlflowRun:
    """Logs to a run of MLflow by its id, which works on any thread and after the end of the run."""

    run_id: str
    client: Any = field(default=None, compare=False)
    label: ClassVar[str] = "mlflow"

    def log(self, content: Content) -> None:
        """Log a trace."""
        from mlflow import MlflowClient
        from mlflow.entities import Metric, RunTag

        client = self.client or MlflowClient()
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
            if table.num_rows:
                client.log_table(self.run_id, table.to_pydict(), f"{folder}/{name}.json")
        client.log_artifacts(self.run_id, str(content.files), folder)

    @classmethod
    def active(cls) -> list[Self]:
        """The run of this thread or else the latest active one of another thread."""
        mlflow = sys.modules.get("mlflow")
        fluent = sys.modules.get("mlflow.tracking.fluent")
        if mlflow is None or fluent is None:
            return []
        run = mlflow.active_run()
        if run is None and (latest := getattr(fluent, "_get_latest_active_run", None)) is not None:
            run = latest()
        return [] if run is None else [cls(run.info.run_id)]

    @classmethod
    def of(cls, source: object) -> Self | None:
        """The tracker of a run, or of Lightning's and Composer's loggers of MLflow; None if it is something else."""
        if type(source).__module__.startswith("mlflow.") and hasattr(source, "info"):
            return cls(source.info.run_id)
        for client_name, id_name in (("experiment", "run_id"), ("_mlflow_client", "_run_id")):
            if type(source).__name__.lower() == "mlflowlogger" and hasattr(source, client_name):
                client, run_id = getattr(source, client_name), getattr(source, id_name, None)
                return cls(run_id, client) if run_id else None
        return None


@dataclass(frozen=True)
class TensorboardWriter:
    """Logs with a `SummaryWriter`, of torch or of tensorboardX."""

    writer: Any
    label: ClassVar[str] = "tensorboard"

    def log(self, content: Content) -> None:
        """Log a trace."""
        folder = Path(_folder(self.writer), OWN_NAME, content.name)
        shutil.copytree(content.files, folder, dirs_exist_ok=True)
        for name, value in content.scalars.items():
            self.writer.add_scalar(f"{OWN_NAME}/{name}", value, content.step)
        where = f"Report: `{folder / content.report.name}`\n\nTrace: `{folder / content.trace.name}`"
        self.writer.add_text(f"{OWN_NAME}/findings", f"{content.summary}\n\n{where}", content.step)
        if content.tables["modules"].num_rows:
            self.writer.add_text(f"{OWN_NAME}/modules", markdown(content.tables["modules"]), content.step)
        if content.incident:
            overhead = content.incident.get("overhead")
            text = content.incident_text + (f"\n\nOverhead of recording: {overhead}" if overhead else "")
            self.writer.add_text(f"{OWN_NAME}/incident", text, content.step)
        self.writer.flush()

    @classmethod
    def of(cls, source: object) -> Self | None:
        """The tracker of a writer; None if it is something else."""
        is_writer = all(hasattr(source, name) for name in ("add_scalar", "add_text", "flush"))
        return cls(source) if is_writer and _folder(source) else None


Tracker = WandbRun | MlflowRun | TensorboardWriter
KINDS: tuple[type[Tracker], ...] = (WandbRun, MlflowRun, TensorboardWriter)


def _folder(writer: Any) -> str:
    folder = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)
    # Lightning's loggers have writers on other ranks that have every attribute and do nothing.
    return os.fspath(folder) if isinstance(folder, (str, os.PathLike)) else ""


def _rows(table: ArrowTable) -> list[list[Any]]:
    return [list(row.values()) for row in table.to_pylist()]


def markdown(table: ArrowTable) -> str:
    """The first rows of a table as Markdown."""
    columns = tuple(BlockColumn(field.name, is_text=str(field.type) == "string") for field in table.schema)
    more = table.num_rows - _MOST_ROWS
    rest = [Paragraph(f"{more} more rows are in the report.")] if more > 0 else []
    return as_markdown([TableBlock(columns, tuple(map(tuple, _rows(table.slice(0, _MOST_ROWS))))), *rest])


# Attributes of trainers' loggers that hold the run or writer.
_INSIDE = ("experiment", "tracker", "writer", "tb_writer", "run")


def active_trackers() -> list[Tracker]:
    """The active runs of this process. Only trackers that the program has imported can have any."""
    # TensorBoard does not register its writers, so they must be passed.
    return [*WandbRun.active(), *MlflowRun.active()]


def trackers_of(source: object) -> list[Tracker]:
    """The trackers of a run, a writer, a logger of a trainer, or a list of these; an empty list if it is none."""
    if isinstance(source, (list, tuple)):
        # Each tracker once.
        return list(dict.fromkeys(tracker for element in source for tracker in trackers_of(element)))
    for candidate in chain([source], (getattr(source, name, None) for name in _INSIDE)):
        for kind in () if candidate is None else KINDS:
            if (tracker := kind.of(candidate)) is not None:
                return [tracker]
    return []


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
        """The active trackers.

        Raises:
            StateError: There are none.
        """
        if self.chosen is not True:
            return trackers_of(self.chosen)
        trackers = list(dict.fromkeys([*active_trackers(), *trackers_of(list(loggers()))]))
        if not trackers:
            raise StateError("no run of a tracker is active")
        return trackers


def checked_tracker(chosen: object) -> TrainerLog | None:
    """Check the argument `log_to_tracker` of a trainer's profiler.

    Raises:
        ArgumentError: It is neither True nor False, nor a tracker.
    """
    if chosen is False or chosen is None:
        return None
    if chosen is not True and not trackers_of(chosen):
        raise ArgumentError(
            f"log_to_tracker={chosen!r} is not valid: need True for the active runs, a run, a SummaryWriter, or a list of these."
        )
    return TrainerLog(chosen)
