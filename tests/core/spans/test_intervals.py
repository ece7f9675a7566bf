"""Which of several layers of stretches has each moment, against sets of whole numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import _core
from kinetoscope.tables.intervals import Intervals

END = 40
STRETCHES = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=8)


def columns(stretches):
    return np.array(stretches, np.int64).reshape(-1, 2).T


@given(STRETCHES, st.lists(STRETCHES, max_size=4))
def test_a_moment_belongs_to_the_first_layer_that_has_it(windows, layers):
    sets = [Intervals.of(*columns(stretches)) for stretches in layers]
    window, stretch, start_ns, end_ns = _core.first_layers(
        *columns(windows), [(layer.start_ns, layer.end_ns) for layer in sets]
    )
    expected = {
        (number, moment): next(
            (
                (layer, int(start))
                for layer, moments in enumerate(sets)
                for start, end in zip(moments.start_ns, moments.end_ns, strict=True)
                if start <= moment < end
            ),
            None,
        )
        for number, (begin, finish) in enumerate(windows)
        for moment in range(begin, finish)
    }
    stretches = [(layer, start) for layer, moments in enumerate(sets) for start in moments.start_ns.tolist()]
    pieces = list(zip(window.tolist(), stretch.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True))
    assert all(start < end for _, _, start, end in pieces)
    moments = [
        ((number, moment), stretches[row] if row >= 0 else None)
        for number, row, start, end in pieces
        for moment in range(start, end)
    ]
    assert dict(moments) == expected
    assert len(moments) == len(expected)


def test_layers_of_unequal_columns_are_refused():
    one, two = np.zeros(1, np.int64), np.ones(2, np.int64)
    with pytest.raises(ValueError, match="different lengths"):
        _core.first_layers(one, one, [(one, two)])
    with pytest.raises(ValueError, match="different lengths"):
        _core.first_layers(one, two, [])
