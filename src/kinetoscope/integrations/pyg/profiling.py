"""The cost of calls: `timeit`; `benchmark`, a table of several functions; and `profileit`, which returns the cost with each result."""

from __future__ import annotations

import functools
import math
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

import torch
from rich.console import Console
from rich.progress import track
from torch.utils._pytree import tree_leaves, tree_map_only

from kinetoscope._errors import ArgumentError, StateError, checked_whole
from kinetoscope.collect import NvmlError, ProfilerActivity, _KinetoProfile, warn_user
from kinetoscope.integrations.pyg.checks import (
    DeviceError,
    checked_function,
    checked_model,
    name_of,
    need_xpu,
    synchronize,
    timed,
)
from kinetoscope.integrations.pyg.memory import (
    byte_to_megabyte,
    get_gpu_memory_from_ipex,
    get_gpu_memory_from_nvidia_smi,
    peaks,
    tensors_in,
)
from kinetoscope.tables.memory.peak import peak

__all__ = [
    "CPUStats",
    "CPUStatsSummary",
    "CUDAStats",
    "CUDAStatsSummary",
    "GPUStats",
    "GPUStatsSummary",
    "benchmark",
    "get_stats_summary",
    "profileit",
    "timeit",
]


class timeit(ContextDecorator):  # noqa: N801  (PyG's name)
    """Times a `with` block, or each call of the function it decorates.

    Waits for the accelerator, if it is in use, at both ends. Blocks of one `timeit` may be nested, and run in several threads; `duration` is
    that of the block that ended last.

    Args:
        log: Print `Time: ...s` at the end of each.
        avg_time_divisor: Divide the time by this number, such as the number of rounds of a loop; 0 and 1 do not divide.

    Attributes:
        duration: How long the last block took, in seconds; not set before the first has ended.

    Raises:
        ArgumentError: `avg_time_divisor` is not a number >= 0.
    """

    duration: float
    _clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, log: bool = True, avg_time_divisor: int = 0) -> None:
        untyped: Any = avg_time_divisor
        if isinstance(untyped, bool) or not isinstance(untyped, int | float) or not untyped >= 0:
            raise ArgumentError(f"avg_time_divisor={avg_time_divisor!r} is not valid: need a number >= 0.")
        if callable(log):
            raise ArgumentError("@timeit is used without parentheses: write `@timeit()`.")
        self.log = log
        self.avg_time_divisor = avg_time_divisor
        self._of_thread = _Starts()

    def __call__(self, func: Any) -> Any:
        """Time every call of a function.

        Raises:
            ArgumentError: It is not a function, or its call returns before it has run.
        """
        checked_function(func, "timeit()")
        return super().__call__(func)

    def __enter__(self) -> Self:
        synchronize()
        self._of_thread.open.append(self._clock())
        return self

    def __exit__(self, *_error: object) -> None:
        starts = self._of_thread
        starts.ended = [starts.open.pop()]
        self._end(starts.ended[-1])

    def reset(self) -> None:
        """Set `duration` to the time since the beginning of the block, print it, and restart; also after the end of a block.

        Raises:
            StateError: No block was begun in this thread.
        """
        starts = self._of_thread
        begun = starts.open or starts.ended
        if not begun:
            raise StateError("this timer was not started: call reset() in or after its `with` block.")
        self._end(begun[-1])
        begun[-1] = self._clock()

    def _end(self, start: float) -> None:
        synchronize()
        self.duration = self._clock() - start
        if self.avg_time_divisor > 1:
            self.duration /= self.avg_time_divisor
        if self.log:
            print(f"Time: {self.duration:.8f}s", flush=True)


class _Starts(threading.local):
    """Start times of the open blocks of one thread, and of the one that ended last."""

    def __init__(self) -> None:
        self.open: list[float] = []
        self.ended: list[float] = []


