"""What is left on beside a device."""

import json

import pytest
import torch

import kinetoscope
from kinetoscope.flight.last import last_event


def test_a_device_without_memory_is_an_incident_even_if_the_program_goes_on(cuda, tmp_path):
    x = torch.ones(64, 64, device=cuda)
    with kinetoscope.leave_on("5%", folder=tmp_path, on=("oom",)) as recorder:
        for _ in range(40):
            recorder.step()
            x = x.mul(0.5).add(1)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 46, dtype=torch.uint8, device=cuda)
        recorder.step()
        x.sum().item()
    found = last_event(None, tmp_path)
    assert (found.reason, found.ranks[0].step) == ("oom", 39)
    assert "cuda:0 has no memory for 64 TiB" in found.ranks[0].what
    # The exception that follows is the same incident.
    assert len([*tmp_path.rglob("incident.json")] or [*tmp_path.rglob("rank0.json")]) == 1


def test_an_incident_is_told_as_json(cuda, tmp_path):
    with kinetoscope.leave_on("5%", folder=tmp_path) as recorder:
        for _ in range(20):
            recorder.step()
            torch.ones(8, device=cuda).add(1)
        path = recorder.snapshot()
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["step"] == 19
