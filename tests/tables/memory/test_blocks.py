"""Blocks and their lives: what was recorded, what was there before, and who lived at an address when."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.tables.memory.blocks import BEFORE_NS, NEVER_NS, blocks_of
from tests.support.trace_builder import TraceBuilder


def rows(builder):
    blocks = blocks_of(builder.build())
    return [
        (int(key), int(start), int(end), int(size))
        for key, start, end, size in zip(blocks.key, blocks.start_ns, blocks.end_ns, blocks.bytes, strict=True)
    ]  # fmt: skip


def test_a_block_lives_from_its_allocation_to_its_free():
    builder = TraceBuilder()
    builder.allocate(10, 0x10, 100)
    builder.free(30, 0x10)
    builder.allocate(40, 0x10, 50)
    assert rows(builder) == [(0x10, 10, 30, 100), (0x10, 40, NEVER_NS, 50)]


def test_an_address_handed_out_again_ends_the_block_that_was_there():
    builder = TraceBuilder()
    builder.allocate(10, 0x10, 100)
    builder.allocate(20, 0x20, 7)
    builder.allocate(30, 0x10, 200)
    assert rows(builder) == [(0x10, 10, 30, 100), (0x20, 20, NEVER_NS, 7), (0x10, 30, NEVER_NS, 200)]


def test_what_was_seen_before_the_recording_lives_until_something_happens_at_its_address():
    builder = TraceBuilder().hold("parameter", 0x10, 100).hold("tensor", 0x20, 50).hold("tensor", 0x30, 20)
    builder.allocate(40, 0x20, 60)
    builder.free(50, 0x30)
    assert rows(builder) == [
        (0x20, 40, NEVER_NS, 60),
        (0x10, BEFORE_NS, NEVER_NS, 100),
        (0x20, BEFORE_NS, 40, 50),
        (0x30, BEFORE_NS, 50, 20),
    ]


def test_a_block_that_is_freed_without_having_been_allocated_was_there_before():
    builder = TraceBuilder().hold("tensor", 0x90, 1)
    builder.span("aten::add", 10, 10).give("aten::add", 0x10, 64)
    builder.free(30, 0x10)
    assert (0x10, BEFORE_NS, 30, 64) in rows(builder)


def test_memory_of_other_libraries_counts_while_it_is_used():
    builder = TraceBuilder().hold("tensor", 0x90, 1)
    builder.span("aten::add", 10, 10).give("aten::add", 0x10, 64)
    builder.span("aten::mul", 30, 5).give("aten::mul", 0x10, 64)
    builder.allocate(1, 0x80, 1)
    assert (0x10, 10, 35, 64) in rows(builder)


def test_without_a_look_before_the_recording_it_counts_as_there_before():
    builder = TraceBuilder().span("aten::add", 10, 10).give("aten::add", 0x10, 64)
    builder.allocate(1, 0x80, 1)
    assert (0x10, BEFORE_NS, NEVER_NS, 64) in rows(builder)


def test_a_free_of_an_unknown_block_is_no_block():
    builder = TraceBuilder()
    builder.free(10, 0x10)
    assert rows(builder) == []


def test_tensors_on_devices_whose_memory_was_not_recorded_are_left_out():
    builder = TraceBuilder().hold("parameter", 0x10, 100, device=("cuda", 0)).hold("tensor", 0x20, 8)
    builder.allocate(5, 0x30, 8)
    assert [row[0] for row in rows(builder)] == [0x30, 0x20]


def test_one_address_on_the_host_and_on_a_device_is_two_places():
    builder = TraceBuilder()
    builder.allocate(10, 0x10, 1)
    builder.allocate(20, 0x10, 2, device=(1, 0))
    builder.free(30, 0x10)
    blocks = blocks_of(builder.build())
    assert blocks.devices == ((0, -1), (1, 0))
    assert sorted(zip(blocks.bytes.tolist(), blocks.end_ns.tolist(), strict=True)) == [(1, 30), (2, NEVER_NS)]


def test_who_lived_at_an_address_depends_on_when():
    builder = TraceBuilder().hold("tensor", 0x10, 7)
    builder.free(10, 0x10)
    builder.allocate(20, 0x10, 1)
    builder.free(30, 0x10)
    builder.allocate(40, 0x10, 2)
    blocks = blocks_of(builder.build())
    times = [-5, 5, 10, 15, 20, 25, 30, 35, 40, 99]
    found = blocks.at(np.full(len(times), 0x10, np.uint64), np.array(times))
    sizes = [int(blocks.bytes[row]) if row >= 0 else None for row in found]
    assert sizes == [7, 7, None, None, 1, 1, None, None, 2, 2]
    assert blocks.at(np.array([0x11], np.uint64), np.array([20])).tolist() == [-1]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 3)).map(lambda pair: (0x10 * (pair[0] + 1), pair[1])),
        max_size=40,
    ),
    st.lists(st.tuples(st.integers(0, 6), st.integers(-1, 41)), max_size=20),
)
def test_blocks_at_an_address_never_overlap_and_are_found(events, queries):
    builder = TraceBuilder().hold("tensor", 0x10, 9)
    for time_ns, (address, size) in enumerate(events):
        builder.allocate(time_ns, address, size)
    blocks = blocks_of(builder.build())
    lives = list(zip(blocks.key.tolist(), blocks.start_rank.tolist(), blocks.end_rank.tolist(), strict=True))
    for key, start, end in lives:
        assert start < end
        assert sum(k == key and s < end and start < e for k, s, e in lives) == 1
    for place, time_ns in queries:
        address = 0x10 * place
        (row,) = blocks.at(np.array([address], np.uint64), np.array([time_ns])).tolist()
        alive = [
            number
            for number, (key, start, end) in enumerate(
                zip(blocks.key.tolist(), blocks.start_ns.tolist(), blocks.end_ns.tolist(), strict=True)
            )
            if key == address and start <= time_ns < end
        ]
        assert alive == ([row] if row >= 0 else [])


@pytest.mark.parametrize("events", [0, 1])
def test_nothing_known_is_no_blocks(events):
    builder = TraceBuilder()
    if events:
        builder.span("aten::add", 0, 10)
    blocks = blocks_of(builder.build())
    assert len(blocks) == 0
    assert blocks.at(np.array([1], np.uint64), np.array([0])).tolist() == [-1]
