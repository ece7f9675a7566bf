"""Memory and sizes: of tensors that Python references, of a device by its driver, of models and data."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from kinetoscope._errors import ArgumentError, checked_whole
from kinetoscope._runtime import live_objects
from kinetoscope.collect import NvmlError, nvml, nvml_device_of_cuda, tensor_parts
from kinetoscope.integrations.pyg.checks import (
    DeviceError,
    checked_device,
    checked_model,
    device_number,
    need_xpu,
)

__all__ = [
    "byte_to_megabyte",
    "count_parameters",
    "get_cpu_memory_from_gc",
    "get_data_size",
    "get_gpu_memory_from_gc",
    "get_gpu_memory_from_ipex",
    "get_gpu_memory_from_nvidia_smi",
    "get_model_size",
    "medibyte_to_megabyte",
    "read_from_memlab",
]


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of the elements of these tensors; shared elements count once.

    Gaps (`x[:, 0]`) do not count, and an expanded element counts once. Tensors without memory of their own (meta, fake, functional, batched) count
    as 0.
    """
    of_storages: dict[tuple[torch.device, int], set[tuple[int, int, int]]] = {}
    # Subclasses are read as plain tensors, without their overrides.
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in (part for outer in tensors for part in tensor_parts(outer)):
            if address := _address_of(tensor.untyped_storage()):
                of_storages.setdefault((tensor.device, address), set()).add(_extent(tensor))
    return sum(
        min(_covered(extents), sum(size for _, _, size in extents)) for extents in of_storages.values()
    )


def _address_of(storage: torch.UntypedStorage) -> int:
    """The address of a storage; 0 without memory. Only the storage of a fake tensor says that it is on `meta`."""
    try:
        return 0 if storage.device.type == "meta" else storage.data_ptr()
    except RuntimeError:
        return 0


def _extent(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Begin and end of a tensor's elements in its storage, and their size in bytes."""
    if tensor.is_nested:
        size = tensor.untyped_storage().nbytes()
        return 0, size, size
    if tensor.numel() == 0:
        return 0, 0, 0
    # A dimension of stride 0 repeats the same elements.
    axes = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    start, width = tensor.storage_offset(), tensor.element_size()
    end = start + 1 + sum((size - 1) * stride for size, stride in axes)
    elements = min(math.prod(size for size, _ in axes), end - start)
    return start * width, end * width, elements * width


def _covered(extents: Iterable[tuple[int, int, int]]) -> int:
    """The bytes covered by extents, counting overlaps once."""
    covered = reached = 0
    for start, end, _ in sorted(extents):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def count_parameters(model: torch.nn.Module) -> int:
    """How many trainable numbers a model has.

    Args:
        model: The model; parameters that are frozen (`requires_grad=False`) do not count, shared ones count once.

    Returns:
        The number of elements of its parameters.

    Raises:
        NotAModuleError: It is no model.
        ValueError: A parameter has no shape yet.
    """
    parameters = checked_model(model, "model").parameters()
    return sum(parameter.numel() for parameter in parameters if parameter.requires_grad)


def get_model_size(model: torch.nn.Module) -> int:
    """How many bytes a file of `torch.save` with the model's state takes.

    The bytes are counted as they come; no file is written.

    Args:
        model: The model.

    Returns:
        The bytes.

    Raises:
        NotAModuleError: It is no model.
    """
    counter = _Counter()
    torch.save(checked_model(model, "model").state_dict(), counter)
    return counter.bytes


def get_data_size(data: Any) -> int:
    """How many bytes the tensors of a graph, or of anything that holds tensors, take.

    Memory that several tensors share counts once. Sparse tensors count with their indices.

    Args:
        data: PyG's `Data`, `HeteroData` or `Batch`, a tensor, or mappings, sequences and dataclasses of such.

    Returns:
        The bytes.

    Raises:
        ArgumentError: It is nothing that could hold tensors.
    """
    if not isinstance(data, torch.Tensor) and _parts(data) is None:
        raise ArgumentError(
            f"data is of type {type(data).__name__}: need a graph of PyG, a tensor, or mappings, sequences and dataclasses "
            "of tensors."
        )
    return bytes_of(tensors_in(data))


class _Counter(io.RawIOBase):
    bytes = 0

    def write(self, data: Any) -> int:
        self.bytes += len(data)
        return len(data)


def tensors_in(data: Any) -> Iterator[torch.Tensor]:
    """All tensors in it, at any depth; each container is visited once."""
    visited: set[int] = set()
    waiting: list[Any] = [data]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, torch.Tensor):
            yield thing
        elif id(thing) not in visited:
            visited.add(id(thing))
            waiting.extend(_parts(thing) or ())


