"""Checks of the arguments of event lists and their tables."""

from __future__ import annotations

import re
from typing import Any

from kinetoscope._errors import ArgumentError, checked_whole
from kinetoscope.torch_events.event_numbers import SIZES, TIMES
from kinetoscope.torch_events.function_event import TIME_UNITS

SORT_KEYS = ("cpu_time", "device_time", *TIMES, *SIZES, "count", "flops")
TEXT_KEYS = ("key", "overload_name")
_DEVICES = re.compile("cuda|xpu|privateuse1|mtia|hpu")
STACK_METRICS = (
    "self_cpu_time_total",
    "self_cuda_time_total",
    "self_xpu_time_total",
    "self_privateuse1_time_total",
)
_DEVICE_METRIC = "self_device_time_total"


def sort_key(given: Any) -> str:
    """The attribute that a sort key means; `cuda_time` and the like mean the device that was profiled.

    Raises:
        ArgumentError: Not a sort key.
    """
    name = neutral(given)
    if name not in SORT_KEYS and name not in TEXT_KEYS:
        names = ", ".join((*SORT_KEYS, *TEXT_KEYS))
        raise ArgumentError(
            f"sort_by={given!r}: cannot sort by {given!r}; choose one of: {names} (cuda or xpu can replace device)"
        )
    return name


def stack_metric(given: Any) -> str:
    """The attribute that a metric of `export_stacks` means.

    Raises:
        ArgumentError: Not a metric.
    """
    if given in STACK_METRICS or given == _DEVICE_METRIC:
        return neutral(given)
    names = ", ".join((*STACK_METRICS, _DEVICE_METRIC))
    raise ArgumentError(f"metric={given!r}: cannot export stacks by {given!r}; choose one of: {names}")


def neutral(name: Any) -> str:
    """An attribute under the name that fits every device."""
    return _DEVICES.sub("device", name) if isinstance(name, str) else ""


def time_unit(given: Any) -> str | None:
    """A unit of time, or None.

    Raises:
        ArgumentError: Another unit.
    """
    if given is None or (isinstance(given, str) and given in TIME_UNITS):
        return given
    names = ", ".join(TIME_UNITS)
    raise ArgumentError(f"time_unit={given!r}: unknown time unit {given!r}; choose one of {names}, or None")


def row_limit(value: Any) -> int | None:
    """How many rows to print; None for all.

    Raises:
        ArgumentError: No whole number.
    """
    limit = -1 if value is None else checked_whole("row_limit", value, None, ", or -1 or None for all rows")
    return None if limit < 0 else limit


def width(name: str, value: Any) -> int | None:
    """The most characters of a column; None for no limit.

    Raises:
        ArgumentError: Less than 1, or no whole number.
    """
    return None if value is None else checked_whole(name, value, 1, ", or None for no limit")
