import json
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope._errors import ArgumentError
from kinetoscope.viewer.server.routes import answer, respond
from kinetoscope.viewer.timeline.tracks import timeline
from kinetoscope.viewer.timeline.window import visible_boxes
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder
from tests.support.window_vectors import PATH, laid_out, vectors


@st.composite
def any_rows(draw):
    """Rows of items that do not overlap, each as (start, duration)."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        at, items = draw(st.integers(-20, 20)), []
        for gap, lasts in draw(
            st.lists(
                st.tuples(st.sampled_from([0, 0, 1, 5, 30]), st.sampled_from([0, 1, 2, 7, 40])), max_size=15
            )
        ):
            items.append((at + gap, lasts))
            at += gap + lasts
        rows.append(items)
    return rows


def read_one_by_one(items, start, end, width):
    """What a window shows, by looking at each item: (row, place of the first item, count)."""
    first_ns = [ceil(start + pixel * (end - start) / width) for pixel in range(width + 1)]
    wide, boxes, place = (end - start) / width, [], 0
    for row, of_row in enumerate(items):
        pixels = {}
        for item, (begins, lasts) in enumerate(of_row, place):
            if begins < first_ns[0]:
                if begins + lasts > start:
                    boxes.append((row, item, 1))
                continue
            pixel = max((pixel for pixel in range(width) if first_ns[pixel] <= begins), default=None)
            if begins < first_ns[-1]:
                pixels.setdefault(pixel, []).append((item, lasts))
        for of_pixel in pixels.values():
            *others, (last, lasts) = of_pixel
            if others and lasts > wide:
                boxes += [(row, others[0][0], len(others)), (row, last, 1)]
            else:
                boxes.append((row, of_pixel[0][0], len(of_pixel)))
        place += len(of_row)
    return boxes


@settings(max_examples=examples(200), deadline=None)
@given(
    any_rows(),
    st.one_of(st.integers(-40, 100), st.floats(-40, 100)),
    st.one_of(st.integers(1, 300), st.floats(0.01, 300)),
    st.integers(1, 12),
)
def test_a_window_shows_what_reading_item_by_item_finds(items, start, length, width):
    rows, start, end = laid_out(items), float(start), float(start) + float(length)
    boxes = visible_boxes(rows, 0, len(items), start, end, width)
    found = list(zip(boxes.row.tolist(), boxes.item.tolist(), boxes.count.tolist(), strict=True))
    assert found == read_one_by_one(items, start, end, width)


@settings(max_examples=examples(25), deadline=None)
@given(any_traces(), st.integers(1, 40))
def test_the_whole_trace_in_a_window_is_all_of_it(trace, width):
    told = answer(trace, "tracks", {})
    query = {"start": str(told["start_ns"] - 1), "end": str(told["duration_ns"] + 1), "width": str(width)}
    table = answer(trace, "window", query).to_pylist()
    for track in timeline(trace):
        mine = [row for row in table if row["track"] == track.id]
        assert sum(row["count"] for row in mine) == track.items
        low, high = track.rows.edges[[track.first, track.first + track.count]]
        assert sum(row["busy"] for row in mine) == track.rows.sum_ns[high] - track.rows.sum_ns[low]
    assert all(0 <= row["busy"] <= row["duration"] for row in table)


def window(trace, start, end, width, **more):
    query = {"start": str(start), "end": str(end), "width": str(width), **more}
    return answer(trace, "window", query)


def crowded():
    builder = TraceBuilder()
    for number in range(100):
        builder.span(f"small {number % 3}", 10 * number, 4)
    return builder.span("long", 1000, 500).build()


def test_what_begins_in_one_pixel_is_one_row_and_says_how_much_of_it_was_busy():
    first = window(crowded(), 0, 2000, 20).to_pylist()[0]
    assert first == {
        "track": 0, "row": 0, "start": 0.0, "duration": 94.0, "busy": 40.0, "count": 10, "span": 0, "name": "small 0",
        "kind": "operator",
    }  # fmt: skip


def test_a_span_wider_than_a_pixel_comes_by_itself():
    rows = window(crowded(), 0, 2000, 5).to_pylist()
    assert [(row["name"], row["count"]) for row in rows] == [
        ("small 0", 40), ("small 1", 40), ("small 2", 20), ("long", 1),
    ]  # fmt: skip


def test_a_span_that_reaches_into_the_window_comes_whole_and_one_that_ends_there_does_not():
    (row,) = window(crowded(), 1200, 1300, 10).to_pylist()
    assert (row["name"], row["start"], row["duration"]) == ("long", 1000.0, 500.0)
    assert window(crowded(), 1500, 1600, 10).num_rows == 0


def test_megabytes_of_a_name_are_cut_and_lone_surrogates_do_not_break_an_answer():
    trace = TraceBuilder().span("x" * 1_000_000, 0, 1).span("\udc80", 2, 1).build()
    names = window(trace, 0, 10, 10)["name"].to_pylist()
    assert len(names[0]) == 2001
    assert names[1].isascii()
    assert respond([("", trace)], "api/0/window", {"start": "0", "end": "9", "width": "5"}).status == 200


def test_a_window_of_less_than_a_nanosecond_shows_what_runs_there():
    (row,) = window(crowded(), 1100.25, 1100.5, 1000).to_pylist()
    assert row["name"] == "long"


@pytest.mark.parametrize("width", ["0", "-3", "1e9", "nan", "", None])
def test_a_window_without_pixels_is_refused(width):
    query = {"start": "0", "end": "5"} | ({} if width is None else {"width": width})
    with pytest.raises(ArgumentError):
        answer(crowded(), "window", query)


def test_the_vectors_that_the_page_is_tested_with_are_what_is_answered_here():
    assert json.loads(PATH.read_text(encoding="utf-8")) == vectors()


def test_pixels_of_large_times_begin_where_exact_numbers_say_to_within_a_rounding():
    start, end, width = 2.0**51, 2.0**51 + 1e9, 1600
    rows = laid_out([[(2**51 + 1000 * number, 10) for number in range(1000)]])
    boxes = visible_boxes(rows, 0, 1, start, end, width)
    assert boxes.count.sum() == 1000
    exact = [Fraction(int(start)) + Fraction(pixel) * 10**9 / width for pixel in range(width + 1)]
    of_pixel = np.searchsorted([float(edge) for edge in exact], rows.start_ns[boxes.item], side="right")
    assert (np.diff(of_pixel) > 0).all()