def benchmark(
    funcs: Sequence[Callable[..., Any]],
    args: Any,
    num_steps: int,
    func_names: Sequence[str] | None = None,
    num_warmups: int = 10,
    backward: bool = False,
    per_step: bool = False,
    progress_bar: bool = False,
) -> None:
    """Print how long functions take.

    Waits for the accelerator, if it is in use, around each measured call. Tensors among the arguments are detached, so that no graph grows
    from step to step.

    Args:
        funcs: The functions, or modules.
        args: A tuple of arguments for all functions, or a list with a tuple for each. Instead of a tuple, a function may make one for
            every step, which is not measured.
        num_steps: How many calls are measured.
        func_names: The names in the table; None for those of the functions.
        num_warmups: How many unmeasured calls come before.
        backward: Also measure the backward of what each call returns; arguments of floating point get gradients.
        per_step: Print the seconds of one step, not of all.
        progress_bar: Show on the standard error which function is being measured.

    Raises:
        ArgumentError: A number is below 1, lengths do not fit, or with `backward` a function returns nothing that
            depends on its arguments or parameters.
    """
    checked_whole("num_steps", num_steps, 1)
    checked_whole("num_warmups", num_warmups, 1)
    functions = list(funcs)
    for function in functions:
        if not callable(function):
            raise ArgumentError(f"funcs holds {function!r}, which cannot be called.")
    # A partial function has no name of its own.
    named = (getattr(function, "func", function) for function in functions)
    names = [name_of(function) for function in named] if func_names is None else list(func_names)
    if len(names) != len(functions):
        raise ArgumentError(f"func_names has {len(names)} names for {len(functions)} functions.")
    of_each = list(args) if isinstance(args, list) else [args] * len(functions)
    if len(of_each) != len(functions):
        raise ArgumentError(
            f"args is a list of {len(of_each)} for {len(functions)} functions: give one tuple for each, or a tuple for all."
        )
    rows: list[list[str]] = []
    measured = list(zip(functions, of_each, names, strict=True))
    tracked = track(measured, "Measuring", console=Console(stderr=True), disable=not progress_bar)
    for function, inputs, name in tracked:
        seconds = _measured(function, inputs, name, num_steps, num_warmups, backward)
        numbers = [*seconds, sum(seconds)] if backward else seconds
        rows.append([name, *(f"{n / num_steps:.6f}s" if per_step else f"{n:.4f}s" for n in numbers)])
    header = ["Name", "Forward", *(["Backward", "Total"] if backward else [])]
    print(_table(header, rows))


def _measured(
    function: Callable[..., Any], inputs: Any, name: str, steps: int, warmups: int, backward: bool
) -> list[float]:
    forward_s = backward_s = 0.0
    for step in range(warmups + steps):
        arguments = _detached(inputs() if callable(inputs) else inputs, backward)
        result, took_forward = timed(functools.partial(function, *arguments))
        took_backward = 0.0
        if backward:
            target = _target(result, name)
            # Ones instead of random numbers, so that the program's random numbers do not change.
            _, took_backward = timed(functools.partial(target.backward, torch.ones_like(target)))
        if step >= warmups:
            forward_s += took_forward
            backward_s += took_backward
    return [forward_s, backward_s] if backward else [forward_s]


