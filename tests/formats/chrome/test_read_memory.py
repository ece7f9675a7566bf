"""Memory events in Chrome traces; invented addresses against a simple model."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.formats.chrome.read import with_addresses
from tests.support.kineto_text import PID, op, opened, spans


def columns(events, addresses=None):
    """Return the columns for events of (device type, device index, bytes), with negative bytes for a free."""
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
    assert with_addresses(columns(events, [5, 5])).tolist() == [5, 5]
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
        assert len(made) == 0
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


def memory(ts, size, address=None, device=(0, -1), **more):
    """Return a memory event."""
    args = {"Bytes": size, "Device Type": device[0], "Device Id": device[1], **more}
    if address is not None:
        args["Addr"] = address
    return {
        "ph": "i",
        "s": "t",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": PID,
        "tid": PID,
        "ts": ts,
        "args": args,
    }


def test_memory_of_spans_counts_frees_of_blocks_from_before():
    trace = opened(
        op("aten::empty", 0, 5), memory(1, 64, 0x40, **{"Total Allocated": 164, "Total Reserved": 900}),
        op("aten::zero_", 10, 5), memory(11, -64, 0x40), memory(12, -100, 0x80),
    )  # fmt: skip
    assert dict(spans(trace, "bytes")) == {"aten::empty": 64, "aten::zero_": -164}
    assert trace.column("allocations", "total_bytes").tolist() == [64, 0, 0]
    rows = trace.table("allocations").to_pylist()
    assert [row["bytes"] for row in rows] == [64, -64, -100]
    assert (rows[0]["allocated_bytes"], rows[0]["reserved_bytes"]) == (164, 900)


def test_memory_without_addresses_is_paired_by_size():
    trace = opened(op("f", 0, 50), memory(1, 8), memory(2, 16), memory(3, -8), memory(4, -32), memory(5, -16))
    assert dict(spans(trace, "bytes")) == {"f": -32}
    assert trace.column("allocations", "total_bytes").tolist() == [8, 24, 16, 16, 0]
    assert trace.column("allocations", "match").tolist() == [2, 4, 0, -1, 1]


def test_memory_of_amd_is_cudas_as_everywhere_else_in_torch():
    trace = opened(op("f", 0, 50), memory(1, 8, 0x40, device=(6, 2)))
    assert trace.column("allocations", "device_type").tolist() == [1]
    assert dict(spans(trace, "device_bytes")) == {"f": 8}
