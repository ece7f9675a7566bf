"""The text of the source lines in a trace, with two lines before and after each.

A process that saves its own trace stores the text in it. From then on, the text comes from the trace alone.
"""

from __future__ import annotations

import linecache
import os
import socket
import tokenize

import numpy as np

from kinetoscope.model.groups import Groups
from kinetoscope.model.names import source_line
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.stacks import user_frames, user_stacks

SOURCE_LINES = "source_lines"
"""The metadata key: for each file its lines by number; empty if the session stores none."""

CONTEXT = 2
# Only the hottest lines are stored, and longer lines are cut.
_MOST_LINES = 200
_LONGEST = 200


@derived
def source_lines(trace: TraceData) -> dict[str, dict[int, str]]:
    """Return the text of lines by file and number: as stored, or read from the files if this process recorded the trace.

    Args:
        trace: The trace.

    Returns:
        For each file, named as in the trace, its known lines without line breaks: the hottest lines with those around them.
    """
    return _stored(trace) if SOURCE_LINES in trace.info else _read(trace)


def line_text(trace: TraceData, file: str, line: int) -> str:
    """The text of one line without its indentation; empty if unknown."""
    return source_lines(trace).get(file, {}).get(line, "").strip()


def saved_info(trace: TraceData) -> dict[str, dict[str, dict[int, str]]]:
    """The metadata to save: the text of lines, if any."""
    found = source_lines(trace)
    return {SOURCE_LINES: found} if found else {}


def _stored(trace: TraceData) -> dict[str, dict[int, str]]:
    """The lines in the metadata, which is not trusted."""
    stored = trace.info[SOURCE_LINES]
    files = stored.items() if isinstance(stored, dict) else ()
    return {
        file: {
            int(number): text[:_LONGEST]
            for number, text in lines.items()
            if str(number).isdecimal() and len(str(number)) < 10 and isinstance(text, str)
        }
        for file, lines in files
        if isinstance(lines, dict)
    }


def _read(trace: TraceData) -> dict[str, dict[int, str]]:
    """Read the lines from the files if this process recorded the trace: a foreign trace must not choose files to read."""
    run = trace.run_info
    if run.process != os.getpid() or run.host != socket.gethostname() or run.start_realtime_ns is None:
        return {}
    before_ns = run.start_realtime_ns + trace.duration_ns
    lines_of: dict[str, dict[int, str]] = {}
    texts: dict[str, list[str]] = {}
    for file, line in _hot_lines(trace):
        if file not in texts:
            texts[file] = _text_of(file, run.import_folders, before_ns)
        for number in range(max(line - CONTEXT, 1), min(line + CONTEXT, len(texts[file])) + 1):
            lines_of.setdefault(file, {})[number] = texts[file][number - 1].rstrip()[:_LONGEST]
    return lines_of


def _hot_lines(trace: TraceData) -> list[tuple[str, int]]:
    """The program's lines with the most time in spans or samples first, then their callers.

    Uses inclusive times: they order lines well enough and need no nesting when a trace is saved.
    """
    spans, samples, stacks, frames = (
        trace.columns(name) for name in ("spans", "samples", "stacks", "frames")
    )
    of_spans = Groups(spans["own_stack"], len(stacks)).sums(spans["duration_ns"])
    of_stack = of_spans + Groups(samples["stack"], len(stacks)).sums(samples["period_ns"])
    user_stack = user_stacks(trace)
    heavy = np.flatnonzero((of_stack > 0) & (user_stack >= 0))
    of_frame = Groups(stacks["frame"][user_stack[heavy]].clip(0), len(frames)).sums(of_stack[heavy])
    order = np.argsort(-of_frame, kind="stable")
    rows = order[user_frames(trace)[order]][:_MOST_LINES].tolist()
    return list(dict.fromkeys(source_line(trace, row)[:2] for row in rows))


def _text_of(file: str, folders: tuple[str, ...], before_ns: int) -> list[str]:
    """The lines of a file that has not changed since the recording; none if it cannot be read."""
    entry = linecache.cache.get(file, ())
    if len(entry) == 4 and entry[1] is None:  # no file, such as a cell of a notebook
        return list(entry[2])
    candidates = [file] if os.path.isabs(file) else [os.path.join(folder, file) for folder in folders]
    for path in candidates:
        try:
            if os.stat(path).st_mtime_ns <= before_ns:
                with tokenize.open(path) as opened:
                    return opened.readlines()
        except (OSError, SyntaxError, ValueError):  # gone, no text, or not a possible name of a file
            continue
    return []
