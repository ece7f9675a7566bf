"""Export of a trace, or a part of it, as a file to download."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path, PurePath
from typing import Any

from kinetoscope._errors import checked_choice
from kinetoscope.model import units
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import MadeFile, Query, number

# Suffix and MIME type of each format.
FORMATS = {
    "ktrace": (".ktrace", "application/octet-stream"),
    "json": (".json.gz", "application/gzip"),
    "speedscope": (".speedscope.json", "application/json"),
}
_KNOWN_SUFFIXES = re.compile(r"\.(ktrace|kscope|tables|pt\.trace\.json|json)?(\.gz|\.zst)?$", re.IGNORECASE)
_LONGEST_TEXT = 1_000


def export(trace: Trace, query: Query, form: str) -> MadeFile:
    """Respond to `export/<format>`: the trace, its steps `steps`, or the range from `start` to `end`, as a file.

    Raises:
        ArgumentError: There is no such format or part.
    """
    suffix, type_ = FORMATS[checked_choice("format", form, tuple(FORMATS))]
    chosen, label = part(trace, query)
    name = f"{stem(trace)}{label}{suffix}"
    with tempfile.TemporaryDirectory(prefix="kinetoscope-export-") as folder:
        path = Path(folder) / f"trace{suffix}"
        chosen.save(path)
        # The file has no name any more; its disk space is freed when it has been sent.
        return MadeFile(path.open("rb"), name, type_)


def about(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `export/about`: the number of spans of a part, and the steps of the trace."""
    steps = trace.column("steps", "number")
    return {
        "spans": len(part(trace, query)[0].columns("spans")),
        "steps": [int(steps.min()), int(steps.max())] if len(steps) else None,
    }


def part(trace: Trace, query: Query) -> tuple[Trace, str]:
    """Cut out the part of a trace that a request selects; also return the part's name for file names.

    Raises:
        ArgumentError: There is no such part.
    """
    steps = query.get("steps", "").strip()
    if steps:
        wanted = units.parse_numbers("steps", steps[:_LONGEST_TEXT])
        return trace.select_steps(wanted), f".steps-{re.sub('[^0-9]+', '-', steps)[:40]}"
    if "start" not in query and "end" not in query:
        return trace, ""
    start = max(0, int(number(query, "start", 0)))
    end = int(number(query, "end")) if "end" in query else None
    return trace.window(start, end), f".from-{start / 1e6:.3f}ms"


def stem(trace: Trace) -> str:
    """Return the name of a trace's files, without suffix: that of the file it was loaded from."""
    source = trace.path or trace.run_info.source or "trace"
    name = PurePath(str(source)).name
    return (_KNOWN_SUFFIXES.sub("", name) or "trace")[:100]


ROUTES = {"export/": export, "export/about": about}
