"""Runs of rows are listed as a loop over them would."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.rows import rows_of_runs


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=8))
def test_runs_are_listed_one_after_the_other(runs):
    first, count = (np.array([one[side] for one in runs], dtype=np.int64) for side in (0, 1))
    run, row = rows_of_runs(first, count)
    expected = [(at, begin + more) for at, (begin, length) in enumerate(runs) for more in range(length)]
    assert list(zip(run.tolist(), row.tolist(), strict=True)) == expected
