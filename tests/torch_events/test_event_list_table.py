"""The text table: its options, and what it refuses."""

import numpy as np
import pytest

from kinetoscope.torch_events.function_event import flops_scale
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder


def trace():
    builder = TraceBuilder().know("profile_memory", 1)
    shapes = builder.shapes([[2, 3], [3, 4]], ["float", "float"])
    builder.span("aten::linear", 0, 2_500_000, shapes=shapes).span(
        "aten::addmm", 1_000, 1_500_000, shapes=shapes
    )
    builder.span("aten::a_long_name_of_an_operator", 3_000_000, 1_000)
    return builder.build()


def with_flops(counts, **info):
    spans = {
        "start_ns": np.arange(len(counts)) * 1000,
        "duration_ns": np.full(len(counts), 500),
        "name": np.arange(len(counts)) + 1,
        "flops": counts,
    }
    strings = ["", *[f"aten::op{place}" for place in range(len(counts))]]
    return Trace.from_columns({"spans": spans}, strings=strings, info=info)


def test_what_is_as_good_as_a_number_or_a_truth_value_is_taken():
    averages = trace().key_averages(np.bool_(True), np.int64(2), 0)
    assert averages.table(row_limit=np.int32(1), top_level_events_only=1).count("aten::") == 1


@pytest.mark.parametrize(("limit", "rows"), [(0, 0), (1, 1), (3, 3), (100, 3), (-1, 3), (-5, 3), (None, 3)])
def test_row_limits(limit, rows):
    assert trace().events().table(row_limit=limit).count("aten::") == rows


def test_headings_come_first_and_top_level_says_so():
    lines = trace().key_averages().table(header="My run", top_level_events_only=True).splitlines()
    assert lines[0] == lines[2] == "=" * len(lines[0])
    assert lines[1] == "My run"
    assert "top-level" in lines[3]
    assert sum("aten::" in line for line in lines) == 2
    assert not any("aten::addmm" in line for line in lines)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_one_unit_for_all_times(unit):
    text = trace().key_averages().table(time_unit=unit)
    row = next(line for line in text.splitlines() if "aten::linear" in line).split()
    assert row[2].endswith(unit)
    assert text.splitlines()[-1].endswith(unit)
    sizes = {"s": "0.003s", "ms": "2.500ms", "us": "2500.000us"}
    assert row[4] == sizes[unit]


@pytest.mark.parametrize(
    ("width", "shown"),
    [(20, "aten::a_long_name..."), (4, "a..."), (1, "..."), (None, "aten::a_long_name_of_an_operator")],
)
def test_names_are_cut_at_their_end(width, shown):
    text = trace().key_averages().table(max_name_column_width=width)
    assert shown in [line.split("  ")[0].strip() or line.split()[0] for line in text.splitlines()]


def test_shapes_are_cut_and_sorting_by_name_works():
    text = trace().key_averages(group_by_input_shape=True).table(max_shapes_column_width=8)
    assert "[[2, 3]," in text
    assert "[[2, 3], [" not in text
    by_name = trace().key_averages().sorted_by("key")
    assert [event.key for event in by_name] == [
        "aten::linear",
        "aten::addmm",
        "aten::a_long_name_of_an_operator",
    ]
    assert trace().key_averages().table(sort_by="overload_name").count("aten::") == 3


def test_flops_are_shown_where_they_were_asked_for():
    plain = with_flops([5_000, 2_500_000])
    assert "FLOPs" not in plain.key_averages().table()
    assert [event.flops for event in plain.key_averages()] == [0, 0]
    asked = with_flops([5_000, 2_500_000, -1, 0], with_flops=1)
    text = asked.key_averages().table(sort_by="flops")
    assert "Total KFLOPs" in text
    rows = [line.split() for line in text.splitlines() if "aten::" in line]
    assert [(row[0], row[-1]) for row in rows] == [
        ("aten::op1", "2500.000"), ("aten::op0", "5.000"), ("aten::op2", "--"), ("aten::op3", "--"),
    ]  # fmt: skip
    assert asked.events().total_average().flops == 2_505_000
    assert asked.events().values("flops").tolist() == [5_000, 2_500_000, 0, 0]
    assert "FLOPs" not in with_flops([-1, 0], with_flops=1).key_averages().table()


def test_flops_of_a_span_shown_as_its_parent_go_with_it():
    spans = {"start_ns": [0, 10], "duration_ns": [100, 50], "name": [1, 1], "flops": [-1, 70]}
    trace = Trace.from_columns({"spans": spans}, strings=["", "aten::mm"], info={"with_flops": 1})
    assert [(event.count, event.flops) for event in trace.key_averages()] == [(1, 70)]


def test_a_large_number_of_flops_widens_its_column():
    text = with_flops([7, 10**15], with_flops=1).key_averages().table()
    assert "Total FLOPs" in text
    widths = {len(line) for line in text.splitlines()[:-1]}
    assert len(widths) == 1


@pytest.mark.parametrize(
    ("smallest", "unit"),
    [
        (1, "FLOPs"),
        (999, "FLOPs"),
        (1_000, "KFLOPs"),
        (10**9, "GFLOPs"),
        (10**15, "PFLOPs"),
        (10**20, "PFLOPs"),
    ],
)
def test_the_unit_of_flops_fits_the_smallest(smallest, unit):
    assert flops_scale(smallest)[0] == unit
    assert smallest / flops_scale(smallest)[1] >= 1
