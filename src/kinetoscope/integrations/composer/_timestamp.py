"""Where a training run is: counts of epochs, batches, samples and tokens, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

_COUNTS = ("epoch", "batch", "batch_in_epoch", "sample", "sample_in_epoch", "token", "token_in_epoch")
_DURATIONS = ("total_wct", "epoch_wct", "batch_wct")
_NO_TIME = timedelta(0)


@dataclass(frozen=True)
class Timestamp:
    """A moment of a training run, for loops without Composer; Composer's own timestamps serve as well.

    A timestamp never changes: each method returns a new one.

    Attributes:
        epoch: Epochs that are over.
        batch: Batches that are over, in all epochs.
        batch_in_epoch: Batches of this epoch that are over.
        sample: Samples that were trained on, in all epochs.
        sample_in_epoch: Samples of this epoch.
        token: Tokens that were trained on, in all epochs.
        token_in_epoch: Tokens of this epoch.
        total_wct: Wall-clock time of the whole run.
        epoch_wct: Wall-clock time of this epoch.
        batch_wct: Wall-clock time of the last batch.
    """

    epoch: int = 0
    batch: int = 0
    batch_in_epoch: int = 0
    sample: int = 0
    sample_in_epoch: int = 0
    token: int = 0
    token_in_epoch: int = 0
    total_wct: timedelta = _NO_TIME
    epoch_wct: timedelta = _NO_TIME
    batch_wct: timedelta = _NO_TIME

    def to_next_batch(self, samples: int = 0, tokens: int = 0, duration: timedelta = _NO_TIME) -> Timestamp:
        """Return the moment at which one more batch is over.

        Args:
            samples: Samples in the batch.
            tokens: Tokens in the batch.
            duration: How long it took.
        """
        return replace(
            self,
            batch=self.batch + 1,
            batch_in_epoch=self.batch_in_epoch + 1,
            sample=self.sample + samples,
            sample_in_epoch=self.sample_in_epoch + samples,
            token=self.token + tokens,
            token_in_epoch=self.token_in_epoch + tokens,
            total_wct=self.total_wct + duration,
            epoch_wct=self.epoch_wct + duration,
            batch_wct=duration,
        )

    def to_next_epoch(self) -> Timestamp:
        """Return the moment at which the next epoch begins."""
        return replace(
            self,
            epoch=self.epoch + 1,
            batch_in_epoch=0,
            sample_in_epoch=0,
            token_in_epoch=0,
            epoch_wct=_NO_TIME,
            batch_wct=_NO_TIME,
        )


def values_of(timestamp: Any) -> dict[str, int | float]:
    """The counts of a timestamp, ours or Composer's, as whole numbers, and its durations in seconds."""
    counts: dict[str, int | float] = {name: int(getattr(timestamp, name, 0)) for name in _COUNTS}
    return counts | {name: _seconds(getattr(timestamp, name, None)) for name in _DURATIONS}


def _seconds(duration: Any) -> float:
    """A duration in seconds; 0 for one that nobody measured."""
    if duration is None:
        return 0.0
    return float(duration.total_seconds() if hasattr(duration, "total_seconds") else duration)
