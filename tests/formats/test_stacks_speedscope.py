"""speedscope files: valid by the format's specification, and with the sums of the trace."""

import gzip

import numpy as np
import pytest
from hypothesis import given

from kinetoscope.formats import stacks as stacks_module
from kinetoscope.trace import Trace
from tests.support.any_trace import any_traces
from tests.support.hostile import HOSTILE_NAMES
from tests.support.strict_json import paired, read_strictly
from tests.support.trace_builder import TraceBuilder

UNITS = {"none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"}


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check(content):
    """Check the rules of speedscope's format (file-format-spec.ts)."""
    assert content["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert set(content) <= {"$schema", "shared", "profiles", "name", "activeProfileIndex", "exporter"}
    frames = content["shared"]["frames"]
    for frame in frames:
        assert set(frame) <= {"name", "file", "line", "col"}
        assert isinstance(frame["name"], str)
        assert frame["name"]
        assert isinstance(frame.get("file", ""), str)
        assert is_number(frame.get("line", 0))
    assert content["profiles"], "there is nothing to show"
    assert 0 <= content["activeProfileIndex"] < len(content["profiles"])
    for profile in content["profiles"]:
        assert isinstance(profile["name"], str)
        assert profile["unit"] in UNITS
        assert is_number(profile["startValue"])
        assert profile["endValue"] >= profile["startValue"]
        if profile["type"] == "evented":
            assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "events"}
            check_events(profile, len(frames))
        else:
            assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
            assert profile["type"] == "sampled"
            assert len(profile["samples"]) == len(profile["weights"])
            assert all(0 <= frame < len(frames) for sample in profile["samples"] for frame in sample)
            assert all(is_number(weight) and weight >= 0 for weight in profile["weights"])


def check_events(profile, frames):
    """Check that times never decrease, and that frames are closed in reverse order."""
    at, open_frames = profile["startValue"], []
    for event in profile["events"]:
        assert set(event) == {"type", "frame", "at"}
        assert 0 <= event["frame"] < frames
        assert event["at"] >= at
        at = event["at"]
        if event["type"] == "O":
            open_frames.append(event["frame"])
        else:
            assert event["type"] == "C"
            assert open_frames.pop() == event["frame"]
    assert open_frames == []
    assert at <= profile["endValue"]


def written(trace, path):
    trace.save(path)
    packed = path.read_bytes()
    content = read_strictly((gzip.decompress(packed) if path.suffix == ".gz" else packed).decode())
    check(content)
    return content


def totals(content):
    """Return how long and how often each frame was open, over all evented profiles."""
    lasted, count = {}, {}
    for profile in content["profiles"]:
        opened = []
        for event in profile.get("events", ()):
            if event["type"] == "O":
                opened.append(event["at"])
                continue
            name = content["shared"]["frames"][event["frame"]]["name"]
            lasted[name] = lasted.get(name, 0) + event["at"] - opened.pop()
            count[name] = count.get(name, 0) + 1
    return lasted, count


@given(any_traces())
def test_totals_are_those_of_any_trace(tmp_path_factory, trace):
    content = written(trace, tmp_path_factory.mktemp("speedscope") / "x.speedscope.json")
    spans = trace.columns("spans")
    lasted, count = {}, {}
    for name, duration in zip(spans["name"].tolist(), spans["duration_ns"].tolist(), strict=True):
        text = paired(trace.strings[name]) or "(no name)"
        lasted[text] = lasted.get(text, 0) + duration
        count[text] = count.get(text, 0) + 1
    assert totals(content) == (lasted, count)
    sampled = {
        profile["name"].split(": ")[-1]: sum(profile["weights"])
        for profile in content["profiles"]
        if "weights" in profile
    }
    stacks = trace.table("stacks").to_pydict()
    assert sampled.get("time on the host", 0) == sum(
        sum(stacks[name]) for name in ("self_ns", "python_self_ns", "blocked_self_ns")
    )
    assert sampled.get("time on devices", 0) == spans["device_self_ns"][spans["stack"] >= 0].sum()


