"""Schedules of steps, and the moves of the session that each change of the scheduled action requires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinetoscope._errors import ArgumentError, ArgumentTypeError, checked_whole
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import ProfilerAction
from kinetoscope.collect.session.state import Move


@dataclass(frozen=True)
class Schedule:
    """A schedule in cycles of wait, warm-up and active steps; call it with a step number to get the action.

    Attributes:
        wait: Idle steps at the start of each cycle.
        warmup: Steps of each cycle after those, in which the engine is prepared.
        active: Recorded steps at the end of each cycle.
        repeat: Number of cycles; 0 means no end.
        skip_first: Steps before the first cycle.
        skip_first_wait: Non-zero drops the wait of the first cycle.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: int = 0

    def __call__(self, step: int) -> ProfilerAction:
        """Return the action of a step.

        Args:
            step: Number of the step, from 0.

        Returns:
            torch's `ProfilerAction` for that step.

        Raises:
            ArgumentError: `step` is negative.
        """
        if step < 0:
            raise ArgumentError(f"step={step} is negative: steps are counted from 0.")
        position = step - self.skip_first
        if position < 0:
            return ProfilerAction.NONE
        if self.skip_first_wait:
            position += self.wait
        cycle, position = divmod(position, self.wait + self.warmup + self.active)
        if (self.repeat and cycle >= self.repeat) or position < self.wait:
            return ProfilerAction.NONE
        if position < self.wait + self.warmup:
            return ProfilerAction.WARMUP
        last = self.wait + self.warmup + self.active - 1
        return ProfilerAction.RECORD_AND_SAVE if position == last else ProfilerAction.RECORD

    def steps_before_recording(self) -> int:
        """Return how often `step()` must be called before the first recorded step begins."""
        return self.skip_first + (0 if self.skip_first_wait else self.wait) + self.warmup

    def steps_until_through(self) -> int | None:
        """Return the number of the first step after the last cycle; None if `repeat` is 0, and cycles never end."""
        if not self.repeat:
            return None
        dropped = self.wait if self.skip_first_wait else 0
        return self.skip_first + self.repeat * (self.wait + self.warmup + self.active) - dropped


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Schedule:
    """Build the schedule of a `profile` session.

    After `skip_first` steps come cycles of `wait` idle steps, `warmup` steps in which the engine is prepared, and
    `active` recorded steps. At the end of each cycle the trace is ready.

    Args:
        wait: Idle steps of each cycle, at least 0.
        warmup: Warm-up steps of each cycle, at least 0; 0 warns, since the first recorded step then bears the cost.
        active: Recorded steps of each cycle, at least 1.
        repeat: Number of cycles; 0 repeats until the session ends.
        skip_first: Steps before the first cycle, at least 0.
        skip_first_wait: True or any number but 0 drops the wait of the first cycle only.

    Returns:
        A callable from a step number to a `ProfilerAction`.

    Raises:
        ArgumentError: A number is not whole or is too small; the message names it.
    """
    lengths = {
        "wait": _steps("wait", wait, 0),
        "warmup": _steps("warmup", warmup, 0),
        "active": _steps("active", active, 1),
        "repeat": _steps("repeat", repeat, 0),
        "skip_first": _steps("skip_first", skip_first, 0),
    }
    if not isinstance(skip_first_wait, bool):
        _steps("skip_first_wait", skip_first_wait, None, ", or True or False")
    if lengths["warmup"] == 0:
        warn_user(
            "warmup=0: the profiler won't be using warmup, so the first recorded step includes the cost of starting"
        )
    return Schedule(**lengths, skip_first_wait=int(bool(skip_first_wait)))


def record_always(_step: int) -> ProfilerAction:
    """The default schedule of a session: every step is recorded."""
    return ProfilerAction.RECORD


def scheduled_action(asked_schedule: Callable[[int], ProfilerAction], step: int) -> ProfilerAction:
    """Call a schedule for a step, and check what it returns.

    Raises:
        ArgumentError: It is not an action, or one that only torch sets.
    """
    action = asked_schedule(step)
    if not isinstance(action, ProfilerAction):
        raise ArgumentTypeError(
            f"the schedule returned {action!r} for step {step}: it must return a ProfilerAction "
            "(NONE, WARMUP, RECORD or RECORD_AND_SAVE)."
        )
    if action.name == "DEVICE_STOPPED":
        raise ArgumentError(
            f"the schedule returned ProfilerAction.DEVICE_STOPPED for step {step}: that is set by torch when a device "
            "stops collecting, and a schedule must not return it. Return NONE instead."
        )
    return action


@dataclass(frozen=True)
class Transition:
    """The moves that a change from one action to another requires, and a warning if the schedule should not do it."""

    do: tuple[Move, ...] = ()
    warning: str | None = None


def transition(before: ProfilerAction, after: ProfilerAction | None) -> Transition:
    """Return what to do when the action changes from `before` to `after`, which is None at the end of the session."""
    return _TRANSITIONS.get((before, after), _NOTHING)


_NOTHING = Transition()
_NONE, _WARMUP = ProfilerAction.NONE, ProfilerAction.WARMUP
_RECORD, _SAVE = ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE
_FINISH = (Move.STOP, Move.TRACE_READY)
_BEGIN = (Move.PREPARE, Move.START)

_TRANSITIONS: dict[tuple[ProfilerAction, ProfilerAction | None], Transition] = {
    (_NONE, _WARMUP): Transition((Move.PREPARE,)),
    (_NONE, _RECORD): Transition(_BEGIN),
    (_NONE, _SAVE): Transition(_BEGIN),
    (_WARMUP, _NONE): Transition((Move.START, Move.STOP), "Incorrect schedule: WARMUP followed by NONE"),
    (_WARMUP, _RECORD): Transition((Move.START,)),
    (_WARMUP, _SAVE): Transition((Move.START,)),
    (_WARMUP, None): Transition((Move.START, Move.STOP)),
    (_RECORD, _NONE): Transition((Move.STOP,), "Incorrect schedule: RECORD followed by NONE"),
    (_RECORD, _WARMUP): Transition((Move.STOP,), "Incorrect schedule: RECORD followed by WARMUP"),
    (_RECORD, None): Transition(_FINISH),
    (_SAVE, _NONE): Transition(_FINISH),
    (_SAVE, _WARMUP): Transition((*_FINISH, Move.PREPARE)),
    (_SAVE, _RECORD): Transition(_FINISH + _BEGIN),
    (_SAVE, _SAVE): Transition(_FINISH + _BEGIN),
    (_SAVE, None): Transition(_FINISH),
}


def _steps(name: str, value: object, least: int | None, instead: str = "") -> int:
    """Check a number of steps; torch also takes 3.0."""
    steps = int(value) if isinstance(value, float) and value.is_integer() else value
    return checked_whole(f"schedule: {name}", steps, least, instead)
