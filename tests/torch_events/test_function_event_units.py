"""Times, sizes and shares as text."""

import sys

import pytest

from kinetoscope.torch_events.function_event import share_text, size_text, time_text


@pytest.mark.parametrize(
    ("time_us", "unit", "text"),
    [
        (0, None, "0.000us"), (999.9994, None, "999.999us"), (1000, None, "1.000ms"), (1_500_000, None, "1.500s"),
        (1500, "s", "0.002s"), (1500, "us", "1500.000us"),
    ],
)  # fmt: skip
def test_times(time_us, unit, text):
    assert time_text(time_us, unit) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (-1023, "-1023 B"), (1024, "1.00 KB"), (-(1024**2), "-1.00 MB"), (5 * 1024**3, "5.00 GB")],
)
def test_sizes(size, text, monkeypatch):
    # Where torch is loaded, its letters are used.
    monkeypatch.delitem(sys.modules, "torch.autograd.profiler_util", raising=False)
    assert size_text(size) == text


def test_shares():
    assert share_text(1, 3) == "33.33%"
    assert share_text(0, 0) == "NaN"
