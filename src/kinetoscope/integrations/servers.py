"""Plugins of inference servers: vLLM and SGLang call `plug_in` at the start of each of their processes.

They find it by the entry points of this package. It does nothing unless the environment variable `KINETOSCOPE` is set. With `on`, the
import of the package has turned on the flight recorder, see `kinetoscope.flight.environment`; here each iteration of the engine becomes a step, by
`WorkerWrapperBase.execute_model` of vLLM, which calls the worker of every device, and `Scheduler.run_batch` of SGLang.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kinetoscope._after_import import AfterImport
from kinetoscope._errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kinetoscope.collect import StepNames

VARIABLE = "KINETOSCOPE"
INSTALL, ON, OFF = "install", "on", "off"
VLLM_WORKERS = "vllm.v1.worker.worker_base"
SGLANG_SCHEDULER = "sglang.srt.managers.scheduler"
_SGLANG_HOOKS = "sglang.srt.plugins.hook_registry"


def plug_in() -> None:
    """Do what the environment variable `KINETOSCOPE` says.

    With `install`, replace torch.profiler in this process, so that the server's own profiling records with Kinetoscope. With `on`, make each
    iteration of the engine a step of the flight recorder. A failure is a warning, and the server continues.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked.lower() in ("", OFF):
        return
    with _harmless(f"{VARIABLE}={asked}"):
        if asked.lower() == ON:
            follow_engines()
            return
        if asked != INSTALL:
            raise ArgumentError(
                f"the variable can be `{INSTALL}`, which replaces torch.profiler, or `{ON}`, which records all the time"
            )
        from kinetoscope.collect import install

        install()


@contextmanager
def _harmless(what: str, warnings: list[str] | None = None) -> Iterator[None]:
    """Turn exceptions into warnings, because the server matters more; raise those already in `warnings`."""
    warnings = [] if warnings is None else warnings
    try:
        yield
    except Exception as error:  # noqa: BLE001  (whatever fails)
        if what not in warnings:
            warnings.append(what)
            from kinetoscope.collect import warn_user

            warn_user(f"{what}: {type(error).__name__}: {error}")


class Iterations:
    """Marks the iterations of an engine as steps of this process's flight recorder, if that is on.

    Attributes:
        is_open: Whether a step has begun and not ended.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._names: StepNames | None = None
        self._warnings: list[str] = []

    def begin(self, describe: Callable[[], tuple[str, dict[str, int]]]) -> None:
        """Begin a step.

        Args:
            describe: Returns the name of the step, `prefill`, `decode` or `mixed`, and its arguments.
        """
        from kinetoscope.flight.flight import current_recorder

        recorder = current_recorder()
        if recorder is None:
            return
        with _harmless("an iteration of the engine is not named", self._warnings):
            from kinetoscope.collect import StepNames

            if self._names is None:
                self._names = StepNames()
            self._names.end()
            recorder.step()
            self.is_open = True
            self._names.begin(*describe())

    def end(self) -> None:
        """End the step; time until the next one belongs to no step."""
        from kinetoscope.flight.flight import current_recorder

        recorder = current_recorder()
        if recorder is None or not self.is_open:
            return
        with _harmless("an iteration of the engine is not named", self._warnings):
            self.is_open = False
            if self._names is not None:
                self._names.end()
            recorder.idle()


ITERATIONS = Iterations()
"""Those of this process."""


def follow_engines() -> None:
    """Make the iterations of vLLM's and SGLang's engines steps, once their modules are imported."""
    # SGLang applies the hooks of all plugins once, after loading them.
    follow_sglang = functools.partial(_follow_sglang, is_later=SGLANG_SCHEDULER not in sys.modules)
    for module, follow in ((VLLM_WORKERS, _follow_vllm), (SGLANG_SCHEDULER, follow_sglang)):
        if module.partition(".")[0] in sys.modules and module not in _followed:
            _followed.add(module)
            # A failure must not look like one of the import.
            AfterImport(module, _harmless("the iterations of the engine are no steps")(follow)).wait()


_followed: set[str] = set()


# vLLM.


def _follow_vllm() -> None:
    workers: Any = sys.modules[VLLM_WORKERS].WorkerWrapperBase
    execute_model: Callable[..., Any] = workers.execute_model
    sample_tokens: Callable[..., Any] | None = getattr(workers, "sample_tokens", None)

    @functools.wraps(execute_model)
    def executing(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(scheduler_output, "total_num_scheduled_tokens", 1) > 0:
            ITERATIONS.begin(lambda: iteration_of_vllm(scheduler_output))
        output = None
        is_done = True
        try:
            output = execute_model(self, scheduler_output, *args, **kwargs)
            is_done = output is not None
            return output
        finally:
            # Without an output, the call that samples tokens follows.
            if is_done:
                ITERATIONS.end()

    def sampling(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if sample_tokens is not None:
                return sample_tokens(self, *args, **kwargs)
            return self.worker.sample_tokens(*args, **kwargs)
        finally:
            ITERATIONS.end()

    workers.execute_model = executing
    workers.sample_tokens = sampling if sample_tokens is None else functools.wraps(sample_tokens)(sampling)


def iteration_of_vllm(scheduler_output: Any) -> tuple[str, dict[str, int]]:
    """The name of an iteration of vLLM, and its requests and tokens.

    A request is in prefill until it has a token of output: `SchedulerOutput.scheduled_new_reqs`, and of `scheduled_cached_reqs` those with
    `num_output_tokens` of 0, as vLLM's own `is_context_phase` says.
    """
    requests = len(scheduler_output.num_scheduled_tokens)
    waiting = sum(count == 0 for count in scheduler_output.scheduled_cached_reqs.num_output_tokens)
    in_prefill = len(scheduler_output.scheduled_new_reqs) + waiting
    name = "decode" if in_prefill == 0 else "prefill" if in_prefill >= requests else "mixed"
    return name, {"requests": requests, "tokens": int(scheduler_output.total_num_scheduled_tokens)}


# SGLang.


def _follow_sglang(*, is_later: bool) -> None:
    """Register a hook around what runs a batch; `is_later` if SGLang has already applied its hooks."""
    hooks: Any = sys.modules[_SGLANG_HOOKS]
    hooks.HookRegistry.register(f"{SGLANG_SCHEDULER}.Scheduler.run_batch", running, hooks.HookType.AROUND)
    if is_later:
        hooks.HookRegistry.apply_hooks()


def running(run_batch: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a batch of SGLang as a step; a hook of the type `AROUND`."""
    ITERATIONS.begin(lambda: iteration_of_sglang(batch))
    try:
        return run_batch(scheduler, batch, *args, **kwargs)
    finally:
        ITERATIONS.end()


def iteration_of_sglang(batch: Any) -> tuple[str, dict[str, int]]:
    """The name of a batch of SGLang by its `forward_mode`, and its requests and tokens: those of extended sequences, or else one for each request."""
    mode, requests = batch.forward_mode, batch.batch_size()
    for name, is_one in (("decode", "is_decode"), ("mixed", "is_mixed"), ("prefill", "is_extend")):
        if getattr(mode, is_one)():
            tokens = requests if name == "decode" else int(batch.extend_num_tokens or 0)
            return name, {"requests": requests, "tokens": tokens}
    return mode.name.lower(), {"requests": requests}
