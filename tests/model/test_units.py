"""Numbers as people read and write them."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import ArgumentError
from kinetoscope.model import units
from tests.support.unit_vectors import PATH, vectors


def test_the_vectors_that_the_page_is_tested_with_are_what_is_printed_here():
    kept = json.loads(PATH.read_text(encoding="utf-8"))
    assert kept == vectors()


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999.6, "1.00 µs"),
        (1_234, "1.23 µs"),
        (45_600_000, "45.6 ms"),
        (99_960_000_000, "100 s"),
        (100_000_000_000, "1 min 40 s"),
        (3_599_600_000_000, "1 h 00 min"),
        (-2_000_000, "-2 ms"),
        (float("nan"), "–"),
        (float("inf"), "–"),
    ],
)
def test_a_duration_has_three_digits_and_a_unit(ns, text):
    assert units.duration(ns) == text


@pytest.mark.parametrize(
    ("percent", "text"),
    [
        (0.123, "+0.12 %"),
        (-37.6, "-38 %"),
        (-99.4, "-99 %"),
        (99.6, "+100 %"),
        (-204.3, "-204 %"),
        (12_345, "+12,345 %"),
        (-3e-05, "0 %"),
        (0.0049, "0 %"),
        (0.0061, "+0.0061 %"),
    ],
)
def test_a_change_in_percent_has_no_exponent(percent, text):
    assert units.change_percent(percent) == text


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_000_000, "977 KiB"),
        (1_152, "1.13 KiB"),
        (-3 * 2**30, "-3 GiB"),
        (float("nan"), "–"),
    ],
)
def test_a_size_has_three_digits_and_a_binary_unit(count_bytes, text):
    assert units.size(count_bytes) == text


@pytest.mark.parametrize(
    ("text", "count_bytes"),
    [("64M", 64_000_000), ("2g", 2_000_000_000), ("1.5 K", 1_500), ("123", 123), ("8MB", 8_000_000),
     ("64MiB", 64 << 20), ("2 gib", 2 << 30), ("1.5Ki", 1_536)],
)  # fmt: skip
def test_sizes_are_read(text, count_bytes):
    assert units.parse_size(text) == count_bytes


@pytest.mark.parametrize("text", ["", "M", "64X", "-1M", "0", "1e9", "٣M x"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(ArgumentError, match="such as 64M"):
        units.parse_size(text)


@given(st.integers(min_value=0, max_value=10**17))
def test_a_written_duration_is_never_wider_than_a_column(ns):
    assert len(units.duration(ns)) <= 15


def test_numbers_without_a_unit():
    assert units.number(2**60 + 1) == "1,152,921,504,606,846,977"
    assert units.number(0.001234) == "0.001234"
    assert units.number(1234567.8) == "1,234,568"


def test_counts_have_their_plural():
    assert units.count(1, "step") == "1 step"
    assert units.count(1234, "step") == "1,234 steps"
    assert units.count(2, "entry", "entries") == "2 entries"


def test_shares():
    assert units.percent(1, 4) == "25.0 %"
    assert units.percent(1, 10_000) == "<0.1 %"
    assert units.percent(0, 5) == "0 %"
    assert units.percent(5, 5) == "100 %"
    assert units.percent(28.7) == "28.7 %"
    assert units.percent(Decimal("12.5")) == "12.5 %"
    assert units.percent(float("nan")) == "–"
    assert units.percent(1, 0) == "–"


@pytest.mark.parametrize(
    ("flops", "text"),
    [(0, "0 FLOP"), (999, "999 FLOP"), (1000, "1 kFLOP"), (999_600, "1.00 MFLOP"), (12_345_678, "12.3 MFLOP"),
     (4.56e9, "4.56 GFLOP"), (7.8e12, "7.80 TFLOP"), (1.234e18, "1234 PFLOP")],
)  # fmt: skip
def test_operations(flops, text):
    assert units.operations(flops) == text
