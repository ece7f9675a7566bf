"""Tests of what runs on a device: on NVIDIA's, on others that torch knows, and on the tests' own, which needs no hardware.

`python -m tests.gpu OUT` runs them with what belongs to it. In a run of all tests without a device none of this folder is
collected; `tests/e2e/test_gpu_check.py` then runs it on the tests' own device, in a process of its own.
"""

import os
import warnings

import pytest
import torch

from kinetoscope import ProfilerActivity, profile
from kinetoscope.collect import supported_activities

ACTIVITIES = {"cuda": "CUDA", "xpu": "XPU", "mtia": "MTIA", "hpu": "HPU"}


def found_device() -> torch.device | None:
    """The device to test, or None without one: what `KINETOSCOPE_TEST_DEVICE` names, else torch's accelerator."""
    if name := os.environ.get("KINETOSCOPE_TEST_DEVICE"):
        return torch.device(name)
    there = torch.accelerator.is_available()
    found = torch.accelerator.current_accelerator() if there else None
    # Of some accelerators (those of laptops) torch records nothing.
    return found if found is not None and activity_of(found) in supported_activities() else None


def activity_of(device: torch.device) -> ProfilerActivity:
    """What a session is asked for to see the device."""
    return ProfilerActivity.__members__[ACTIVITIES.get(device.type, "PrivateUse1")]


_DEVICE = found_device()
collect_ignore_glob = [] if _DEVICE is not None else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu" in item.path.as_posix():
            item.add_marker("gpu")


@pytest.fixture
def device() -> torch.device:
    assert _DEVICE is not None
    return torch.device(_DEVICE.type, 0)


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """NVIDIA's or AMD's device."""
    if device.type != "cuda":
        pytest.skip(f"only torch.cuda has this, and the device is {device.type}")
    return device


@pytest.fixture(params=["kineto", "native"])
def record(request: pytest.FixtureRequest, device: torch.device):
    """Returns a function that runs a program under an engine and gives the session: torch's collector, and hybrid."""

    def run(program, *, session_is_given=False, **more):
        with warnings.catch_warnings():
            # torch's own, at the first collection of a process on some machines.
            warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.")
            with profile(
                activities=[ProfilerActivity.CPU, activity_of(device)], engine=request.param, **more
            ) as session:
                program(*[session] * session_is_given)
                torch.accelerator.synchronize()
        return session

    run.engine = request.param
    return run
