"""TensorBoard: scalars and a summary as text, for any `SummaryWriter`; the files go into its folder, as it shows no files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope.display.blocks import Column, Table, Text, as_markdown
from kinetoscope.integrations.trackers.content import OWN_NAME

if TYPE_CHECKING:
    from kinetoscope.integrations.trackers.content import Content, LoggedTable

_MOST_ROWS = 30


class TensorboardWriter:
    """Logs with a `SummaryWriter`, of torch or of tensorboardX."""

    label = "tensorboard"

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def log(self, content: Content) -> None:
        """Log a trace."""
        folder = Path(_folder(self.writer), OWN_NAME, content.name)
        shutil.copytree(content.files, folder, dirs_exist_ok=True)
        for name, value in content.scalars.items():
            self.writer.add_scalar(f"{OWN_NAME}/{name}", value, content.step)
        where = f"Report: `{folder / content.report.name}`\n\nTrace: `{folder / content.trace.name}`"
        self.writer.add_text(f"{OWN_NAME}/findings", f"{content.summary}\n\n{where}", content.step)
        if content.tables["modules"].rows:
            self.writer.add_text(f"{OWN_NAME}/modules", markdown(content.tables["modules"]), content.step)
        if content.incident:
            overhead = content.incident.get("overhead")
            text = content.incident_text + (f"\n\nOverhead of recording: {overhead}" if overhead else "")
            self.writer.add_text(f"{OWN_NAME}/incident", text, content.step)
        self.writer.flush()


def active() -> list[TensorboardWriter]:
    """None: writers are not registered anywhere, and have to be given."""
    return []


def of(source: object) -> TensorboardWriter | None:
    """The tracker of a writer; None if it is something else."""
    is_writer = all(hasattr(source, name) for name in ("add_scalar", "add_text", "flush"))
    return TensorboardWriter(source) if is_writer and _folder(source) else None


def _folder(writer: Any) -> str:
    folder = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)
    # Lightning's loggers have writers on other ranks that have every attribute and do nothing.
    return os.fspath(folder) if isinstance(folder, (str, os.PathLike)) else ""


def markdown(table: LoggedTable) -> str:
    """The first rows of a table as Markdown."""
    columns = tuple(
        Column(name, is_text=any(isinstance(row[index], str) for row in table.rows))
        for index, name in enumerate(table.columns)
    )
    more = len(table.rows) - _MOST_ROWS
    rest = [Text(f"{more} more rows are in the report.")] if more > 0 else []
    return as_markdown([Table(columns, tuple(map(tuple, table.rows[:_MOST_ROWS]))), *rest])
