"""A driver for the real nvidia-ml-py to talk to: everything above NVML's own C functions is what users run."""

# ruff: noqa: N802  (NVML's own names)
from collections.abc import Callable
from ctypes import POINTER, cast
from dataclasses import dataclass, field

import pynvml
import pytest

from kinetoscope.collect.sources import nvml

MIB = 1024 * 1024


@dataclass
class SimulatedDevice:
    """What one device shall answer; None for what it does not support."""

    name: str = "Simulated H1"
    uuid: str = "GPU-11111111-2222-3333-4444-555555555555"
    total_bytes: int = 1000 * MIB
    used_bytes: int = 250 * MIB
    utilisation_percent: tuple[int, int] | None = (37, 12)
    power_milliwatts: int | None = 123_456


@dataclass
class SimulatedDriver:
    """NVML's C functions, answering for these devices; `failing` makes a function return an error of NVML."""

    devices: list[SimulatedDevice] = field(default_factory=lambda: [SimulatedDevice()])
    failing: dict[str, int] = field(default_factory=dict)
    called: list[str] = field(default_factory=list)

    def function(self, name: str) -> Callable[..., int]:
        """Returns what stands for the C function of that name."""

        def call(*arguments) -> int:
            self.called.append(name)
            return self.failing.get(name) or getattr(self, name)(*arguments)

        return call

    def nvmlInitWithFlags(self, _flags) -> int:
        return pynvml.NVML_SUCCESS

    def nvmlErrorString(self, number) -> bytes:
        return f"error {number}".encode()

    def nvmlDeviceGetCount_v2(self, count) -> int:
        count._obj.value = len(self.devices)
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle) -> int:
        # An address that is never looked behind; 0 would be no handle at all.
        handle._obj.contents = cast(1 + index.value, POINTER(pynvml.struct_c_nvmlDevice_t)).contents
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetName(self, handle, text, _length) -> int:
        text.value = self._at(handle).name.encode()
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetUUID(self, handle, text, _length) -> int:
        text.value = self._at(handle).uuid.encode()
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetMemoryInfo(self, handle, memory) -> int:
        device = self._at(handle)
        memory._obj.total, memory._obj.used = device.total_bytes, device.used_bytes
        memory._obj.free = device.total_bytes - device.used_bytes
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetUtilizationRates(self, handle, rates) -> int:
        told = self._at(handle).utilisation_percent
        if told is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        rates._obj.gpu, rates._obj.memory = told
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetPowerUsage(self, handle, power) -> int:
        told = self._at(handle).power_milliwatts
        if told is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        power._obj.value = told
        return pynvml.NVML_SUCCESS

    def _at(self, handle) -> SimulatedDevice:
        return self.devices[cast(handle, pynvml.c_void_p).value - 1]


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch) -> SimulatedDriver:
    """A machine with one NVIDIA device, which the test may change."""
    driver = SimulatedDriver()
    monkeypatch.setattr(pynvml, "nvmlLib", driver)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", driver.function)
    monkeypatch.setattr(nvml, "_opened", None)
    return driver


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without NVIDIA's driver."""

    def not_found(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", not_found)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(nvml, "_opened", None)
