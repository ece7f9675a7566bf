"""What a screen says, as data: it is composed of these blocks once, and rendered to lines of a terminal, HTML, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kinetoscope.display.sentence import Sentence, plain, printable
from kinetoscope.model import units

Cell = float | str | None

STRONG, FAINT, GOOD, WARNING, ERROR = "strong", "faint", "good", "warning", "error"
"""How a text is shown."""
STYLES = {"": "", STRONG: "bold", FAINT: "dim", GOOD: "green", WARNING: "yellow", ERROR: "bold red"}
"""The same on a terminal."""


@dataclass(frozen=True)
class Heading:
    """What follows is about this.

    Attributes:
        text: What it is about, such as the name of a program.
    """

    text: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph.

    Attributes:
        text: What it says, with or without its numbers apart.
        label: What stands before it, in a column of its own; empty below another one's label, None without that column.
        tone: `STRONG`, `FAINT`, `GOOD`, `WARNING`, `ERROR` or empty.
        most_lines: How many lines of a terminal it takes at most; 0 for all.
    """

    text: str | Sentence
    label: str | None = None
    tone: str = ""
    most_lines: int = 0

    @property
    def written(self) -> str:
        """Its text with its numbers in it. A sentence is one line, whatever names it has."""
        return self.text if isinstance(self.text, str) else printable(plain(self.text))


@dataclass(frozen=True)
class Chart(Paragraph):
    """Values in their order, such as the durations of steps, with a paragraph that says what they are.

    Attributes:
        values: The values.
    """

    tone: str = STRONG
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class BlockColumn:
    """A column of a table.

    Attributes:
        heading: Its heading.
        unit: The unit of its numbers: `ns`, `bytes`, `%`, `id` or, of counts, empty. Texts stay as they are.
        is_text: Whether it is aligned to the left.
        meaning: What it says, where there is a way to show that apart.
    """

    heading: str
    unit: str = ""
    is_text: bool = False
    meaning: str = ""


@dataclass(frozen=True)
class TableBlock:
    """Rows of values.

    Attributes:
        columns: The columns.
        rows: A value for each column; None where there is none.
        title: What stands above it, unless the first heading says it.
        bars: For each row where its bar begins and how long it is, as shares of a full one; empty without bars.
        importance: The rows from the most important on; empty where they are in that order.
        always: How many of the last rows are shown even where others are left out.
        most_rows: How many of the other rows a terminal shows at most; 0 for as many as there is room for.
        least_rows: How many of them it shows at least, even where there is no room for other tables.
        total: How many rows there are, these included.
        says_total: Whether the first heading says how many of these are shown, where not all are.
        name: The table of `Trace.table` that has the others.
        rest: What is said below it.
        dispensable: Columns that are left out of a narrow table, in this order.
        narrowest: Texts are cut down to this width before columns are left out.
        hint: What stands behind the names of columns that are left out.
    """

    columns: tuple[BlockColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    bars: tuple[tuple[float, float], ...] = ()
    importance: tuple[int, ...] = ()
    always: int = 0
    most_rows: int = 0
    least_rows: int = 0
    total: int = 0
    says_total: bool = False
    name: str = ""
    rest: str = ""
    dispensable: tuple[int, ...] = ()
    narrowest: int = 24
    hint: str = ""

    def largest(self, most: int | None) -> list[int]:
        """The rows to show where there is room for so many, in their order; None for all."""
        if most is None:
            return list(range(len(self.rows)))
        first = len(self.rows) - self.always
        chosen = sorted((self.importance or tuple(range(first)))[:most])
        return [*chosen, *range(first, len(self.rows))] if most else []

    def headings(self, shown: int) -> list[str]:
        """The headings of the columns where so many rows are shown."""
        first, *others = (column.heading for column in self.columns)
        left_out = self.says_total and shown < self.total
        return [f"{first} ({shown} of {self.total})" if left_out else first, *others]

    def texts(self, row: int) -> list[str]:
        """The cells of a row, each in its unit."""
        return [
            units.written(value, column.unit)
            for value, column in zip(self.rows[row], self.columns, strict=True)
        ]

    def left_out(self, shown: int) -> str:
        """How many more rows there are than are shown, and where; empty if these are all."""
        more = self.total - shown + self.always
        return f'table("{self.name}") has {more:,} more' if more > 0 and self.name else ""


Block = Heading | Paragraph | Chart | TableBlock
GAP = Paragraph("")
"""An empty line."""


def as_json(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Blocks as values that JSON has: the name of each in `block`, and its attributes."""
    return [
        {"block": type(block).__name__.removesuffix("Block").lower(), **asdict(block)} for block in blocks
    ]


def as_markdown(blocks: Sequence[Block]) -> str:
    """Blocks as Markdown; of a table all rows."""
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"### {block.text}")
        elif isinstance(block, TableBlock):
            parts.append(_markdown_table(block))
        else:
            parts.append(f"{block.label or ''} {block.written}".strip())
    return "\n\n".join(filter(None, parts))


def _markdown_table(table: TableBlock) -> str:
    """A table as Markdown, in which a name cannot break out of its cell."""
    lines = [table.headings(len(table.rows))]
    lines.append(["---" if column.is_text else "---:" for column in table.columns])
    lines += [
        [printable(text).replace("|", "\\|") for text in table.texts(row)] for row in range(len(table.rows))
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
