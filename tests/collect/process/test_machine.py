"""What is told of the devices in use."""

import json

import pytest
import torch

import kinetoscope
from kinetoscope.collect.process.machine import described_devices, processor_name
from tests.support.noting_engine import NotingEngine


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


def test_a_trace_has_the_settings_that_the_program_made_while_it_recorded() -> None:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("highest")
    session = kinetoscope.profile(engine=NotingEngine())
    try:
        session.start()
        torch.set_num_threads(3)
        torch.set_float32_matmul_precision("high")
        session.stop()
        run = session.trace.run_info
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
    assert (run.torch_threads, run.float32_matmul_precision) == (3, "high")
