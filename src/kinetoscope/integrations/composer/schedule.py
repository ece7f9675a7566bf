"""Which batches are profiled, and Composer's base classes or their replacements."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import checked_whole

_log = logging.getLogger("kinetoscope.integrations.composer")


class _Action(enum.Enum):
    """The action of the profiler during a batch."""

    SKIP = "skip"
    WARMUP = "warmup"
    ACTIVE = "active"
    ACTIVE_AND_SAVE = "active_and_save"


IS_THERE = False
if TYPE_CHECKING:
    Callback = object
    TraceHandler = object
    ProfilerAction = _Action
else:
    try:
        from composer.core import Callback
        from composer.profiler import ProfilerAction, TraceHandler

        IS_THERE = True
    except Exception as error:  # noqa: BLE001  (a Composer that does not support the installed torch may raise anything)
        if not (isinstance(error, ImportError) and (error.name or "").startswith("composer")):
            _log.warning("Composer is installed but cannot be imported (%s): working without it.", error)
        Callback = TraceHandler = object
        ProfilerAction = _Action


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
    checked_whole("cyclic_schedule: skip_first", skip_first, 0)
    checked_whole("cyclic_schedule: wait", wait, 0)
    checked_whole("cyclic_schedule: warmup", warmup, 0)
    checked_whole("cyclic_schedule: active", active, 1)
    checked_whole("cyclic_schedule: repeat", repeat, 0)
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
        ends = position == length - 1 or batch + 1 == batches_of_epoch(state)
        return ProfilerAction.ACTIVE_AND_SAVE if ends else ProfilerAction.ACTIVE

    return action


def batches_of_epoch(state: Any) -> int | None:
    """How many batches an epoch has; None if unknown."""
    length = getattr(state, "dataloader_len", None)
    return None if length is None else int(length)
