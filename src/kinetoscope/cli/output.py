"""What commands print as JSON, and the files that they write: never over their input, and with a line that says what was written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from kinetoscope._errors import ArgumentError
from kinetoscope.display.terminal import echo
from kinetoscope.model import units
from kinetoscope.storage.atomic_write import is_stream

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")


def echo_json(value: Any) -> None:
    """Print a value as JSON on one line of standard output."""
    echo(json.dumps(value, ensure_ascii=False))


def show(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a value as JSON, or lines that say the same."""
    if as_json:
        echo_json(value)
        return
    for line in lines:
        echo(line)


def refuse_to_overwrite(target: Path, sources: Iterable[str]) -> None:
    """Check that an output is none of the traces it is made from.

    Raises:
        ArgumentError: It is.
    """
    paths = list(sources)
    for source in paths:
        if target.is_file() and os.path.exists(source) and target.samefile(source):
            subject = "the trace itself" if len(paths) == 1 else "one of the traces"
            raise ArgumentError(f"{target} is {subject}: choose another output file.")


def say_written(target: Path, addition: str = "") -> None:
    """Print the name and size of a file or folder; of a stream only that it was written, and not into it."""
    if is_stream(target):
        echo(f"{target}: written{addition}", err=True)
        return
    files = target.rglob("*") if target.is_dir() else [target]
    size = sum(file.stat().st_size for file in files if file.is_file())
    echo(f"{target}: {units.size(size)}{addition}")
