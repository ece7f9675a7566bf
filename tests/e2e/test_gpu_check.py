"""The tests of devices, on a device that needs no hardware: in processes of their own, since torch keeps a device for good."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm_python
from tests.support.effort import STRESS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plugin_environment():
    """The environment in which Pythons find the device."""
    torch = pytest.importorskip("torch", reason="devices are used through PyTorch")
    from tests.support import test_device_plugin

    if torch.accelerator.is_available():
        pytest.skip("there is a device here, and torch takes one at a time: tests/gpu runs on it")
    try:
        return test_device_plugin.environment()
    except test_device_plugin.NoTestDeviceError as error:
        pytest.skip(f"the tests' own device cannot be built: {error}")


# Each of these measures the device in processes of its own: all of them take a minute, in `make stress`.
WITHOUT_REPEATED_CHECKS = "not fails_the_check and not cannot_be_used_now"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_of_it_on_the_tests_own_device(plugin_environment, tmp_path):
    check = [sys.executable, "-m", "tests.gpu", str(tmp_path), "--device", "testdevice", "--quick"]
    check += [] if STRESS else ["--tests", WITHOUT_REPEATED_CHECKS]
    done = subprocess.run(
        check, cwd=ROOT, env=plugin_environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    result = json.loads((tmp_path / "result.json").read_text())
    assert json.loads(done.stdout.splitlines()[-1]) == result
    assert result["failed"] == []
    assert result["hybrid"]["reason"].startswith("100 launches recorded by both engines agree")
    assert result["tests"]["failed"] == []
    assert result["tests"]["passed"] >= 40
    assert all("only torch.cuda has this" in why or "torch" in why for why in result["tests"]["skipped"])
    assert result["traces"]["torch.profiler"]["kernels"] > 100
    rows = [line for line in (tmp_path / "result.md").read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3 * 4
    for name in ("gpt-torch.json.gz", "gpt-kineto.ktrace", "gpt-hybrid.ktrace"):
        assert (tmp_path / name).stat().st_size > 1000


def test_without_a_device_one_line_says_so(tmp_path):
    pytest.importorskip("torch", reason="devices are used through PyTorch")
    from tests.gpu.conftest import found_device

    if found_device() is not None:
        pytest.skip("there is a device here")
    done = warm_python.run("-m", "tests.gpu", str(tmp_path / "out"), cwd=ROOT)
    assert done.returncode == 3
    assert done.stderr == "gpu-check: there is no device here that torch can record; nothing was checked\n"
    assert not (tmp_path / "out").exists()


def test_a_device_that_torch_does_not_know_is_a_wrong_argument(tmp_path):
    pytest.importorskip("torch", reason="devices are used through PyTorch")
    done = warm_python.run("-m", "tests.gpu", str(tmp_path), "--device", "abacus", cwd=ROOT)
    assert done.returncode == 2
    assert "--device abacus: " in done.stderr
    assert "Traceback" not in done.stderr
