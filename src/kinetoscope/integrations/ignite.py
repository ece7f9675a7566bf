"""Ignite: `attach(trainer)`, for its `Engine` and for packages that build on it.

::

    from kinetoscope.integrations.ignite import attach
    attach(trainer)
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from kinetoscope._errors import ArgumentError, StateError, needed
from kinetoscope.collect import ProfilerAction
from kinetoscope.integrations.trainers import TraceAccess, TrainerProfiler, checked_name, checked_options

with needed("attach() needs PyTorch Ignite, which cannot be imported: run `pip install pytorch-ignite`."):
    import ignite
    from ignite.engine import Engine, Events


__all__ = ["AttachedProfiler", "attach"]


class AttachedProfiler(TraceAccess):
    """The profiler of an engine, made by `attach`."""

    def __init__(self, engine: Any, driven: TrainerProfiler, stage: str) -> None:
        self._engine, self._profiler, self._stage = engine, driven, stage
        self._run = engine.run
        self._waits = False

    def attach(self) -> None:
        """Open and close ranges, and begin steps, at the events of the engine."""
        spans = {
            "[Engine]epoch": (Events.EPOCH_STARTED, Events.EPOCH_COMPLETED),
            "[Engine]get_batch": (Events.GET_BATCH_STARTED, Events.GET_BATCH_COMPLETED),
            "[Engine]iteration": (Events.ITERATION_STARTED, Events.ITERATION_COMPLETED),
        }
        add = self._engine.add_event_handler
        add(Events.GET_BATCH_STARTED, self._fetch)
        add(Events.ITERATION_STARTED, lambda engine: self._step(engine.state.iteration))
        for name, (begins, ends) in spans.items():
            add(begins, lambda _, name=name: self._profiler.open(name))
            add(ends, lambda _, name=name: self._profiler.close(name))
        add(Events.ITERATION_COMPLETED, self._iteration_completed)

        @functools.wraps(self._run)
        def run(*arguments: Any, **keywords: Any) -> Any:
            return self._profiled_run(*arguments, **keywords)

        run.kinetoscope = self  # type: ignore[attr-defined]
        self._engine.run = run

    def _profiled_run(self, *arguments: Any, **keywords: Any) -> Any:
        self._profiler.prepare(self._stage, os.getcwd())
        self._waits = True
        try:
            if self._profiler.options.records_from_the_start():
                self._begin()
            return self._run(*arguments, **keywords)
        except BaseException as error:
            self._profiler.end(error)
            raise
        finally:
            self._profiler.end()

    def _begin(self) -> None:
        self._waits = False
        self._profiler.begin(self._steps_left())

    def _fetch(self, engine: Any) -> None:
        """Start a step with the wait for its batch; for data of unknown length, the wait may find the end instead."""
        if engine.state.epoch_length is not None:
            self._step(engine.state.iteration + 1)

    def _iteration_completed(self, engine: Any) -> None:
        """End a step: later handlers may run another engine, to evaluate, or write a checkpoint."""
        self._profiler.close_step()
        self._profiler.flight.note_loss(engine.state.output)
        self._profiler.flight.close_step()

    def _step(self, number: int) -> None:
        if self._waits:
            self._begin()
        self._profiler.open_step(number)

    def _steps_left(self) -> int | None:
        state = self._engine.state
        if state.max_iters is not None:
            return int(state.max_iters - state.iteration)
        if state.epoch_length is None or state.max_epochs is None:
            return None
        return int(state.epoch_length * state.max_epochs - state.iteration)


def attach(
    engine: Any,
    folder: str | os.PathLike[str] | None = None,
    *,
    schedule: Callable[[int], ProfilerAction] | None = None,
    whole_run: bool = False,
    on_trace_ready: Callable[..., Any] | None = None,
    overwrite: bool = False,
    name: str = "train",
    log_to_tracker: object = False,
    leave_on: bool | Mapping[str, Any] = False,
    **options: Any,
) -> AttachedProfiler:
    """Profile every `run` of an engine: iterations as steps, a trace for each recorded cycle.

    A step lasts from the start of the wait for its batch through the handlers of `ITERATION_COMPLETED` that were added before
    this call; those added later belong to no step. If a run is terminated, interrupted or fails, what was
    recorded is kept.

    Args:
        engine: An Ignite `Engine`.
        folder: Folder for the traces, `{name}-steps-{first}-{last}.ktrace`. Default: a new `kinetoscope` folder in the
            working directory.
        schedule: Which iterations are recorded, as for `kinetoscope.schedule(...)`; default: the third to the fifth.
        whole_run: Record the whole run, instead of a schedule.
        on_trace_ready: Called with the session whenever a trace is ready; traces are then written only if `folder` is given.
        overwrite: Allow traces of an earlier run in `folder`; those of the same name are replaced.
        name: The prefix of the file names.
        log_to_tracker: Log each trace, and each incident of `leave_on`, to experiment trackers: True for the active runs; or a run, a
            `SummaryWriter`, a logger of Ignite, or a list of these, as for `kinetoscope.log_to_tracker`.
        leave_on: Turn on the flight recorder, as `kinetoscope.leave_on` does: True, or a dictionary of its arguments. Without a schedule, a
            folder or a handler, no other trace is made.
        **options: Further arguments of `kinetoscope.profile`, such as `record_shapes`, `profile_memory` or `activities`.

    Returns:
        The profiler, with the results as `trace` and `saved_traces`.

    Raises:
        ArgumentError: An argument has a value that cannot be used; the message names it. Mistakes that depend on the run, such as
            a schedule that is too long, are reported when it starts.
        StateError: A profiler is already attached to the engine.
    """
    if not isinstance(engine, Engine):
        raise ArgumentError(f"attach({engine!r}) is not valid: need an Ignite Engine.")
    checked_name("name", name)
    if hasattr(engine.run, "kinetoscope"):
        raise StateError("a Kinetoscope profiler is already attached to this engine.")
    checked = checked_options(locals())
    profiler = AttachedProfiler(engine, TrainerProfiler(checked, f"ignite {ignite.__version__}"), name)
    profiler.attach()
    return profiler
