"""Accelerate: `with profiled(accelerator):`, or a handler for `Accelerator.profile` in place of `ProfileKwargs`.

::

    from kinetoscope.integrations.accelerate import profiled
    with profiled(accelerator, schedule=kinetoscope.schedule(wait=1, warmup=1, active=3)) as profiler:
        train()
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kinetoscope._errors import ArgumentError, StateError, checked_whole, needed
from kinetoscope._replacements import Replacements
from kinetoscope.collect import OPTIMIZER_STEPS, ProfilerAction, profile, record_always, warn_user
from kinetoscope.collect import schedule as build_schedule
from kinetoscope.integrations.trainers import (
    TraceAccess,
    TraceFolder,
    TrainerOptions,
    TrainerProfiler,
    checked_options,
)

with needed(
    'kinetoscope.integrations.accelerate needs Accelerate, which cannot be imported: run `pip install "kinetoscope[accelerate]"`.'
):
    import accelerate
    from accelerate.utils import ProfileKwargs


__all__ = ["KinetoscopeKwargs", "profiled"]

_TRAINER = f"accelerate {accelerate.__version__}"
# Methods of an accelerator that read or write checkpoints.
_CHECKPOINTS = ("save_state", "save_model", "load_state")
# Arguments of `ProfileKwargs` that a session has, too.
_SWITCHES = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")


class profiled(TraceAccess):  # noqa: N801  (used as a verb, as `kinetoscope.profile` is)
    """A context that profiles the training in it: a step for each optimizer step, a trace for each recorded cycle.

    With gradient accumulation a step has several batches. With several optimizers, the one that steps first counts. `step()` is
    never called by hand. The recording is kept even if the context is left by an exception.

    Args:
        accelerator: The `Accelerator`.
        folder: Folder for the traces, `train-steps-{first}-{last}.ktrace`. Default: a new `kinetoscope` folder in the
            accelerator's `project_dir` or, without one, in the working directory.
        schedule: Which steps are recorded, as for `kinetoscope.schedule(...)`; default: steps 2, 3 and 4.
        whole_run: Record everything in the context, instead of a schedule.
        on_trace_ready: Called with the session whenever a trace is ready; traces are then written only if `folder` is given.
        overwrite: Allow traces of an earlier run in `folder`; those of the same name are replaced.
        log_to_tracker: Log each trace, and each incident of `leave_on`, to experiment trackers: True for the active runs and the accelerator's trackers; or a
            run, a `SummaryWriter`, or a list of these, as for `kinetoscope.log_to_tracker`.
        leave_on: Turn on the flight recorder, as `kinetoscope.leave_on` does: True, or a dictionary of its arguments. Without a schedule, a
            folder or a handler, no other trace is made. Losses are those passed to `accelerator.backward`.
        first_step: The number of the first step, for a resumed job.
        **options: Further arguments of `kinetoscope.profile`, such as `record_shapes`, `profile_memory` or `activities`.

    Raises:
        ArgumentError: An argument has a value that cannot be used; the message names it.
        StateError: When the context is entered: another session is recording in this process.
    """

    def __init__(
        self,
        accelerator: Any,
        folder: str | os.PathLike[str] | None = None,
        *,
        schedule: Callable[[int], ProfilerAction] | None = None,
        whole_run: bool = False,
        on_trace_ready: Callable[..., Any] | None = None,
        overwrite: bool = False,
        log_to_tracker: object = False,
        leave_on: bool | Mapping[str, Any] = False,
        first_step: int = 0,
        **options: Any,
    ) -> None:
        if not isinstance(accelerator, accelerate.Accelerator):
            raise ArgumentError(f"profiled({accelerator!r}) is not valid: need an Accelerator.")
        self._profiler = TrainerProfiler(checked_options(locals()), _TRAINER)
        self._profiler.loggers = lambda: accelerator.trackers
        self._project = Path(accelerator.project_dir or ".")
        self._accelerator = accelerator
        self._first_step = checked_whole("first_step", first_step, 0)
        self._replaced = Replacements()
        self._counts: Any = None  # the optimizer whose steps count
        self._number = 0

    def __enter__(self) -> Self:
        self._profiler.prepare("train", self._project)
        if self._profiler.flight.recorder is not None:
            self._follow(self._accelerator)
        self._profiler.begin(None)
        self._counts, self._number = None, self._first_step
        OPTIMIZER_STEPS.after(self._optimizer_has_stepped)
        self._open_step()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        OPTIMIZER_STEPS.forget(self._optimizer_has_stepped)
        self._replaced.restore()
        self._profiler.end(error)

    def end_step(self) -> None:
        """Mark the end of a step before an evaluation, which `leave_on` then counts neither as slow nor as a hang."""
        self._profiler.flight.close_step()

    def _follow(self, accelerator: Any) -> None:
        driven, backward = self._profiler, accelerator.backward

        @functools.wraps(backward)
        def backward_of(loss: Any, *arguments: Any, **keywords: Any) -> Any:
            driven.flight.note_loss(loss)
            return backward(loss, *arguments, **keywords)

        self._replaced.put(accelerator, "backward", backward_of)
        for name in _CHECKPOINTS:
            self._replaced.put(accelerator, name, _outside_of_steps(driven, getattr(accelerator, name)))

    def _optimizer_has_stepped(self, optimizer: Any, *_: Any) -> None:
        if self._counts is None:
            self._counts = optimizer
        if optimizer is self._counts:
            self._number += 1
            self._profiler.close_step()
            self._open_step()

    def _open_step(self) -> None:
        """Mark a step; with `whole_run`, steps are derived from the optimizer, without an empty last one."""
        if not self._profiler.options.records_from_the_start():
            self._profiler.open_step(self._number)
        else:
            self._profiler.flight.open_step(self._number)


def _outside_of_steps(driven: TrainerProfiler, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **keywords: Any) -> Any:
        driven.flight.close_step()
        return method(*arguments, **keywords)

    return call


class KinetoscopeKwargs(ProfileKwargs):  # type: ignore[misc, unused-ignore]
    """A handler for `Accelerator.profile` in place of `ProfileKwargs`: the same arguments, with Kinetoscope's sessions.

    Pass it to `Accelerator(kwargs_handlers=[...])` or to `accelerator.profile(...)`. As there, `step()` of the session is called
    by hand if there is a schedule, and `output_trace_dir` gets a Chrome trace if the context is left without an exception.

    Args:
        activities: What to record: names such as `"cpu"` and `"cuda"`, or torch's `ProfilerActivity`; default: all available ones.
        schedule_option: The arguments of `kinetoscope.schedule`; None to record all of the context.
        on_trace_ready: Called with the session whenever a trace is ready.
        record_shapes: As in `kinetoscope.profile`.
        profile_memory: As in `kinetoscope.profile`.
        with_stack: As in `kinetoscope.profile`.
        with_flops: As in `kinetoscope.profile`.
        with_modules: As in `kinetoscope.profile`.
        output_trace_dir: Folder for a Chrome trace, `profile_{rank}.json`, which Accelerate writes.
        folder: Folder for `.ktrace` files, one for each recorded cycle, also written if an exception leaves the context.
        overwrite: Allow traces of an earlier run in `folder`; those of the same name are replaced.
        log_to_tracker: Log each trace, and each incident of `leave_on`, to experiment trackers: True for the active runs; or a run,
            a `SummaryWriter`, or a list of these, as for `kinetoscope.log_to_tracker`.
        **options: Further arguments of `kinetoscope.profile`.

    Raises:
        ArgumentError: An argument has a value that cannot be used; the message names it.
    """

    def __init__(
        self,
        activities: list[Any] | None = None,
        schedule_option: dict[str, int] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        output_trace_dir: str | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        log_to_tracker: object = False,
        **options: Any,
    ) -> None:
        arguments = locals()
        switches = {name: arguments[name] for name in _SWITCHES}
        super().__init__(
            activities=activities,
            schedule_option=schedule_option,
            on_trace_ready=on_trace_ready,
            output_trace_dir=output_trace_dir,
            **switches,
        )
        arguments |= {
            "schedule": None if schedule_option is None else _schedule(schedule_option),
            "whole_run": schedule_option is None,
            "options": {"activities": activities, **switches, **options},
        }
        self._checked = checked_options(arguments)
        if output_trace_dir is not None:
            TraceFolder(Path(output_trace_dir), Path(), overwrite=True)
        self._folder: TraceFolder | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Accelerate recognizes a handler by this class, and does not accept subclasses."""
        return ProfileKwargs

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickle and copy, which cannot use the replaced class."""
        return object.__new__, (KinetoscopeKwargs,), dict(vars(self))

    def build(self) -> profile:
        """Make the session of one context; `Accelerator.profile` calls this.

        Returns:
            A session that is not started yet.

        Raises:
            ArgumentError: `folder` is not writable, or contains traces of an earlier run.
        """
        if self._checked.folder is not None and self._folder is None:
            self._folder = TraceFolder(self._checked.folder, Path(), overwrite=self._checked.overwrite)
        return _HandedSession(self._checked, self._folder)


class _HandedSession(profile):
    def __init__(self, options: TrainerOptions, folder: TraceFolder | None) -> None:
        self._trace_folder = folder
        self._users_handler = options.on_trace_ready
        self._log = options.log
        # Without a schedule there are no steps to mark.
        schedule = None if options.schedule is record_always else options.schedule
        self._set_up(options.recording, schedule, _HandedSession._ready)
        self.add_metadata("trainer", _TRAINER)

    def _ready(self) -> None:
        if self._trace_folder is not None:
            self._trace_folder.save(self.trace, f"profile-step-{self.step_num}")
        if self._users_handler is not None:
            self._users_handler(self)
        if self._log is not None:
            self._log.log(self.trace, f"profile-step-{self.step_num}", tuple)

    def export_chrome_trace(self, *arguments: Any, **keywords: Any) -> Any:
        """Export a Chrome trace; an empty recording is only a warning, because Accelerate always calls this."""
        try:
            return super().export_chrome_trace(*arguments, **keywords)
        except StateError as error:
            warn_user(f"no Chrome trace was written: {error}")
            return None


def _schedule(option: Mapping[str, int]) -> Callable[[int], ProfilerAction]:
    try:
        return build_schedule(**option)
    except ArgumentError:
        raise
    except TypeError as error:
        raise ArgumentError(
            f"schedule_option={option!r} is not valid: need a dictionary of arguments of kinetoscope.schedule, such as "
            f'{{"wait": 1, "warmup": 1, "active": 3}}, or None ({error}).'
        ) from None
