from kinetoscope.display.text_table import text_table


def test_cells_are_aligned_and_lines_have_no_spaces_at_their_end():
    rows = [("bytes", "name", "where"), ("12", "a", ""), ("1,234", "longer", "train.py:3")]
    assert text_table(rows, "><<") == [
        "  bytes  name    where",
        "     12  a",
        "  1,234  longer  train.py:3",
    ]


def test_a_table_without_rows_has_no_lines():
    assert text_table([], "><") == []
