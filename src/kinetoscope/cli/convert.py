"""`kinetoscope convert`: write a trace, or a part of it, in other formats."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope._errors import ArgumentError
from kinetoscope.model import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kinetoscope.trace import Trace


@click.command("convert")
@click.argument("source", metavar="TRACE")
@click.argument("outputs", metavar="OUTPUT...", nargs=-1, required=True)
@click.option(
    "--window", metavar="START:END", help="Only this time, such as 1.5s:2s, 100ms: or :250us, from the start."
)
@click.option("--steps", metavar="N,A-B", help="Only these steps, such as 2-4,7 (as in the table `steps`).")
@click.option("--ranks", metavar="N,A-B", help="Only these ranks of a distributed run.")
@click.option(
    "--device",
    type=click.Choice(["time", "launch"]),
    help="Which device work is in it: what ran then, cut at the edges (time; so for --window), or what was launched"
    " then, whole (launch; so for --steps).",
)
@click.option("--table", metavar="NAME", help="For formats of one table (.parquet, .arrow): which; spans.")
def command(
    source: str,
    outputs: tuple[str, ...],
    *,
    window: str | None,
    steps: str | None,
    ranks: str | None,
    device: str | None,
    table: str | None,
) -> None:
    """Write a trace, or a part of it, to each OUTPUT, in the format its suffix names.

    TRACE is a .ktrace file, a recording, or a trace of Kineto and others as .json, .json.gz or .json.zst.

    \b
    .ktrace                          our own: small, and everything is in it
    .json .json.gz .json.zst         Perfetto, chrome://tracing, what reads Kineto's traces
    .perfetto-trace .pftrace (.gz)   Perfetto, smaller and quicker to load
    .speedscope.json (.gz)           speedscope
    .collapsed .folded               flame graphs of Python stacks
    .parquet .arrow .feather         one table: pandas, polars, DuckDB and others
    .tables                          a folder with every table as Parquet

    Parts are chosen in this order: ranks, steps, then the window, whose times count from the start of what is left.
    """  # noqa: D301  (click takes the character itself)
    from kinetoscope.cli.opening import open_trace
    from kinetoscope.formats.suffixes import suffix_of

    targets = [Path(output) for output in outputs]
    for target in targets:
        suffix_of(target)
        if target.exists() and Path(source).exists() and target.samefile(source):
            raise ArgumentError(f"{target} is the trace itself: name another file to write to.")
    span_ns = None if window is None else units.parse_window(window)
    wanted_steps = None if steps is None else units.parse_numbers("--steps", steps)
    wanted_ranks = None if ranks is None else units.parse_numbers("--ranks", ranks)
    if device is not None and span_ns is None and wanted_steps is None:
        raise ArgumentError("--device says what of devices belongs to a part: give --window or --steps too.")
    with open_trace(source) as trace:
        part = trace
        if wanted_ranks is not None:
            part = part.select_ranks(wanted_ranks)
        if wanted_steps is not None:
            part = part.select_steps(wanted_steps, device=device or "launch")
        if span_ns is not None:
            part = part.window(*span_ns, device=device or "time")
        for target in targets:
            with _told(f"writing {target}"):
                part.save(target, table=table)
            click.echo(f"{target}: {units.size(_size_bytes(target))}{_selected(part, trace)}")


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Say on a terminal what goes on, for as long as it does."""
    from rich.markup import escape

    from kinetoscope.display.terminal import console

    printer = console(stderr=True)
    if not printer.is_terminal:
        yield
        return
    with printer.status(escape(what)):
        yield


def _size_bytes(path: Path) -> int:
    """How large a file is, or all files of a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def _selected(part: Trace, whole: Trace) -> str:
    """Say how much of a trace a part of it is."""
    if part is whole:
        return ""
    kept, of = len(part.columns("spans")), len(whole.columns("spans"))
    return f", {kept:,} of {units.count(of, 'span')}, {units.duration(part.duration_ns)}"
