"""Determine the format of a file from its suffix."""

from __future__ import annotations

import os
from pathlib import Path

from kinetoscope._errors import ArgumentError

WHOLE_TRACE = {
    ".ktrace": "ktrace",
    ".json": "chrome",
    ".json.gz": "chrome",
    ".json.zst": "chrome",
    ".memory.json": "memory timeline",
    ".memory.json.gz": "memory timeline",
    ".memory.raw.json.gz": "memory timeline",
    ".speedscope.json": "speedscope",
    ".speedscope.json.gz": "speedscope",
    ".tables": "tables",
    ".collapsed": "collapsed stacks",
    ".folded": "collapsed stacks",
}
"""The formats that contain a trace, or one view of a whole trace."""

ONE_TABLE = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
"""The formats that contain one table of a trace."""


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a path that determines its format, the longest one that matches.

    Raises:
        ArgumentError: No suffix matches.
    """
    name = Path(path).name.lower()
    suffixes = [*WHOLE_TRACE, *ONE_TABLE]
    fitting = [suffix for suffix in suffixes if name.endswith(suffix)]
    if not fitting:
        page = "; kinetoscope.report() writes pages" if name.endswith(".html") else ""
        raise ArgumentError(f"{path}: unknown suffix; use one of: {', '.join(suffixes)}{page}")
    return max(fitting, key=len)
