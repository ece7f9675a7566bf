"""`engine="auto"` with a device: hybrid where the check of this machine holds, else torch's collector with one reason."""

import json
import subprocess
import sys
import warnings

import pytest
import torch

from kinetoscope import ProfilerActivity, profile
from kinetoscope.collect.engines import hybrid_check as hybrid_module
from kinetoscope.collect.recorder.library import load_recorder
from tests.gpu.conftest import activity_of


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Results of this test alone, beside the recorder, which takes half a minute to compile where it was not installed."""
    library = load_recorder().path
    (tmp_path / library.name).symlink_to(library)
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(hybrid_module, "_results", {})
    return tmp_path


def record(device, **more):
    x = torch.ones(16, 16, device=device)
    with profile(activities=[ProfilerActivity.CPU, activity_of(device)], **more) as session:
        x.mul(2)
        torch.accelerator.synchronize()
    return session.trace


def status(device, **more):
    """The status, and what was said while it was found."""
    said = []
    return hybrid_module.hybrid_status(activity_of(device), said.append, **more), said


def test_the_hybrid_engine_records_where_the_check_holds(device, cache):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*torch's own collector")
        trace = record(device)
    assert trace.info["engine"] == "native"
    assert [row["operator"] for row in trace.table("launches").to_pylist()] == ["aten::mul"]
    (kept,) = cache.glob("hybrid-*.json")
    told = json.loads(kept.read_text())
    assert told["holds"]
    assert told["reason"].startswith(
        "100 launches recorded by both engines agree, and the clocks of host and device to"
    )
    hybrid_module._results.clear()
    found, said = status(device)
    assert found.available
    assert said == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("lose", "the hybrid engine saw 90 of 100 launches"),
        ("shift", "(saw .* of 100 launches|lost )"),
        ("crash", "the check of the hybrid engine was ended by signal 6"),
    ],
)
def test_a_device_that_fails_the_check_is_recorded_by_torchs_collector(
    device, cache, monkeypatch, fault, reason
):
    if device.type != "testdevice":
        pytest.skip("only the tests' own device fails on demand")
    monkeypatch.setenv("TEST_DEVICE_FAULT", fault)
    found, said = status(device)
    assert len(said) == 1
    assert not found.available
    monkeypatch.delenv("TEST_DEVICE_FAULT")
    hybrid_module._results.clear()
    with pytest.warns(UserWarning, match=f"torch's own collector.*{reason}.*kinetoscope doctor") as caught:
        assert record(device).info["engine"] == "kineto"
    assert len(caught) == 1
    if fault == "lose":
        assert status(device)[0] == found
        doctor = subprocess.run(
            [sys.executable, "-m", "kinetoscope", "doctor"], capture_output=True, text=True, check=True
        )
        told = " ".join(doctor.stdout.split())
        assert "100 launches recorded by both engines agree" in told
        assert "Engine hybrid: the native engine for the host" in told
        assert json.loads(next(cache.glob("hybrid-*.json")).read_text())["holds"]


def test_a_check_that_takes_too_long_is_ended(device, cache, monkeypatch):
    monkeypatch.setattr(hybrid_module, "PATIENCE_S", 0.01)
    ended = []
    kill = hybrid_module._kill
    monkeypatch.setattr(hybrid_module, "_kill", lambda process: (kill(process), ended.append(process)))
    found, _ = status(device)
    assert not found.available
    assert "did not end within" in found.reason
    assert ended[0].returncode is not None
    assert len(list(cache.glob("hybrid-*.json"))) == 1


def test_a_device_that_cannot_be_used_now_is_no_verdict(device, cache, monkeypatch):
    monkeypatch.setattr(hybrid_module, "_device_name", lambda name: f"{device.type}:99")
    found, _ = status(device)
    assert not found.available
    assert "could not be checked: " in found.reason
    assert list(cache.glob("hybrid-*.json")) == []


def test_a_cache_that_is_none_costs_the_hybrid_engine_and_not_the_job(device, cache, monkeypatch):
    (cache / "file").write_text("")
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(cache / "file"))
    with pytest.warns(UserWarning, match="the hybrid engine could not be checked"):
        assert record(device).info["engine"] == "kineto"


@pytest.mark.parametrize("text", ['{"holds": tr', "[]", '{"holds": true}', "\x00"])
def test_a_kept_result_that_is_damaged_is_not_read(tmp_path, text):
    (tmp_path / "kept.json").write_text(text)
    with pytest.raises((ValueError, KeyError, TypeError)):
        hybrid_module._Outcome.read(tmp_path / "kept.json")


def test_memory_of_a_device_is_worth_torchs_collector(device, cache):
    with pytest.warns(UserWarning, match="torch reports device memory only"):
        assert record(device, profile_memory=True).info["engine"] == "kineto"
    assert list(cache.glob("hybrid*")) == []
