"""Whether two traces say the same."""

import numpy as np

from kinetoscope.model.schema import STORED


def assert_same(left, right, *, info=True):
    """Every column of every table, derived ones too, the strings and what is known of the run."""
    assert left.strings == right.strings
    if info:
        assert left.info == right.info
    for name, table in STORED.items():
        assert len(left.columns(name)) == len(right.columns(name)), name
        for column in table.column_names:
            one, other = left.column(name, column), right.column(name, column)
            if isinstance(one, list):
                assert one == other, (name, column)
            else:
                assert one.dtype == other.dtype, (name, column)
                assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), (name, column)


def assert_shows_the_same(left, right, *, tables=("spans", "allocations", "launches", "counters")):
    """The tables that people see, whatever numbers strings and stacks have in either trace."""
    for name in tables:
        assert left.table(name).to_pylist() == right.table(name).to_pylist(), name
