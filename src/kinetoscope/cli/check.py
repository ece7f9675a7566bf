"""`kinetoscope check`: whether a run keeps to its budget, for a build."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope.cli.compare import WARM_UP
from kinetoscope.cli.files import AS_JSON, file_option, open_trace, recordings
from kinetoscope.display.terminal import console, echo
from kinetoscope.storage.atomic_write import is_stream, write_atomically

if TYPE_CHECKING:
    from kinetoscope.comparison.budget import Outcome

_MOST_BYTES = 1 << 24


@click.command("check")
@click.argument("budget", metavar="BUDGET", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(readable=False))
@click.option("--update", is_flag=True, help="Write what was measured into BUDGET, which need not exist.")
@click.option(
    "--times",
    is_flag=True,
    help="With --update: also write the times of steps; needs several recordings, made on a quiet machine.",
)
@click.option(
    "--strict", is_flag=True, help="Also fail if the run is better than its budget by more than the margin."
)
@WARM_UP
@AS_JSON
@file_option("--junit", "junit_file", help="Write a JUnit report to FILE.")
def command(
    budget: Path,
    traces: tuple[str, ...],
    *,
    update: bool,
    times: bool,
    strict: bool,
    warm_up: int | None,
    as_json: bool,
    junit_file: Path | None,
) -> int:
    """Check a run against a budget: counts exactly, the time of a step with statistics.

    BUDGET is a TOML file, which --update writes. Each TRACE is a recording of the run, a folder of them, or a quoted pattern.

    The exit code is 0 if everything is held, 1 if something is broken, 2 if nothing is broken but something cannot be determined, and 3 for an
    error. In GitHub Actions, exceeded limits are marked in the source and listed in the summary of the build.
    """
    from kinetoscope.comparison.budget import Budget, read_budget, updated_budget
    from kinetoscope.comparison.verdict import stored_places
    from kinetoscope.storage.byte_source import read_text_file
    from kinetoscope.trace.opening import check_budget, measure_runs

    if times and not update:
        raise click.UsageError(
            "--times needs --update: a budget that contains times is always checked with them"
        )
    names = [name for text in traces for name in recordings(text)]
    # A budget that is written to a pipe or device is a new one.
    is_old = not update or (budget.exists() and not is_stream(budget))
    text = read_text_file(budget, _MOST_BYTES) if is_old else ""
    if update:
        old = read_budget(text, str(budget)) if text.strip() else Budget(())
        with open_trace(names[0]) as trace:
            counts_at = stored_places(trace)
        runs = measure_runs(names, old.scopes, warm_up)
        written = updated_budget(text, runs, str(budget), times=times, places=counts_at)
        read_budget(written, str(budget))
        write_atomically(budget, written.encode())
        echo(f"{budget}: {'updated' if text else 'written'}")
        return 0
    outcome = check_budget(read_budget(text, str(budget)), names, strict=strict, warm_up=warm_up)
    _report(outcome, junit_file)
    echo(outcome.to_json() if as_json else outcome.to_text(console().width))
    return outcome.exit_code


def _report(outcome: Outcome, junit_file: Path | None) -> None:
    if junit_file is not None:
        write_atomically(junit_file, outcome.to_junit().encode())
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(outcome.to_markdown() + "\n")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        # On standard error, so that JSON on standard output stays JSON; GitHub reads both.
        for line in outcome.annotations():
            echo(line, err=True)