def _detached(arguments: Any, requires_grad: bool) -> Any:
    def detached(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided and (tensor.is_floating_point() or tensor.is_complex()):
            return tensor.detach().requires_grad_(requires_grad)
        return tensor

    return tree_map_only(torch.Tensor, detached, arguments)


def _target(result: Any, name: str) -> torch.Tensor:
    """The tensor to call backward on: the result, or the sum of all tensors in it."""
    if isinstance(result, torch.Tensor):
        tensors = [result]
    else:
        tensors = [leaf.sum() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    tensors = [tensor for tensor in tensors if tensor.requires_grad]
    if not tensors:
        raise ArgumentError(
            f"backward=True, and {name!r} returns nothing that has a gradient: it must return a tensor, or tensors in a "
            "tuple, list or dict, that depend on floating-point arguments or on parameters."
        )
    return functools.reduce(torch.add, tensors)


def _table(header: list[str], rows: list[list[str]]) -> str:
    """A table as `psql` draws it, with columns at least two characters wider than their names."""
    widths = [max([len(name) + 2, *(len(row[column]) for row in rows)]) for column, name in enumerate(header)]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "+".join("-" * (width + 2) for width in widths)
    return "\n".join([f"+{rule}+", line(header), f"|{rule}|", *map(line, rows), f"+{rule}+"])


@dataclass
class CPUStats:
    """A call on the CPU.

    Attributes:
        time: How long it took, in seconds.
        max_rss_cpu: The largest resident set of the process while it ran, in megabytes.
        max_allocated_cpu: The most host memory that torch held while it ran, in megabytes; NaN if it could not be
            recorded.
    """

    time: float
    max_rss_cpu: float
    max_allocated_cpu: float


@dataclass
class GPUStats:
    """A call on an accelerator.

    Attributes:
        time: How long it took on the device, in seconds.
        max_allocated_gpu: The most memory that tensors held while it ran, in megabytes.
        max_reserved_gpu: The most memory that torch's allocator held, in megabytes.
        max_active_gpu: The most memory in blocks that were in use or could not yet be used again, in megabytes.
    """

    time: float
    max_allocated_gpu: float
    max_reserved_gpu: float
    max_active_gpu: float


@dataclass
class CUDAStats(GPUStats):
    """A call on an NVIDIA device.

    Attributes:
        nvidia_smi_free_cuda: The device's free memory after it, in megabytes, whichever process uses the rest.
        nvidia_smi_used_cuda: The device's used memory after it, in megabytes.
    """

    nvidia_smi_free_cuda: float
    nvidia_smi_used_cuda: float


@dataclass
class CPUStatsSummary:
    """Calls on the CPU: mean and sample standard deviation of their seconds, the largest of their megabytes."""

    time_mean: float
    time_std: float
    max_rss_cpu: float
    max_allocated_cpu: float


@dataclass
class GPUStatsSummary:
    """Calls on an accelerator: mean and sample standard deviation of their seconds, the largest of their megabytes."""

    time_mean: float
    time_std: float
    max_allocated_gpu: float
    max_reserved_gpu: float
    max_active_gpu: float


@dataclass
class CUDAStatsSummary(GPUStatsSummary):
    """Calls on an NVIDIA device: those of `GPUStatsSummary`, the least free and the most used megabytes."""

    min_nvidia_smi_free_cuda: float
    max_nvidia_smi_used_cuda: float


@overload
def get_stats_summary(stats_list: Sequence[CUDAStats]) -> CUDAStatsSummary: ...
@overload
def get_stats_summary(stats_list: Sequence[GPUStats]) -> GPUStatsSummary: ...
@overload
def get_stats_summary(stats_list: Sequence[CPUStats]) -> CPUStatsSummary: ...
def get_stats_summary(stats_list: Sequence[Any]) -> Any:
    """Summarize the costs of several calls.

    Args:
        stats_list: What `profileit` returned with each call; all of one kind.

    Returns:
        A `CUDAStatsSummary`, `GPUStatsSummary` or `CPUStatsSummary`: mean and sample standard deviation of the seconds
        (NaN for a single call), the largest megabytes, the least free ones.

    Raises:
        ArgumentError: The list is empty, holds different kinds, or something that is none of them.
    """
    stats = list(stats_list)
    if not stats:
        raise ArgumentError(
            "stats_list is empty: pass the statistics of at least one call of a profiled function."
        )
    kinds = {type(stat) for stat in stats}
    summary = _SUMMARIES.get(type(stats[0]))
    if len(kinds) > 1 or summary is None:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ArgumentError(
            f"stats_list holds {names}: need statistics of one kind, CPUStats, GPUStats or CUDAStats."
        )
    times = [float(stat.time) for stat in stats]
    # A single value has no deviation.
    deviation = statistics.stdev(times) if len(times) > 1 else math.nan
    numbers = {"time_mean": statistics.fmean(times), "time_std": deviation}
    for name in (field.name for field in fields(summary)[2:]):
        # `max_nvidia_smi_used_cuda` is the largest `nvidia_smi_used_cuda`, `max_reserved_gpu` the largest of itself.
        source = name if hasattr(stats[0], name) else name[4:]
        values = [value for stat in stats if not math.isnan(value := getattr(stat, source))]
        pick = min if name.startswith("min_") else max
        numbers[name] = pick(values, default=math.nan)
    return summary(**numbers)


_SUMMARIES: dict[type, type] = {
    CPUStats: CPUStatsSummary,
    GPUStats: GPUStatsSummary,
    CUDAStats: CUDAStatsSummary,
}


_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_INTERVAL_S = 0.01


class ResidentPeak:
    """The largest resident set of the process during a block, in `bytes`.

    The system has the peak since the process began: if that rose, it is the answer. Otherwise a thread reads the set every 10 ms, and at both ends;
    resetting the system's peak would change what other tools read.
    """

    def __init__(self) -> None:
        """Start without a result."""
        self.bytes = 0
        self._mark = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kinetoscope-resident-set", daemon=True)

    def __enter__(self) -> Self:
        self._mark, self.bytes = resident_peak_of_life(), resident_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()
        mark = resident_peak_of_life()
        self.bytes = max(self.bytes, resident_bytes(), mark if mark > self._mark else 0)

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self.bytes = max(self.bytes, resident_bytes())


class AllocatedPeak:
    """The peak host memory that torch held during a block, in `bytes`; NaN if unknown.

    Computed from a recording of all allocations, with the earlier tensors that the recording knows.
    """

    def __init__(self) -> None:
        """Start without a result."""
        self.bytes = math.nan
        self._session: _KinetoProfile | None = None

    def __enter__(self) -> Self:
        try:
            session = _KinetoProfile(activities=[ProfilerActivity.CPU], profile_memory=True, oom_report=False)
            session.start()
            self._session = session
        except Exception as error:  # noqa: BLE001  (the call continues without this number after any failure)
            _warn(error)
        return self

    def __exit__(self, *_error: object) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.stop()
            memory_peak = peak(session.trace)
            self.bytes = 0 if memory_peak is None else memory_peak.bytes
        except Exception as failure:  # noqa: BLE001  (the call has its result)
            _warn(failure)


def resident_bytes() -> int:
    """The memory, in bytes, that the process holds now; if the system does not report it, the peak."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return resident_peak_of_life()


def resident_peak_of_life() -> int:
    """The most memory, in bytes, that the process ever held."""
    # Linux counts in kibibytes.
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _warn(error: Exception) -> None:
    warn_user(
        f"profileit('cpu') cannot measure how much memory torch allocated, so max_allocated_cpu is NaN: {error}"
    )


P = ParamSpec("P")
R = TypeVar("R")


@overload
def profileit(device: Literal["cuda"]) -> Callable[[Callable[P, R]], Callable[P, tuple[R, CUDAStats]]]: ...
@overload
def profileit(device: Literal["xpu"]) -> Callable[[Callable[P, R]], Callable[P, tuple[R, GPUStats]]]: ...
@overload
def profileit(device: Literal["cpu"]) -> Callable[[Callable[P, R]], Callable[P, tuple[R, CPUStats]]]: ...
@overload
def profileit(device: str) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Any]]]: ...
def profileit(device: str) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Any]]]:
    """Make a function return `(result, stats)`: its result and the cost of the call.

    The function's first argument must be a model. The accelerator is that of the tensors among the arguments, also inside PyG graphs, mappings and
    sequences, or else that of the model's parameters. On an accelerator, the time is between two events of its current stream, and torch's
    peak memory counts are reset before the call. With `"cpu"`, the time includes the cost of recording all allocations.

    Args:
        device: `"cuda"` for `CUDAStats`, `"xpu"` for `GPUStats`, `"cpu"` for `CPUStats`.

    Returns:
        The decorator. Before it runs, the decorated function raises `NotAModuleError` if its first argument is not a model, and
        `DeviceError` if no tensor is on the device.

    Raises:
        DeviceError: `device` is none of these.
        ArgumentError: The decorated object is not a function, or its call returns before it has run.
    """
    if device not in ("cuda", "xpu", "cpu"):
        hint = " Write `@profileit('cpu')` with brackets." if callable(device) else ""
        raise DeviceError(f"device={device!r} is not valid: choose 'cuda', 'xpu' or 'cpu'.{hint}")

    def decorate(function: Callable[P, R]) -> Callable[P, tuple[R, Any]]:
        checked_function(function, f"profileit({device!r})")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Any]:
            values: list[Any] = [*args, *kwargs.values()]
            model = checked_model(
                values[0] if values else None, f"the first argument of {name_of(function)}()"
            )
            run = functools.partial(function, *args, **kwargs)
            if device == "cpu":
                # The wall clock, and both kinds of peaks around it.
                with AllocatedPeak() as allocated, ResidentPeak() as resident:
                    result, seconds = timed(run)
                sizes = (byte_to_megabyte(measured.bytes) for measured in (resident, allocated))
                return result, CPUStats(seconds, *sizes)
            return _on_an_accelerator(run, device, _number(device, values[1:], model))

        return call

    return decorate


def _on_an_accelerator(run: Callable[[], R], kind: str, number: int) -> tuple[R, GPUStats]:
    if kind == "xpu":
        need_xpu("profileit('xpu')")
    else:
        # Missing requirements are reported before the call, not after an epoch.
        get_gpu_memory_from_nvidia_smi(torch.device("cuda", number))
    module: Any = getattr(torch, kind)
    module.reset_peak_memory_stats(number)
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record(module.current_stream(number))
    result = run()
    end.record(module.current_stream(number))
    end.synchronize()
    seconds = start.elapsed_time(end) / 1000
    if kind == "xpu":
        return result, GPUStats(seconds, *get_gpu_memory_from_ipex(number))
    try:
        free, used = get_gpu_memory_from_nvidia_smi(torch.device("cuda", number))
    except NvmlError as error:
        warn_user(f"profileit('cuda') cannot read the device's free memory: {error}")
        free = used = math.nan
    return result, CUDAStats(seconds, *peaks(module.memory_stats(number)), free, used)


def _number(kind: str, arguments: list[Any], model: torch.nn.Module) -> int:
    devices: set[str] = set()
    for tensor in _tensors(arguments, model):
        if tensor.device.type == kind:
            return tensor.device.index or 0
        devices.add(str(tensor.device))
    if not devices:
        raise DeviceError(
            f"profileit({kind!r}) finds the device from tensor arguments or model parameters, and there are "
            "neither: pass a tensor on the device."
        )
    module: Any = getattr(torch, kind)
    there = "" if module.is_available() else f", and torch.{kind}.is_available() is False here"
    raise DeviceError(
        f"profileit({kind!r}): all tensors are on {', '.join(sorted(devices))}{there}. Move model and data to {kind!r}, or use "
        "profileit('cpu')."
    )


def _tensors(arguments: list[Any], model: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from (argument for argument in arguments if isinstance(argument, torch.Tensor))
    for argument in arguments:
        yield from tensors_in(argument)
    yield from chain(model.parameters(), model.buffers())
