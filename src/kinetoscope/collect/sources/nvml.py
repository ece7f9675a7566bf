"""NVIDIA's management library (NVML), through `nvidia-ml-py`.

The package is imported and the library opened on first use, once per process; a forked child opens it again. Values are those
of the whole device, for all processes that use it. Devices are numbered as by `nvidia-smi`, independent of
`CUDA_VISIBLE_DEVICES`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from kinetoscope._errors import StateError, needed

T = TypeVar("T")


class NvmlError(StateError):
    """NVML cannot be used on this machine, has no such device, or failed."""


@dataclass(frozen=True)
class DeviceMemory:
    """A device's memory.

    Attributes:
        free_bytes: Memory that can still be allocated.
        used_bytes: Memory in use by any process and by the driver.
        total_bytes: All memory.
    """

    free_bytes: int
    used_bytes: int
    total_bytes: int


class NvmlDevice:
    """One device. Values that it does not support are None; a MIG instance has no utilization, for example."""

    def __init__(self, library: ModuleType, index: int, handle: Any) -> None:
        """Wrap the device with this handle.

        Args:
            library: The loaded `pynvml`.
            index: Its number in `nvidia-smi`.
            handle: NVML's handle of it.
        """
        self.index = index
        self._library = library
        self._handle = handle

    def uuid(self) -> str | None:
        """The unique id of the device, `GPU-` and 36 characters, which CUDA also uses."""
        return self._query("nvmlDeviceGetUUID", str)

    def memory(self) -> DeviceMemory | None:
        """Its memory now, in bytes.

        Raises:
            NvmlError: The driver failed.
        """
        return self._query(
            "nvmlDeviceGetMemoryInfo",
            lambda answer: DeviceMemory(int(answer.free), int(answer.used), int(answer.total)),
        )

    def busy_percent(self) -> int | None:
        """The percentage of the driver's last sample period (1/6 s to 1 s) in which a kernel ran.

        Raises:
            NvmlError: The driver failed.
        """
        return self._query("nvmlDeviceGetUtilizationRates", lambda answer: int(answer.gpu))

    def power_watts(self) -> float | None:
        """Its current power draw in watts.

        Raises:
            NvmlError: The driver failed.
        """
        return self._query("nvmlDeviceGetPowerUsage", lambda milliwatts: milliwatts / 1000)

    def _query(self, question: str, read: Callable[[Any], T]) -> T | None:
        try:
            return read(getattr(self._library, question)(self._handle))
        except self._library.NVMLError as error:
            if error.value in (
                self._library.NVML_ERROR_NOT_SUPPORTED,
                self._library.NVML_ERROR_NO_PERMISSION,
            ):
                return None
            raise NvmlError(
                f"NVIDIA device {self.index} did not answer {question}: {error}. Check whether `nvidia-smi` lists it."
            ) from error


def nvml() -> list[NvmlDevice]:
    """Return all devices of the machine, also those hidden from CUDA, in the order of `nvidia-smi`; the first call opens the library.

    Raises:
        MissingDependencyError: `nvidia-ml-py` is not installed.
        NvmlError: There is no NVIDIA driver, or it cannot be used, or a device cannot be reached.
    """
    global _opened
    with _lock:
        if _opened is None:
            _opened = _open()
        return _opened


def _open() -> list[NvmlDevice]:
    with needed(
        "memory and utilization of NVIDIA devices are read with nvidia-ml-py, which is not installed: "
        'install it with `pip install "kinetoscope[system]"`.'
    ):
        import pynvml
    try:
        pynvml.nvmlInit()
        return [
            NvmlDevice(pynvml, index, pynvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError as error:
        raise NvmlError(
            f"NVML cannot be used on this machine: {error}. It comes with NVIDIA's driver: check whether `nvidia-smi` "
            "works here, and in a container whether it was started with access to the devices."
        ) from error


def nvml_device_of_cuda(uuid: str, index: int) -> NvmlDevice:
    """Return the device with this CUDA UUID.

    Args:
        uuid: As in `torch.cuda.get_device_properties(index).uuid`, with or without `GPU-`; empty if unknown.
        index: torch's number of the device, used if there is no UUID; correct unless `CUDA_VISIBLE_DEVICES` renumbers devices.

    Raises:
        NvmlError: There is no such device, or it cannot be reached.
    """
    wanted, devices = uuid.lower().removeprefix("gpu-"), nvml()
    for device in devices if wanted else ():
        if (device.uuid() or "").lower().removeprefix("gpu-") == wanted:
            return device
    if index >= len(devices):
        raise NvmlError(f"there is no NVIDIA device {index}: NVML finds {len(devices)}, counted from 0.")
    return devices[index]


def _forget() -> None:
    """In a forked child: open the library again on next use, and replace the lock, which a thread of the parent may hold."""
    global _opened, _lock
    _opened, _lock = None, threading.Lock()


_lock = threading.Lock()
_opened: list[NvmlDevice] | None = None
os.register_at_fork(after_in_child=_forget)
