"""The output of PerfettoWriter for hand-made columns, and its errors."""

from typing import Any

import numpy as np
import pytest

import kinetoscope._core as _core
from tests.support.perfetto_file import Slice, read_perfetto

SPANS: dict[str, tuple[type[np.generic], int]] = {
    "start_ns": (np.int64, 0),
    "duration_ns": (np.int64, 0),
    "name": (np.int32, 1),
    "category": (np.int32, 0),
    "thread": (np.int32, 0),
    "lane": (np.int32, 0),
    "instant": (np.uint8, 0),
    "location": (np.int32, -1),
}
THREAD = ("thread", "main", 0, 9, 10, 0, "", "")


def spans_of(rows: list[dict[str, int]]) -> dict[str, np.ndarray]:
    return {
        name: np.array([row.get(name, usual) for row in rows], kind) for name, (kind, usual) in SPANS.items()
    }


def writer(rows: list[dict[str, int]], **changes: Any) -> _core.PerfettoWriter:
    """Return a writer of spans, given by their non-default columns."""
    none = np.zeros(0, np.int32)
    arguments: dict[str, Any] = {
        "spans": spans_of(rows),
        "span_facts": [],
        "moments": {},
        "moment_facts": [],
        "counters": [],
        "arrows": [],
        "strings": ["", "aten::mm", "a.py", "f"],
        "categories": ["cpu_op"],
        "stacks": {"parent": none, "frame": none, "function": none, "file": none, "line": none},
        "tracks": [
            ("process", "python", -1, 9, 0, -1, "", ""),
            THREAD,
            ("group", "overlapping", 1, 0, 0, 0, "", ""),
            ("counter", "power", 0, 0, 0, -1, "W", "of the card"),
        ],
        "thread_first_track": np.array([1], np.int32),
        "metadata": [],
    }
    return _core.PerfettoWriter(**(arguments | changes))


def slices(rows: list[dict[str, int]], **changes: Any) -> list[Slice]:
    return read_perfetto(b"".join(writer(rows, **changes))).slices


def every_row(*facts: tuple[Any, ...]) -> list[Any]:
    return [(None, list(facts))]


def test_numbers_of_every_type_are_shown_as_they_are():
    for kind in (np.int8, np.uint8, np.int32, np.int64, np.uint64):
        most = int(np.iinfo(kind).max)
        shown = every_row(("n", "number", np.array([most, 0], kind)))
        assert [one.args for one in slices([{}, {}], span_facts=shown)] == [{"n": most}, {"n": 0}]
    shown = every_row(("n", "number", np.array([0.25, -1.0, np.nan, -2.5])))
    assert [one.args for one in slices([{}] * 4, span_facts=shown)] == [{"n": 0.25}, {}, {}, {"n": -2.5}]


def test_minus_one_is_nothing_unless_it_always_counts():
    values = np.array([-1, 5], np.int64)
    assert [one.args for one in slices([{}, {}], span_facts=every_row(("n", "number", values)))] == [
        {},
        {"n": 5},
    ]
    assert slices([{}, {}], span_facts=every_row(("n", "always", values)))[0].args == {"n": -1}


def test_rows_that_do_not_exist_are_not_shown():
    rows = np.array([-1, 7], np.int32)
    facts = every_row(
        ("a", "string", rows), ("b", "text", rows, ["x"]), ("c", "stack", rows), ("d", "object", rows, ["{}"])
    )
    assert [one.args for one in slices([{"name": 99}, {"location": 3}], span_facts=facts)] == [{}, {}]
    assert [one.name for one in slices([{"name": 99}, {"name": -1}])] == ["", ""]


def test_facts_of_some_rows_stand_at_these():
    rows = np.array([1, 1, 3], np.int32)
    facts = [(rows, [("n", "number", np.array([1, -1, 3], np.int64))])]
    assert [one.args for one in slices([{"start_ns": at} for at in range(4)], span_facts=facts)] == [
        {}, {"n": 1}, {}, {"n": 3},
    ]  # fmt: skip


def test_a_member_gives_way_to_a_fact_of_its_name():
    zero = np.zeros(1, np.int32)
    facts = every_row(
        ("device", "number", np.array([3], np.int64)),
        ("arguments", "object", zero, ['{"device": 9, "a": 1, "a": 2}']),
    )
    assert slices([{}], span_facts=facts)[0].args == {"device": 3, "a": 1}


def test_a_text_that_is_no_object_is_shown_whole():
    zero = np.zeros(1, np.int32)
    assert slices([{}], span_facts=every_row(("arguments", "object", zero, ["[1, 2"])))[0].args == {
        "arguments": "[1, 2"
    }


def test_counters_have_their_unit_and_values():
    series = [(3, np.array([5, 9], np.int64), np.array([0.5, 2.0]))]
    file = read_perfetto(b"".join(writer([], counters=series)))
    ((track, samples),) = file.samples.items()
    assert samples == [(5, 0.5), (9, 2.0)]
    assert (file.tracks[track].counter.unit_name, file.tracks[track].description) == ("W", "of the card")


def test_ends_come_before_moments_and_these_before_what_begins_later():
    moments = {
        "name": "m", "category": "c",
        "time_ns": np.array([4, 10, 11], np.int64), "thread": np.zeros(3, np.int32),
    }  # fmt: skip
    rows = [{"duration_ns": 10}, {"start_ns": 4, "duration_ns": 2}, {"start_ns": 10, "duration_ns": 5}]
    found = slices(rows, moments=moments)
    assert [(one.name, one.start_ns, one.depth) for one in found] == [
        ("aten::mm", 0, 0), ("aten::mm", 4, 1), ("m", 4, 2), ("aten::mm", 10, 0), ("m", 10, 1), ("m", 11, 1),
    ]  # fmt: skip


