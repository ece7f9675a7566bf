"""The tables of operators in this folder, which are text files, and lists of names."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class TableLine(NamedTuple):
    """A line `title: names` of a table, and the section that it is in."""

    section: str
    title: str
    names: tuple[str, ...]


def table(file: str) -> list[TableLine]:
    """Read a table: sections in brackets, comments, and lines, which may go on in indented ones."""
    lines: list[TableLine] = []
    section = ""
    text = Path(__file__).with_name(file).read_text("utf-8")
    for line in text.replace("\n    ", " ").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            title, _, listed = line.partition(": ")
            lines.append(TableLine(section, title, tuple(listed.split())))
    return lines


def names(text: str) -> frozenset[str]:
    """Split a text at white space."""
    return frozenset(text.split())
