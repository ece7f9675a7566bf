"""The traces that commands read, and their output: files, which never replace their input, and JSON."""

from __future__ import annotations

import glob
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from kinetoscope._errors import ArgumentError
from kinetoscope.display.terminal import echo
from kinetoscope.model import units
from kinetoscope.storage.atomic_write import is_stream

if TYPE_CHECKING:
    from rich.console import Console

    from kinetoscope.trace import Trace

Command = TypeVar("Command", bound=Callable[..., Any])

# Files that are read faster than this need no bar.
QUIET_S = 0.4
TRACES = (".ktrace", ".recording", ".json", ".json.gz", ".json.zst", ".tables")
"""Names of files that are recordings of a run end so."""


def open_trace(path: str) -> Trace:
    """Open a trace; while a large JSON file is read, a terminal shows a progress bar.

    `-` is standard input.

    Raises:
        FormatError: See `kinetoscope.open`.
        OSError: The file cannot be read.
    """
    from kinetoscope.display.terminal import console
    from kinetoscope.trace import open as open_any

    source: str | IO[bytes] = sys.stdin.buffer if path == "-" else path
    printer = console(stderr=True)
    if not printer.is_terminal:
        return open_any(source)
    bar = ReadingBar(printer, path)
    try:
        return open_any(source, progress=bar)
    finally:
        bar.end()


def recordings(text: str) -> list[str]:
    """The recordings of one run: a trace, those in a folder, or those whose names or URLs have a pattern such as `base-*.ktrace`.

    Raises:
        ArgumentError: The folder has no trace, or no file has the pattern.
        MissingDependencyError: It is a URL, and `fsspec` is not installed.
    """
    from kinetoscope.storage.byte_source import urls_like

    if os.path.isdir(text) and not text.rstrip("/").endswith(".tables"):
        names = sorted(os.listdir(text))
        paths = [os.path.join(text, name) for name in names if name.endswith(TRACES)]
        if not paths:
            raise ArgumentError(f"{text}: the folder has no trace ({', '.join(TRACES)})")
        return paths
    if not os.path.exists(text) and glob.has_magic(text):
        paths = urls_like(text) if "://" in text else sorted(glob.glob(text))
        if not paths:
            raise ArgumentError(f"{text}: no file has a name of this pattern")
        return paths
    return [text]


class ReadingBar:
    """A progress bar for the bytes of a file, with the number of events found so far."""

    def __init__(self, printer: Console, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Show nothing yet; `clock` counts seconds."""
        from rich.markup import escape
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        self._clock = clock
        self._began_s = clock()
        self._progress = Progress(
            TextColumn("reading {task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TextColumn("{task.fields[events]}"),
            console=printer,
            transient=True,
        )
        self._task = self._progress.add_task(escape(os.path.basename(path)), total=None, events="")

    def __call__(self, read_bytes: int, total_bytes: int | None, events: int) -> None:
        """Update the bar, which is shown from a while on."""
        if self._clock() - self._began_s >= QUIET_S:
            self._progress.start()
            # Bytes that were read ahead are not parsed yet.
            self._progress.update(
                self._task, completed=read_bytes, total=total_bytes, events=units.count(events, "event")
            )

    def end(self) -> None:
        """Remove the bar."""
        if self._progress.live.is_started:
            self._progress.stop()


def number_option(*names: str, least: int = 0, **settings: Any) -> Callable[[Command], Command]:
    """An option that is a whole number from `least` on."""
    return click.option(*names, metavar="N", type=click.IntRange(min=least), **settings)


def file_option(*names: str, metavar: str = "FILE", **settings: Any) -> Callable[[Command], Command]:
    """An option that is a file or folder to write."""
    return click.option(*names, metavar=metavar, type=click.Path(path_type=Path), **settings)


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
