"""The text of the program's source lines that a trace names, with two lines before and after each.

A process that saves its own trace stores the text with it; from then on it is read from the trace alone, wherever the files are.
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
"""The key of the metadata: for each file its lines by their numbers. Empty if the session stores none."""

CONTEXT = 2
# More lines than these are not hot, and longer ones are not read.
_MOST_LINES = 200
_LONGEST = 200


@derived
def source_lines(trace: TraceData) -> dict[str, dict[int, str]]:
    """Return the text of lines by file and number: what is stored, or what this process reads of the files of its own trace.

    Args:
        trace: The trace.

    Returns:
        For each file, named as in the trace, its known lines without the line break. The hottest lines come with those around them.
    """
    return _stored(trace) if SOURCE_LINES in trace.info else _read(trace)


def line_text(trace: TraceData, file: str, line: int) -> str:
    """The text of one line without its indentation; empty if it is not known."""
    return source_lines(trace).get(file, {}).get(line, "").strip()


def saved_info(trace: TraceData) -> dict[str, dict[str, dict[int, str]]]:
    """The metadata to save: the text of lines, where there is any."""
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
    """The lines of the files themselves, if this process recorded the trace: nobody else's trace may name a file to read."""
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
    """Lines of the program: those in which spans or samples took most time first, then those that called them.

    Times of spans count here with what is inside them: that orders lines well enough, and needs no nesting when a trace is saved.
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
