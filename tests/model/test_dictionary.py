import inspect
import re
from pathlib import Path

import pytest

from kinetoscope.formats.execution_trace.read import MATCHES
from kinetoscope.ledger.parts import PARTS, REQUEST_PARTS
from kinetoscope.model import dictionary
from kinetoscope.model.dictionary import Column, Page, Table, page, table_definition
from kinetoscope.model.schema import KIND_NAMES, PHASE_NAMES, SAMPLE_STATES, SAMPLE_WAITS, STORED
from kinetoscope.tables.memory.categories import CATEGORY_NAMES
from kinetoscope.trace.tables import TABLES, maker

ROOT = Path(__file__).parents[2]
FILE = Path(dictionary.__file__).with_name("tables.md")
TEXT = FILE.read_text("utf-8")
GROUPS = ("by place", "grouped", "execution trace", "job", "summary", "viewer", "stored")
PLAIN = """\
# Tables

## runs

A run.

Longest first.

| column | type | unit | default | meaning |
|---|---|---|---|---|
| `time_ns` | int64 | ns | 0 | How long. |
| `name` | category | | | *Derived.* Its name. |

Options:

- `by`: How.

## stored: lanes

A lane.

| column | type | unit | meaning |
|---|---|---|---|
| `lane` | int32 | row of lanes | Its number. |
"""


def options_on_the_page(name: str) -> list[str]:
    """The list of options in the section of a table."""
    section = re.split(r"\n#+ ", TEXT.partition(f"\n## {name}\n")[2])[0]
    return re.findall(r"^- (`\w+`: .*)$", section.partition("\nOptions:\n")[2], re.MULTILINE)


def options_in_the_docstring(name: str) -> list[str]:
    """The arguments of the function that makes a table, as its docstring describes them."""
    _, _, text = (inspect.getdoc(maker(name)) or "").partition("Args:\n")
    arguments = re.split(r"\n    (?=\w+: )", "\n" + text.partition("\n\n")[0])
    described = [" ".join(argument.split()) for argument in arguments if argument.strip()]
    return [re.sub(r"^(\w+): ", r"`\1`: ", text) for text in described if not text.startswith("trace:")]


def test_a_section_is_a_table_and_its_rows_are_columns():
    runs, lanes = (Page(PLAIN).table(heading) for heading in ("runs", "stored: lanes"))
    columns = (
        Column("time_ns", "int64", "ns", "How long.", 0),
        Column("name", "category", "", "Its name.", -1, derived=True),
    )
    assert runs == Table("runs", "A run.", columns)
    assert lanes == Table("lanes", "A lane.", (Column("lane", "int32", "row of lanes", "Its number."),))


CELLS = {"column", "type", "unit", "default", "meaning"}
TYPES = {
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint64", "float64", "bool", "string", "category", "text",
}  # fmt: skip


def mistakes(text):
    """What is wrong on a page, as `line 3: there is ...`."""
    sections = re.split(r"^(?=#+ )", text, flags=re.MULTILINE)
    line, above = 1, set()
    for section in sections:
        heading, lines = section.partition("\n")[0].lstrip("# "), section.split("\n")
        if heading in above:
            yield f"line {line}: there is a section {heading!r} above"
        above.add(heading)
        is_definition = ": " in heading or heading in {"runs", *TABLES}
        if is_definition and not any(part.startswith("|") for part in lines):
            yield f"line {line}: the section {heading!r} has no table"
        elif is_definition and next(filter(None, lines[1:])).startswith("|"):
            yield f"line {line}: the section {heading!r} does not say what a row is"
        yield from mistakes_of_table(lines, line)
        line += len(lines) - 1


def mistakes_of_table(lines, first_line):
    header, names, before = None, set(), ""
    for line, text in enumerate(lines, first_line):
        is_row, before = text.startswith("|") or before.startswith("|"), text
        if not is_row or not text:
            continue
        cells = [cell.strip() for cell in text.split("|")[1:-1]]
        if not text.startswith("|"):
            yield f"line {line}: a row begins with `|`"
        elif not text.endswith("|"):
            yield f"line {line}: a row ends with `|`"
        elif header is None:
            header = cells
            for needed in (
                ("column", "type", "meaning") if "meaning" in header and "code" not in header else ()
            ):
                if needed not in header:
                    yield f"line {line}: the table has no column {needed!r}"
        elif len(cells) != len(header):
            yield f"line {line}: there are {len(cells)} cells instead of {len(header)}"
        elif "column" in header and not set(text) <= set("|-"):
            yield from mistakes_of_row(dict(zip(header, cells, strict=True)), names, line)


def mistakes_of_row(row, names, line):
    for cell in row.keys() - CELLS:
        yield f"line {line}: there is no cell {cell!r}"
    for cell in ("column", "type", "meaning"):
        if not row.get(cell):
            yield f"line {line}: the cell {cell!r} is empty"
    name = row["column"].strip("`")
    if name in names:
        yield f"line {line}: there is a column {name!r} above"
    names.add(name)
    if row["type"] not in TYPES:
        yield f"line {line}: there is no type {row['type']!r}"
    default = row.get("default", "")
    if default and not default.isdecimal():
        yield f"line {line}: the default {default!r} is not a number"


