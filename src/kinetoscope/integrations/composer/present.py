"""What Composer gives where it is installed, and what stands in for it where it is not."""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Any

_log = logging.getLogger("kinetoscope.integrations.composer")


class _Action(enum.Enum):
    """What the profiler does during a batch."""

    SKIP = "skip"
    WARMUP = "warmup"
    ACTIVE = "active"
    ACTIVE_AND_SAVE = "active_and_save"


class _Callback:
    """The base of a callback where there is no trainer that calls it."""

    def run_event(self, event: Any, state: Any, logger: Any) -> None:
        """Call the method that is named like the event, if there is one.

        Args:
            event: The event, or its name.
            state: The state of the training run.
            logger: Where files are uploaded and values are logged; may be None.
        """
        called = getattr(self, getattr(event, "value", event), None)
        if called is not None:
            called(state, logger)


class _TraceHandler(_Callback):
    """The base of what is told of marks and traces, where Composer is not there."""

    def process_duration_event(
        self, name: str, categories: Any, is_start: bool, timestamp: Any, wall_clock_time_ns: int
    ) -> None:
        """A range of this name begins or ends.

        Args:
            name: What it is called.
            categories: To what it belongs.
            is_start: Whether it begins.
            timestamp: Where training is.
            wall_clock_time_ns: When, by `time.time_ns`.
        """

    def process_instant_event(
        self, name: str, categories: Any, timestamp: Any, wall_clock_time_ns: int
    ) -> None:
        """Something of this name happened.

        Args:
            name: What it is called.
            categories: To what it belongs.
            timestamp: Where training is.
            wall_clock_time_ns: When, by `time.time_ns`.
        """

    def process_counter_event(
        self, name: str, categories: Any, wall_clock_time_ns: int, timestamp: Any, values: dict[str, Any]
    ) -> None:
        """Counters have these values now.

        Args:
            name: What they are called together.
            categories: To what they belong.
            wall_clock_time_ns: When, by `time.time_ns`.
            timestamp: Where training is.
            values: The value of each counter.
        """

    def process_chrome_json_trace_file(self, filepath: Any) -> None:
        """A trace was written.

        Args:
            filepath: Where, in Chrome's format.
        """


def _found() -> tuple[type[Any], Any, type[Any]] | None:
    """Composer's `Callback`, `ProfilerAction` and `TraceHandler`, None where Composer is not there or cannot be imported."""
    try:
        from composer.core import Callback as ComposerCallback
        from composer.profiler import ProfilerAction as ComposerAction
        from composer.profiler import TraceHandler as ComposerTraceHandler
    except ImportError as error:
        if not (error.name or "").startswith("composer"):
            _log.warning("Composer is installed but cannot be imported (%s): working without it.", error)
        return None
    except Exception as error:  # noqa: BLE001  (a Composer beside a torch it was not made for fails in its own ways)
        _log.warning("Composer is installed but cannot be imported (%s): working without it.", error)
        return None
    return ComposerCallback, ComposerAction, ComposerTraceHandler


_FOUND = _found()
IS_THERE = _FOUND is not None

if TYPE_CHECKING:
    Callback = _Callback
    ProfilerAction = _Action
    TraceHandler = _TraceHandler
else:
    Callback, ProfilerAction, TraceHandler = _FOUND or (_Callback, _Action, _TraceHandler)
