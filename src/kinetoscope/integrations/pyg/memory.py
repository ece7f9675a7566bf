"""How much memory is in use: by tensors that Python knows, by a device as its driver sees it, by a profiled function."""

from __future__ import annotations

import gc
from typing import Any

import torch

from kinetoscope._errors import ArgumentError
from kinetoscope.collect.sources.nvml import NvmlError, nvml
from kinetoscope.integrations.pyg.checks import DeviceError, checked_whole, device_number, need_xpu
from kinetoscope.integrations.pyg.sizes import bytes_of

_MEGABYTE = 1024 * 1024


def byte_to_megabyte(value: float, digits: int = 2) -> float:
    """Bytes as megabytes of 1024 * 1024 bytes.

    Args:
        value: The bytes.
        digits: To how many decimals the result is rounded.

    Returns:
        The megabytes.
    """
    return round(value / _MEGABYTE, digits)


def medibyte_to_megabyte(value: float, digits: int = 2) -> float:
    """Units of 1024 * 1024 bytes, as `nvidia-smi` prints them, as megabytes of 1,000,000 bytes.

    Kept for programs that use it; everything else in this package counts in megabytes of 1024 * 1024 bytes.

    Args:
        value: The units of 1024 * 1024 bytes.
        digits: To how many decimals the result is rounded.

    Returns:
        The units of 1,000,000 bytes.
    """
    return round(value * _MEGABYTE / 1_000_000, digits)


def get_cpu_memory_from_gc() -> int:
    """How many bytes of the host the tensors hold that Python's garbage collector knows.

    Memory that several tensors share counts once. What only C++ holds, such as what autograd saved for backward, is
    not known to Python.

    Returns:
        The bytes.
    """
    return _held_on(torch.device("cpu"))


def get_gpu_memory_from_gc(device: int | str | torch.device = 0) -> int:
    """How many bytes of a device the tensors hold that Python's garbage collector knows; see `get_cpu_memory_from_gc`.

    Args:
        device: The number of the device, of whichever kind this machine has, or a device such as `"cuda:1"`; `"cpu"`
            for the host.

    Returns:
        The bytes.

    Raises:
        DeviceError: `device` is no device.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return _held_on(None, checked_whole("device", device, 0))
    try:
        wanted = torch.device(device) if isinstance(device, str | torch.device) else None
    except RuntimeError:
        wanted = None
    if wanted is None:
        raise DeviceError(
            f"device={device!r} is not valid: need the number of a device, or one such as 'cuda:1'."
        )
    if wanted.index is None and wanted.type != "cpu":
        wanted = torch.device(wanted.type, 0)
    return _held_on(wanted)


def get_gpu_memory_from_nvidia_smi(
    device: int | str | torch.device = 0, digits: int = 2
) -> tuple[float, float]:
    """A device's free and used memory as NVIDIA's driver counts it: of all processes, and of the driver itself.

    It asks NVML, the library behind `nvidia-smi`, through `nvidia-ml-py` (`pip install "kinetoscope[system]"`).

    Args:
        device: Its number in `nvidia-smi`, which `CUDA_VISIBLE_DEVICES` does not change; or torch's name of it, such as
            `"cuda:0"`, which it does.
        digits: To how many decimals the results are rounded.

    Returns:
        Free and used memory, in megabytes (1024 * 1024 bytes).

    Raises:
        DeviceError: There is no such device.
        NvmlError: There is no NVIDIA driver, or it did not answer.
        MissingDependencyError: `nvidia-ml-py` is not installed.
    """
    number = device_number(device, "cuda")
    library = nvml()
    if not isinstance(device, int):
        return _free_and_used(library.device_of_cuda(*known_to_cuda(number)).memory(), number, digits)
    if not 0 <= number < len(library):
        raise DeviceError(
            f"device={number} is not available: NVML finds {len(library)} NVIDIA devices, counted from 0."
        )
    return _free_and_used(library.device(number).memory(), number, digits)


def get_gpu_memory_from_cuda(index: int, digits: int = 2) -> tuple[float, float]:
    """The same of the device that torch knows by this number."""
    return _free_and_used(nvml().device_of_cuda(*known_to_cuda(index)).memory(), index, digits)


def known_to_cuda(index: int) -> tuple[str, int]:
    """The unique name of one of torch's CUDA devices, empty where torch does not tell, and its number."""
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", "")), index


def get_gpu_memory_from_ipex(
    device: int | str | torch.device = 0, digits: int = 2
) -> tuple[float, float, float]:
    """The peaks of an Intel GPU's memory since they were last reset, as `torch.xpu` counts them; resets them.

    Args:
        device: The number of the device, or a device such as `"xpu:1"`.
        digits: To how many decimals the results are rounded.

    Returns:
        The most memory allocated, reserved and active, in megabytes (1024 * 1024 bytes).

    Raises:
        DeviceError: There is no Intel GPU, or not this one.
    """
    need_xpu("get_gpu_memory_from_ipex()")
    number = device_number(device, "xpu")
    if not 0 <= number < torch.xpu.device_count():
        raise DeviceError(
            f"device={number} is not available: torch finds {torch.xpu.device_count()} Intel GPUs."
        )
    found = peaks(torch.xpu.memory_stats(number), digits)
    torch.xpu.reset_peak_memory_stats(number)
    return found


def peaks(stats: dict[str, Any], digits: int = 2) -> tuple[float, float, float]:
    """The most memory allocated, reserved and active, in megabytes, of what torch's allocator tells."""
    allocated, reserved, active = (
        byte_to_megabyte(stats.get(f"{kind}_bytes.all.peak", 0), digits)
        for kind in ("allocated", "reserved", "active")
    )
    return allocated, reserved, active


def read_from_memlab(line_profiler: Any) -> list[float]:
    """What a `LineProfiler` of pytorch_memlab has seen.

    Args:
        line_profiler: The profiler, after it was disabled. pytorch_memlab itself is not needed for this.

    Returns:
        The most memory allocated, reserved and active after any of its lines, in megabytes (1024 * 1024 bytes); zeros
        if no line of its functions ran.

    Raises:
        ArgumentError: It is no such profiler.
    """
    # The same column that its own tables are made of: one mapping for each line, with torch.cuda.memory_stats() in it.
    records = getattr(line_profiler, "_raw_line_records", None)
    if not isinstance(records, list):
        raise ArgumentError(
            f"line_profiler is of type {type(line_profiler).__name__}: need a LineProfiler of pytorch_memlab."
        )
    return [max(column) for column in zip(*map(peaks, records), strict=True)] or [0.0, 0.0, 0.0]


def _held_on(device: torch.device | None, number: int = -1) -> int:
    """The bytes of all living tensors on a device, or on any accelerator of that number."""
    # By the type and not by isinstance, which asks `__class__` of objects that may do anything when asked.
    living = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    with torch._C.DisableTorchFunctionSubclass():
        on_it = [
            tensor
            for tensor in living
            if (tensor.device == device if device is not None else tensor.device.index == number)
        ]
    return bytes_of(on_it)


def _free_and_used(memory: Any, number: int, digits: int) -> tuple[float, float]:
    """Both in megabytes."""
    if memory is None:
        raise NvmlError(
            f"NVIDIA device {number} does not tell how much of its memory is free: some share the host's, and some "
            "drivers keep it to themselves. Ask torch.cuda.mem_get_info() instead."
        )
    return byte_to_megabyte(memory.free_bytes, digits), byte_to_megabyte(memory.used_bytes, digits)
