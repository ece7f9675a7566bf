"""Times, bytes, operations, shares and counts with the text that people read, which the page's own is tested with too.

`python -m tests.support.unit_vectors` writes the file anew.
"""

import json
from pathlib import Path

from kinetoscope.model import units

PATH = Path(__file__).parents[1] / "golden" / "units.json"

_KINDS = {
    "time": units.duration,
    "bytes": units.size,
    "operations": units.operations,
    "percent": units.percent,
    "count": units.number,
}
# Around each power, halves that a binary fraction has exactly, and the least and largest that fit.
_TIMES = [0, 0.4, 0.5, 1, 12.34, 99.95, 999, 999.4, 999.6, 1_000, 1_125, 1_234, 9_995, 12_345, 99_949, 99_951, 999_499,
          999_500, 999_960, 10**6, 45_600_000, 123_456_789, 789_000_000, 1_230_000_000, 61 * 10**9, 99_960_000_000,
          100 * 10**9, 100_500_000_000, 3_599_400_000_000, 3_599_600_000_000, 90_061 * 10**9, 2**53 - 1]  # fmt: skip
_BYTES = [0, 0.5, 1, 789, 1_000, 1_023, 1_024, 1_152, 1_280, 1_310_720, 1_536, 10_234, 64_000_000, 2**20 - 1, 2**20 - 600,
          2**20, 64 * 2**20, 3 * 2**30, 48_900_000, 2**40, 5 * 2**50, 2**53 - 1, 2**62]  # fmt: skip
_OPERATIONS = [0, 0.25, 12.5, 999, 1_000, 1_125, 999_400, 999_600, 12_345_678, 4.56e9, 7.8e12, 1.234e18]
_SHARES = [0, 0.001, 0.0499, 0.05, 0.25, 1, 12.34, 28.75, 50, 99.94, 99.95, 99.96, 100, 130.5, -3.25]
_COUNTS = [0, 1, 12, 999, 1_000, 12_345, 1_234_567, 2**53 - 1, -4_096]


def vectors():
    """For each kind the values with their texts."""
    signed = {
        "time": [*_TIMES, *(-value for value in _TIMES if value)],
        "bytes": [*_BYTES, *(-value for value in _BYTES if value)],
        "operations": _OPERATIONS,
        "percent": _SHARES,
        "count": _COUNTS,
    }
    return {kind: [[value, _KINDS[kind](value)] for value in values] for kind, values in signed.items()}


if __name__ == "__main__":
    lines = (
        f" {json.dumps(kind)}: {json.dumps(pairs, ensure_ascii=False)}" for kind, pairs in vectors().items()
    )
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
