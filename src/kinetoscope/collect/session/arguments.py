"""Checks of the arguments of a session that have nothing to do with activities."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol, SupportsIndex, get_args

from kinetoscope._errors import ArgumentError, ArgumentTypeError
from kinetoscope.collect.engines.choose import EngineName
from kinetoscope.collect.engines.engine import Engine

OnError = Literal["raise", "warn"]
ReportPlace = str | os.PathLike[str] | Literal[False] | None


class UnknownKeywordError(ArgumentError, TypeError):
    """A keyword that the installed torch does not have any more; Python raises TypeError for those."""


class TraceObserver(Protocol):
    """Something that records beside the session and is told when: torch's and our `ExecutionTraceObserver`, for example."""

    def start(self) -> None:
        """Begin; called right before the session's own recording begins."""
        ...

    def stop(self) -> None:
        """Pause or end; called right before the session's own recording ends."""
        ...

    def cleanup(self) -> None:
        """Finish for good; called when the `with` block of the session is left."""
        ...


def checked_switch(name: str, value: object) -> bool:
    """A switch that is on or off; what only happens to be true (the text "False", say) is refused."""
    if value is None:
        return False
    try:
        number = float(value) if not isinstance(value, (str, bytes)) else math.nan  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if number not in (0, 1):
        raise ArgumentTypeError(f"{name}={value!r} is not valid: choose True or False.")
    return bool(number)


def checked_engine(engine: EngineName | Engine) -> EngineName | Engine:
    """The name of an engine, or an engine itself, or an error that lists the names."""
    names = get_args(EngineName)
    is_engine = all(callable(getattr(engine, call, None)) for call in ("prepare", "start", "stop"))
    if engine not in names if isinstance(engine, str) else not is_engine:
        raise ArgumentError(
            f"engine={engine!r} is not valid: choose one of {', '.join(map(repr, names))}, or pass an engine."
        )
    return engine


def checked_ring_bytes(ring_bytes: int | None) -> int | None:
    """A size of the ring that can be used."""
    if ring_bytes is None:
        return None
    given: object = ring_bytes
    if isinstance(given, bool) or not isinstance(given, SupportsIndex) or given.__index__() <= 0:
        raise ArgumentError(
            f"ring_bytes={ring_bytes!r} is not valid: need a whole number of bytes above 0, or None."
        )
    return given.__index__()


def checked_path(path: str | os.PathLike[str] | None) -> Path | None:
    """Where the live recording shall be kept."""
    if path is None:
        return None
    given: object = path
    name = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"path={path!r} is not valid: need the name of a file, or None.")
    found = Path(name)
    if found.is_dir():
        raise ArgumentError(f"path={name!r} is a folder: need the name of a file in it.")
    return found


def checked_report(oom_report: ReportPlace) -> Path | Literal[False] | None:
    """Where the report shall be written: a file, None for a name of ours, False for nowhere."""
    if oom_report is None or oom_report is False:
        return oom_report
    given: object = oom_report
    name = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name:
        raise ArgumentError(
            f"oom_report={oom_report!r} is not valid: need the name of a file, None for one of our choice, or False."
        )
    if Path(name).is_dir():
        raise ArgumentError(f"oom_report={name!r} is a folder: need the name of a file in it.")
    return Path(name)


def checked_callable(name: str, value: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Something that can be called, or nothing."""
    if value is not None and not callable(value):
        raise ArgumentTypeError(f"{name}={value!r} is not valid: it must be callable, or None.")
    return value


def checked_on_error(on_error: OnError) -> OnError:
    """What becomes of a failing handler."""
    if on_error not in get_args(OnError):
        raise ArgumentError(f"on_error={on_error!r} is not valid: choose 'raise' or 'warn'.")
    return on_error


def checked_seconds(name: str, value: float | None) -> float | None:
    """A time limit that can be kept."""
    if value is None:
        return None
    try:
        seconds = math.nan if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not seconds >= 0:
        given: object = value
        kind = ArgumentError if isinstance(given, (int, float)) else ArgumentTypeError
        raise kind(
            f"{name}={value!r} is not valid: {name} must be non-negative, in seconds, or None for no limit."
        )
    return seconds


def checked_observer(observer: TraceObserver | None) -> TraceObserver | None:
    """Something that can be started, stopped and cleaned up, or nothing."""
    # Not by isinstance: from Python 3.12 on that does not see what an observer's __getattr__ offers.
    complete = all(callable(getattr(observer, call, None)) for call in ("start", "stop", "cleanup"))
    if observer is not None and (isinstance(observer, type) or not complete):
        raise ArgumentError(
            f"execution_trace_observer={observer!r} is not valid: need an object with start(), stop() and cleanup(), "
            "such as ExecutionTraceObserver().register_callback(path), or None."
        )
    return observer
