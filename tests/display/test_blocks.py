"""One description, and what each renderer makes of it."""

import json

from kinetoscope.display.blocks import (
    WARNING,
    BlockColumn,
    Chart,
    Heading,
    Paragraph,
    TableBlock,
    as_json,
    as_markdown,
)
from kinetoscope.display.html import as_html
from kinetoscope.display.lines import lines_of, plain_lines
from kinetoscope.display.sentence import sentence

COLUMNS = (
    BlockColumn("operators", is_text=True),
    BlockColumn("self", "ns"),
    BlockColumn("share", "%"),
    BlockColumn("calls"),
)
ROWS = (("aten::mm", 75_000_000, 75.0, 1000), ("漢字|x", 25_000_000, 25.0, 2), ("(other)", 0, None, 0))
TABLE = TableBlock(COLUMNS, ROWS, bars=((0, 0.75), (0.75, 0.25), (0, 0)), always=1, total=9, name="ops")
BLOCKS = (
    Heading("train.py"),
    Paragraph(sentence("{} recorded, {} steps", (100_000_000, "ns"), 4)),
    Chart(sentence("{} each", (25_000_000, "ns")), values=(1.0, 2.0)),
    Paragraph("slow <b>", "1.", WARNING),
    Paragraph("change it", ""),
    TABLE,
)


def test_every_renderer_writes_the_same_numbers_in_their_units():
    lines = "\n".join(plain_lines(BLOCKS, 100))
    for written in (lines, as_html(BLOCKS), as_markdown(BLOCKS)):
        for text in ("train.py", "100 ms recorded, 4 steps", "25 ms each", "75 ms", "75.0 %", "1,000"):
            assert text in written
    assert "slow &lt;b&gt;" in as_html(BLOCKS)
    assert r"| 漢字\|x | 25 ms | 25.0 % | 2 |" in as_markdown(BLOCKS)


def test_json_has_the_numbers_themselves():
    found = json.loads(json.dumps(as_json(BLOCKS)))
    assert [one["block"] for one in found] == [
        "heading",
        "paragraph",
        "chart",
        "paragraph",
        "paragraph",
        "table",
    ]
    assert found[1]["text"] == {"text": "{} recorded, {} steps", "values": [[100_000_000, "ns"], [4, ""]]}
    assert found[5]["rows"][0] == ["aten::mm", 75_000_000, 75.0, 1000]


def test_labels_stand_in_one_column_and_texts_beside_them():
    blocks = (Paragraph("one two three", "1."), Paragraph("four", ""), Paragraph("five"))
    assert plain_lines(blocks, 10) == ["1. one two", "   three", "   four", "five"]


def test_bars_stand_at_the_right_edge_and_names_take_the_rest():
    header, *lines = plain_lines([TABLE], 80)
    assert header == "operators" + " " * 20 + "self   share  calls"
    assert lines[1] == "漢字|x" + " " * 22 + "25 ms  25.0 %      2  " + " " * 22 + "███████▌"


def test_with_less_room_a_table_has_its_most_important_rows_and_those_at_its_end():
    rows = (("a", 1), ("b", 3), ("c", 2), ("all", 6))
    table = TableBlock(
        (BlockColumn("", is_text=True), BlockColumn("")), rows, importance=(1, 2, 0), always=1, most_rows=2
    )
    assert [table.largest(most) for most in (None, 0, 1, 2)] == [[0, 1, 2, 3], [], [1, 3], [1, 2, 3]]
    texts = [line.plain.split()[0] for line in lines_of([table], 80, rows=9, most_lines=9)]
    assert texts == ["b", "c", "all"]
    assert [line.plain.split()[0] for line in lines_of([table], 80, rows=9, most_lines=2)] == ["b", "all"]
