"""The most memory of each device: what its allocator counted, beside what the trace can attribute."""

import numpy as np
import pytest
from click.testing import CliRunner

import kinetoscope
from kinetoscope.analyses.description import describe, peak_sentence
from kinetoscope.cli import main
from kinetoscope.display.sentence import plain
from kinetoscope.tables.memory.peak import DevicePeak, device_peaks
from kinetoscope.tables.memory.timeline import allocator_peak
from kinetoscope.viewer.server.routes import answer
from tests.support.kineto_text import PID, op, opened
from tests.support.plain_chrome import plain_trace
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder


def memory(start, size, address, device=(1, 0), allocated=None, reserved=None):
    arguments = {
        "Total Reserved": reserved, "Total Allocated": allocated, "Bytes": size, "Addr": address,
        "Device Type": device[0], "Device Id": device[1],
    }  # fmt: skip
    kept = {name: value for name, value in arguments.items() if value is not None}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": PID, "tid": PID, "ts": start, "s": "t", "args": kept}  # fmt: skip


def late(rank=0):
    """A trace that begins when most of the device's memory is in use."""
    return opened(
        op("f", 0, 50),
        memory(1, 64, 1000, (0, -1), allocated=64, reserved=0),
        memory(5, 100, 5000, allocated=10_100, reserved=40_000),
        memory(6, 200, 6000, allocated=10_300, reserved=40_000),
        memory(7, -200, 6000, allocated=10_100, reserved=40_000),
        memory(8, 150, 7000, (1, 1)),
        header={"distributedInfo": {"rank": rank, "world_size": 2}},
    )


def test_what_the_allocator_counted_comes_first():
    found = {peak.device: peak for peak in device_peaks(late())}
    assert list(found) == ["cuda:0", "cuda:1", "cpu"]
    first = found["cuda:0"]
    assert (first.bytes, first.attributed_bytes, first.reserved_bytes) == (10_300, 300, 40_000)
    assert (first.counted, first.time_ns, first.top.bytes) == (True, 6000, 300)
    assert (found["cuda:1"].bytes, found["cuda:1"].counted, found["cuda:1"].reserved_bytes) == (
        150,
        False,
        None,
    )
    assert (found["cpu"].bytes, found["cpu"].attributed_bytes, found["cpu"].reserved_bytes) == (64, 64, None)


def test_allocators_of_several_processes_count_together():
    one = allocator_peak(late(), 1, 0)
    both = kinetoscope.merge([late(0), late(1)])
    together = allocator_peak(both, 1, 0)
    assert one.allocated_bytes == 10_300
    assert 10_300 + 10_100 <= together.allocated_bytes <= 2 * 10_300
    assert allocator_peak(both, 1, 0, np.array([1])).allocated_bytes == 10_300


@pytest.mark.parametrize(
    ("peak", "text"),
    [
        (DevicePeak("cuda:0", 2_500_000_000, 5, True, 1_700_000_000, 3_000_000_000, None),
         "2.33 GiB allocated on cuda:0 (2.79 GiB reserved), 1.58 GiB of it attributed"),
        (DevicePeak("cpu", 2_000, 5, True, 2_000, None, None), "1.95 KiB allocated on cpu"),
        (DevicePeak("cpu", 2_000, 5, False, 2_000, None, None), "1.95 KiB on cpu of tensors allocated while recording"),
        (DevicePeak("cpu", 2_048, 5, False, 2_048, None, None, 1_024),
         "2 KiB on cpu of tensors, 1 KiB of it allocated before the recording"),
    ],
)  # fmt: skip
def test_a_peak_in_words_names_its_device(peak, text):
    assert plain(peak_sentence(peak)) == text


def test_a_peak_says_how_much_was_there_before_the_recording():
    builder = TraceBuilder()
    builder.hold("parameter", 64, 4_000)
    builder.span("aten::mm", 0, 100)
    builder.allocate(10, 8_192, 3_000)
    builder.free(20, 8_192)
    (found,) = device_peaks(builder.build())
    assert (found.bytes, found.attributed_bytes, found.earlier_bytes) == (7_000, 7_000, 4_000)


def test_every_place_that_shows_a_peak_shows_the_allocators(tmp_path):
    trace = late()
    shown = {fact.label: fact.text for fact in describe(trace.overview())}
    assert (
        shown["Memory peak"].splitlines()[0]
        == "10.1 KiB allocated on cuda:0 (39.1 KiB reserved), 300 B of it attributed"
    )
    found = answer(trace, "overview/memory", {})
    assert [(peak["device"], peak["bytes"], peak["attributed_bytes"]) for peak in found["peaks"]] == [
        ("cuda:0", 10_300, 300), ("cuda:1", 150, 150), ("cpu", 64, 64),
    ]  # fmt: skip
    tile = found["tile"]
    assert tile["value"] == [10_300, "bytes"]
    assert (tile["more"]["text"], tile["more"]["values"]) == ("cuda:0 · {} attributed", [(300, "bytes")])
    memory_page = answer(trace, "memory", {})
    assert memory_page["highest"] == "cuda:0"
    assert {row["device"] for row in trace.table("memory_peak").to_pylist()} == {"cuda:0"}
    assert {row["device"] for row in trace.table("memory").to_pylist()} == {"cpu"}
    trace.save(tmp_path / "x.ktrace")
    shown = CliRunner().invoke(main, ["report", "--text", str(tmp_path / "x.ktrace")])
    assert shown.exit_code == 0
    out = " ".join(shown.output.split())
    assert "peak 10.1 KiB allocated on cuda:0 (39.1 KiB reserved), 300 B of it attributed, after 6 µs" in out
    assert "peak 64 B allocated on cpu" in out


@pytest.mark.parametrize(
    ("name", "allocated", "attributed"),
    [
        ("h100_owlv2_stack_mem", "2.52 GiB", "1.67 GiB"),
        ("vllm_graph_capture_stack", "178 GiB", "16.9 MiB"),
        ("v100_resnet50_mem", None, "2.60 GiB"),
    ],
)
def test_peaks_of_real_traces(name, allocated, attributed):
    trace = kinetoscope.open(real_trace(name))
    moments = [
        event["args"] for event in plain_trace(real_trace(name)).moments
        if event["name"] == "[memory]" and event["args"]["Device Type"] != 0
    ]  # fmt: skip
    peak = device_peaks(trace)[0]
    assert peak.device == "cuda:0"
    row = trace.table("devices").to_pylist()[0]
    memory = [row[f"{name}_peak_bytes"] for name in ("allocated", "attributed", "reserved")]
    if allocated is None:
        assert not any("Total Allocated" in arguments for arguments in moments)
        assert plain(peak_sentence(peak)) == f"{attributed} on cuda:0 of tensors allocated while recording"
        assert memory == [None, peak.attributed_bytes, None]
        return
    assert peak.bytes == max(arguments["Total Allocated"] for arguments in moments)
    assert peak.reserved_bytes == max(arguments["Total Reserved"] for arguments in moments)
    assert plain(peak_sentence(peak)).startswith(f"{allocated} allocated on cuda:0")
    assert plain(peak_sentence(peak)).endswith(f"{attributed} of it attributed")
    # Kernels of this one ran on a device that the program saw under another number.
    other = name == "vllm_graph_capture_stack"
    assert (row["device"] == "cuda:0") != other
    assert memory == ([None] * 3 if other else [peak.bytes, peak.attributed_bytes, peak.reserved_bytes])
