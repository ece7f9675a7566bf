"""The operators that took longest, as columns for a CSV file."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from kinetoscope._errors import ArgumentError

_SAVED = 5


def format_prof_time(time: float) -> float:
    """Microseconds, as profilers count, in seconds.

    Args:
        time: The microseconds.

    Returns:
        The seconds, rounded to 3 digits.
    """
    return round(time / 1e6, 3)


def save_profile_data(
    csv_data: MutableMapping[str, list[Any]], events: Iterable[Any], use_cuda: bool
) -> None:
    """Append the first five of some operators to columns.

    Times are seconds, rounded to 3 digits. The percentages are shares of the sum over all `events`, of the same kind
    of time, rounded to 3 digits. Averages are times by the number of calls.

    Args:
        csv_data: The columns by name, each a list: NAME, SELF CPU %, SELF CPU, CPU TOTAL %, CPU TOTAL, CPU TIME AVG,
            with CUDA also SELF CUDA %, SELF CUDA, CUDA TOTAL, CUDA TIME AVG, and # OF CALLS. Those that are missing are
            made.
        events: Events added up by name, as `key_averages()` of ours or of torch returns them, largest first.
        use_cuda: Whether the columns of the device are filled.

    Raises:
        ArgumentError: `csv_data` is no mapping of lists.
    """
    checked_columns(csv_data)
    rows = list(events)
    self_cpu, cpu = (
        sum(getattr(row, name) for row in rows) for name in ("self_cpu_time_total", "cpu_time_total")
    )
    self_device = sum(_device_time(row, "self_{}_time_total") for row in rows) if use_cuda else 0.0
    for row in rows[:_SAVED]:
        line: dict[str, Any] = {
            "NAME": row.key,
            "SELF CPU %": _percent(row.self_cpu_time_total, self_cpu),
            "SELF CPU": format_prof_time(row.self_cpu_time_total),
            "CPU TOTAL %": _percent(row.cpu_time_total, cpu),
            "CPU TOTAL": format_prof_time(row.cpu_time_total),
            "CPU TIME AVG": format_prof_time(_average(row.cpu_time_total, row.count)),
        }
        if use_cuda:
            own, whole = _device_time(row, "self_{}_time_total"), _device_time(row, "{}_time_total")
            line |= {
                "SELF CUDA %": _percent(own, self_device),
                "SELF CUDA": format_prof_time(own),
                "CUDA TOTAL": format_prof_time(whole),
                "CUDA TIME AVG": format_prof_time(_average(whole, row.count)),
            }
        line["# OF CALLS"] = row.count
        for name, value in line.items():
            if name not in csv_data:
                csv_data[name] = []
            csv_data[name].append(value)


def checked_columns(csv_data: Any) -> None:
    """Refuse what no column can be appended to."""
    if not isinstance(csv_data, MutableMapping):
        raise ArgumentError(
            f"csv_data is of type {type(csv_data).__name__}: need a dict of lists, such as collections.defaultdict(list)."
        )
    wrong = [name for name, column in csv_data.items() if not callable(getattr(column, "append", None))]
    if wrong:
        raise ArgumentError(f"csv_data[{wrong[0]!r}] is {csv_data[wrong[0]]!r}: need a list to append to.")


def _device_time(row: Any, pattern: str) -> float:
    """A time of the device in microseconds, by today's name of it or by the one before torch 2.4."""
    found = getattr(row, pattern.format("device"), None)
    return float(getattr(row, pattern.format("cuda")) if found is None else found)


def _percent(part: float, whole: float) -> float:
    """A share in per cent; 0 of nothing."""
    return round(part * 100.0 / whole, 3) if whole else 0.0


def _average(total: float, count: int) -> float:
    """The time of one call."""
    return total / count if count else 0.0
