"""Spans with separate begin and end events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chrome_text import UNFINISHED, lost, read

_NAMES = st.sampled_from("abc")
# A tree of calls on one thread: a name, and what runs inside.
_TREES = st.recursive(
    st.tuples(_NAMES, st.just([])), lambda inner: st.tuples(_NAMES, st.lists(inner, max_size=3)), max_leaves=8
)


def event(phase, name, ts):
    return {"ph": phase, "pid": 1, "tid": 1, "ts": ts} | ({"name": name} if name else {})


def walk(trees, moment):
    """The begin and end events of some calls in the order of time, and the spans that they mean."""
    events, spans = [], []
    for name, inner in trees:
        begin = next(moment)
        events.append(event("B", name, begin))
        inside, within = walk(inner, moment)
        end = next(moment)
        events += [*inside, event("E", name, end)]
        spans += [(name, begin * 1000, (end - begin) * 1000), *within]
    return events, spans


def read_spans(events):
    """The spans as read, with absolute times, and the losses."""
    parts = read(*events)
    columns = parts["spans"]
    rows = zip(*(columns[name].tolist() for name in ("name", "start_ns", "duration_ns")), strict=True)
    spans = sorted((parts["strings"][name], start + parts["base_ns"], length) for name, start, length in rows)
    return spans, lost(parts)


@given(st.lists(_TREES, min_size=1, max_size=4), st.booleans(), st.randoms(use_true_random=False))
def test_every_end_closes_its_own_begin_in_any_order(trees, shuffled, chance):
    events, expected = walk(trees, iter(range(1, 10_000)))
    if shuffled:
        chance.shuffle(events)
    assert read_spans(events) == (sorted(expected), {})


@given(st.lists(_TREES, min_size=1, max_size=4), st.integers(0, 100), st.integers(1, 3))
def test_an_end_without_a_begin_changes_no_span(trees, place, count):
    events, expected = walk(trees, iter(range(2, 20_000, 2)))
    at = place % (len(events) + 1)
    ts = events[at - 1]["ts"] + 1 if at else 1
    events[at:at] = [event("E", "unknown", ts)] * count
    assert read_spans(events) == (sorted(expected), {"unmatched_ends": count})


def test_an_end_before_a_begin_at_the_same_time_makes_it_no_instant():
    events = [event("E", "a", 5), event("B", "a", 5), event("E", "a", 10)]
    assert read_spans(events) == ([("a", 5_000, 5_000)], {"unmatched_ends": 1})


@pytest.mark.parametrize("name", ["a", ""])
def test_a_span_without_a_duration_may_end_before_it_begins(name):
    events = [
        event("B", "outer", 1),
        event("B", "x", 2),
        event("E", "x", 3),
        event("E", "a", 5),
        event("B", "a", 5),
    ]
    if name:
        assert read_spans([*events, event("E", "outer", 9)]) == (
            [("a", 5_000, 0), ("outer", 1_000, 8_000), ("x", 2_000, 1_000)],
            {},
        )
    else:
        assert read_spans([event("E", "", 5), event("B", "a", 5)]) == ([("a", 5_000, 0)], {})


def test_a_begin_without_an_end_is_unfinished_and_said():
    parts = read(event("B", "a", 1), event("B", "b", 2), event("E", "b", 4), event("E", "c", 6))
    assert lost(parts) == {"unmatched_ends": 1, "unfinished_begins": 1}
    assert parts["spans"]["flags"].tolist() == [UNFINISHED, 0]
    assert parts["spans"]["duration_ns"].tolist() == [5_000, 2_000]
