"""The tests of devices, on a device that needs no hardware: in processes of their own, since torch keeps a device for good."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = [
    sys.executable,
    "-m",
    "pytest",
    "-c",
    "tests/gpu/pytest.ini",
    "--rootdir",
    ".",
    "--confcutdir",
    "tests/gpu",
    "-q",
]


@pytest.fixture(scope="module")
def plugin_environment():
    """The environment in which Pythons find the device."""
    pytest.importorskip("torch", reason="devices are used through PyTorch")
    from tests.support import test_device_plugin

    try:
        return test_device_plugin.environment(KINETOSCOPE_TEST_DEVICE=test_device_plugin.NAME)
    except test_device_plugin.NoTestDeviceError as error:
        pytest.skip(f"the tests' own device cannot be built: {error}")


def run(environment, *words, **more):
    done = subprocess.run(
        [*SUITE, *words], cwd=ROOT, env={**environment, **more}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_runtimes_that_number_threads_in_their_own_way_are_understood(plugin_environment):
    """As CUPTI does: by pthread's numbers, also of threads that Python does not know (autograd's)."""
    chosen = "native and (each_kernel or threads or backward)"
    assert "3 passed" in run(
        plugin_environment, "tests/gpu/test_engines.py", "-k", chosen, TEST_DEVICE_THREADS="pthread"
    )
