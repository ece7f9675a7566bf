"""Columns that are computed on first use."""

import pytest

from kinetoscope.formats.chrome.read_tracks import LazyColumns


def test_a_value_is_made_once_and_only_when_it_is_asked_for():
    made = []

    def make():
        made.append(1)
        return [7]

    later = LazyColumns({"ready": [1], "made": make})
    assert "made" in later
    assert "missing" not in later
    assert (list(later), len(later)) == (["ready", "made"], 2)
    assert made == []
    assert later["made"] is later["made"]
    assert made == [1]
    with pytest.raises(KeyError):
        later["missing"]


def test_what_is_given_on_makes_its_value_in_its_place():
    later = LazyColumns({"ready": [1], "made": lambda: [7]})
    given = later.given(("made", "ready", "missing"))
    assert given["ready"] == [1]
    assert given["made"]() is later["made"]
    assert set(given) == {"ready", "made"}


def test_a_value_made_from_others_and_one_that_is_taken_out():
    later = LazyColumns({"raw": lambda: [1, 2]})
    later["twice"] = lambda: later.take("raw") * 2
    assert later["twice"] == [1, 2, 1, 2]
    assert "raw" not in later
