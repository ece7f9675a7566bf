"""The argument `leave_on` of the trainers: a flight recorder during a training, with the trainer's own steps."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping
from typing import Any

from kinetoscope._errors import ArgumentError
from kinetoscope.flight.flight import FlightRecorder, current_recorder, leave_on
from kinetoscope.flight.settings import settings
from kinetoscope.flight.triggers import loss_value

_ARGUMENTS = tuple(inspect.signature(leave_on).parameters)


def checked_leave_on(given: object) -> dict[str, Any] | None:
    """Check the argument `leave_on` of a trainer's profiler.

    Args:
        given: True or False, or a dictionary with arguments of `kinetoscope.leave_on`.

    Returns:
        The arguments; None for no flight recorder.

    Raises:
        ArgumentError: It is neither, or an argument of it cannot be used.
    """
    if given is None or given is False:
        return None
    if given is True:
        return {}
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"leave_on={given!r} is not valid: need True, False, or a dictionary of arguments of kinetoscope.leave_on, such as "
            "{'budget': '0.5%'}."
        )
    for name in given:
        if name not in _ARGUMENTS:
            near = difflib.get_close_matches(str(name), _ARGUMENTS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArgumentError(
                f"leave_on has no argument {name!r}: {hint}Its arguments are {', '.join(_ARGUMENTS)}."
            )
    settings(**given)
    return dict(given)


class LeftOnTraining:
    """Runs the flight recorder during trainings, if enabled, with the trainer's steps and losses; outside of a training, calls do nothing.

    A recorder that is on already, by `kinetoscope.leave_on` or the environment, gets the steps and stays on.

    Args:
        arguments: Those of `kinetoscope.leave_on`; None for no flight recorder.

    Attributes:
        recorder: The recorder of the current training, or of the last one; None before.
        step_is_open: Whether a step has begun and not ended.
    """

    def __init__(self, arguments: Mapping[str, Any] | None) -> None:
        self._arguments = arguments
        self.recorder: FlightRecorder | None = None
        self.step_is_open = False
        self._active: FlightRecorder | None = None
        self._is_own = False
        self._loss: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether the recorder is on for a training now."""
        return self._active is not None

    def begin(self) -> None:
        """Begin a training: turn on the recorder, if enabled."""
        if self._arguments is not None:
            before = current_recorder()
            self.recorder = self._active = leave_on(**self._arguments)
            self._is_own = self._active is not before

    def open_step(self, number: int) -> None:
        """Begin a step with the trainer's number."""
        if self._active is not None:
            loss, self._loss = self._loss, None
            self._active.step(number, loss)
            self.step_is_open = True

    def close_step(self) -> None:
        """End the step; what follows, such as an evaluation or a checkpoint, counts neither as slow nor as a hang."""
        if self._active is not None:
            loss, self._loss = self._loss, None
            self._active.end_step(loss)
            self.step_is_open = False

    def note_loss(self, output: object) -> None:
        """Note a loss of the current step: a number, a CPU tensor, or a dictionary with such a `"loss"`; others are not read."""
        if self._active is not None:
            value = loss_value(output.get("loss") if isinstance(output, Mapping) else output)
            # A NaN or infinite loss of a micro-batch is not replaced by later ones.
            if value is not None and (self._loss is None or math.isfinite(self._loss)):
                self._loss = value

    def end(self, error: BaseException | None = None) -> None:
        """End the training; the exception `error` that ended it is an incident."""
        if self._active is None:
            return
        try:
            # Before the step that raised it is closed.
            if self._is_own and error is not None:
                self._active.__exit__(type(error), error, None)
                return
            if error is not None:
                self._active.training_failed(error)
            self.close_step()
            if self._is_own:
                self._active.stop()
        finally:
            self._active, self._loss, self.step_is_open = None, None, False
