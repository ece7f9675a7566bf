import os
import sys

import pynvml
import pytest

from kinetoscope import MissingDependencyError
from kinetoscope.collect.sources.nvml import DeviceMemory, NvmlError, nvml, nvml_device_of_cuda
from tests.support.simulated_nvml import MIB, SimulatedDevice, no_driver, nvidia

__all__ = ["no_driver", "nvidia"]

OTHER = "GPU-99999999-2222-3333-4444-5555abcdef55"


def test_a_device_tells_its_memory_load_and_power(nvidia):
    [device] = nvml()
    assert device.uuid() == nvidia.devices[0].uuid
    assert device.memory() == DeviceMemory(free_bytes=750 * MIB, used_bytes=250 * MIB, total_bytes=1000 * MIB)
    assert device.busy_percent() == 37
    assert device.power_watts() == 123.456


def test_each_device_answers_for_itself(nvidia):
    nvidia.devices.append(SimulatedDevice(uuid=OTHER, used_bytes=0))
    assert [device.uuid() for device in nvml()] == [nvidia.devices[0].uuid, OTHER]
    assert nvml()[1].memory().used_bytes == 0
    assert len(nvml()) == 2


def test_what_a_device_does_not_tell_is_none(nvidia):
    nvidia.devices[0].utilisation_percent = nvidia.devices[0].power_milliwatts = None
    nvidia.failing["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_NO_PERMISSION
    device = nvml()[0]
    assert (device.busy_percent(), device.power_watts(), device.memory()) == (None, None, None)


def test_a_device_that_fails_is_named(nvidia):
    device = nvml()[0]
    nvidia.failing["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(NvmlError, match="device 0 did not answer nvmlDeviceGetPowerUsage: GPU is lost"):
        device.power_watts()


def test_a_missing_nvidia_device_is_an_error(nvidia):
    with pytest.raises(NvmlError, match="no NVIDIA device 1: NVML finds 1"):
        nvml_device_of_cuda("", 1)


def test_a_device_that_cannot_be_reached(nvidia):
    nvidia.failing["nvmlDeviceGetHandleByIndex_v2"] = pynvml.NVML_ERROR_NO_PERMISSION
    with pytest.raises(NvmlError, match="cannot be used on this machine: Insufficient Permissions"):
        nvml()


@pytest.mark.parametrize("written", [OTHER, OTHER.removeprefix("GPU-"), OTHER.upper()])
def test_a_device_of_cuda_is_found_by_its_unique_name_whatever_its_number(nvidia, written):
    nvidia.devices.append(SimulatedDevice(uuid=OTHER))
    assert nvml_device_of_cuda(written, 0).index == 1


@pytest.mark.parametrize("written", ["", "GPU-unknown"])
def test_a_device_of_cuda_without_a_name_is_found_by_its_number(nvidia, written):
    nvidia.devices.append(SimulatedDevice(uuid=OTHER))
    assert nvml_device_of_cuda(written, 1).index == 1


def test_the_library_is_opened_once(nvidia):
    assert nvml() is nvml()
    assert nvidia.called.count("nvmlInitWithFlags") == 1


def test_a_child_opens_the_library_anew(nvidia):
    parents = nvml()
    child = os.fork()
    if child == 0:
        os._exit(0 if nvml() is not parents and nvidia.called.count("nvmlInitWithFlags") == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert nvml() is parents


def test_without_a_driver_the_error_says_so_and_a_later_call_tries_again(no_driver):
    for _ in range(2):
        with pytest.raises(NvmlError, match="NVML Shared Library Not Found.*nvidia-smi"):
            nvml()


def test_a_driver_that_does_not_run_is_an_error(nvidia):
    nvidia.failing["nvmlInitWithFlags"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(NvmlError, match="Driver Not Loaded"):
        nvml()


def test_without_the_package_the_error_says_what_to_install(monkeypatch, nvidia):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "kinetoscope\[system\]"'):
        nvml()