def test_an_arrow_against_time_leads_the_other_way():
    arrows = [(np.array([1, 0, 0], np.int32), np.array([0, 0, 9], np.int32))]
    file = read_perfetto(b"".join(writer([{}, {"start_ns": 5}], arrows=arrows)))
    assert [(one.start_ns, two.start_ns) for one, two in file.arrows()] == [(0, 5)]


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([{"thread": 1}], {}, "is on a thread or lane without a track"),
        ([{"thread": -1}], {}, "is on a thread or lane without a track"),
        ([{"lane": 3}], {}, "is on a thread or lane without a track"),
        ([{"category": 1}], {}, "has no category"),
        ([{"start_ns": 5}, {"start_ns": 4}], {}, "starts before the previous one"),
        (
            [{"duration_ns": 5}, {"start_ns": 4, "duration_ns": 2}],
            {},
            "partly overlaps another one in its lane",
        ),
        (
            [{"duration_ns": 5, "lane": 1}, {"start_ns": 4, "lane": 1}],
            {},
            "partly overlaps another one in its lane",
        ),
        (
            [{}],
            {"span_facts": every_row(("n", "number", np.zeros(2, np.int64)))},
            "does not have one value per row",
        ),
        ([{}], {"span_facts": every_row(("n", "text", np.zeros(1, np.int64), []))}, "are not int32"),
        (
            [{}],
            {"span_facts": every_row(("n", "color", np.zeros(1, np.int64)))},
            "unknown kind of fact color",
        ),
        ([{}, {}], {"span_facts": [(np.array([1, 0], np.int32), [])]}, "are not ascending"),
        ([], {"tracks": [("door", "", -1, 0, 0, 0, "", "")]}, "unknown kind of track door"),
        ([], {"tracks": [("group", "", 0, 0, 0, 0, "", "")]}, "comes before its parent"),
        ([], {"counters": [(9, np.zeros(1, np.int64), np.zeros(1))]}, "a counter has no track"),
        ([], {"counters": [(3, np.zeros(1, np.int64), np.zeros(2))]}, "does not have one value per time"),
        ([], {"counters": [(3, np.array([2, 1]), np.zeros(2))]}, "not sorted by time"),
        ([], {"arrows": [(np.zeros(1, np.int32), np.zeros(2, np.int32))]}, "different lengths"),
        (
            [],
            {"moments": {"time_ns": np.array([2, 1]), "thread": np.zeros(2, np.int32)}},
            "not sorted by time",
        ),
        (
            [],
            {"moments": {"time_ns": np.zeros(1, np.int64), "thread": np.ones(1, np.int32)}},
            "without a track",
        ),
        ([], {"stacks": {"parent": np.zeros(1, np.int32)}}, "different lengths"),
    ],
)
def test_columns_that_do_not_fit_are_refused(rows, changes, message):
    with pytest.raises(ValueError, match=message):
        list(writer(rows, **changes))


def test_columns_of_another_length_or_type_are_refused():
    for name in SPANS:
        with pytest.raises(ValueError, match="different lengths"):
            writer([{}], spans=spans_of([{}]) | {name: np.zeros(2, SPANS[name][0])})
        with pytest.raises(TypeError, match=f"{name} is not a contiguous array"):
            writer([{}], spans=spans_of([{}]) | {name: np.zeros(1, np.float32)})
    with pytest.raises(TypeError, match="not a contiguous array of numbers"):
        writer([{}], span_facts=every_row(("n", "number", [1])))


@pytest.mark.parametrize("block_bytes", [0, 1, 500, 4 << 20])
def test_the_size_of_blocks_changes_nothing(block_bytes):
    rows = [{"start_ns": at, "duration_ns": 10 - at % 10} for at in range(100)]
    whole = b"".join(writer(rows))
    blocks = list(writer(rows, block_bytes=block_bytes))
    assert b"".join(blocks) == whole
    assert len(blocks) == (1 if block_bytes > len(whole) else len(blocks))
    assert all(len(block) >= block_bytes for block in blocks[:-1])
    assert all(len(block) < block_bytes + 1000 for block in blocks)


def test_texts_longer_than_a_block():
    blocks = list(writer([{}, {}], strings=["", "x" * 3_000_000], block_bytes=1000))
    assert [one.name for one in read_perfetto(b"".join(blocks)).slices] == ["x" * 3_000_000] * 2


def test_iteration_ends_for_good():
    blocks = writer([{}])
    assert b"".join(blocks)
    assert list(blocks) == []


def test_the_writer_keeps_its_columns_alive():
    rows = [{"start_ns": row * 2, "duration_ns": 1} for row in range(1000)]
    facts = every_row(("n", "number", np.arange(1000)))
    blocks = writer(rows, span_facts=facts, block_bytes=1)
    del facts
    read = read_perfetto(b"".join(blocks)).slices
    assert [(one.start_ns, one.args["n"]) for one in read] == [(row * 2, row) for row in range(1000)]


def test_a_file_gets_what_iterating_yields(tmp_path):
    rows = [{"start_ns": start, "duration_ns": 1} for start in range(1_000)]
    whole = b"".join(writer(rows))
    path = tmp_path / "trace.pftrace"
    for block_bytes in (1, 5_000, 4 << 20):
        with path.open("wb") as file:
            assert writer(rows, block_bytes=block_bytes).write_to(file.fileno()) == len(whole)
        assert path.read_bytes() == whole


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    path = tmp_path / "trace.pftrace"
    path.touch()
    with path.open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        writer([{}] * 100, block_bytes=1).write_to(file.fileno())
