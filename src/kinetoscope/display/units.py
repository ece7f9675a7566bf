"""Numbers as people read and write them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from fractions import Fraction

from kinetoscope._errors import ArgumentError

_BLOCKS = "▁▂▃▄▅▆▇█"
_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_LONGEST_RANGE = 10_000_000
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def duration(ns: float) -> str:
    """Write a duration with three digits: `1.23 s`, `45.6 ms`, `789 µs`, `12 ns`."""
    size = abs(ns)
    if size >= 100e9:
        seconds = round(size / 1e9)
        hours, minutes = divmod(seconds // 60, 60)
        text = f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds % 60:02} s"
        return f"-{text}" if ns < 0 else text
    for unit, ns_in_unit in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if size >= 0.9995 * ns_in_unit:
            return f"{_three_digits(ns / ns_in_unit)} {unit}"
    return f"{ns:.0f} ns"


def size(count_bytes: float) -> str:
    """Write a number of bytes with three digits: `1.23 GB`, `45.6 MB`, `789 B`; 1 MB is a million bytes."""
    for unit, bytes_in_unit in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count_bytes) >= 0.9995 * bytes_in_unit:
            return f"{_three_digits(count_bytes / bytes_in_unit)} {unit}"
    return f"{count_bytes:.0f} B"


def operations(flops: float) -> str:
    """Write a number of floating-point operations with three digits: `1.23 TFLOP`, `45.6 GFLOP`, `789 FLOP`."""
    for unit, flops_in_unit in (
        ("PFLOP", 1e15),
        ("TFLOP", 1e12),
        ("GFLOP", 1e9),
        ("MFLOP", 1e6),
        ("kFLOP", 1e3),
    ):
        if flops >= 0.9995 * flops_in_unit:
            return f"{_three_digits(flops / flops_in_unit)} {unit}"
    return f"{flops:.0f} FLOP"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Write how many there are of something: `1 step`, `1,234 steps`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def percent(part: float, whole: float) -> str:
    """Write a share: `28.7 %`, `<0.1 %`, or a dash where there is no whole."""
    if whole <= 0:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.05:
        return "<0.1 %"
    return f"{share:.1f} %"


def parse_size(text: str) -> int:
    """Read a number of bytes such as `64M`; K, M and G are thousands, millions and billions.

    Raises:
        ArgumentError: It is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if found is None or (number := int(float(found[1]) * _SIZES[found[2].upper()])) <= 0:
        raise ArgumentError(f"{text!r} is no size: write a number of bytes such as 64M or 2G.")
    return number


def parse_duration(text: str) -> int:
    """Read a time such as `1.5s`, `100 ms`, `250us` or `80ns` as nanoseconds; 0 needs no unit.

    Raises:
        ArgumentError: It is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|µs|μs|ms|s|min|h)?", text.strip(), re.ASCII)
    if found is None or (found[2] is None and float(found[1]) != 0):
        raise ArgumentError(
            f"{text!r} is no time: write a number with its unit, such as 1.5s, 100ms, 250us, 80ns or 2min."
        )
    # In whole numbers: a float has no room for the nanoseconds of a long run.
    return round(Fraction(found[1].rstrip(".")) * _NANOSECONDS.get(found[2] or "ns", 1000))


def parse_window(text: str) -> tuple[int, int | None]:
    """Read a window of time such as `1.5s:2s`, `100ms:` or `:250us` as nanoseconds; None is the end of the trace.

    Raises:
        ArgumentError: It is none.
    """
    start, colon, end = text.partition(":")
    if not colon or not (start.strip() or end.strip()):
        raise ArgumentError(
            f"--window {text} is no window of time: write START:END, such as 1.5s:2s, 100ms: or :250us."
        )
    start_ns = parse_duration(start) if start.strip() else 0
    end_ns = parse_duration(end) if end.strip() else None
    if end_ns is not None and end_ns <= start_ns:
        raise ArgumentError(
            f"--window {text} ends before it starts: write START:END with the smaller time first."
        )
    return start_ns, end_ns


def parse_numbers(option: str, text: str) -> list[int]:
    """Read numbers and ranges of them such as `2-4,7`; the last number of a range is among them.

    Raises:
        ArgumentError: It is none.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", part, re.ASCII)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if last < first or last - first > _LONGEST_RANGE:
            raise ArgumentError(
                f"{option} {text}: {part.strip()!r} is no number and no range: write them such as 2-4,7."
            )
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as a row of bars from zero up, at most `width` of them; each bar is the largest of its neighbours."""
    if not values or width <= 0:
        return ""
    bars = min(len(values), width)
    edges = [round(bar * len(values) / bars) for bar in range(bars + 1)]
    heights = [max(values[low:high]) for low, high in itertools.pairwise(edges)]
    top = max(heights)
    if top <= 0:
        return _BLOCKS[0] * bars
    return "".join(_BLOCKS[min(7, int(8 * max(0.0, height) / top))] for height in heights)


def _three_digits(number: float) -> str:
    """Write a number from 1 to 999 with three significant digits."""
    size = abs(number)
    return f"{number:.2f}" if size < 9.995 else f"{number:.1f}" if size < 99.95 else f"{number:.0f}"
