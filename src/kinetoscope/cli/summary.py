"""The summary of a run or of any trace: where the time went, in at most 40 lines."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from kinetoscope.analyses.overview import Overview, overview
from kinetoscope.analyses.trace_blocks import RunFacts, label_in, trace_blocks
from kinetoscope.cli.files import echo_json
from kinetoscope.display.blocks import Block, Heading, Paragraph
from kinetoscope.display.blocks import as_json as blocks_as_json
from kinetoscope.display.lines import lines_of
from kinetoscope.display.terminal import UNLIMITED, console
from kinetoscope.launcher.overhead import Overhead, Records, records_of
from kinetoscope.model import units
from kinetoscope.summaries import SUFFIX

if TYPE_CHECKING:
    from rich.console import Console

    from kinetoscope.launcher.recording import Finished
    from kinetoscope.trace import Trace

# Without a terminal: how many lines a summary has at most, and their width. On a terminal of another size there are as many as
# fit, within these limits.
MOST_LINES = 40
WIDTH = 100
_FEWEST_LINES, _TALLEST = 30, 70
_NARROWEST, _WIDEST = 40, 140
_ROWS = 9


def print_heading(title: str) -> None:
    """Print the first line of a summary to standard error, before the trace is read."""
    _print([Heading(title)], console(stderr=True))


def print_summary(finished: Finished, printer: Console | None = None, *, below_heading: bool = False) -> None:
    """Print the summary to standard error or to `printer`, in 40 lines or what fits the terminal.

    With `below_heading`, its first line is printed already.
    """
    _print(finished_blocks(finished), printer or console(stderr=True), below_heading=below_heading)


def print_trace(trace: Trace, path: str, *, as_json: bool = False) -> None:
    """Print the summary of a trace from a file to standard output, as text or as JSON blocks with unformatted numbers."""
    trace_overview = overview(trace)
    run = RunFacts.of(trace_overview, PurePath(path).name, where=path, file_label=label_in(Path.cwd()))
    blocks = trace_blocks(trace_overview, run, _TALLEST)
    if as_json:
        echo_json(blocks_as_json(blocks))
        return
    _print(blocks)


def finished_blocks(finished: Finished) -> list[Block]:
    """The summary of a recording made by this process, with its cost and its files."""
    options = finished.options
    traces = [path for path in finished.files if path.suffix == ".ktrace"]
    run = RunFacts(
        finished.program.name,
        finished.engine,
        finished.ended,
        finished.messages,
        options.recording.profile_memory,
        finished.process_peak_bytes,
        options.shown(traces[0]) if traces else "",
        label_in(options.folder),
    )
    trace_overview = overview(finished.trace)
    return [*trace_blocks(trace_overview, run, _TALLEST), *_cost(finished, trace_overview), *_files(finished)]


def _print(blocks: list[Block], printer: Console | None = None, *, below_heading: bool = False) -> None:
    """Print at most 40 lines, or what fits the terminal; `below_heading` omits the heading."""
    printer = printer or console()
    width = WIDTH if printer.width >= UNLIMITED else max(_NARROWEST, min(_WIDEST, printer.width))
    # One line is for the prompt, and one is empty.
    most = max(_FEWEST_LINES, min(_TALLEST, printer.height - 1)) if printer.is_terminal else MOST_LINES
    if not below_heading:
        printer.print()
    lines = lines_of(blocks, width, _ROWS + max(0, most - MOST_LINES) // 3, most - 1)
    for line in lines[1:] if below_heading else lines:
        line.truncate(max(1, printer.width), overflow="ellipsis")
        printer.print(line, soft_wrap=True)


# Bounds further apart than this factor are not shown, as on a machine where other programs overwrite the caches.
_WIDEST_BOUNDS = 5.0


def _cost(finished: Finished, shown: Overview) -> list[Block]:
    overhead, helpers = finished.overhead, finished.helpers
    if overhead is None:
        return [Paragraph("not measured", "overhead")]
    records, *other_records = records_of(finished.trace)
    cost_ns = overhead.record_ns(records.spacing_ns)
    if cost_ns <= 0:
        return [Paragraph("too small to measure (the machine is busy with other processes)", "overhead")]
    scope = "step time" if shown.host.shares.in_steps else "the recorded time"
    text = (
        f"{_cost_share(overhead, records, scope)}{f' of {records.process}' if records.process else ''}, estimated "
        f"from {units.count(records.count, 'record')} at {units.duration(cost_ns)} each, as measured now on two small training "
        f"steps{' (rough: the machine is busy)' if overhead.is_rough else ''}"
    )
    if other_records := [records for records in other_records if not records.in_steps and records.count]:
        text += (
            f"; {_cost_share(overhead, other_records[0], 'the recorded time')} of {other_records[0].process}"
        )
    if helpers is not None and helpers.process_ns > 0:
        text += f"; the recorder's own threads took {units.percent(helpers.helpers_ns, helpers.process_ns)} of the process's CPU time"
    return [Paragraph(text, "overhead")]


def _cost_share(overhead: Overhead, records: Records, scope: str) -> str:
    shares = overhead.share(records)
    share_text, low, high = (units.percent(share, 1.0) for share in shares)
    if records.waits_much:
        scope += " in which it had a CPU core"
    if share_text == high:
        return f"{share_text} of {scope}"
    if shares[2] > _WIDEST_BOUNDS * shares[1] and (records.waits_much or overhead.is_disturbed):
        return f"roughly {share_text} of {scope}"
    about = "" if share_text.startswith("<") else "about "
    return f"{about}{share_text} of {scope} ({low.removesuffix(' %')} to {high})"


def _files(finished: Finished) -> list[Block]:
    texts: list[Block] = []
    for path in finished.files:
        name = finished.options.shown(path)
        uses = {
            ".ktrace": f"kinetoscope info {name}",
            SUFFIX: f"kinetoscope ranks {os.path.dirname(name) or name}",
        }
        use = uses.get(path.suffix, "open it in https://ui.perfetto.dev")
        texts.append(
            Paragraph(f"{name}  {units.size(path.stat().st_size)}   {use}", "" if texts else "files")
        )
    return texts
