"""Which format a file has by the end of its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError

if TYPE_CHECKING:
    import os

WHOLE_TRACE = {
    ".ktrace": "ktrace",
    ".json": "chrome",
    ".json.gz": "chrome",
    ".json.zst": "chrome",
    ".perfetto-trace": "perfetto",
    ".perfetto-trace.gz": "perfetto",
    ".pftrace": "perfetto",
    ".pftrace.gz": "perfetto",
    ".memory.html": "memory timeline",
    ".memory.json": "memory timeline",
    ".memory.json.gz": "memory timeline",
    ".memory.raw.json.gz": "memory timeline",
    ".speedscope.json": "speedscope",
    ".speedscope.json.gz": "speedscope",
    ".tables": "tables",
    ".collapsed": "collapsed stacks",
    ".folded": "collapsed stacks",
}
"""The formats that hold a trace, or one view of all of it."""

ONE_TABLE = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
"""The formats that hold one table of a trace."""


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return the suffix that says which format a file has: the longest that fits.

    Raises:
        ArgumentError: There is none.
    """
    name = Path(path).name.lower()
    known = [*WHOLE_TRACE, *ONE_TABLE]
    fitting = [suffix for suffix in known if name.endswith(suffix)]
    if not fitting:
        raise ArgumentError(f"{path}: the suffix names no known format; use one of: {', '.join(known)}")
    return max(fitting, key=len)
