"""The one list of what time is spent on: every table and page has its names from there."""

import ast
import json
from pathlib import Path

import pytest

from kinetoscope.ledger import parts
from kinetoscope.model.time_spent import CAUSES, ENTRIES, PARTS, Cause, part_words, words_of

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "kinetoscope"
LIST = SOURCES / "model" / "time_spent.py"
# Names that are no ordinary words: where one of them stands as a whole text, there is a second list.
DISTINCT = {text for text in (*PARTS.values(), *CAUSES) if text.startswith("waiting for ")}


def texts(path):
    """The whole string constants of a module."""
    tree = ast.parse(path.read_text("utf-8"))
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_no_other_module_names_a_wait():
    named = {
        path.relative_to(SOURCES): texts(path) & DISTINCT for path in SOURCES.rglob("*.py") if path != LIST
    }
    assert {path: names for path, names in named.items() if names} == {}


def test_the_page_names_no_wait_by_itself():
    for path in (ROOT / "web" / "src").rglob("*.ts*"):
        page = path.read_text("utf-8").lower()
        assert not [name for name in DISTINCT if f'"{name}"' in page], path


@pytest.mark.parametrize("columns", [parts.REQUEST_PARTS])
def test_every_part_of_a_table_has_its_name_there(columns):
    names = [part_words(column) for column in columns]
    assert len(set(names)) == len(names)


def test_names_differ():
    assert len(set(CAUSES)) == len(Cause) == len(CAUSES)
    assert len(set(ENTRIES)) == len(ENTRIES)
    # Two columns say "operators": of steps, and of requests.
    assert len(set(PARTS.values())) == len(PARTS) - 1


def test_time_with_a_cause_is_called_by_it():
    assert words_of("waiting", Cause.PROCESSOR.words) == PARTS["processor_wait"]
    assert words_of("slow", "") == "slow operators"
    assert words_of("python", None) == "Python"


def test_each_text_about_a_cause_is_of_a_cause():
    described = json.loads((LIST.parent / "causes.json").read_text("utf-8"))
    assert {name for name, texts in described.items() if texts.keys() <= {"advice", "does"}} == set(described)
    assert set(described) == {cause.words for cause in Cause if cause.advice}
