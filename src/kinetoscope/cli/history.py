"""`kinetoscope history`: what many builds measured."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope.cli.compare import WARM_UP
from kinetoscope.cli.files import AS_JSON, TRACES, file_option, recordings
from kinetoscope.display.terminal import console, echo

if TYPE_CHECKING:
    from kinetoscope.comparison.history import Build

_SUMMARY = ".parquet"


@click.command("history")
@click.argument("folder", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--series",
    "names",
    metavar="NAME",
    multiple=True,
    help="Only this series, such as step_ns, operators or peak_bytes (repeatable).",
)
@WARM_UP
@AS_JSON
@file_option("--html", "html_file", help="Also write the history to FILE, as HTML with charts.")
def command(
    folder: Path,
    *,
    names: tuple[str, ...],
    warm_up: int | None,
    as_json: bool,
    html_file: Path | None,
) -> None:
    """Show the time of a step, and the counts that differ, of many builds.

    Each entry of FOLDER is a build: a trace, a folder with several recordings or with summaries, a summary of `kinetoscope summarize`, or the
    JSON of `kinetoscope compare`, of which the new run counts. Builds are ordered by when they were recorded or, where that is not known, by
    name, with numbers in names as numbers.
    """
    from kinetoscope.comparison.history import History
    from kinetoscope.storage.atomic_write import write_atomically

    builds = [
        build
        for path in sorted(folder.iterdir(), key=_natural)
        if (build := _build(path, warm_up)) is not None
    ]
    by_time = bool(builds) and all(build.start_ns for build in builds)
    if by_time:
        builds.sort(key=lambda build: build.start_ns)
    history = History(builds, "time" if by_time else "name", names)
    if html_file is not None:
        text = f'<!doctype html><meta charset="utf-8"><title>Kinetoscope: history</title>{history.to_html()}'
        write_atomically(html_file, text.encode("utf-8"))
    echo(history.to_json() if as_json else history.to_text(console().width))


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(int(part) if part.isdigit() else -1, part) for part in parts]


def _build(path: Path, warm_up: int | None) -> Build | None:
    from kinetoscope.comparison.history import build_of, build_of_comparison
    from kinetoscope.trace.opening import measure_runs

    names = (path.name, *(os.listdir(path) if path.is_dir() else ()))
    if any(name.endswith(_SUMMARY) for name in names):
        return _build_of_summaries(path)
    if path.suffix == ".json":
        with path.open(encoding="utf-8", errors="replace") as file:
            is_comparison = file.read(10) == '{"verdict"'
        if is_comparison:
            return build_of_comparison(json.loads(path.read_text("utf-8")), path.name)
    if not any(name.endswith(TRACES) for name in names):
        return None
    return build_of(measure_runs(recordings(os.fspath(path)), warm_up=warm_up), path.name)


def _build_of_summaries(path: Path) -> Build:
    """A build from the summaries of its ranks: the usual step of the slowest rank, each kind of step by its weight, and the highest memory peak."""
    from kinetoscope.comparison.history import STEP, Build
    from kinetoscope.summaries.job import Job

    ranks = Job.open(path).ranks()
    values = {
        name: float(max(numbers))
        for name, column in ((STEP, "step_ns"), ("peak_bytes", "memory_bytes"))
        if (numbers := [value for value in ranks.column(column).to_pylist() if value is not None])
    }
    return Build(path.name, values)
