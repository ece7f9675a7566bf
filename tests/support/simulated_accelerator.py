"""A machine whose torch has an accelerator: torch's own functions for it are replaced, everything above them is real."""

# ruff: noqa: N802  (torch's own names)
from types import SimpleNamespace

import pytest
import torch

MIB = 1024 * 1024


class SimulatedAccelerator:
    """What stands in the place of `torch.cuda` or `torch.xpu`; `log` has the calls that matter for the order."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.log: list[str] = []
        self.peak_bytes = {"allocated": 0, "reserved": 0, "active": 0}
        self.elapsed_ms = 2500.0
        self.used = True

    def Event(self, *, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        return SimpleNamespace(
            record=lambda stream: self.log.append(f"event on {stream}"),
            synchronize=lambda: self.log.append("event waited for"),
            elapsed_time=lambda _end: self.elapsed_ms,
        )

    def memory_stats(self, index: int) -> dict[str, int]:
        self.log.append(f"peaks of {index}")
        return {f"{name}_bytes.all.peak": size for name, size in self.peak_bytes.items()}

    def reset_peak_memory_stats(self, index: int) -> None:
        self.log.append(f"peaks of {index} reset")
        self.peak_bytes = dict.fromkeys(self.peak_bytes, 0)

    def put_in_place(self, patch: pytest.MonkeyPatch) -> None:
        """Lets torch find this accelerator."""
        module = getattr(torch, self.kind)
        patch.setattr(module, "is_available", lambda: True)
        patch.setattr(module, "is_initialized", lambda: self.used)
        patch.setattr(module, "device_count", lambda: 2)
        patch.setattr(module, "current_stream", lambda index: f"{self.kind}:{index}")
        for name in ("Event", "memory_stats", "reset_peak_memory_stats"):
            patch.setattr(module, name, getattr(self, name))
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device(self.kind, 0))
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "synchronize", lambda *_: self.log.append("waited"))


class OnDevice(torch.Tensor):
    """A tensor that says it lies on the second device of its kind."""

    kind = "cuda"

    @property
    def device(self) -> torch.device:
        return torch.device(self.kind, 1)


class OnXpu(OnDevice):
    """The same on an Intel GPU."""

    kind = "xpu"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimulatedAccelerator:
    """A machine with two NVIDIA devices."""
    accelerator = SimulatedAccelerator("cuda")
    accelerator.put_in_place(monkeypatch)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(name="Simulated", uuid=f"{index:08d}-2222"),
    )
    return accelerator


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedAccelerator:
    """A machine with two Intel GPUs."""
    accelerator = SimulatedAccelerator("xpu")
    accelerator.put_in_place(monkeypatch)
    return accelerator
