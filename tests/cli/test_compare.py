"""`kinetoscope compare`."""

import pytest

from tests.cli.conftest import training_trace
from tests.support.strict_json import read_strictly


@pytest.fixture
def sides(tmp_path):
    """Two folders with two recordings each, the second ones with one more operator in each step."""
    for side in ("base", "new"):
        (tmp_path / side).mkdir()
        for number in range(2):
            builder = training_trace()
            if side == "new":
                builder.span("aten::relu", 4_200_000, 100_000).span("aten::relu", 14_200_000, 100_000)
            builder.build().save(tmp_path / side / f"{number}.ktrace")
    return tmp_path


def test_folders_of_recordings_are_compared(call, sides):
    done = call("compare", str(sides / "base"), str(sides / "new"))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("base  2 recordings: ")
    assert "  operators" in done.stdout
    assert "aten::relu" in done.stdout


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_a_terminal_gets_lines_that_fit(call, sides, columns):
    done = call("compare", str(sides / "base"), str(sides / "new"), columns=columns)
    lines = done.stdout.splitlines()
    folders = [line for line in lines if line.startswith(("base  ", "new   "))]
    assert max(len(line) for line in lines if line not in folders) <= columns
    (row,) = (line for line in lines if line.startswith("  aten::relu"))
    assert row.endswith("added")
    assert any("columns that do not fit: " in line for line in lines) is (columns == 60)


def test_patterns_and_single_files_are_taken(call, sides):
    done = call("compare", str(sides / "base" / "*.ktrace"), str(sides / "new" / "0.ktrace"), "--json")
    assert done.exit_code == 0
    values = read_strictly(done.stdout)
    assert len(values["base"]["recordings"]) == 2
    assert {one["name"] for one in values["counts"] if one["verdict"] == "more"} == {"operators"}


def test_the_page_of_the_comparison_is_written(call, sides):
    page = sides / "page.html"
    assert call("compare", str(sides / "base"), str(sides / "new"), "--html", str(page)).exit_code == 0
    text = page.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert '"compare/times"' in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere-*.ktrace", "new"), "no file has a name of this pattern"),
        (("empty", "new"), "the folder has no trace"),
        (("base", "new", "--least", "soon"), "'soon' is not a time"),
        (("base", "new", "--percent", "-1"), "percent=-1.0"),
    ],
)
def test_what_cannot_be_compared_is_one_line(call, sides, monkeypatch, arguments, said):
    monkeypatch.chdir(sides)
    (sides / "empty").mkdir()
    done = call("compare", *arguments)
    assert done.exit_code == 1
    assert said in done.stderr
