"""A training loop without a trainer, in the form in which Composer describes its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kinetoscope.integrations.composer.names import Timestamp


@dataclass
class LoopState:
    """What a schedule and a file name may ask about a loop.

    Attributes:
        run_name: Name of the run, for `{run_name}`.
        dataloader_len: Batches in each epoch, None where nobody knows.
        timestamp: Where the loop is.
        clock: Tells seconds, for the durations of the timestamp.
        profiler: The `Profiler` that follows the loop, None for a `TorchProfiler` alone.
    """

    run_name: str | None = None
    dataloader_len: int | None = None
    timestamp: Timestamp = field(default_factory=Timestamp)
    clock: Callable[[], float] = time.monotonic
    profiler: Any = None

    def __post_init__(self) -> None:
        """Begin to measure."""
        self._since_s = self.clock()

    def batch_is_over(self, samples: int, tokens: int) -> None:
        """Count one more batch."""
        now_s = self.clock()
        duration = timedelta(seconds=now_s - self._since_s)
        self._since_s = now_s
        self.timestamp = self.timestamp.to_next_batch(samples, tokens, duration)

    def epoch_is_over(self) -> None:
        """Count one more epoch."""
        self.timestamp = self.timestamp.to_next_epoch()
