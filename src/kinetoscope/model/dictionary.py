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

_HEADING = re.compile(r"\n#+ (.+)")
_TABLE_ROW = re.compile(r"\n\|(.*)\|")
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
    """A page that defines tables. It is a part of the package: `tests/model/test_dictionary.py` says what may be wrong on it, and where."""

    def __init__(self, text: str) -> None:
        headings = list(_HEADING.finditer(text))
        ends = [*(match.start() for match in headings[1:]), len(text)]
        self._sections = {
            match[1]: text[match.end() : end] for match, end in zip(headings, ends, strict=True)
        }

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of all sections, in the order of the page."""
        return tuple(self._sections)

    def table(self, heading: str) -> Table:
        """Return the table that a section defines.

        Raises:
            KeyError: There is no such section.
        """
        columns = tuple(
            Column(
                cells["column"].strip("`"),
                cells["type"],
                cells.get("unit", ""),
                cells["meaning"].removeprefix(_DERIVED),
                int(cells.get("default") or -1),
                cells["meaning"].startswith(_DERIVED),
            )
            for cells in self.rows(heading)
        )
        row = self._sections[heading].lstrip("\n").partition("\n")[0]
        return Table(heading.rpartition(": ")[2], row, columns)

    def rows(self, heading: str) -> list[dict[str, str]]:
        """The rows of the Markdown table of a section: cells by the names in its first row."""
        lines = _TABLE_ROW.findall(self._sections[heading])
        header, _, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
        return [dict(zip(header, cells, strict=True)) for cells in rows]


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
