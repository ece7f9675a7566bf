"""Calls rebuilt from operators, against a simple model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core

PATHS = [[], [0], [0, 1], [0, 1, 2], [0, 3], [4, 1]]
"""The keys of the calls around an operator, outermost first; a call has as many frames around it as calls."""


def arrays(rows, paths=PATHS):
    threads, starts, durations, path, kept = (
        (list(column) for column in zip(*rows, strict=True)) if rows else [[]] * 5
    )
    begins = np.cumsum([0, *map(len, paths)])
    return (
        np.array(threads, np.int32), np.array(starts, np.int64), np.array(durations, np.int64), np.array(path, np.int32),
        np.array(kept, np.uint16), begins.astype(np.int32), np.array([key for one in paths for key in one], np.int32),
        np.array([frames for one in paths for frames in range(len(one))], np.int32),
    )  # fmt: skip


def plain(rows):
    """Return the calls as (thread, key, depth, start, end, unsure)."""
    found, open_ = [], []

    def close(keep, thread, now):
        while len(open_) > keep:
            key, start, end, unsure, worked = open_.pop()
            if not worked:
                continue
            if open_:
                open_[-1][2] = max(open_[-1][2], end)
                open_[-1][4] = True
            found.append((thread, key, len(open_), start, min(end, now), unsure))

    thread, present = None, None
    for on, start, duration, path, kept in rows:
        if on != thread:
            close(0, thread, 10**9)
            thread, present = on, None
        went_on, unsure = (kept & 0x3FF) - 1, kept >> 10
        if path != present or went_on >= 0:
            same = 0
            while same < min(len(open_), len(PATHS[path])) and open_[same][0] == PATHS[path][same]:
                if went_on >= 0 and same >= went_on:
                    break
                same += 1
            close(same, thread, start)
            for place, call in enumerate(open_):
                call[3] |= unsure > 0 and place >= went_on - unsure
            open_ += [[key, start, start, False, False] for key in PATHS[path][same:]]
            present = path
        if open_ and duration >= 0:
            open_[-1][2] = max(open_[-1][2], start + duration)
            open_[-1][4] = True
    close(0, thread, 10**9)
    return found


operators = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 30), st.integers(-1, 30), st.integers(0, len(PATHS) - 1),
        st.builds(lambda went_on, unsure: went_on | unsure << 10, st.integers(0, 4), st.integers(0, 3)),
    ),
    max_size=12,
).map(sorted)  # fmt: skip


@given(operators)
def test_calls_are_those_of_a_plain_walk(rows):
    made = _core.rebuild_calls(*arrays(rows))
    keys = arrays(rows)[6]
    found = list(
        zip(
            made["thread"].tolist(), keys[made["step"]].tolist(), made["depth"].tolist(), made["start_ns"].tolist(),
            (made["start_ns"] + made["duration_ns"]).tolist(), map(bool, made["unsure"].tolist()), strict=True,
        )
    )  # fmt: skip
    assert found == plain(rows)


def test_two_calls_from_one_place_are_two():
    made = _core.rebuild_calls(*arrays([(0, 0, 10, 2, 0), (0, 20, 10, 2, 2), (0, 40, 10, 2, 3)]))
    assert made["start_ns"].tolist() == [0, 20, 0]
    assert made["duration_ns"].tolist() == [10, 30, 50]


def test_what_has_no_duration_is_no_work_of_the_calls_it_began_in():
    made = _core.rebuild_calls(*arrays([(0, 0, -1, 3, 0), (0, 20, 10, 2, 2), (0, 40, -1, 3, 2)]))
    assert made["start_ns"].tolist() == [20, 0]
    assert made["duration_ns"].tolist() == [10, 30]


@pytest.mark.parametrize(
    ("place", "values", "words"),
    [
        (0, [0, 0], "different lengths"),
        (3, [len(PATHS)], "is out of range"),
        (3, [-1], "is out of range"),
        (5, [0, 5, 4], "path_begin is not ascending"),
        (5, [0, 99], "path_begin is not ascending"),
        (5, [], "path_begin is empty, or key"),
        (7, [0], "path_begin is empty, or key"),
    ],
)
def test_columns_that_do_not_fit_are_refused(place, values, words):
    given_columns = list(arrays([(0, 0, 10, 1, 0)]))
    given_columns[place] = np.array(values, given_columns[place].dtype)
    with pytest.raises(ValueError, match=words):
        _core.rebuild_calls(*given_columns)
