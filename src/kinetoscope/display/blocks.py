"""Blocks of text and tables, composed once and rendered for a terminal, or as HTML, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kinetoscope.display.sentence import Sentence, plain, printable
from kinetoscope.model import units

Cell = float | str | None

STRONG, FAINT, GOOD, WARNING, ERROR = "strong", "faint", "good", "warning", "error"
"""Tones of a text."""
STYLES = {"": "", STRONG: "bold", FAINT: "dim", GOOD: "green", WARNING: "yellow", ERROR: "bold red"}
"""The styles of the tones on a terminal."""


@dataclass(frozen=True)
class Heading:
    """The heading of the blocks that follow.

    Attributes:
        text: Their subject, such as the name of a program.
    """

    text: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph.

    Attributes:
        text: A text, or a sentence with separate numbers.
        label: A label in a column before it; empty below another one's label, None without that column.
        tone: `STRONG`, `FAINT`, `GOOD`, `WARNING`, `ERROR` or empty.
        most_lines: The most lines on a terminal; 0 for all.
    """

    text: str | Sentence
    label: str | None = None
    tone: str = ""
    most_lines: int = 0

    @property
    def written(self) -> str:
        """Its text with its numbers. A sentence is always one line."""
        return self.text if isinstance(self.text, str) else printable(plain(self.text))


@dataclass(frozen=True)
class Chart(Paragraph):
    """Values in order, such as the durations of steps, with a paragraph about them.

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
        meaning: Its description, for tooltips.
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
        title: The title, if the first heading is not enough.
        bars: For each row the begin and the length of its bar, as shares of a full one; empty without bars.
        importance: The rows by descending importance; empty if they are in that order.
        always: How many of the last rows are always shown.
        most_rows: The most other rows that a terminal shows; 0 for as many as fit.
        least_rows: The fewest other rows that it shows, even if other tables do not fit.
        total: The number of all rows, including those that are not here.
        says_total: Whether the first heading says how many rows are shown, if not all are.
        name: The table of `Trace.table` that has the others.
        rest: A line below it.
        dispensable: Columns that are left out of a narrow table, in this order.
        narrowest: Texts are shortened to this width before columns are left out.
        hint: A text after the names of columns that are left out.
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
        """The rows to show if there is room for `most`, in their order; None for all."""
        if most is None:
            return list(range(len(self.rows)))
        first = len(self.rows) - self.always
        chosen = sorted((self.importance or tuple(range(first)))[:most])
        return [*chosen, *range(first, len(self.rows))] if most else []

    def headings(self, shown: int) -> list[str]:
        """The headings of the columns if `shown` rows are shown."""
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
        """A text about the rows that are not shown, and where they are; empty if there are none."""
        more = self.total - shown + self.always
        return f'table("{self.name}") has {more:,} more' if more > 0 and self.name else ""


Block = Heading | Paragraph | Chart | TableBlock
GAP = Paragraph("")
"""An empty line."""


def as_json(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Blocks as JSON values: the name of each in `block`, and its attributes."""
    return [
        {"block": type(block).__name__.removesuffix("Block").lower(), **asdict(block)} for block in blocks
    ]


def as_markdown(blocks: Sequence[Block]) -> str:
    """Blocks as Markdown, with all rows of tables."""
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
