import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import FormatError
from kinetoscope.formats.execution_trace.mend import write_mended
from tests.support.execution_trace_text import file_text, node_text, side
from tests.support.strict_json import read_strictly


def mend(text: str | bytes) -> dict:
    target = io.BytesIO()
    write_mended(io.BytesIO(text.encode() if isinstance(text, str) else text), target)
    return read_strictly(target.getvalue().decode())


def test_a_valid_file_keeps_every_node_and_key():
    done = mend(file_text(node_text(3, "aten::add", 2, rf_id=7), node_text(2, "thread", 1)))
    assert [(node["id"], node["name"], node["ctrl_deps"]) for node in done["nodes"]] == [
        (3, "aten::add", 2), (2, "thread", 1), (1, "[pytorch|profiler|execution_trace|process]", 1),
    ]  # fmt: skip
    assert done["schema"] == "1.1.1-chakra.0.0.4"
    assert (done["pid"], done["start_ts"], done["finish_ts"]) == (4242, 5, 9)
    assert done["kinetoscope"] == {"nodes": 3, "lost": {}}


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
    assert done["kinetoscope"]["lost"] == {}


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


def test_a_killed_process_loses_its_last_node_and_says_so():
    whole = file_text(node_text(3, "a", 2), node_text(2, "b", 1), end=False)
    done = mend(whole[: whole.rindex('"outputs"')])
    assert [node["id"] for node in done["nodes"]] == [3]
    assert done["kinetoscope"]["lost"] == {"unreadable_nodes": 1, "end": 1}


def test_a_file_that_breaks_off_before_the_first_node_is_empty_and_valid():
    done = mend(file_text(end=False).removesuffix(",\n"))
    assert done["nodes"] == []
    assert done["kinetoscope"]["lost"] == {"end": 1}


@pytest.mark.parametrize("text", ["", "{}", '{"traceEvents": []}', "[1, 2]\n", "\n" * 10])
def test_what_is_no_execution_trace_is_refused(text):
    with pytest.raises(FormatError, match="does not begin"):
        mend(text)


@given(st.binary(max_size=60), st.integers(0, 2000), st.integers(0, 60))
def test_whatever_was_damaged_the_result_is_valid(junk, place, length):
    whole = file_text(*(node_text(number, f"op{number}", 1, rf_id=number) for number in range(2, 5))).encode()
    start = whole.index(b'"nodes"') + 12
    place = start + place % (len(whole) - start)
    done = mend(whole[:place] + junk + whole[place + length :])
    assert done["kinetoscope"]["nodes"] == len(done["nodes"])
