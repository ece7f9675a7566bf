"""The cached calibration: read once, and none where the file is missing or damaged."""

import json

import pytest

from kinetoscope.collect.process.machine import calibration, calibration_file, store_calibration


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path))
    return tmp_path


def test_without_one_there_is_no_metadata():
    assert calibration() == {}


def test_what_was_stored_is_the_metadata():
    store_calibration({"stream": [(1.0, 2.0)]})
    assert json.loads(calibration()["attainable"]) == {"stream": [[1.0, 2.0]]}


def test_a_damaged_one_is_none(cache):
    calibration_file().write_text("{")
    assert calibration() == {}
