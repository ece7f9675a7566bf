"""Runs of rows are listed as a loop over them would, and distinct numbers as numpy does."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.rows import begins_run, distinct, ends_run, rows_of_runs


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=8))
def test_runs_are_listed_one_after_the_other(runs):
    first, count = (np.array([one[side] for one in runs], dtype=np.int64) for side in (0, 1))
    run, row = rows_of_runs(first, count)
    expected = [(at, begin + more) for at, (begin, length) in enumerate(runs) for more in range(length)]
    assert list(zip(run.tolist(), row.tolist(), strict=True)) == expected


@given(st.lists(st.integers(-(2**62), 2**62) | st.integers(-3, 3)))
def test_distinct_numbers_are_in_order(values):
    found, place = distinct(np.array(values, dtype=np.int64))
    expected, places = np.unique(np.array(values, dtype=np.int64), return_inverse=True)
    assert (found.tolist(), place.tolist()) == (expected.tolist(), places.tolist())


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=12))
def test_a_run_begins_and_ends_where_a_key_changes(rows):
    keys = [np.array([row[side] for row in rows], dtype=np.int64) for side in (0, 1)]
    assert begins_run(*keys).tolist() == [at == 0 or rows[at - 1] != row for at, row in enumerate(rows)]
    assert ends_run(*keys).tolist() == [rows[at : at + 1] != rows[at + 1 : at + 2] for at in range(len(rows))]
