"""The formats in which a trace is saved, and which of them a suffix selects."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kinetoscope._errors import ArgumentError


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        name: Its name.
        suffixes: The suffixes that select it.
        purpose: What it is for, as `kinetoscope convert --help` says it.
    """

    name: str
    suffixes: tuple[str, ...]
    purpose: str


OF_A_TRACE = (
    Format("ktrace", (".ktrace",), "Kinetoscope's own format: small and complete"),
    Format(
        "chrome",
        (".json", ".json.gz", ".json.zst"),
        "Perfetto, chrome://tracing, and tools that read Kineto traces",
    ),
    Format(
        "memory timeline",
        (".memory.json", ".memory.json.gz"),
        "memory by category over time, as torch writes it",
    ),
    Format("memory events", (".memory.raw.json.gz",), "each allocation and free, as torch writes it"),
    Format("speedscope", (".speedscope.json", ".speedscope.json.gz"), "speedscope"),
    Format("collapsed stacks", (".collapsed", ".folded"), "flame graphs of Python stacks"),
    Format("tables", (".tables",), "a folder with all tables as Parquet"),
)
"""The formats that contain a trace, or one view of a whole trace."""

OF_A_TABLE = (
    Format("parquet", (".parquet",), "one table, for pandas, polars, DuckDB and others"),
    Format("arrow", (".arrow", ".feather"), "one table as an Arrow file"),
)
"""The formats that contain one table of a trace."""

WHOLE_TRACE = {suffix: form for form in OF_A_TRACE for suffix in form.suffixes}
ONE_TABLE = {suffix: form for form in OF_A_TABLE for suffix in form.suffixes}


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
