"""Export of a trace, or a part of it, as a file to download."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.tables.host.rebuilt_calls import rebuilt_calls, shown_stacks
from kinetoscope.viewer.requests import MadeFile, number

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query

# Suffix and MIME type of each format.
FORMATS = {
    "ktrace": (".ktrace", "application/octet-stream"),
    "json": (".json.gz", "application/gzip"),
    "perfetto": (".pftrace", "application/octet-stream"),
    "speedscope": (".speedscope.json", "application/json"),
}
MOST_SLICES = 3_000_000
"""A tab with Perfetto's page has room for about as many."""

_KNOWN_SUFFIXES = re.compile(
    r"\.(ktrace|kscope|tables|pt\.trace\.json|json|pftrace)?(\.gz|\.zst)?$", re.IGNORECASE
)
_LONGEST_RANGE = 1_000_000
_LONGEST_TEXT = 1_000


def export(trace: Trace, query: Query, form: str) -> MadeFile:
    """Respond to `export/<format>`: the trace, its steps `steps`, or the range from `start` to `end`, as a file.

    `most` is the largest number of slices, for viewers that cannot load more.

    Raises:
        ArgumentError: There is no such format or part, or it has more slices than `most`.
    """
    if form not in FORMATS:
        raise ArgumentError(
            f"there is no format {form[:50]!r} to export; choose one of: {', '.join(FORMATS)}"
        )
    suffix, type_ = FORMATS[form]
    chosen, label = part(trace, query)
    if "most" in query:
        most, count = _most(query), slices(chosen)
        if count > most:
            raise ArgumentError(
                f"{count:,} slices are more than the {most:,} that Perfetto's page can load: select a shorter window"
            )
    name = f"{stem(trace)}{label}{suffix}"
    with tempfile.TemporaryDirectory(prefix="kinetoscope-export-") as folder:
        path = Path(folder) / f"trace{suffix}"
        chosen.save(path)
        # The file has no name any more; its disk space is freed when it has been sent.
        return MadeFile(path.open("rb"), name, type_)


def about(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `export/about`: the number of slices of a part, the most that Perfetto can load, and the steps of the trace."""
    steps = trace.column("steps", "number")
    return {
        "slices": _count(trace, query),
        "most_slices": MOST_SLICES,
        "steps": [int(steps.min()), int(steps.max())] if len(steps) else None,
    }


def part(trace: Trace, query: Query) -> tuple[Trace, str]:
    """Cut out the part of a trace that a request selects; also return the part's name for file names.

    Raises:
        ArgumentError: There is no such part.
    """
    steps = query.get("steps", "").strip()
    if steps:
        wanted = step_numbers(steps)
        return trace.select_steps(wanted), f".steps-{re.sub('[^0-9]+', '-', steps)[:40]}"
    if "start" not in query and "end" not in query:
        return trace, ""
    start, end = _window(query)
    return trace.window(start, end), f".from-{start / 1e6:.3f}ms"


def step_numbers(text: str) -> list[int]:
    """Parse numbers and ranges of steps, such as `2-4,7`.

    Raises:
        ArgumentError: The text is not valid.
    """
    numbers: set[int] = set()
    for one in text[:_LONGEST_TEXT].split(","):
        found = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", one)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if last < first or last - first > _LONGEST_RANGE:
            raise ArgumentError(
                f"steps: {one.strip()[:50]!r} is not a number or a range: write steps as in 2-4,7"
            )
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def slices(trace: Trace) -> int:
    """Number of slices that Perfetto shows of a trace: its spans, and calls that are reconstructed from stacks."""
    spans = len(trace.columns("spans"))
    if spans > MOST_SLICES or not len(trace.columns("stacks")):
        return spans
    calls = rebuilt_calls(trace, shown_stacks(trace))
    return spans + (0 if calls is None else len(calls.start_ns))


def _count(trace: Trace, query: Query) -> int:
    """Number of slices of a part; counted without cutting it out, unless calls are reconstructed from stacks."""
    if "steps" in query or trace.run_info.with_stack:
        return slices(part(trace, query)[0])
    spans = trace.columns("spans")
    start, end = _window(query)
    within = spans["start_ns"] + np.maximum(spans["duration_ns"], 1) > start
    if end is not None:
        within &= spans["start_ns"] < end
    return int(np.count_nonzero(within))


def _window(query: Query) -> tuple[int, int | None]:
    """Return the options `start` and `end`."""
    start = max(0, int(number(query, "start", 0)))
    end = int(number(query, "end")) if "end" in query else None
    if end is not None and end <= start:
        raise ArgumentError(
            f"a window from {start} ns to {end} ns is empty: the end must come after the start"
        )
    return start, end


def _most(query: Query) -> int:
    """Return the option `most`."""
    return int(min(max(number(query, "most"), 1), MOST_SLICES))


def stem(trace: Trace) -> str:
    """Return the name of a trace's files, without suffix: that of the file it was loaded from."""
    source = trace.path or trace.run_info.source or "trace"
    name = PurePath(str(source)).name
    return (_KNOWN_SUFFIXES.sub("", name) or "trace")[:100]