@pytest.mark.parametrize(
    ("right", "wrong", "line", "what"),
    [
        ("| int64 |", "| int65 |", 11, "no type 'int65'"),
        ("`name`", "`time_ns`", 12, "a column 'time_ns' above"),
        ("| ns | 0 |", "| 0 |", 11, "4 cells instead of 5"),
        ("How long.", "", 11, "the cell 'meaning' is empty"),
        ("| 0 |", "| none |", 11, "the default 'none' is not a number"),
        ("How long. |", "How long.", 11, "a row ends with `|`"),
        ("| `name`", "`name`", 12, "a row begins with `|`"),
        ("| unit | default |", "| units | default |", 11, "no cell 'units'"),
        ("| column | type | unit | default |", "| name | type | unit | default |", 9, "no column 'column'"),
        ("stored: lanes", "runs", 18, "a section 'runs' above"),
        ("A run.\n\nLongest first.\n\n", "", 3, "does not say what a row is"),
        ("| column | type | unit | meaning |\n|---|---|---|---|\n| `lane` | int32 | row of lanes | Its number. |\n", "", 18, "has no table"),
    ],
)  # fmt: skip
def test_what_is_wrong_on_a_page_is_found_with_its_line(right, wrong, line, what):
    assert PLAIN.count(right) == 1
    assert not list(mistakes(PLAIN))
    first = next(mistakes(PLAIN.replace(right, wrong)))
    assert first.startswith(f"line {line}: ")
    assert what in first


def test_nothing_is_wrong_on_the_page():
    assert list(mistakes(TEXT)) == []


def test_the_documentation_shows_the_page_itself():
    assert (ROOT / "docs" / "tables.md").read_text("utf-8") == TEXT


def test_every_table_of_a_trace_has_a_section_in_its_order():
    plain = [heading for heading in page().headings if heading in TABLES]
    assert plain == list(TABLES)
    assert [table_definition(name).name for name in TABLES] == list(TABLES)


def test_every_section_with_columns_is_a_table_of_something():
    headings = re.findall(r"^#+ (.+)\n(?:(?!#).*\n)*?\| column \|", TEXT, re.MULTILINE)
    groups = {heading.partition(": ")[0] for heading in headings if ": " in heading}
    assert groups == set(GROUPS)
    assert {heading for heading in headings if ": " not in heading} == {
        *TABLES, "comparison", "comparison_counts",
    }  # fmt: skip
    for heading in headings:
        assert table_definition(heading).columns


def test_units_that_name_rows_name_stored_tables():
    for heading in re.findall(r"^#+ (.+)\n(?:(?!#).*\n)*?\| column \|", TEXT, re.MULTILINE):
        for column in table_definition(heading).columns:
            if column.unit.startswith("row of "):
                assert column.unit.removeprefix("row of ") in {*STORED, "strings"}, (heading, column.name)
            if column.name.endswith(("_ns", "bytes")):
                assert column.unit == ("ns" if column.name.endswith("_ns") else "bytes"), (
                    heading,
                    column.name,
                )


@pytest.mark.parametrize(
    ("heading", "column", "names"),
    [
        ("spans", "kind", KIND_NAMES),
        ("spans", "phase", PHASE_NAMES),
        ("collectives", "phase", PHASE_NAMES),
        ("execution", "phase", PHASE_NAMES),
        ("execution", "match", MATCHES),
        ("samples", "state", SAMPLE_STATES),
        ("samples", "waits_for", SAMPLE_WAITS[1:]),
        ("memory", "category", CATEGORY_NAMES),
        ("memory_peak", "category", CATEGORY_NAMES),
        ("memory_timeline", "category", CATEGORY_NAMES),
        ("viewer: live", "category", CATEGORY_NAMES),
        ("viewer: blocks", "category", CATEGORY_NAMES),
    ],
)
def test_meanings_list_the_names_that_a_column_can_have(heading, column, names):
    assert f"{', '.join(names)}." in table_definition(heading).column(column).meaning


def test_the_introduction_lists_all_kinds_of_spans():
    assert f"The kinds of spans are {', '.join(f'`{kind}`' for kind in KIND_NAMES)}.\n" in TEXT


@pytest.mark.parametrize("heading", ["breakdown", "steps", "requests", "request_names", "summary: steps", "job: ranks", "job: coordinates"])  # fmt: skip
def test_tables_of_time_have_its_parts_in_their_order(heading):
    parts = REQUEST_PARTS if heading.startswith("request") else PARTS
    columns = table_definition(heading).column_names
    first = columns.index(parts[0])
    assert columns[first : first + len(parts)] == parts


@pytest.mark.parametrize("name", TABLES)
def test_options_are_those_of_the_function_and_its_docstring(name):
    _, *options = inspect.signature(maker(name)).parameters
    assert [re.match(r"`(\w+)`", text)[1] for text in options_on_the_page(name)] == options
    assert options_on_the_page(name) == options_in_the_docstring(name)
