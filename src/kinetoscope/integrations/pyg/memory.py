"""Memory and sizes: of tensors that Python references, of a device by its driver, of models and data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from kinetoscope._core import living_objects
from kinetoscope._errors import ArgumentError
from kinetoscope.collect import NvmlError, nvml
from kinetoscope.integrations.pyg.checks import (
    DeviceError,
    checked_model,
    checked_whole,
    device_number,
    need_xpu,
)

# The sizes of models and data.

# The bytes of tensors that may share memory.


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes that the elements of these tensors take together; an element that several of them have counts once.

    Of a tensor that leaves gaps (`x[:, 0]`), the elements count and not the gaps. A tensor that shows one element many
    times (`expand`) takes that one. Tensors without memory of their own (meta, fake, functional, batched ones) take none.
    """
    whole: dict[torch.device, list[tuple[int, int]]] = {}
    with_gaps: dict[torch.device, set[tuple[int, int, int]]] = {}
    # Subclasses are looked at as the plain tensors they are: what they make of a question is their own affair.
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in (part for one in tensors for part in _plain_parts(one)):
            extent = _extent(tensor)
            if extent is None:
                continue
            start, end, size = extent
            if size == end - start:
                whole.setdefault(tensor.device, []).append((start, end))
            else:
                with_gaps.setdefault(tensor.device, set()).add(extent)
    covered = {device: _joined(ranges) for device, ranges in whole.items()}
    counted = sum(end - start for ranges in covered.values() for start, end in ranges)
    for device, extents in with_gaps.items():
        for start, end, size in extents:
            if not any(first <= start and end <= last for first, last in covered.get(device, ())):
                counted += size
    return counted


def _plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with an address that a tensor is made of: itself, the parts of a sparse one, what a wrapper wraps."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        inner: list[Any] = [getattr(tensor, name, None) for name in tensor.__tensor_flatten__()[0]]
        for part in inner:
            if isinstance(part, torch.Tensor) and part is not tensor:
                yield from _plain_parts(part)
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor


def _extent(tensor: torch.Tensor) -> tuple[int, int, int] | None:
    """Where a tensor's elements begin and end, and their bytes; None for one without memory of its own."""
    try:
        storage = tensor.untyped_storage()
        # Fake tensors name a device that only their storage denies, and warn when their address is read.
        if storage.device.type == "meta" or storage.data_ptr() == 0:
            return None
        if tensor.is_nested:
            return storage.data_ptr(), storage.data_ptr() + storage.nbytes(), storage.nbytes()
        if tensor.numel() == 0:
            return None
        width = tensor.element_size()
        start = storage.data_ptr() + tensor.storage_offset() * width
        # A dimension of stride 0 shows the same elements again.
        shown = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    except (RuntimeError, ValueError):
        # Functional, batched and not yet materialised tensors have no storage: torch refuses to tell.
        return None
    last = sum((size - 1) * stride for size, stride in shown)
    elements = math.prod(size for size, _ in shown)
    end = start + (last + 1) * width
    return start, end, min(elements * width, end - start)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same memory as ranges that do not touch."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def count_parameters(model: torch.nn.Module) -> int:
    """How many trainable numbers a model has.

    Args:
        model: The model; parameters that are frozen (`requires_grad=False`) do not count, shared ones count once.

    Returns:
        The number of elements of its parameters.

    Raises:
        NotAModuleError: It is no model.
        ArgumentError: A parameter has no shape yet.
    """
    counted = 0
    for name, parameter in checked_model(model, "model").named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise ArgumentError(
                f"model: the parameter {name!r} has no shape before the first forward: run the model once first."
            )
        counted += parameter.numel() if parameter.requires_grad else 0
    return counted


def get_model_size(model: torch.nn.Module) -> int:
    """How many bytes a file takes in which `torch.save` keeps the model's state.

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
    if not _could_hold_tensors(data):
        raise ArgumentError(
            f"data is of type {type(data).__name__}: need a graph of PyG, a tensor, or mappings, sequences and dataclasses "
            "of tensors."
        )
    return bytes_of(tensors_in(data))


class _Counter:
    """A file that keeps of what is written only its length."""

    def __init__(self) -> None:
        """Begin empty."""
        self.bytes = 0

    def write(self, data: Any) -> int:
        """Count."""
        self.bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


def tensors_in(data: Any) -> Iterator[torch.Tensor]:
    """All tensors in it, however deep; containers that hold themselves are gone through once."""
    seen: set[int] = set()
    waiting: list[Any] = [data]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, torch.Tensor):
            yield thing
        elif id(thing) not in seen:
            seen.add(id(thing))
            waiting.extend(_parts(thing))


def _parts(thing: Any) -> Collection[Any]:
    """What a container holds; nothing of what is none."""
    if _is_sparse_of_pyg(thing):
        return [part for part in thing.csr() if part is not None]
    if isinstance(thing, Mapping):
        return thing.values()
    if isinstance(thing, Sequence) and not isinstance(thing, _NO_CONTAINERS):
        return thing
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, field.name, None) for field in dataclasses.fields(thing)]
    return list(thing.stores) if hasattr(thing, "stores") else []


def _could_hold_tensors(thing: Any) -> bool:
    """Whether it is a tensor or a container."""
    containers = torch.Tensor | Mapping | Sequence
    return (
        (isinstance(thing, containers) and not isinstance(thing, _NO_CONTAINERS))
        or (dataclasses.is_dataclass(thing) and not isinstance(thing, type))
        or hasattr(thing, "stores")
        or _is_sparse_of_pyg(thing)
    )


def _is_sparse_of_pyg(thing: Any) -> bool:
    """Whether it is the `SparseTensor` of torch_sparse, which is a class of its own and no tensor."""
    return type(thing).__name__ == "SparseTensor" and callable(getattr(thing, "csr", None))


_NO_CONTAINERS = (str, bytes, bytearray, memoryview, range)


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
    living, _ = living_objects((torch.Tensor,))
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
            f"NVIDIA device {number} does not report its free memory: it may share the host's memory, or its driver "
            "may not support it. Use torch.cuda.mem_get_info() instead."
        )
    return byte_to_megabyte(memory.free_bytes, digits), byte_to_megabyte(memory.used_bytes, digits)
