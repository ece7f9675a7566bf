"""Lightning: `Trainer(profiler=KinetoscopeProfiler())`, for `lightning` and for `pytorch_lightning`.

::

    from kinetoscope.integrations.lightning import KinetoscopeProfiler
    trainer = Trainer(profiler=KinetoscopeProfiler())
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinetoscope._errors import MissingDependencyError, StateError
from kinetoscope._replacements import Replacements
from kinetoscope.collect import ProfilerAction, ranked, warn_user
from kinetoscope.integrations.trainers import TraceAccess, TrainerProfiler, checked_name, checked_options
from kinetoscope.model import units
from kinetoscope.storage.atomic_write import write_atomically
from kinetoscope.torch_events import arguments as arguments_module

__all__ = ["KinetoscopeProfiler"]

# The two package names of Lightning, and the module with its Trainer and profilers.
_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}

# The names of batches in the hooks of each stage.
_BATCHES = {"fit": "train", "validate": "validation", "test": "test", "predict": "predict"}
_FETCHES = {"fit": ".train_dataloader_next", "validate": ".val_next", "test": ".test_next", "predict": ".predict_next"}  # fmt: skip
_EPOCH = "run_training_epoch"

# The ends of names of hooks with which something other than a step begins.
_BETWEEN = (".on_validation_start", "save_checkpoint")

_OPENS, _CLOSES, _ABANDONS, _LEAVES = "opens", "closes", "abandons", "leaves"


@functools.cache
def _role(stage: str | None, action: str) -> str | None:
    batch = _BATCHES.get(stage or "")
    if batch is None:
        return None
    if action.endswith((_FETCHES[str(stage)], f".on_{batch}_batch_start")):
        return _OPENS
    if action.startswith("[LightningModule]") and action.endswith(f".on_{batch}_batch_end"):
        return _CLOSES
    if stage == "fit" and action.endswith(_BETWEEN):
        return _LEAVES
    return _ABANDONS if action == _EPOCH else None


class KinetoscopeProfiler(TraceAccess):
    """A profiler for Lightning's `Trainer`: every hook is a span, every batch a step, with a trace for each recorded cycle.

    It has Lightning's `Profiler` interface and counts as one of its subclasses. In `fit` the steps are the training batches,
    numbered as the trainer counts them, also after a checkpoint was loaded; in `validate`, `test` and `predict` those of that
    loop. A step lasts from the start of the wait for its batch to the end of `on_train_batch_end`, so that validation and
    checkpoints in between belong to no step. The recording is kept even if the run stops early or fails.

    Args:
        dirpath: Folder for the traces, `{stage}-steps-{first}-{last}.ktrace`, and the summary. Default: a new `kinetoscope`
            folder in the trainer's `log_dir`.
        filename: Name of a `.txt` file for the summary, prefixed by the stage; default: the summary goes to Lightning's log.
        schedule: Which steps are recorded, as for `kinetoscope.schedule(...)`; default: steps 2, 3 and 4 of each run.
        whole_run: Record everything from the setup of the run to its end, instead of a schedule.
        on_trace_ready: Called with the session whenever a trace is ready; traces are then written only if `dirpath` is given.
        overwrite: Allow traces of an earlier run in `dirpath`; those of the same name are replaced.
        sort_by: The sort key of the summary's table, as in `key_averages().table`.
        row_limit: The number of rows of that table; -1 for all.
        log_to_tracker: Log each trace, and each incident of `leave_on`, to experiment trackers: True for the active runs and the trainer's loggers; or a
            run, a `SummaryWriter`, or a list of these, as for `kinetoscope.log_to_tracker`.
        leave_on: Turn on the flight recorder, as `kinetoscope.leave_on` does: True, or a dictionary of its arguments. Without a schedule, a
            folder or a handler, no other trace is made.
        **options: Further arguments of `kinetoscope.profile`, such as `record_shapes`, `profile_memory` or `activities`.

    Raises:
        MissingDependencyError: Lightning is not installed.
        ArgumentError: An argument has a value that cannot be used; the message names it.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        *,
        schedule: Callable[[int], ProfilerAction] | None = None,
        whole_run: bool = False,
        on_trace_ready: Callable[..., Any] | None = None,
        overwrite: bool = False,
        sort_by: str = "self_cpu_time_total",
        row_limit: int = 20,
        log_to_tracker: object = False,
        leave_on: bool | Mapping[str, Any] = False,
        **options: Any,
    ) -> None:
        self._module = _count_as_a_profiler()
        checked = checked_options(locals(), folder_argument="dirpath")
        if filename is not None:
            checked_name("filename", filename)
        arguments_module.sort_key(sort_by)
        self.dirpath = dirpath
        self.filename = filename
        self._profiler = TrainerProfiler(checked, _version(self._module))
        self._profiler.loggers = lambda: getattr(self._trainer(), "loggers", ())
        self._sort_by, self._row_limit = sort_by, arguments_module.row_limit(row_limit)
        self._stage: str | None = None
        self._local_rank: int | None = None
        self._lightning_module: Any = None  # the trainer puts it here before `setup`
        self._summary: str | None = None
        self._may_begin = self._has_begun = False
        self._saved_before = 0
        self._replaced = Replacements()

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Prepare a run; called by the trainer.

        Args:
            stage: `fit`, `validate`, `test` or `predict`.
            local_rank: Rank of this process on its machine, None if there is only one process.
            log_dir: The trainer's log folder.

        Raises:
            ArgumentError: The folder of the traces is not writable.
        """
        _count_as_a_profiler()
        self._stage, self._local_rank = str(getattr(stage, "value", stage)), local_rank
        self._summary, self._may_begin, self._has_begun = None, True, False
        self._profiler.prepare(self._stage, log_dir or os.getcwd(), trains=self._stage == "fit")
        self._saved_before = len(self.saved_traces)
        trainer = self._trainer()
        if trainer is not None:
            self._module = _module_of(trainer) or self._module
            self._profiler.trainer = _version(self._module)
            self._follow(trainer.strategy)
        if self._profiler.options.records_from_the_start():
            self._begin(None)

    def start(self, action_name: str) -> None:
        """Open the span of a hook; the hook that starts a batch also starts a step.

        Args:
            action_name: Lightning's name of the hook.
        """
        role = _role(self._stage, action_name)
        if role is _OPENS and not self._profiler.step_is_open:
            if self._may_begin:
                self._begin(self._total_steps())
            self._profiler.open_step(self._number(fetching=action_name.endswith("_next")))
        elif role is _LEAVES:
            self._profiler.flight.close_step()
        self._profiler.open(action_name)

    def stop(self, action_name: str) -> None:
        """Close the span of a hook.

        Args:
            action_name: Lightning's name of the hook.
        """
        self._profiler.close(action_name)
        role = _role(self._stage, action_name)
        if role is _CLOSES or role is _ABANDONS:
            self._profiler.close_step()

    def profile(self, action_name: str) -> _HookSpan:
        """A context in which a hook runs.

        Args:
            action_name: Lightning's name of the hook.

        Returns:
            A context manager that calls `start` and `stop`.
        """
        return _HookSpan(self, action_name)

    def summary(self) -> str:
        """End the run and return its summary.

        Returns:
            The recorded steps, the files, and a table of operators; empty if nothing was recorded.
        """
        self._profiler.end()
        if self._summary is None:
            self._summary = self._text()
        return self._summary

    def describe(self) -> None:
        """End the run and write the summary: into the file of that name or, on rank 0, into Lightning's log."""
        text = self.summary()
        if text and self.filename is not None:
            # Beside the traces.
            folder = Path(self.dirpath or (self.saved_traces[-1].parent if self.saved_traces else Path.cwd()))
            target = ranked(folder / f"{self._stage}-{self.filename}.txt")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, text.encode("utf-8", "backslashreplace"))
            except OSError as error:
                warn_user(f"the summary {str(target)!r} could not be written: {error}.")
        elif text and self.local_rank == 0:
            logging.getLogger(f"{self._module}.profilers.kinetoscope").info(text)
        self.teardown(self._stage)

    def teardown(self, stage: str | None) -> None:
        """End the run, if it is active.

        Args:
            stage: As in `setup`.
        """
        self._profiler.end()
        self._may_begin = False
        self._replaced.restore()

    @property
    def local_rank(self) -> int:
        """Rank of this process on its machine, 0 if there is only one process."""
        return 0 if self._local_rank is None else self._local_rank

    def _follow(self, strategy: Any) -> None:
        """Observe failures and step outputs, which profilers are not passed; a callback would cost time in every hook."""
        self._replaced.restore()
        driven, replaced = self._profiler, self._replaced
        fails: Any = getattr(strategy, "on_exception", None)
        steps = strategy.training_step

        def on_exception(exception: BaseException) -> None:
            """End the recording, then do what the strategy does."""
            try:
                driven.end(exception)
            finally:
                fails(exception)
                replaced.restore()

        @functools.wraps(steps)
        def training_step(*arguments: Any, **keywords: Any) -> Any:
            output = steps(*arguments, **keywords)
            driven.flight.note_loss(output)
            return output

        if fails is not None:
            replaced.put(strategy, "on_exception", on_exception)
        if driven.flight.recorder is not None and self._stage == "fit":
            replaced.put(strategy, "training_step", training_step)

    def _begin(self, total_steps: int | None) -> None:
        self._may_begin = False
        self._profiler.begin(total_steps)
        self._has_begun = self._profiler.is_running

    def _trainer(self) -> Any:
        return getattr(self._lightning_module, "_trainer", None)

    def _number(self, *, fetching: bool) -> int:
        """The number of the batch that is being fetched or, after that, of the current one."""
        loop = self._trainer().fit_loop.epoch_loop if self._stage == "fit" and self._trainer() else None
        if loop is None:
            return self._profiler.position
        return int(loop.total_batch_idx) + fetching

    def _total_steps(self) -> int | None:
        trainer = self._trainer()
        if trainer is None:
            return None
        if self._stage == "fit":
            return _fit_batches(trainer)
        stage = "val" if self._stage == "validate" else self._stage
        return _whole(sum(getattr(trainer, f"num_{stage}_batches")))

    def _text(self) -> str:
        if not self._has_begun:
            return ""
        try:
            session = self._profiler.last_session()
            steps = session.trace.table("steps").to_pylist()
        except StateError:
            return ""
        lines = [f"{str(self._stage).upper()} Kinetoscope"]
        if steps:
            usual_ns = sorted(step["duration_ns"] for step in steps)[len(steps) // 2]
            lines.append(
                f"steps {steps[0]['number']} to {steps[-1]['number']}, {units.duration(usual_ns)} each"
            )
        lines += [f"trace: {path}" for path in self.saved_traces[self._saved_before :]]
        lines.append(session.key_averages().table(sort_by=self._sort_by, row_limit=self._row_limit))
        return "\n".join(lines)


class _HookSpan:
    """The context of one hook: a generator would cost more than the span."""

    __slots__ = ("_name", "_profiler")

    def __init__(self, profiler: KinetoscopeProfiler, name: str) -> None:
        self._profiler, self._name = profiler, name

    def __enter__(self) -> str:
        self._profiler.start(self._name)
        return self._name

    def __exit__(self, *_error: object) -> None:
        self._profiler.stop(self._name)


def _fit_batches(trainer: Any) -> int | None:
    limits = [_whole(trainer.num_training_batches * (trainer.max_epochs - trainer.current_epoch))
             if trainer.max_epochs not in (None, -1) else None,
             _whole((trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches)
             if trainer.max_steps not in (None, -1) else None]  # fmt: skip
    return min((number for number in limits if number is not None), default=None)


def _whole(number: float) -> int | None:
    return int(number) if math.isfinite(number) else None


def _loaded() -> list[str]:
    imported = [module for module in _PACKAGES.values() if module in sys.modules]
    return imported or [
        module for package, module in _PACKAGES.items() if importlib.util.find_spec(package) is not None
    ]


def _count_as_a_profiler() -> str:
    """Become a subclass of the `Profiler` of every Lightning that is imported; return the module of one."""
    modules = _loaded()
    if not modules:
        raise MissingDependencyError(
            "KinetoscopeProfiler needs Lightning, and neither `lightning` nor `pytorch_lightning` is "
            'installed: run `pip install "kinetoscope[lightning]"`.'
        )
    for module in modules:
        profilers = sys.modules.get(f"{module}.profilers")
        if profilers is not None:
            profilers.Profiler.register(KinetoscopeProfiler)
    return modules[0]


def _module_of(trainer: Any) -> str | None:
    packages = (ancestor.__module__.partition(".")[0] for ancestor in type(trainer).__mro__)
    return next((_PACKAGES[package] for package in packages if package in _PACKAGES), None)


def _version(module: str) -> str:
    package = module.partition(".")[0]
    return f"{package} {getattr(sys.modules.get(package), '__version__', '')}".strip()
