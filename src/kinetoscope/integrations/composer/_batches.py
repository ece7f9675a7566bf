"""Batches of a training loop as steps of a session, as a schedule of batches wants."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from kinetoscope._errors import ArgumentError
from kinetoscope.collect import ProfilerAction as SessionAction
from kinetoscope.collect import profile
from kinetoscope.integrations.composer._present import ProfilerAction
from kinetoscope.integrations.composer._schedule import BatchSchedule, batches_of_epoch

_NONE, _WARMUP, _RECORD = SessionAction.NONE, SessionAction.WARMUP, SessionAction.RECORD
_IN_SESSION = {
    ProfilerAction.SKIP: _NONE,
    ProfilerAction.WARMUP: _WARMUP,
    ProfilerAction.ACTIVE: _RECORD,
    # A session would save at whatever step comes next; `batch_ends` does it when the batch is over.
    ProfilerAction.ACTIVE_AND_SAVE: _RECORD,
}


class BatchRecorder:
    """Records batches as a schedule wants.

    A batch may be announced before it is known whether it comes: waiting for its data belongs to it. What a recording
    holds when the schedule leaves it without asking for a save, at the end of an epoch for instance, is saved all the same.

    Args:
        schedule: A callable from a training state to a `ProfilerAction`.
        save: Called with the session and a timestamp for each finished recording.
        options: Arguments of the session.

    Attributes:
        session: The session.
        action: What the schedule wanted for the present batch.
    """

    def __init__(
        self, schedule: BatchSchedule, save: Callable[[profile, Any], object], options: dict[str, Any]
    ) -> None:
        self._schedule = schedule
        self._save = save
        self._wanted = _NONE
        self._timestamp: Any = None
        self._keep = False
        self._in_batch = False
        self._announced = False
        self._recorded_batches = 0
        self._stepped = False
        self.action = ProfilerAction.SKIP
        self.session = profile(
            schedule=lambda _step: self._wanted, on_trace_ready=self._trace_ready, **options
        )

    @property
    def records(self) -> bool:
        """Whether a recording is under way."""
        return self.session.current_action is _RECORD

    def batch_may_begin(self, state: Any) -> None:
        """The loop is about to ask for a batch."""
        length = batches_of_epoch(state)
        if length is not None and int(state.timestamp.batch_in_epoch) >= length:
            return
        action = self._ask(state)
        if length is None and not (self.records and _IN_SESSION[action] is _RECORD):
            # It may be the end of the epoch. What would have to be undone then can wait until the batch is there.
            return
        self._turn(action, state)

    def batch_begins(self, state: Any) -> None:
        """A batch begins."""
        action = self._ask(state)
        if not self._announced or action is not self.action:
            self._turn(action, state)
        self._in_batch = True

    def batch_ends(self, state: Any) -> None:
        """A batch is over, and the timestamp counts it."""
        self._in_batch = self._announced = False
        if not self.records:
            return
        self._recorded_batches += 1
        self._timestamp = state.timestamp
        if self.action is ProfilerAction.ACTIVE_AND_SAVE:
            self._finish()

    def next_batch(self, state: Any) -> None:
        """A batch begins, if the loop goes on at all: for loops that say no more than that one has ended."""
        length = batches_of_epoch(state)
        if length is None or int(state.timestamp.batch_in_epoch) < length:
            self._turn(self._ask(state), state)

    def close(self, state: Any) -> None:
        """Training is over, or has failed: save what was recorded of it."""
        if self.records:
            if self._in_batch:
                self._timestamp = state.timestamp
            self._keep = self._in_batch or self._recorded_batches > 0
        self._in_batch = False
        self.stop()

    def stop(self) -> None:
        """End the session, if it was ever begun."""
        if self._stepped:
            self.session.stop()

    def abandon(self) -> None:
        """End the session without a word: that something failed was said already."""
        self._keep = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.stop()

    def check(self, state: Any) -> None:
        """See that the schedule can be asked, before training begins.

        Raises:
            ArgumentError: It cannot, or what it returns is no action.
        """
        try:
            self._ask(state)
        except (AttributeError, TypeError) as error:
            raise ArgumentError(
                f"the schedule {self._schedule!r} cannot be used: called with the state of the training run, it failed "
                f"({type(error).__name__}: {error}). cyclic_schedule(...) makes one."
            ) from error

    def _ask(self, state: Any) -> ProfilerAction:
        """What the schedule wants for the batch a state is at."""
        action = self._schedule(state)
        if action not in _IN_SESSION:
            raise ArgumentError(
                f"the schedule returned {action!r} for batch {int(state.timestamp.batch)}: it must return a "
                f"ProfilerAction: {', '.join(each.name for each in _IN_SESSION)}."
            )
        return action

    def _turn(self, action: ProfilerAction, state: Any) -> None:
        """Do what a batch needs."""
        self.action, self._announced = action, True
        wanted = _IN_SESSION[action]
        if self.records and wanted is not _RECORD:
            self._finish()
        if self.session.current_action is _WARMUP and wanted is _NONE:
            # The session is ready, and stays so until the next cycle wants it.
            wanted = _WARMUP
        self._step(wanted, int(state.timestamp.batch))

    def _finish(self) -> None:
        """End the recording; it is worth a file if there is a batch in it."""
        self._keep, self._recorded_batches = self._recorded_batches > 0, 0
        self.session.current_action = SessionAction.RECORD_AND_SAVE
        self._step(_NONE, self.session.step_num + 1)

    def _step(self, wanted: SessionAction, batch: int) -> None:
        """Let the session go on to the step of a batch, which has the number of the batch."""
        self._wanted, self._stepped = wanted, True
        self.session.step_num = batch - 1
        self.session.step()

    def _trace_ready(self, session: profile) -> None:
        """The session has finished a recording."""
        if self._keep:
            self._save(session, self._timestamp)
