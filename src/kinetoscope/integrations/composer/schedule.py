"""Which batches are profiled, and Composer's base classes or their replacements."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError

# Composer's base classes if it is installed, else replacements.

_log = logging.getLogger("kinetoscope.integrations.composer")


class _Action(enum.Enum):
    """The action of the profiler during a batch."""

    SKIP = "skip"
    WARMUP = "warmup"
    ACTIVE = "active"
    ACTIVE_AND_SAVE = "active_and_save"


class _Callback:
    """The base class of callbacks without Composer."""

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
    """The base class of trace handlers without Composer."""

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
    except Exception as error:  # noqa: BLE001  (a Composer that does not support the installed torch may raise anything)
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


BatchSchedule = Callable[[Any], ProfilerAction]


def cyclic_schedule(
    skip_first: int = 0, wait: int = 0, warmup: int = 1, active: int = 4, repeat: int = 1
) -> BatchSchedule:
    """Build a schedule of batches in cycles, which restarts in every epoch.

    After `skip_first` batches come cycles of `wait` idle batches, `warmup` batches to prepare the profiler,
    and `active` recorded batches; after the last of these the trace is saved. The last batch of an epoch ends its cycle.
    After a run was resumed in the middle of an epoch, Composer's profiler makes every epoch skip as many batches more.

    Args:
        skip_first: Batches of each epoch before the first cycle, at least 0.
        wait: Idle batches of each cycle, at least 0.
        warmup: Batches of each cycle to prepare the profiler, at least 0.
        active: Recorded batches of each cycle, at least 1.
        repeat: Number of cycles in each epoch; 0 repeats until its end.

    Returns:
        A callable from a training state (its `timestamp` and `dataloader_len` are read) to a `ProfilerAction`, for
        Composer's `Profiler` or for `TorchProfiler`.

    Raises:
        ArgumentError: A number is not whole or is too small; the message names it.
    """
    given: dict[str, object] = {
        "skip_first": skip_first,
        "wait": wait,
        "warmup": warmup,
        "active": active,
        "repeat": repeat,
    }
    for name, value in given.items():
        least = 1 if name == "active" else 0
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ArgumentError(
                f"cyclic_schedule: {name}={value!r} is not valid: need a whole number >= {least}."
            )
    length = wait + warmup + active

    def action(state: Any) -> ProfilerAction:
        batch = int(state.timestamp.batch_in_epoch)
        resumed_at = getattr(getattr(state, "profiler", None), "resumption_batch_idx", 0)
        position = batch - skip_first - int(resumed_at)
        if position < 0 or (repeat and position >= length * repeat):
            return ProfilerAction.SKIP
        position %= length
        if position < wait:
            return ProfilerAction.SKIP
        if position < wait + warmup:
            return ProfilerAction.WARMUP
        ends = position == length - 1 or is_last_of_epoch(state)
        return ProfilerAction.ACTIVE_AND_SAVE if ends else ProfilerAction.ACTIVE

    return action


def is_last_of_epoch(state: Any) -> bool:
    """Whether the batch that a state is at is the last of its epoch, as far as is known."""
    length = batches_of_epoch(state)
    return length is not None and int(state.timestamp.batch_in_epoch) >= length - 1


def batches_of_epoch(state: Any) -> int | None:
    """How many batches an epoch has; None if unknown."""
    length = getattr(state, "dataloader_len", None)
    return None if length is None else int(length)
