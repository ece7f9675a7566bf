import gc
from types import SimpleNamespace

import pytest
import torch

from kinetoscope.integrations.pyg import (
    byte_to_megabyte,
    get_cpu_memory_from_gc,
    get_gpu_memory_from_gc,
    get_gpu_memory_from_ipex,
    get_gpu_memory_from_nvidia_smi,
    medibyte_to_megabyte,
    read_from_memlab,
)
from tests.support.simulated_accelerator import MIB, OnDevice, cuda, xpu
from tests.support.simulated_nvml import SimulatedDevice, no_driver, nvidia

__all__ = ["cuda", "no_driver", "nvidia", "xpu"]


def test_bytes_as_megabytes():
    assert byte_to_megabyte(MIB) == 1.0
    assert byte_to_megabyte(MIB * 1.2345) == 1.23
    assert byte_to_megabyte(MIB * 1.2345, digits=4) == 1.2345
    assert medibyte_to_megabyte(1 / 1.0485) == 1.0
    assert medibyte_to_megabyte(1000) == 1048.58


# ---------------------------------------------------------------------------------------------------- garbage collector


@pytest.fixture
def _no_leavings() -> None:
    """Has what other tests left in cycles collected now, and not while this one counts."""
    gc.collect()


@pytest.mark.usefixtures("_no_leavings")
def test_living_tensors_of_the_host_are_counted_and_shared_memory_once():
    before = get_cpu_memory_from_gc()
    kept = torch.zeros(10, 128)
    parts = [kept[2:], kept.t()]
    assert get_cpu_memory_from_gc() - before == 10 * 128 * 4
    del kept, parts
    assert get_cpu_memory_from_gc() == before


@pytest.mark.usefixtures("_no_leavings")
def test_tensors_of_a_device_are_counted_by_its_number_or_name():
    kept = torch.zeros(100).as_subclass(OnDevice)
    assert [get_gpu_memory_from_gc(device) for device in (1, "cuda:1", torch.device("cuda", 1))] == [400] * 3
    assert [get_gpu_memory_from_gc(device) for device in (0, "cuda", "cuda:0", "xpu:1")] == [0] * 4
    assert kept.numel() == 100


@pytest.mark.usefixtures("_no_leavings")
def test_the_host_is_a_device_too():
    kept = torch.zeros(100)
    assert get_gpu_memory_from_gc("cpu") == get_cpu_memory_from_gc() >= 400
    assert kept.numel() == 100


def test_what_looks_like_a_tensor_only_when_asked_is_not_asked():
    class Proxy:
        @property
        def __class__(self):
            asked.append(1)
            return torch.Tensor

    asked: list[int] = []
    proxies = [Proxy()]
    get_cpu_memory_from_gc()
    assert (asked, len(proxies)) == ([], 1)


# ---------------------------------------------------------------------------------------------------------------- NVML


def test_free_and_used_memory_of_a_device_by_its_number_in_nvidia_smi(nvidia):
    nvidia.devices.append(SimulatedDevice(total_bytes=10 * MIB, used_bytes=MIB // 8))
    assert get_gpu_memory_from_nvidia_smi() == (750.0, 250.0)
    assert get_gpu_memory_from_nvidia_smi(device=1) == (9.88, 0.12)
    assert get_gpu_memory_from_nvidia_smi(1, digits=3) == (9.875, 0.125)


def test_by_its_name_in_torch_it_is_the_device_that_cuda_means(nvidia, cuda):
    nvidia.devices = [
        SimulatedDevice(uuid="GPU-00000001-2222", used_bytes=0),
        SimulatedDevice(uuid="GPU-00000000-2222", used_bytes=MIB),
    ]
    assert get_gpu_memory_from_nvidia_smi("cuda:0")[1] == 1.0
    assert get_gpu_memory_from_nvidia_smi(torch.device("cuda", 1))[1] == 0.0


# ----------------------------------------------------------------------------------------------------------------- XPU


def test_peaks_of_an_intel_gpu_are_read_and_reset(xpu):
    xpu.peak_bytes = {"allocated": 3 * MIB, "reserved": 8 * MIB, "active": 10 * MIB // 3}
    assert get_gpu_memory_from_ipex(1) == (3.0, 8.0, 3.33)
    assert xpu.log == ["peaks of 1", "peaks of 1 reset"]
    assert get_gpu_memory_from_ipex("xpu:1", digits=0) == (0.0, 0.0, 0.0)


# -------------------------------------------------------------------------------------------------------------- memlab


def test_a_line_profiler_is_read_by_its_largest_lines():
    lines = [
        {f"{kind}_bytes.all.peak": size * MIB for kind, size in zip(kinds, sizes, strict=True)}
        for kinds, sizes in [
            (("allocated", "reserved", "active"), (1, 20, 3)),
            (("allocated", "reserved", "active"), (4, 10, 2)),
        ]
    ]
    assert read_from_memlab(SimpleNamespace(_raw_line_records=lines)) == [4.0, 20.0, 3.0]
    assert read_from_memlab(SimpleNamespace(_raw_line_records=[])) == [0.0, 0.0, 0.0]
