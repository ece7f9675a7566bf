"""Sketches of durations: quantiles within their error, and merging loses nothing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.summaries.sketch import RELATIVE_ERROR, Sketches

PART = st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 10**13)), max_size=60)


def sketch(pairs):
    group, values = (np.array([one[side] for one in pairs], dtype=np.int64) for side in (0, 1))
    return Sketches.of(group, values)


@given(PART, st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_quantiles_are_exact_to_the_relative_error(pairs, part):
    found = sketch(pairs).quantile(part, 4)
    for group in range(4):
        values = sorted(value for one, value in pairs if one == group)
        if not values:
            assert np.isnan(found[group])
            continue
        exact = max(1, values[int(part * (len(values) - 1))])
        assert abs(found[group] - exact) <= exact * RELATIVE_ERROR * 1.000001


@given(PART, PART)
def test_merged_sketches_are_those_of_all_values(some, others):
    parts = [sketch(some), sketch(others)]
    both = Sketches(
        *(
            np.concatenate([getattr(one, name) for one in parts])
            for name in ("group", "bucket", "count", "total")
        )
    ).merged()
    whole = sketch([*some, *others])
    for name in ("group", "bucket", "count", "total"):
        assert getattr(both, name).tolist() == getattr(whole, name).tolist()
    assert int(both.total.sum()) == sum(value for group, value in [*some, *others] if group >= 0)