def _parts(thing: Any) -> Collection[Any] | None:
    # The class of torch_sparse, which is not a tensor.
    if type(thing).__name__ == "SparseTensor" and callable(getattr(thing, "csr", None)):
        return [part for part in thing.csr() if part is not None]
    if isinstance(thing, Mapping):
        return thing.values()
    if isinstance(thing, Sequence) and not isinstance(thing, str | bytes | bytearray | memoryview | range):
        return thing
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, field.name, None) for field in dataclasses.fields(thing)]
    return list(thing.stores) if hasattr(thing, "stores") else None


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
    """How many bytes of host memory the tensors known to Python's garbage collector hold.

    Shared memory counts once. Tensors that only C++ holds, such as those saved for backward by autograd, are not counted.

    Returns:
        The bytes.
    """
    return _held_on("cpu", None)


def get_gpu_memory_from_gc(device: int | str | torch.device = 0) -> int:
    """How many bytes of a device the tensors known to Python's garbage collector hold; see `get_cpu_memory_from_gc`.

    Args:
        device: The number of the device, of whichever kind this machine has, or a device such as `"cuda:1"`; `"cpu"`
            for the host.

    Returns:
        The bytes.

    Raises:
        DeviceError: `device` is not a device.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return _held_on(None, checked_whole("device", device, 0))
    chosen = checked_device(device, "one such as 'cuda:1'")
    return _held_on(chosen.type, None if chosen.type == "cpu" else chosen.index or 0)


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
    devices = nvml()
    if not isinstance(device, int):
        uuid = getattr(torch.cuda.get_device_properties(number), "uuid", "")
        memory = nvml_device_of_cuda(str(uuid), number).memory()
    elif 0 <= number < len(devices):
        memory = devices[number].memory()
    else:
        raise DeviceError(
            f"device={number} is not available: NVML finds {len(devices)} NVIDIA devices, counted from 0."
        )
    if memory is None:
        raise NvmlError(
            f"NVIDIA device {number} does not report its free memory: it may share the host's memory, or its driver "
            "may not support it. Use torch.cuda.mem_get_info() instead."
        )
    return byte_to_megabyte(memory.free_bytes, digits), byte_to_megabyte(memory.used_bytes, digits)


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
    stats = peaks(torch.xpu.memory_stats(number), digits)
    torch.xpu.reset_peak_memory_stats(number)
    return stats


def peaks(stats: dict[str, Any], digits: int = 2) -> tuple[float, float, float]:
    """The most memory allocated, reserved and active, in megabytes, from the statistics of torch's allocator."""
    allocated, reserved, active = (
        byte_to_megabyte(stats.get(f"{kind}_bytes.all.peak", 0), digits)
        for kind in ("allocated", "reserved", "active")
    )
    return allocated, reserved, active


def read_from_memlab(line_profiler: Any) -> list[float]:
    """Peak memory from a `LineProfiler` of pytorch_memlab.

    Args:
        line_profiler: The profiler, after it was disabled. pytorch_memlab itself is not needed for this.

    Returns:
        The most memory allocated, reserved and active after any of its lines, in megabytes (1024 * 1024 bytes); zeros
        if no line of its functions ran.

    Raises:
        ArgumentError: It is not such a profiler.
    """
    # The source of its own tables: for each line, a mapping with the values of torch.cuda.memory_stats().
    records = getattr(line_profiler, "_raw_line_records", None)
    if not isinstance(records, list):
        raise ArgumentError(
            f"line_profiler is of type {type(line_profiler).__name__}: need a LineProfiler of pytorch_memlab."
        )
    return [max(column) for column in zip(*map(peaks, records), strict=True)] or [0.0, 0.0, 0.0]


def _held_on(kind: str | None, number: int | None) -> int:
    living, _ = live_objects((torch.Tensor,))
    with torch._C.DisableTorchFunctionSubclass():
        on_it = [
            tensor
            for tensor in living
            if kind in (None, tensor.device.type) and number in (None, tensor.device.index)
        ]
    return bytes_of(on_it)
