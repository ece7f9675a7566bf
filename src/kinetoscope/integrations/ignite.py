"""Ignite: `attach(trainer)`, for its `Engine` and for those of the packages that build on it.

::

    from kinetoscope.integrations.ignite import attach
    attach(trainer)
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from kinetoscope._errors import ArgumentError, MissingDependencyError, StateError
from kinetoscope.collect.session.activities import ProfilerAction
from kinetoscope.integrations.trainers import TraceAccess, TrainerProfiler, checked_name, checked_options

try:
    import ignite
    from ignite.engine import Engine, Events
except ImportError as error:
    raise MissingDependencyError(
        "attach() needs PyTorch Ignite, which cannot be imported: run `pip install pytorch-ignite`."
    ) from error


__all__ = ["AttachedProfiler", "attach"]


class AttachedProfiler(TraceAccess):
    """What profiles an engine: `attach` makes it."""

    def __init__(self, engine: Any, driven: TrainerProfiler, stage: str) -> None:
        self._engine, self._profiler, self._stage = engine, driven, stage
        self._run = engine.run
        self._waits = False

    def _attach(self) -> None:
        """Be told of all that happens in the engine."""
        spans = {
            "[Engine]epoch": (Events.EPOCH_STARTED, Events.EPOCH_COMPLETED),
            "[Engine]get_batch": (Events.GET_BATCH_STARTED, Events.GET_BATCH_COMPLETED),
            "[Engine]iteration": (Events.ITERATION_STARTED, Events.ITERATION_COMPLETED),
        }
        add = self._engine.add_event_handler
        add(Events.GET_BATCH_STARTED, self._fetch)
        add(Events.ITERATION_STARTED, self._iterate)
        for name, (begins, ends) in spans.items():
            add(begins, lambda _, name=name: self._profiler.open(name))
            add(ends, lambda _, name=name: self._profiler.close(name))
        add(Events.ITERATION_COMPLETED, lambda _: self._profiler.close_step())

        @functools.wraps(self._run)
        def run(*arguments: Any, **keywords: Any) -> Any:
            return self._profiled_run(*arguments, **keywords)

        run.kinetoscope = self  # type: ignore[attr-defined]
        self._engine.run = run

    def _profiled_run(self, *arguments: Any, **keywords: Any) -> Any:
        """Profile one call of the engine's `run`, however it ends."""
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
        """Begin to profile the run, once."""
        self._waits = False
        self._profiler.begin(self._steps_left())

    def _fetch(self, engine: Any) -> None:
        """Begin a step with the wait for its batch; in data of unknown length that wait may find the end instead."""
        if engine.state.epoch_length is not None:
            self._step(engine.state.iteration + 1)

    def _iterate(self, engine: Any) -> None:
        """Begin a step whose wait was not seen."""
        self._step(engine.state.iteration)

    def _step(self, number: int) -> None:
        """Begin a step, the first time with the profiling of the run."""
        if self._waits:
            self._begin()
        self._profiler.open_step(number)

    def _steps_left(self) -> int | None:
        """How many iterations the run will have at most, None where the engine does not know."""
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
    **options: Any,
) -> AttachedProfiler:
    """Profile every `run` of an engine: steps as it counts iterations, a trace for each recorded stretch.

    A step lasts from the begin of the wait for its batch through the handlers of `ITERATION_COMPLETED` that were added before
    this call; those added later belong to none. However a run ends, also terminated, interrupted or with an exception, what was
    recorded is kept.

    Args:
        engine: An Ignite `Engine`.
        folder: Folder for the traces, `{name}-steps-{first}-{last}.ktrace`. Default: a new `kinetoscope` folder in the
            present one.
        schedule: Which iterations are recorded, as `kinetoscope.schedule(...)` says; default: the third to the fifth.
        whole_run: Record everything from the begin of a run to its end; in place of a schedule.
        on_trace_ready: Called with the session whenever a trace is ready; traces are then written only if `folder` is given.
        overwrite: Let `folder` hold traces of an earlier run; those of the same name are replaced.
        name: What the files are called after.
        **options: Further arguments of `kinetoscope.profile`, such as `record_shapes`, `profile_memory` or `activities`.

    Returns:
        What has the results: `trace` and `saved_traces`.

    Raises:
        ArgumentError: An argument has a value that cannot be used; the message names it. What depends on the run, such as
            a schedule longer than that, is said when it begins.
        StateError: The engine has a profiler attached already.
    """
    if not isinstance(engine, Engine):
        raise ArgumentError(f"attach({engine!r}) is not valid: need an Ignite Engine.")
    checked_name("name", name)
    if hasattr(engine.run, "kinetoscope"):
        raise StateError("a Kinetoscope profiler is already attached to this engine.")
    checked = checked_options(
        folder=folder,
        schedule=schedule,
        whole_run=whole_run,
        on_trace_ready=on_trace_ready,
        overwrite=overwrite,
        options=options,
    )
    profiler = AttachedProfiler(engine, TrainerProfiler(checked, f"ignite {ignite.__version__}"), name)
    profiler._attach()
    return profiler
