import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.collect.sources.execution_trace import mended
from tests.support.execution_trace_text import file_text, node_text, side
from tests.support.strict_json import read_strictly


def mend(text: str | bytes) -> dict:
    content = text.encode() if isinstance(text, str) else text
    return read_strictly("".join(mended(content.splitlines(keepends=True))))


def test_a_valid_file_keeps_every_node_and_key():
    done = mend(file_text(node_text(3, "aten::add", 2, rf_id=7), node_text(2, "thread", 1)))
    assert [(node["id"], node["name"], node["ctrl_deps"]) for node in done["nodes"]] == [
        (3, "aten::add", 2), (2, "thread", 1), (1, "[pytorch|profiler|execution_trace|process]", 1),
    ]  # fmt: skip
    assert done["schema"] == "1.1.1-chakra.0.0.4"
    assert (done["pid"], done["start_ts"], done["finish_ts"]) == (4242, 5, 9)


@pytest.mark.parametrize(
    "name",
    [
        'he said "hi"',
        "C:\\new",
        "tab\tx",
        "two\nlines",
        "ctl\x01",
        'a", "b',
        "{",
        "}",
        "\\",
        "é 💥",
        "\\u0041",
    ],
)
def test_a_name_means_what_stands_there(name):
    done = mend(file_text(node_text(2, name, 1, rf_id=3)))
    assert done["nodes"][0]["name"] == name


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_name_survives(name):
    assert mend(file_text(node_text(2, name, 1)))["nodes"][0]["name"] == name


def test_escapes_of_single_bytes_become_characters():
    broken = file_text(node_text(2, "range", 1, side(["@"], [[]], ["String"], [[]])))
    done = mend(broken.replace('"@"', '"h\\uffffffc3\\uffffffa9"'))
    assert done["nodes"][0]["inputs"]["values"] == ["hé"]


def test_bytes_that_are_no_text_are_replaced():
    done = mend(file_text(node_text(2, "na@me", 1)).encode().replace(b"@", b"\xff"))
    assert done["nodes"][0]["name"] == "na\ufffdme"
