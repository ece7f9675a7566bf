"""Made-up addresses for allocations that have none, against a plain model."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.formats._chrome_read_memory import with_addresses


def columns(events, addresses=None):
    """Events of (device type, device index, bytes), negative for a free."""
    size = np.array([event[2] for event in events], np.int64)
    return {
        "address": np.array(addresses if addresses is not None else [0] * len(events), np.uint64),
        "bytes": np.maximum(size, 0),
        "freed_bytes": np.maximum(-size, 0),
        "device_type": np.array([event[0] for event in events], np.uint8),
        "device_index": np.array([event[1] for event in events], np.int8),
    }


def test_a_free_is_of_the_youngest_block_of_its_size_on_its_device():
    events = [(0, -1, 8), (0, -1, 8), (1, 0, 8), (0, -1, -8), (0, -1, -8), (0, -1, -8), (1, 0, -8)]
    made = with_addresses(columns(events)).tolist()
    assert made[3] == made[1]
    assert made[4] == made[0]
    assert made[6] == made[2]
    assert made.count(made[5]) == 1
    assert len({made[0], made[1], made[2], made[5]}) == 4


def test_addresses_that_are_there_stay():
    events = [(0, -1, 8), (0, -1, -8)]
    assert with_addresses(columns(events, [5, 5])) is None
    made = with_addresses(columns([*events, (0, -1, 8), (0, -1, -8)], [5, 5, 0, 0])).tolist()
    assert made[:2] == [5, 5]
    assert made[2] == made[3] > 5


@given(
    st.lists(
        st.tuples(st.sampled_from([(0, -1), (1, 0), (1, 1)]), st.sampled_from([-3, -2, -1, 1, 2, 3])).map(
            lambda event: (*event[0], event[1])
        ),
        max_size=60,
    )
)
def test_agrees_with_stacks_of_live_blocks(events):
    made = with_addresses(columns(events))
    if not events:
        assert made is None
        return
    address = made.tolist()
    live, fresh = {}, set()
    for row, (kind, index, size) in enumerate(events):
        stack = live.setdefault((kind, index, abs(size)), [])
        if size < 0 and stack:
            assert address[row] == stack.pop()
            continue
        assert address[row] not in fresh
        fresh.add(address[row])
        if size > 0:
            stack.append(address[row])
