"""The encodings of columns in `.ktrace` files."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.storage.ktrace import column_names, decoded, encoded


@settings(deadline=None)
@given(
    st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=30),
    st.integers(1, 100),
    st.booleans(),
    st.sampled_from(["int64", "uint64", "int32", "uint8", "int8"]),
)
def test_any_numbers_survive_any_encoding(values, times, counted, kind):
    wrapped = np.tile(np.array(values, dtype=np.uint64), times * 40)
    if counted:
        wrapped = np.cumsum(wrapped, dtype=np.uint64)
    wanted = wrapped.astype(kind)
    entry, arrays = encoded("x", wanted)
    if not arrays:
        assert (wanted == entry["constant"]).all()
        return
    entry = json.loads(json.dumps(entry))
    assert sorted(arrays) == sorted(column_names("x", entry))
    found = decoded("x", kind, entry, arrays)
    assert found.dtype == wanted.dtype
    assert np.array_equal(found, wanted)
