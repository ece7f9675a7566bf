"""Names of folders and files with variables in braces, such as `{run_name}/rank{rank}.{batch}.json`."""

from __future__ import annotations

import os
import string
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from kinetoscope._errors import ArgumentError
from kinetoscope.collect import own_rank, rank_count

_COUNTS = ("epoch", "batch", "batch_in_epoch", "sample", "sample_in_epoch", "token", "token_in_epoch")
_DURATIONS = ("total_wct", "epoch_wct", "batch_wct")
_NO_TIME = timedelta(0)


@dataclass(frozen=True)
class Timestamp:
    """A point of a training run, for loops without Composer; Composer's own timestamps work as well.

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
    return counts | {name: getattr(timestamp, name, _NO_TIME).total_seconds() for name in _DURATIONS}


@dataclass(frozen=True)
class Ranks:
    """The rank of this process in a job.

    Attributes:
        rank: Its number in the job.
        local_rank: Its number on its machine.
        world_size: How many processes the job has.
        local_world_size: How many of them are on its machine.
        node_rank: The number of its machine.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_rank: int = 0

    @classmethod
    def of_this_process(cls) -> Ranks:
        """What the process group says of this process and, before there is one, what its launcher set."""
        return cls(
            rank=own_rank() or 0,
            local_rank=_from_environment("LOCAL_RANK", 0),
            world_size=rank_count(),
            local_world_size=_from_environment("LOCAL_WORLD_SIZE", 1),
            # torchrun says GROUP_RANK, Composer's launcher NODE_RANK.
            node_rank=_from_environment("NODE_RANK", _from_environment("GROUP_RANK", 0)),
        )

    def other(self, rank: int) -> Ranks:
        """The same of another process; machines have equally many processes, with numbers that follow each other."""
        if rank == self.rank or self.local_world_size < 2:
            return replace(self, rank=rank)
        node_rank, local_rank = divmod(rank, self.local_world_size)
        return replace(self, rank=rank, local_rank=local_rank, node_rank=node_rank)

    def of_this_machine(self) -> range:
        """The ranks of this one's machine; all of the job where no launcher said which these are."""
        if self.local_world_size < 2 and not os.environ.get("LOCAL_WORLD_SIZE"):
            return range(self.world_size)
        first = self.rank - self.local_rank
        return range(first, first + self.local_world_size)


FOLDER_VARIABLES = ("run_name", *vars(Ranks()))
FILE_VARIABLES = (*FOLDER_VARIABLES, *values_of(Timestamp()))


class NameTemplate:
    """A name with variables in braces, checked at construction.

    Args:
        what: The argument it was given as, for messages.
        text: The name, as for `str.format`; formats such as `{batch:06d}` can be used.
        variables: The variables it may have.

    Raises:
        ArgumentError: It has a variable that is not known, and the message lists those that are; or its braces or
            formats are not right.
    """

    def __init__(self, what: str, text: str, variables: tuple[str, ...]) -> None:
        self.text = text
        self.what = what
        untyped: object = text
        if not isinstance(untyped, str) or not untyped:
            raise ArgumentError(f"{what}={text!r} is not valid: need a non-empty string.")
        try:
            self.used = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
            if unknown := sorted(self.used.difference(variables)):
                raise ValueError(f"unknown variable {', '.join(f'{{{name}}}' for name in unknown)}")
            self.filled_in("run", Ranks(), Timestamp())
        except (ValueError, TypeError, LookupError) as error:
            raise ArgumentError(
                f"{what}={text!r}: {error}; the variables are: {', '.join(variables)}. Write {{{{ and }}}} for literal braces."
            ) from error

    def filled_in(self, run_name: str, ranks: Ranks, timestamp: Any = None) -> str:
        """The name with its variables filled in; a folder's needs no timestamp."""
        values: dict[str, Any] = {"run_name": run_name, **vars(ranks)}
        if timestamp is not None:
            values |= values_of(timestamp)
        return self.text.format(**values)


def _from_environment(name: str, default: int) -> int:
    """A whole number that the launcher set."""
    value = os.environ.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() else default


clock = time.monotonic


@dataclass
class LoopState:
    """The state of a loop, for schedules and file names.

    Attributes:
        run_name: Name of the run, for `{run_name}`.
        dataloader_len: Batches in each epoch; None if unknown.
        timestamp: Where the loop is.
        profiler: What follows the loop.
    """

    run_name: str | None = None
    dataloader_len: int | None = None
    timestamp: Timestamp = field(default_factory=Timestamp)
    profiler: Any = None

    def __post_init__(self) -> None:
        """Start the clock."""
        self._since_s = clock()

    def batch_is_over(self, samples: int, tokens: int) -> None:
        """Count one more batch."""
        now_s = clock()
        duration = timedelta(seconds=now_s - self._since_s)
        self._since_s = now_s
        self.timestamp = self.timestamp.to_next_batch(samples, tokens, duration)
