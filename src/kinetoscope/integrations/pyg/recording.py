"""`torch_profile`, which records a block, prints its table and keeps its timeline; and `nvtxit`, which marks calls."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import torch

from kinetoscope._errors import ArgumentError, checked_whole
from kinetoscope.collect import ProfilerActivity, profile, supported_activities
from kinetoscope.integrations.pyg.checks import checked_function, name_of, need_xpu

__all__ = [
    "format_prof_time",
    "nvtxit",
    "print_time_total",
    "rename_profile_file",
    "save_profile_data",
    "torch_profile",
    "trace_handler",
    "xpu_profile",
]

_SAVED = 5
P = ParamSpec("P")
R = TypeVar("R")


def format_prof_time(time: float) -> float:
    """Convert microseconds to seconds.

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

    Times are seconds, percentages are shares of the sum over all `events`, averages are per call; all are rounded to 3 digits.

    Args:
        csv_data: The columns by name, each a list: NAME, SELF CPU %, SELF CPU, CPU TOTAL %, CPU TOTAL, CPU TIME AVG,
            with CUDA also SELF CUDA %, SELF CUDA, CUDA TOTAL, CUDA TIME AVG, and # OF CALLS. Missing ones are added.
        events: Events added up by name, as `key_averages()` of ours or of torch returns them, largest first.
        use_cuda: Whether the columns of the device are filled.

    Raises:
        ArgumentError: `csv_data` is not a mapping of lists.
    """
    checked_columns(csv_data)
    rows = list(events)
    self_cpu = sum(row.self_cpu_time_total for row in rows)
    cpu = sum(row.cpu_time_total for row in rows)
    self_device = sum(row.self_device_time_total for row in rows) if use_cuda else 0.0
    for row in rows[:_SAVED]:
        line: dict[str, Any] = {
            "NAME": row.key,
            "SELF CPU %": _percent(row.self_cpu_time_total, self_cpu),
            "SELF CPU": format_prof_time(row.self_cpu_time_total),
            "CPU TOTAL %": _percent(row.cpu_time_total, cpu),
            "CPU TOTAL": format_prof_time(row.cpu_time_total),
            "CPU TIME AVG": format_prof_time(row.cpu_time_total / max(row.count, 1)),
        }
        if use_cuda:
            line |= {
                "SELF CUDA %": _percent(row.self_device_time_total, self_device),
                "SELF CUDA": format_prof_time(row.self_device_time_total),
                "CUDA TOTAL": format_prof_time(row.device_time_total),
                "CUDA TIME AVG": format_prof_time(row.device_time_total / max(row.count, 1)),
            }
        line["# OF CALLS"] = row.count
        for name, value in line.items():
            csv_data.setdefault(name, []).append(value)


def checked_columns(csv_data: Any) -> None:
    """Raise unless it is a mapping of lists."""
    if not isinstance(csv_data, MutableMapping):
        raise ArgumentError(
            f"csv_data is of type {type(csv_data).__name__}: need a dict of lists, such as collections.defaultdict(list)."
        )
    wrong = [name for name, column in csv_data.items() if not callable(getattr(column, "append", None))]
    if wrong:
        raise ArgumentError(f"csv_data[{wrong[0]!r}] is {csv_data[wrong[0]]!r}: need a list to append to.")


def _percent(part: float, total: float) -> float:
    return round(part * 100.0 / total, 3) if total else 0.0


_TIMELINE = "timeline.json"


@contextmanager
def torch_profile(
    export_chrome_trace: bool = True,
    csv_data: MutableMapping[str, list[Any]] | None = None,
    write_csv: str | None = None,
) -> Iterator[profile]:
    """Record a block, or each call of the function it decorates, on all devices of this machine.

    At the end, a table of operators is printed, sorted by self time on the device or, if no device was used, on the host. A timeline that cannot be
    written is a warning.

    Args:
        export_chrome_trace: Write `timeline.json` in the working directory.
        csv_data: Columns to which the five operators that took longest are appended; see `save_profile_data`.
        write_csv: `"prof"` fills `csv_data`; anything else does not.

    Yields:
        The session, which has the trace after the block.

    Raises:
        ArgumentError: `csv_data` is no mapping of lists.
    """
    if csv_data is not None:
        checked_columns(csv_data)
    # Only torch's collector records devices; chosen explicitly, it does not warn of its cost.
    engine: Literal["auto", "kineto"] = (
        "auto" if supported_activities() == {ProfilerActivity.CPU} else "kineto"
    )
    with _session(export_chrome_trace, engine=engine) as session:
        yield session
    if csv_data is not None and write_csv == "prof":
        averages = session.key_averages()
        by = _longest_by(averages)
        rows = sorted(averages, key=lambda row: getattr(row, by), reverse=True)
        save_profile_data(csv_data, rows, torch.cuda.is_available())


@contextmanager
def xpu_profile(export_chrome_trace: bool = True) -> Iterator[profile]:
    """Record a block on the host and on an Intel GPU; see `torch_profile`.

    Args:
        export_chrome_trace: Write `timeline.json` in the working directory.

    Yields:
        The session, which has the trace after the block.

    Raises:
        DeviceError: torch finds no Intel GPU.
    """
    need_xpu("xpu_profile()")
    activities = [ProfilerActivity.CPU, ProfilerActivity.XPU]
    with _session(export_chrome_trace, activities=activities, engine="kineto") as session:
        yield session


def _session(export_chrome_trace: bool, **options: Any) -> profile:
    handler = trace_handler if export_chrome_trace else print_time_total
    return profile(on_trace_ready=handler, on_error="warn", **options)


def trace_handler(p: Any) -> None:
    """Print the operators as a table, and write `timeline.json` in the working directory.

    Args:
        p: A session of ours or of torch whose recording has ended: this is an `on_trace_ready`.
    """
    print_time_total(p)
    p.export_chrome_trace(str(Path.cwd() / _TIMELINE))


def print_time_total(p: Any) -> None:
    """Print the operators as a table, by their own time on the device, or on the host where no device took part.

    Args:
        p: A session of ours or of torch whose recording has ended.
    """
    averages = p.key_averages()
    print(averages.table(sort_by=_longest_by(averages)))


def rename_profile_file(*args: object) -> None:
    """Rename `timeline.json` in the working directory.

    Args:
        *args: Parts of the new name: `("a", "b")` make it `profile-a-b.json`. A file of that name is replaced.

    Raises:
        ArgumentError: A part has a path separator in it.
        FileNotFoundError: There is no `timeline.json`.
    """
    name = "-".join(["profile", *map(str, args)]) + ".json"
    if os.path.basename(name) != name:
        raise ArgumentError(
            f"{os.sep!r} cannot be part of the name of a file, and is one of {name!r}: leave it out."
        )
    Path(_TIMELINE).replace(name)


def _longest_by(averages: Any) -> str:
    device = "self_device_time_total"
    return device if any(getattr(row, device, 0) > 0 for row in averages) else "self_cpu_time_total"


def nvtxit(
    name: str | None = None, n_warmups: int = 0, n_iters: int | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark each call of a function as a range `name_0`, `name_1` ...

    With CUDA these are NVTX ranges, and CUDA's profiler runs while one is open, so that `nsys profile --capture-range=cudaProfilerApi` records
    only these calls. Without CUDA they are `record_function` ranges. Our recordings contain both kinds.

    Args:
        name: The name of the ranges; None for that of the function.
        n_warmups: How many calls before the first marked one; they count in the numbers.
        n_iters: How many calls are marked; None marks all.

    Returns:
        The decorator.

    Raises:
        ArgumentError: An argument has a value that cannot be used.
    """
    if name is not None and not isinstance(name, str):
        hint = " Write `@nvtxit()` with brackets." if callable(name) else ""
        raise ArgumentError(f"name={name!r} is not valid: need a text or None.{hint}")
    checked_whole("n_warmups", n_warmups, 0)
    end = None if n_iters is None else n_warmups + checked_whole("n_iters", n_iters, 0)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        checked_function(function, "nvtxit()")
        called = name if name is not None else name_of(function)
        numbers = itertools.count()

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            number = next(numbers)
            is_marked = n_warmups <= number and (end is None or number < end)
            with _range(f"{called}_{number}") if is_marked else nullcontext():
                return function(*args, **kwargs)

        return call

    return decorate


_lock = threading.Lock()
_open_ranges = 0


@contextmanager
def _range(text: str) -> Iterator[None]:
    """An NVTX range, or a recorded one without CUDA; CUDA's profiler is on while any thread has one open."""
    global _open_ranges
    if not torch.cuda.is_available():
        with torch.profiler.record_function(text):
            yield
        return
    with _lock:
        if _open_ranges == 0:
            torch.cuda.cudart().cudaProfilerStart()
        _open_ranges += 1
    try:
        with torch.cuda.nvtx.range("{}", text):
            yield
    finally:
        with _lock:
            _open_ranges -= 1
            if _open_ranges == 0:
                torch.cuda.cudart().cudaProfilerStop()
