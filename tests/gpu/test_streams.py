"""Streams, events, copies, waits and memory of a device."""

import pytest
import torch

SIZE = (256, 256)


def test_every_stream_has_its_own_work(record, device):
    x = torch.ones(SIZE, device=device)
    side = torch.Stream(device=device)
    main = torch.accelerator.current_stream(device)
    x.mul(2)
    torch.accelerator.synchronize()

    def program():
        ready = torch.Event(device=device)
        y = x.mul(2)
        main.record_event(ready)
        side.wait_event(ready)
        torch.accelerator.set_stream(side)
        try:
            for _ in range(5):
                y = y.neg()
        finally:
            torch.accelerator.set_stream(main)
        main.wait_stream(side)
        y.add(1)

    trace = record(program).trace
    on_streams = {
        tuple(
            sorted(
                {row["operator"] for row in trace.table("launches").to_pylist() if row["stream"] == stream}
            )
        )
        for stream in {row["number"] for row in trace.table("streams").to_pylist()}
    }
    assert on_streams == {("aten::add", "aten::mul"), ("aten::neg",)}
    starts = {
        name: [
            row["device_start_ns"] for row in trace.table("launches").to_pylist() if row["operator"] == name
        ]
        for name in ("aten::mul", "aten::neg", "aten::add")
    }
    assert max(starts["aten::mul"]) < min(starts["aten::neg"])
    assert max(starts["aten::neg"]) < min(starts["aten::add"])


def test_copies_have_a_direction_bytes_and_say_whether_the_host_waited(record, device):
    host = torch.ones(SIZE)
    torch.ones(SIZE, device=device).clone()
    host.to(device).cpu()

    def program():
        there = host.to(device)
        torch.empty_like(there).copy_(there)
        there.cpu()
        there.sum().item()

    rows = record(program).trace.table("copies").to_pylist()
    found = [(row["direction"], row["bytes"], row["blocked"]) for row in rows if row["kind"] == "memcpy"]
    size = host.nbytes
    # Whether a call that may return early did depends on how busy the machine is.
    assert {("HtoD", size), ("DtoD", size)} <= {entry[:2] for entry in found}
    assert ("DtoH", size, True) in found
    assert ("DtoH", 4, True) in found
    assert all(row["operator"] for row in rows)


def test_waiting_for_the_device_is_a_call_of_its_runtime(record, device):
    x = torch.ones(SIZE, device=device)

    def program():
        x @ x
        torch.accelerator.synchronize()

    trace = record(program).trace
    calls = {
        trace.strings[name]
        for name, kind in zip(
            trace.column("spans", "name").tolist(), trace.column("spans", "kind").tolist(), strict=True
        )
    }
    assert any("DeviceSynchronize" in name for name in calls), calls


def test_memory_of_the_device_is_recorded_with_torchs_collector(record, device):
    if record.engine != "kineto":
        pytest.skip("torch reports the memory of devices to its own collector only; a warning says so")
    x = torch.ones(SIZE, device=device)
    session = record(lambda: x.mul(2).neg(), profile_memory=True)
    (row,) = [row for row in session.key_averages() if row.key == "aten::mul"]
    assert row.device_memory_usage >= x.nbytes
    assert any(event.device_memory_usage for event in session.events())
