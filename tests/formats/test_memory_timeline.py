"""Memory over time as files, in torch's JSON forms."""

import gzip
import json
import re

import pytest

import kinetoscope
from kinetoscope.formats.memory_timeline import write_memory_timeline
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder


def program():
    builder = TraceBuilder().know("profile_memory", True)
    layer = builder.module("Linear")
    stack = builder.stack(("net.py", 4, "<module>"), ("net.py", 9, "Net.forward"))
    builder.hold("parameter", 0x100, 1000, module=layer, name="weight")
    builder.span("aten::linear", 1000, 2000, module=layer, stack=stack)
    builder.allocate(1500, 0x10, 400, stack=stack)
    builder.allocate(1600, 0x20, 30)
    builder.free(2000, 0x20)
    builder.span("aten::add_", 5000, 100, module=layer).give("aten::add_", 0x10, 400)
    builder.free(9000, 0x10)
    return builder


def written(tmp_path, name, builder, **options):
    path = tmp_path / name
    write_memory_timeline(builder.build(), path, **options)
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if name.endswith(".gz") else data)


EPOCH_US = START_REALTIME_NS // 1000


@pytest.mark.parametrize("name", ["memory.json", "memory.json.gz", "MEMORY.JSON"])
def test_the_bytes_of_each_category_over_time(tmp_path, name):
    times, sizes = written(tmp_path, name, program())
    assert times == [EPOCH_US + 1, EPOCH_US + 1, EPOCH_US + 2, EPOCH_US + 9]
    #                parameter, optimizer state, input, temporary, activation, gradient, autograd detail, unknown
    assert sizes == [
        [0, 1000, 0, 0, 0, 0, 0, 0, 0],
        [0, 1000, 0, 0, 30, 400, 0, 0, 0],
        [0, 1000, 0, 0, 0, 400, 0, 0, 0],
        [0, 1000, 0, 0, 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("name", ["memory.raw.json.gz", "raw.json.gz", "memory_raw.json.gz"])
def test_every_event_one_after_the_other(tmp_path, name):
    assert written(tmp_path, name, program()) == [
        [-1, 1, 1000, 0],
        [START_REALTIME_NS + 1500, 2, 400, 4],
        [START_REALTIME_NS + 1600, 2, 30, 3],
        [START_REALTIME_NS + 2000, 4, -30, 3],
        [START_REALTIME_NS + 5000, 3, -400, 4],
        [START_REALTIME_NS + 5000, 3, 400, 4],
        [START_REALTIME_NS + 9000, 4, -400, 4],
    ]


def test_the_device_that_held_most_is_the_default(tmp_path):
    builder = program()
    builder.allocate(3000, 0x10, 5000, device=(1, 0))
    builder.allocate(3500, 0x20, 7, device=(1, 1))
    assert [row[2] for row in written(tmp_path, "raw.json.gz", builder)] == [5000]
    assert [row[2] for row in written(tmp_path, "raw.json.gz", builder, device="cuda:1")] == [7]
    assert [row[2] for row in written(tmp_path, "raw.json.gz", builder, device="cuda")] == [5000]
    assert len(written(tmp_path, "raw.json.gz", builder, device="cpu")) == 7
    assert len(written(tmp_path, "raw.json.gz", builder, device="cpu:0")) == 7


@pytest.mark.parametrize("device", ["cuda:2", "xpu", "", "cpu:1", "no device"])
def test_an_unknown_device_is_refused_with_the_known_ones(tmp_path, device):
    builder = program()
    builder.allocate(3000, 0x10, 5000, device=(1, 0))
    with pytest.raises(kinetoscope.ArgumentError, match=re.escape(f"device={device!r}") + ".*cpu, cuda:0"):
        write_memory_timeline(builder.build(), tmp_path / "memory.json", device=device)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["memory", "memory.txt", "memory.gz", "memory.html.gz", "memory.csv"])
def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path, name):
    with pytest.raises(kinetoscope.ArgumentError, match=r"\.html, \.json, \.json\.gz, raw\.json\.gz"):
        write_memory_timeline(program().build(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["m.json", "m.raw.json.gz"])
def test_without_memory_the_missing_flag_is_named(tmp_path, name):
    trace = TraceBuilder().span("aten::add", 0, 5).build()
    with pytest.raises(kinetoscope.StateError, match="profile_memory=True"):
        write_memory_timeline(trace, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_recording_in_which_nothing_was_allocated_is_an_empty_timeline(tmp_path):
    builder = TraceBuilder().know("profile_memory", True).span("aten::add", 0, 5)
    assert written(tmp_path, "memory.json", builder) == [[], []]
    assert written(tmp_path, "raw.json.gz", builder) == []


@pytest.mark.parametrize("name", ["run.memory.json", "run.memory.json.gz", "run.memory.raw.json.gz"])
def test_a_trace_saves_itself_as_a_memory_timeline(tmp_path, name):
    trace = program().build()
    trace.save(tmp_path / name)
    write_memory_timeline(trace, tmp_path / f"other.{name}")
    assert (tmp_path / name).read_bytes() == (tmp_path / f"other.{name}").read_bytes()


def test_a_page_is_not_a_format_of_traces(tmp_path):
    with pytest.raises(kinetoscope.ArgumentError, match=r"kinetoscope\.report\(\) writes pages"):
        program().build().save(tmp_path / "run.memory.html")
    assert list(tmp_path.iterdir()) == []
