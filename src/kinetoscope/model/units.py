"""Format and parse times, bytes, counts and shares, in one way everywhere.

Only the tables that replace torch's use torch's format, from `kinetoscope.torch_events.function_event`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal

from kinetoscope._errors import ArgumentError

_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_LONGEST_RANGE = 10_000_000
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
# Times from here on are shown in minutes and hours.
_CLOCK_NS = 100e9
_BYTES = tuple((2.0**power, unit) for power, unit in (
    (60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B"),
))  # fmt: skip
_COUNTS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_POWERS = " KMGT"
_NONE = "–"
# Enough digits for any finite float.
_EXACT = Context(prec=400)


def duration(ns: float) -> str:
    """Format a time with three digits: `1.23 s`, `45.6 ms`, `789 µs`, `12 ns`; from 100 s on `1 min 40 s`."""
    if abs(ns) < _CLOCK_NS or not math.isfinite(ns):
        return _in_units(ns, _TIMES, "ns")
    seconds = math.floor(abs(ns) / 1e9 + 0.5)
    hours, minutes = divmod(seconds // 60, 60)
    text = f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds % 60:02} s"
    return f"-{text}" if ns < 0 else text


def size(count_bytes: float) -> str:
    """Format a number of bytes with three digits: `1.23 GiB`, `45.6 MiB`, `789 B`; 1 KiB is 1024 bytes."""
    return _in_units(count_bytes, _BYTES, "B")


def operations(flops: float) -> str:
    """Format a number of floating-point operations with three digits: `1.23 TFLOP`, `45.6 GFLOP`, `789 FLOP`."""
    return _in_units(flops, _COUNTS, "", "FLOP")


def number(value: float) -> str:
    """Format a number without a unit: integers as `1,234,567`, others with four digits."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"


def count(amount: int, singular: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 step`, `1,234 steps`."""
    return f"{amount:,} {noun(amount, singular, plural)}"


def noun(amount: int, singular: str, plural: str | None = None) -> str:
    """The noun of a count, without it: `step` of 1, `steps` of all others."""
    return singular if amount == 1 else plural or singular + "s"


def listed(words: Sequence[str]) -> str:
    """Words in a row: `times, counts and memory`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def percent(part: float, total: float = 100.0) -> str:
    """Format a share of `total`, by default of 100: `28.7 %`, `<0.1 %`, or a dash if `total` is 0."""
    if total <= 0 or not math.isfinite(part):
        return _NONE
    share = 100.0 * float(part) / float(total)
    if 0 < share < 0.05:
        return "<0.1 %"
    return f"{_rounded(share, 0 if share >= 99.95 or share == 0 else 1)} %"


def written(value: float | str | None, unit: str) -> str:
    """Format a value in its unit (`ns`, `bytes`, `%`, `FLOP`, `FLOP/s`, `id`, empty for a count): a text as it is, None as a dash."""
    if value is None or isinstance(value, str):
        return _NONE if value is None else value
    if unit.startswith("FLOP"):
        return operations(value) + unit.removeprefix("FLOP")
    formats: dict[str, Callable[[float], str]] = {"ns": duration, "bytes": size, "%": percent, "id": str}
    return formats.get(unit, number)(value)


def change_percent(value: float) -> str:
    """Format a change of so many percent, with its sign: two digits, or all of a large number; 0 of less than 0.005."""
    if abs(value) < 0.005:
        return "0 %"
    return f"{value:+.2g} %" if abs(value) < 99.5 else f"{value:+,.0f} %"


def parse_size(text: str) -> int:
    """Parse a number of bytes: `64M` and `64MB` are 64,000,000 bytes, `64MiB` is 64 * 1024 * 1024.

    Raises:
        ArgumentError: `text` is not a size above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", text.strip(), re.IGNORECASE | re.ASCII)
    base = 1024 if match and match[3] else 1000
    amount = int(float(match[1]) * base ** _POWERS.index((match[2] or " ").upper())) if match else 0
    if amount <= 0:
        raise ArgumentError(f"{text!r} is not a size: write a number of bytes such as 64M, 64MiB or 2G.")
    return amount


def parse_duration(text: str) -> int:
    """Parse a time such as `1.5s`, `100 ms`, `250us` or `80ns` to nanoseconds; 0 needs no unit.

    Raises:
        ArgumentError: `text` is not a time.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|µs|μs|ms|s|min|h)?", text.strip(), re.ASCII)
    if match is None or (match[2] is None and float(match[1]) != 0):
        raise ArgumentError(
            f"{text!r} is not a time: write a number with a unit, such as 1.5s, 100ms, 250us, 80ns or 2min."
        )
    from fractions import Fraction

    # Exact, because a float cannot represent each nanosecond of a long run.
    return round(Fraction(match[1].rstrip(".")) * _NANOSECONDS.get(match[2] or "ns", 1000))


def parse_window(text: str) -> tuple[int, int | None]:
    """Parse a time window such as `1.5s:2s`, `100ms:` or `:250us` to nanoseconds; None is the end of the trace.

    Raises:
        ArgumentError: `text` is not a time window, or it ends before it starts.
    """
    start, colon, end = text.partition(":")
    if not colon or not (start.strip() or end.strip()):
        raise ArgumentError(
            f"--window {text} is not a time window: write START:END, such as 1.5s:2s, 100ms: or :250us."
        )
    start_ns = parse_duration(start) if start.strip() else 0
    end_ns = parse_duration(end) if end.strip() else None
    if end_ns is not None and end_ns <= start_ns:
        raise ArgumentError(
            f"--window {text} ends before it starts: write START:END with the smaller time first."
        )
    return start_ns, end_ns


def parse_numbers(option: str, text: str) -> list[int]:
    """Parse numbers and inclusive ranges such as `2-4,7` to a sorted list.

    Raises:
        ArgumentError: A part is neither a number nor a range.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first or last - first > _LONGEST_RANGE:
            raise ArgumentError(
                f"{option} {text}: {part.strip()!r} is neither a number nor a range: write numbers and ranges such as 2-4,7."
            )
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def ranges(numbers: Iterable[int]) -> str:
    """Write numbers as `parse_numbers` reads them, such as `2-4, 7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _in_units(value: float, units: Sequence[tuple[float, str]], last: str, after: str = "") -> str:
    """Format a value in the largest unit that it reaches, else in `last`."""
    if not math.isfinite(value):
        return _NONE
    # 999.96 µs reads as 1.00 ms.
    scale, name = next((unit for unit in units if abs(value) >= unit[0] * 0.9995), (1.0, last))
    return f"{_three_digits(float(value) / scale)} {name}{after}"


def _three_digits(value: float) -> str:
    """Format a number with three significant digits, without an exponent; integers without decimals."""
    large = abs(value)
    return _rounded(value, 0 if large >= 99.95 or value.is_integer() else 1 if large >= 9.995 else 2)


def _rounded(value: float, decimals: int) -> str:
    """Format a number with `decimals` decimals, rounding half away from zero as the viewer does."""
    step = Decimal(1).scaleb(-decimals)
    return f"{Decimal(value).quantize(step, ROUND_HALF_UP, _EXACT):f}"
