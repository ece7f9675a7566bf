"""The names of the ranges that mark requests: whatever a request is called, its marks say what they are."""

import json

from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.marks import STATUSES, parse_mark, request_names_in
from tests.support.request_marks import begin_mark, end_mark, run_mark, submit_mark

NAMES = st.one_of(
    st.text().map(lambda text: " ".join(text.split())),
    st.sampled_from(["submitted", "ended error", "a {", 'a {"b": 1', "#3: x", "kinetoscope.request #1"]),
)
OBJECTS = st.dictionaries(st.text(), st.integers() | st.text() | st.none(), min_size=1, max_size=3).map(
    json.dumps
)


@given(st.integers(0, 10**9), NAMES, st.just("") | OBJECTS)
def test_a_beginning_says_the_name_and_the_arguments(number, name, arguments):
    mark = parse_mark(begin_mark(number, name, arguments))
    assert (mark.number, mark.what, mark.status) == (number, "begin", "")
    if not name.rstrip().endswith("}"):
        assert (mark.name, mark.arguments) == (name or "-", arguments)


@given(st.integers(0, 10**9), st.sampled_from(STATUSES), st.just("") | OBJECTS)
def test_the_other_marks_say_what_they_are(number, status, arguments):
    assert parse_mark(run_mark(number)) == (number, "run", "", "", "")
    assert parse_mark(submit_mark(number)) == (number, "submit", "", "", "")
    assert parse_mark(end_mark(number, status, arguments)) == (number, "end", "", status, arguments)


@given(st.text())
def test_other_ranges_are_no_marks(text):
    for name in (
        text,
        f"kinetoscope.request {text}",
        f"kinetoscope.request #1 {text}",
        f"kinetoscope.request #1 ended error {text}",
    ):
        mark = parse_mark(name)
        assert mark is None or name in (
            run_mark(mark.number), submit_mark(mark.number), end_mark(mark.number, mark.status, mark.arguments)
        ) or mark.what == "begin"  # fmt: skip


def test_request_names_are_found_among_all_strings():
    assert request_names_in(["", "aten::mm", run_mark(2), "kinetoscope.requests"]) == [2]
