"""Transformers: `Trainer(..., callbacks=[KinetoscopeCallback()])`.

::

    from kinetoscope.integrations.transformers import KinetoscopeCallback
    trainer = Trainer(..., callbacks=[KinetoscopeCallback()])
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from kinetoscope._errors import needed
from kinetoscope._replacements import Replacements
from kinetoscope.collect import ProfilerAction
from kinetoscope.integrations.trainers import TraceAccess, TrainerProfiler, checked_options

with needed(
    "KinetoscopeCallback needs Transformers, which cannot be imported: run "
    '`pip install "kinetoscope[transformers]"`.'
):
    import transformers
    from transformers import Trainer, TrainerCallback


__all__ = ["KinetoscopeCallback"]

# Methods of the trainer whose calls become spans during training. Not every version has all of them.
_WORK = (
    "get_batch_samples",
    "training_step",
    "prediction_step",
    "evaluate",
    "_save_checkpoint",
    "log",
)
_FETCH, _STEP = "get_batch_samples", "training_step"
# What may follow a step without being part of it.
_BETWEEN = frozenset({"evaluate", "_save_checkpoint"})


class KinetoscopeCallback(TraceAccess, TrainerCallback):
    """A callback that profiles `Trainer.train`: steps as the trainer counts them, a trace for each recorded cycle.

    A step is one optimizer step with all its micro-batches: from the start of the wait for its data to `on_step_end`, so that
    logging, evaluation and saving in between belong to no step. Steps are numbered as `state.global_step` is while they run,
    from 0, and continue after a checkpoint. The trainer's work appears as spans such as `[Trainer]training_step`. If the training ends early or
    by an exception, the recording is kept.

    Args:
        folder: Folder for the traces, `train-steps-{first}-{last}.ktrace`. Default: a new `kinetoscope` folder in the trainer's
            `output_dir`.
        schedule: Which steps are recorded, as for `kinetoscope.schedule(...)`; default: steps 2, 3 and 4.
        whole_run: Record everything from `on_train_begin` to `on_train_end`, instead of a schedule.
        on_trace_ready: Called with the session whenever a trace is ready; traces are then written only if `folder` is given.
        overwrite: Allow traces of an earlier run in `folder`; those of the same name are replaced.
        log_to_tracker: Log each trace, and each incident of `leave_on`, to experiment trackers: True for the active runs and the writer of TensorBoard; or a
            run, a `SummaryWriter`, or a list of these, as for `kinetoscope.log_to_tracker`.
        leave_on: Turn on the flight recorder, as `kinetoscope.leave_on` does: True, or a dictionary of its arguments. Without a schedule, a
            folder or a handler, no other trace is made.
        **options: Further arguments of `kinetoscope.profile`, such as `record_shapes`, `profile_memory` or `activities`.

    Raises:
        ArgumentError: An argument has a value that cannot be used; the message names it. Mistakes that depend on the run, such as
            a schedule that is too long, are reported when training starts.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        schedule: Callable[[int], ProfilerAction] | None = None,
        whole_run: bool = False,
        on_trace_ready: Callable[..., Any] | None = None,
        overwrite: bool = False,
        log_to_tracker: object = False,
        leave_on: bool | Mapping[str, Any] = False,
        **options: Any,
    ) -> None:
        checked = checked_options(locals())
        self._profiler = TrainerProfiler(checked, f"transformers {transformers.__version__}")
        self._profiler.loggers = self._loggers
        self._trainer: Any = None
        _put_around_training()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the run.

        Args:
            args: The `TrainingArguments`.
            state: The `TrainerState`.
            control: The `TrainerControl`.
            **kwargs: Unused.

        Raises:
            ArgumentError: The traces cannot be written, or the schedule would record nothing of this run.
            StateError: Another session is recording in this process.
        """
        self._profiler.prepare("train", args.output_dir)
        self._profiler.begin(state.max_steps - state.global_step if state.max_steps > 0 else None)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the span of an epoch.

        Args:
            args: Unused.
            state: Unused.
            control: Unused.
            **kwargs: Unused.
        """
        self._profiler.open("[Trainer]epoch")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the span of an epoch.

        Args:
            args: Unused.
            state: Unused.
            control: Unused.
            **kwargs: Unused.
        """
        self._profiler.close("[Trainer]epoch")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start a step, unless its wait for data has.

        Args:
            args: Unused.
            state: The `TrainerState`.
            control: Unused.
            **kwargs: Unused.
        """
        self._profiler.open_step(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step.

        Args:
            args: Unused.
            state: Unused.
            control: Unused.
            **kwargs: Unused.
        """
        self._profiler.close_step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Note the loss that the trainer logs.

        Args:
            args: Unused.
            state: Unused.
            control: Unused.
            logs: What is logged.
            **kwargs: Unused.
        """
        self._profiler.flight.note_loss(logs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the run.

        Args:
            args: Unused.
            state: Unused.
            control: Unused.
            **kwargs: Unused.
        """
        self._profiler.end()

    @contextmanager
    def around(self, trainer: Any) -> Iterator[None]:
        """Wraps a training: its methods become spans, and if it fails the recording is stopped properly."""
        replaced = Replacements()
        for name in _WORK:
            if callable(method := getattr(trainer, name, None)):
                replaced.put(trainer, name, self._as_span(trainer, name, method))
        self._trainer = trainer
        try:
            yield
        except BaseException as error:
            self._profiler.end(error)
            raise
        finally:
            self._profiler.end()
            self._trainer = None
            replaced.restore()

    def _loggers(self) -> list[Any]:
        return [] if self._trainer is None else list(self._trainer.callback_handler.callbacks)

    def _as_span(self, trainer: Any, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method so that its calls become spans; the one that waits for data also starts the step."""
        driven, span = self._profiler, f"[Trainer]{name.lstrip('_')}"

        @functools.wraps(method)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if name == _FETCH:
                driven.open_step(trainer.state.global_step)
            elif name in _BETWEEN:
                driven.flight.close_step()
            driven.open(span)
            try:
                value = method(*arguments, **keywords)
            finally:
                driven.close(span)
            if name == _STEP:
                driven.flight.note_loss(value)
            return value

        return call


def _put_around_training() -> None:
    """Wrap `Trainer.train`: it has no event for a training that fails."""
    train = Trainer.train
    if hasattr(train, "kinetoscope"):
        return

    @functools.wraps(train)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> Any:
        ours = [
            callback
            for callback in self.callback_handler.callbacks
            if isinstance(callback, KinetoscopeCallback)
        ]
        with ExitStack() as stack:
            for callback in ours:
                stack.enter_context(callback.around(self))
            return train(self, *arguments, **keywords)

    wrapped.kinetoscope = True  # type: ignore[attr-defined]
    Trainer.train = wrapped
