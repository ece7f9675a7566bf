"""What is logged of a trace: numbers, two tables, a summary, and files: the report, the trace and the reason of an incident."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError, ArgumentTypeError
from kinetoscope.analyses.findings import examine, finding_blocks, table_of
from kinetoscope.display.arrow_text import choose_columns, json_rows, sort_rows
from kinetoscope.display.blocks import Heading, Paragraph, as_markdown
from kinetoscope.ledger.steps import steps
from kinetoscope.model import units
from kinetoscope.tables.host.modules import modules
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace
from kinetoscope.viewer.server.report import report_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow

    from kinetoscope.analyses.findings import Report
    from kinetoscope.display.blocks import Block

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
# More make a report of tens of MB, which browsers and trackers show slowly.
_MOST_ITEMS = 200_000
# The report of an incident has its last steps only; its trace has all.
_MOST_INCIDENT_STEPS = 20


@dataclass(frozen=True)
class Content:
    """What is logged of one trace.

    Attributes:
        name: The name of the trace, without folder and suffix.
        step: The number of its last step, 0 without steps.
        scalars: Numbers by their name; those that are not known are missing.
        tables: The tables `modules` and `findings`, with times in milliseconds.
        summary: The step time and the findings, as Markdown.
        incident: What is known of the incident; empty if it is none.
        files: A folder with the trace, the report, and for an incident what is known of it.
        trace: The trace in this folder.
        report: The report in this folder.
    """

    name: str
    step: int
    scalars: dict[str, float]
    tables: dict[str, pyarrow.Table]
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


def opened(source: Trace | str | os.PathLike[str]) -> tuple[Trace, dict[str, Any], str]:
    """Open what is to be logged.

    Args:
        source: A trace; its path; or the folder of an incident, or a recording in one.

    Returns:
        The trace, what is known of the incident (empty for others), and a name.

    Raises:
        ArgumentError: It is neither.
        FormatError: The file is not a trace.
        OSError: It cannot be read.
    """
    if isinstance(source, Trace):
        facts = {} if source.path is None else _incident_facts(Path(source.path))
        return source, facts, _name_of(source, facts)
    untyped: object = source
    if not isinstance(untyped, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"log_to_tracker({untyped!r}): need a trace, its path, or the folder of an incident."
        )
    path = Path(source)
    if path.is_dir() and path.suffix != ".tables":
        recordings = sorted(path.glob("rank*.recording"), key=lambda each: (len(each.name), each.name))
        if not recordings:
            raise ArgumentError(
                f"{path} has no recordings of ranks, so it is not the folder of an incident: pass a trace, or its path."
            )
        path = recordings[0]
    trace = open_trace(path)
    facts = _incident_facts(path)
    return trace, facts, _name_of(trace, facts)


def _incident_facts(path: Path) -> dict[str, Any]:
    """What `leave_on` wrote beside a recording about its incident; empty if it is none."""
    try:
        facts = json.loads(path.with_suffix(".json").read_text())
    except (OSError, ValueError):
        return {}
    if path.suffix != ".recording" or not isinstance(facts, dict) or "reason" not in facts:
        return {}
    return {**facts, "path": str(path)}


def _name_of(trace: Trace, facts: Mapping[str, Any]) -> str:
    """The name of a trace: of its incident, file or program."""
    if facts:
        name = f"{Path(facts['path']).parent.name}-rank{facts.get('rank', 0)}"
    elif trace.path is not None and (path := Path(trace.path)).suffix != ".recording":
        name = path.name.removesuffix(".ktrace")
    else:
        # A session's recording has a name that says nothing.
        name = Path("".join(trace.run_info.program[:1])).stem
    return name


def make_content(trace: Trace, facts: Mapping[str, Any], name: str, folder: Path) -> Content:
    """Compute what is logged, and write the files.

    Args:
        trace: The trace.
        facts: What is known of its incident; empty if it is none.
        name: Its name in the tracker.
        folder: An empty folder for the files.

    Raises:
        OSError: The files cannot be written.
    """
    # Names of artifacts and files allow no other letters.
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
    # What recording adds to the time of the steps, with its 95 % interval, as the flight recorder measured it.
    for name, share in zip(("", "_low", "_high"), facts.get("overhead_shares") or (), strict=False):
        values[f"recording_overhead_percent{name}"] = 100 * share
    return {
        name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)
    }


def _table(table: pyarrow.Table, columns: tuple[str, ...]) -> pyarrow.Table:
    """Choose columns; nanoseconds become milliseconds."""
    import pyarrow

    columns_of: dict[str, list[Any]] = {name: [] for name in columns}
    for row in json_rows(choose_columns(table, columns)):
        for name, values in columns_of.items():
            values.append(row[name] / 1e6 if name.endswith("_ns") and row[name] is not None else row[name])
    return pyarrow.table({re.sub("_ns$", "_ms", name): values for name, values in columns_of.items()})


def _summary(name: str, report: Report) -> str:
    """The step time, the findings, and how far a step is from its floor, as Markdown."""
    blocks: list[Block] = [Heading(name)]
    if report.unit.repeats and report.count:
        count = units.count(report.count, report.unit.noun)
        blocks.append(Paragraph(f"{count}, {units.duration(report.whole_ns / report.count)} each"))
    return as_markdown([*blocks, *finding_blocks(report, most=0)])
