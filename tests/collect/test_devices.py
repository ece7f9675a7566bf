"""What is told of the devices in use."""

import json

import pytest
import torch

from kinetoscope.collect.session.metadata import described_devices, processor_name


def devices() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(described_devices()["devices"])
    return found


def test_the_processor_comes_first_by_its_name() -> None:
    assert devices()[0] == {"type": "cpu", "index": -1, "name": processor_name()}


def test_a_device_whose_driver_fails_has_no_name_and_the_recording_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(index: int) -> str:
        raise RuntimeError(f"device {index} fell off the bus")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", broken)
    assert devices()[1:] == [
        {"type": "cuda", "index": 0, "name": ""},
        {"type": "cuda", "index": 1, "name": ""},
    ]


def test_threads_of_operators_are_those_that_torch_has():
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert json.loads(described_devices()["torch_threads"]) == 3
    finally:
        torch.set_num_threads(threads)
