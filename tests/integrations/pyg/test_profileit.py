import math
import sys

import pynvml
import pytest
import torch

import kinetoscope
from kinetoscope import MissingDependencyError
from kinetoscope.integrations.pyg import (
    CPUStats,
    CUDAStats,
    GPUStats,
    profileit,
)
from tests.support.simulated_accelerator import MIB, OnDevice, OnXpu, cuda, xpu
from tests.support.simulated_nvml import SimulatedDevice, no_driver, nvidia

__all__ = ["cuda", "no_driver", "nvidia", "xpu"]


def forward(model, *arguments, **keywords):
    """Says that it ran, and with what."""
    return len(arguments), sorted(keywords)


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(4, 4)


@pytest.fixture
def on_device() -> torch.Tensor:
    return torch.ones(2).as_subclass(OnDevice)


# ------------------------------------------------------------------------------------------------------------ the host


def test_on_the_host_a_call_returns_its_result_and_its_cost(model):
    @profileit("cpu")
    def train(model, x, *, scale):
        """Trains."""
        block = torch.zeros(3 * MIB // 4)
        return (model(x).sum() * scale + block[0]).item()

    x = torch.ones(2, 4)
    result, stats = train(model, x, scale=2.0)
    assert result == pytest.approx((model(x).sum() * 2).item())
    assert type(stats) is CPUStats
    assert stats.time > 0
    assert stats.max_allocated_cpu >= 3
    assert stats.max_rss_cpu > 20
    assert train.__name__ == "train"
    assert train.__doc__ == "Trains."


def test_on_the_host_the_time_is_that_of_the_call_alone(model, monkeypatch):
    now = iter([10.0, 12.5])
    monkeypatch.setattr("kinetoscope.integrations.pyg.checks.clock", lambda: next(now))
    assert profileit("cpu")(forward)(model)[1].time == 2.5


def test_on_the_host_the_accelerator_is_waited_for_on_both_sides(model, cuda):
    profileit("cpu")(lambda _model: cuda.log.append("call"))(model)
    assert cuda.log == ["waited", "call", "waited"]


def test_what_the_call_raises_comes_through_and_nothing_goes_on(model):
    @profileit("cpu")
    def fail(model):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail(model)
    assert profileit("cpu")(forward)(model)[0] == (0, [])


def test_a_call_inside_a_recording_of_ours_is_measured_too_and_that_recording_stays_whole(model):
    with kinetoscope.profile(engine="native") as session:
        torch.ones(3)
        _, stats = profileit("cpu")(lambda model: torch.zeros(2 * MIB // 4).sum())(model)
        torch.ones(3).exp()
    assert stats.max_allocated_cpu >= 2
    assert {"aten::ones", "aten::zeros", "aten::exp"} <= {event.key for event in session.key_averages()}


def test_where_everything_records_already_the_call_is_measured_without_a_warning(model):
    with torch.profiler.profile(), kinetoscope.profile(engine="native"):
        result, stats = profileit("cpu")(forward)(model, 1)
    assert result == (1, [])
    assert not math.isnan(stats.max_allocated_cpu)
    assert stats.max_rss_cpu > 0


def test_random_numbers_stay_what_they_would_be(model):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    drawn, _ = profileit("cpu")(lambda model: torch.rand(3))(model)
    assert torch.equal(drawn, expected)


# -------------------------------------------------------------------------------------------------------- accelerators


def test_on_cuda_time_and_peaks_are_the_devices_and_free_memory_is_that_of_the_device_cuda_means(
    model, on_device, cuda, nvidia
):
    # torch's device 1 is the first that NVML knows: CUDA_VISIBLE_DEVICES has turned them round.
    nvidia.devices = [
        SimulatedDevice(uuid="GPU-00000001-2222", total_bytes=900 * MIB, used_bytes=300 * MIB),
        SimulatedDevice(uuid="GPU-00000000-2222", used_bytes=0),
    ]

    @profileit("cuda")
    def train(model, x):
        cuda.log.append("call")
        cuda.peak_bytes = {"allocated": 5 * MIB, "reserved": 20 * MIB, "active": 6 * MIB}
        return "trained"

    result, stats = train(model, on_device)
    assert result == "trained"
    assert stats == CUDAStats(2.5, 5.0, 20.0, 6.0, 600.0, 300.0)
    assert cuda.log == [
        "peaks of 1 reset",
        "event on cuda:1",
        "call",
        "event on cuda:1",
        "event waited for",
        "peaks of 1",
    ]


def test_on_xpu_there_is_no_nvidia_part(model, xpu):
    def train(model, x):
        xpu.peak_bytes = {"allocated": 5 * MIB, "reserved": 20 * MIB, "active": 6 * MIB}

    _, stats = profileit("xpu")(train)(model, torch.ones(2).as_subclass(OnXpu))
    assert type(stats) is GPUStats
    assert stats == GPUStats(2.5, 5.0, 20.0, 6.0)


@pytest.mark.parametrize("where", ["argument", "keyword", "list", "dict", "buffer"])
def test_the_device_is_found_by_any_tensor(model, on_device, cuda, nvidia, where):
    nvidia.devices.append(SimulatedDevice())
    profiled = profileit("cuda")(forward)
    if where == "buffer":
        model.register_buffer("mine", on_device)
    arguments = {"argument": [torch.ones(1), on_device], "list": [[1, ("text", on_device)]]}
    keywords = {"keyword": {"x": on_device}, "dict": {"batch": {"x": on_device}}}
    profiled(model, *arguments.get(where, []), **keywords.get(where, {}))
    assert "event on cuda:1" in cuda.log


def test_free_memory_that_is_not_told_afterwards_is_a_warning(model, on_device, cuda, nvidia):
    nvidia.devices.append(SimulatedDevice())

    def train(model, x):
        nvidia.failing["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_GPU_IS_LOST
        return 7

    with pytest.warns(UserWarning, match="GPU is lost"):
        result, stats = profileit("cuda")(train)(model, on_device)
    assert result == 7
    assert stats.time == 2.5
    assert math.isnan(stats.nvidia_smi_free_cuda)


# ----------------------------------------------------------------------------------------------------------- wrong use


@pytest.fixture
def refused() -> list:
    """Grows when a function runs that must not."""
    ran: list = []
    yield ran
    assert ran == []


def test_the_model_may_be_a_keyword(model):
    assert profileit("cpu")(lambda *, model: 3)(model=model)[0] == 3


def test_without_nvidia_ml_py_the_function_does_not_run(model, on_device, cuda, nvidia, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingDependencyError, match=r"kinetoscope\[system\]"):
        profileit("cuda")(lambda *_: refused.append(1))(model, on_device)
