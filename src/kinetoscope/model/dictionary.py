"""The dictionary of tables: the page `tables.md` beside this module says what each table and each of its columns is.

The page is the definition, and what people read: it is a link to `docs/tables.md`. A section defines a table: its heading is the name of
the table, behind a word and a colon where several tables have the name (`stored: spans`); its first paragraph says what a row is; each row of
its Markdown table is a column. Cells `unit` and `default` may be empty, and the column `default` left out. A section is read when its table is first used.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope._errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADING = re.compile(r"\n#+ (.+)")
_TABLE_ROW = re.compile(r"\n\|(.*)")
_CUT_ROW = re.compile(r"\|\n[^|\n]")
_TYPES = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint64",
    "float64",
    "bool",
    "string",
    "category",
    "text",
]
_CELLS = {"column", "type", "unit", "default", "meaning"}
_DERIVED = "*Derived.* "


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Its name, with the unit where it has one (`start_ns`, `bytes`).
        type: A numpy type name, `text` (a list of strings), or for tables people see also `string` and `category`.
        unit: `ns`, `bytes`, `row of <table>`, or empty.
        meaning: One sentence for the reader of the table.
        default: The value of every row where a source does not know the column; also what is shown as null.
        derived: True when it is computed from other columns on first use and not stored in files.
    """

    name: str
    type: str
    unit: str
    meaning: str
    default: int = -1
    derived: bool = False


@dataclass(frozen=True)
class Table:
    """One table: its name, what a row is, and its columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """Return the definition of one column, or raise `KeyError`."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns in order."""
        return tuple(column.name for column in self.columns)


class Page:
    """A page that defines tables. What is wrong on it is a `FormatError` that names the line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._sections: dict[str, tuple[int, int]] = {}
        headings = [(match[1], match.start(1), match.end()) for match in _HEADING.finditer(text)]
        ends = [*(start for _, start, _ in headings[1:]), len(text)]
        for (heading, start, body), end in zip(headings, ends, strict=True):
            if heading in self._sections:
                raise self._error(start, f"there is a section {heading!r} above")
            self._sections[heading] = body, end

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of all sections, in the order of the page."""
        return tuple(self._sections)

    def table(self, heading: str) -> Table:
        """Return the table that a section defines.

        Raises:
            KeyError: There is no such section.
        """
        columns: dict[str, Column] = {}
        for offset, cells in self.rows(heading, "column", "type", "meaning"):
            name, type_, meaning = cells["column"].strip("`"), cells["type"], cells["meaning"]
            default = cells.get("default", "")
            if unknown := cells.keys() - _CELLS:
                raise self._error(
                    offset, f"there is no cell {unknown.pop()!r}: the cells are {', '.join(sorted(_CELLS))}"
                )
            if name in columns:
                raise self._error(offset, f"there is a column {name!r} above")
            if type_ not in _TYPES:
                raise self._error(offset, f"there is no type {type_!r}: use one of {', '.join(_TYPES)}")
            if default and not default.isdecimal():
                raise self._error(offset, f"the default {default!r} is not a number")
            derived = meaning.startswith(_DERIVED)
            sentence = meaning.removeprefix(_DERIVED)
            columns[name] = Column(name, type_, cells.get("unit", ""), sentence, int(default or -1), derived)
        start, end = self._sections[heading]
        row = self._text[start:end].lstrip("\n").partition("\n")[0]
        if row.startswith("|"):
            raise self._error(start, f"the section {heading!r} does not say what a row is")
        return Table(heading.rpartition(": ")[2], row, tuple(columns.values()))

    def rows(self, heading: str, *needed: str) -> Iterator[tuple[int, dict[str, str]]]:
        """The rows of the Markdown table of a section, each with its offset in the text: cells by the names in its first row.

        Args:
            heading: The heading of the section.
            needed: Columns of which no cell may be empty.
        """
        offset, end = self._sections[heading]
        if cut := _CUT_ROW.search(self._text, offset, end):
            raise self._error(cut.end(), "a row begins with `|`")
        header: list[str] = []
        for number, line in enumerate(_TABLE_ROW.finditer(self._text, offset, end)):
            offset = line.start(1)
            *cells, after = (cell.strip() for cell in line[1].split("|"))
            if after:
                raise self._error(offset, "a row ends with `|`")
            if number == 0:
                header = cells
                if missing := [name for name in needed if name not in header]:
                    raise self._error(offset, f"the table has no column {missing[0]!r}")
            elif len(cells) != len(header):
                raise self._error(offset, f"there are {len(cells)} cells instead of {len(header)}")
            elif number > 1:
                row = dict(zip(header, cells, strict=True))
                if empty := [name for name in needed if not row[name]]:
                    raise self._error(offset, f"the cell {empty[0]!r} is empty")
                yield offset, row
        if not header:
            raise self._error(offset, f"the section {heading!r} has no table")

    def _error(self, offset: int, what: str) -> FormatError:
        line = self._text.count("\n", 0, offset) + 1
        return FormatError(f"tables.md, line {line}: {what}")


@functools.cache
def page() -> Page:
    """Return the page `tables.md`, read once."""
    return Page(Path(__file__).with_name("tables.md").read_text("utf-8"))


@functools.cache
def table_definition(heading: str) -> Table:
    """Return a table by the heading of its section on the page.

    Raises:
        KeyError: There is no such section.
    """
    return page().table(heading)


def tables_of(group: str) -> dict[str, Table]:
    """Return the tables, by name, of all sections whose headings begin with a word and a colon."""
    prefix = f"{group}: "
    return {
        heading.removeprefix(prefix): table_definition(heading)
        for heading in page().headings
        if heading.startswith(prefix)
    }