def model_trace():
    builder = TraceBuilder()
    builder.thread("main")
    outer = builder.stack(("train.py", 3, "main"))
    inner = builder.stack(("train.py", 3, "main"), ("net.py", 7, "Net.forward"))
    builder.span("aten::linear", 10, 90, stack=inner)
    builder.span("aten::addmm", 20, 60, stack=inner)
    builder.runtime("cudaLaunchKernel", 30, 10, correlation=1)
    builder.kernel("gemm", 50, 200, correlation=1)
    builder.span("overlaps", 95, 30, stack=outer)
    builder.allocate(25, 1, 4096, stack=inner)
    return builder.build()


def test_one_profile_for_each_thread_and_stream_and_one_for_each_weight(tmp_path):
    content = written(model_trace(), tmp_path / "x.speedscope.json")
    assert [(profile["name"], profile["unit"]) for profile in content["profiles"]] == [
        ("main (thread 1000)", "nanoseconds"),
        ("main (thread 1000), overlapping spans", "nanoseconds"),
        ("device 0, stream 7 (stream 7)", "nanoseconds"),
        ("Python stacks: time on the host", "nanoseconds"),
        ("Python stacks: time on devices", "nanoseconds"),
        ("Python stacks: memory allocated", "bytes"),
    ]
    frames = content["shared"]["frames"]
    events = [
        (event["type"], frames[event["frame"]]["name"], event["at"])
        for event in content["profiles"][0]["events"]
    ]
    assert events == [
        ("O", "aten::linear", 10), ("O", "aten::addmm", 20), ("O", "cudaLaunchKernel", 30), ("C", "cudaLaunchKernel", 40),
        ("C", "aten::addmm", 80), ("C", "aten::linear", 100),
    ]  # fmt: skip
    host, device, memory = content["profiles"][3:]
    stacks = [[frames[frame] for frame in sample] for sample in host["samples"]]
    assert stacks[-1] == [
        {"name": "main", "file": "train.py", "line": 3},
        {"name": "Net.forward", "file": "net.py", "line": 7},
    ]
    assert sum(device["weights"]) == 200
    assert memory["weights"] == [4096]
    assert content["activeProfileIndex"] == 0


@pytest.mark.parametrize("suffix", [".speedscope.json", ".speedscope.json.gz"])
def test_hostile_names(tmp_path, suffix):
    builder = TraceBuilder()
    for place, name in enumerate(HOSTILE_NAMES):
        builder.thread(name)
        builder.span(name, 10 * place, 5, stack=builder.stack((name, 1, name)), thread=place)
    content = written(builder.build(), tmp_path / f"x{suffix}")
    assert {frame["name"] for frame in content["shared"]["frames"]} == {
        paired(name) for name in HOSTILE_NAMES
    }


def test_nothing_recorded_is_a_file_that_opens(tmp_path):
    content = written(Trace.from_columns({}, strings=[""]), tmp_path / "x.speedscope.json")
    assert [profile["name"] for profile in content["profiles"]] == ["nothing was recorded"]


def test_many_events_are_written_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(stacks_module, "_EVENTS_AT_ONCE", 7)
    content = written(model_trace(), tmp_path / "x.speedscope.json")
    assert totals(content)[0]["gemm"] == 200
    count = 100
    trace = Trace.from_columns(
        {
            "spans": {
                "start_ns": 10 * np.arange(count),
                "duration_ns": np.full(count, 7),
                "name": np.ones(count),
            },
            "threads": {"index": [0]},
        },
        strings=["", "op"],
    )
    assert totals(written(trace, tmp_path / "y.speedscope.json")) == ({"op": 700}, {"op": 100})


def test_an_error_leaves_nothing(tmp_path):
    trace = model_trace()
    trace.strings[1] = object()
    with pytest.raises(TypeError):
        trace.save(tmp_path / "x.speedscope.json")
    assert list(tmp_path.iterdir()) == []
