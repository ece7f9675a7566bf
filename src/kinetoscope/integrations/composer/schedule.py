"""Which batches are profiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kinetoscope._errors import ArgumentError
from kinetoscope.integrations.composer.present import ProfilerAction

BatchSchedule = Callable[[Any], ProfilerAction]


def cyclic_schedule(
    skip_first: int = 0, wait: int = 0, warmup: int = 1, active: int = 4, repeat: int = 1
) -> BatchSchedule:
    """Build a schedule of batches in cycles, which begins anew in every epoch.

    After `skip_first` batches come cycles of `wait` idle batches, `warmup` batches in which the profiler is made ready,
    and `active` recorded batches; after the last of these the trace is saved. The last batch of an epoch ends its cycle.
    After a run was resumed in the middle of an epoch, Composer's profiler makes every epoch skip as many batches more.

    Args:
        skip_first: Batches of each epoch before the first cycle, at least 0.
        wait: Idle batches of each cycle, at least 0.
        warmup: Batches of each cycle in which the profiler is made ready, at least 0.
        active: Recorded batches of each cycle, at least 1.
        repeat: Number of cycles in each epoch; 0 goes on to its end.

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
    """How many batches an epoch has, None where nobody knows."""
    length = getattr(state, "dataloader_len", None)
    return None if length is None else int(length)
