"""What devices say of themselves at one moment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kinetoscope._errors import MissingDependencyError
from kinetoscope.collect._nvml import NvmlDevice, NvmlError, nvml

if TYPE_CHECKING:
    from kinetoscope.collect._system_readings import Reader, Reading


def device_readers(gpu: bool | None) -> list[Reader]:
    """Functions that read the devices of the machine.

    Args:
        gpu: False for none; True for all that NVML knows; None likewise or, where there is no NVML, for what torch's
            allocator knows of the memory it holds on devices.

    Raises:
        MissingDependencyError: `gpu` is True, and nvidia-ml-py is not installed.
        NvmlError: `gpu` is True, and there is no driver, or it does not answer.
    """
    if gpu is False:
        return []
    try:
        devices = nvml().devices()
    except (MissingDependencyError, NvmlError):
        if gpu:
            raise
        return [_torchs_memory]
    return [_reader(device) for device in devices]


def _reader(device: NvmlDevice) -> Reader:
    """A function that reads one device of NVIDIA; what it does not tell is left out."""
    name = f"gpu{device.index}"

    def read(reading: Reading) -> None:
        if (utilisation := device.utilisation()) is not None:
            reading.values[f"{name}_percent"] = utilisation.compute_percent
        if (memory := device.memory()) is not None:
            reading.values[f"{name}_memory_used_bytes"] = memory.used_bytes
        if (watts := device.power_watts()) is not None:
            reading.values[f"{name}_power_watts"] = watts

    return read


def _torchs_memory(reading: Reading) -> None:
    """What torch's allocator holds of each device.

    It asks no device: a call of the runtime from this thread could disturb a graph that another one captures.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    for index in range(torch.cuda.device_count()):
        if (reserved := torch.cuda.memory_reserved(index)) > 0:
            reading.values[f"gpu{index}_torch_reserved_bytes"] = reserved
            reading.values[f"gpu{index}_torch_allocated_bytes"] = torch.cuda.memory_allocated(index)
