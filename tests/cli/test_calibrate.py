"""The command that measures the machine; what it measures is tested with the function."""

from pathlib import Path

import kinetoscope.collect


def test_it_says_where_the_result_is(call, monkeypatch):
    asked = []

    def calibrate(threads):
        asked.append(threads)
        return Path("/cache/calibration-1.json"), threads

    monkeypatch.setattr(kinetoscope.collect, "calibrate", calibrate, raising=False)
    assert call("calibrate", "--threads", "1").stdout == "Measured with 1 thread: /cache/calibration-1.json\n"
    assert asked == [1]
