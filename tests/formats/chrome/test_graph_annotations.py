"""Annotations of CUDA graphs in Chrome traces: fields, lanes, ranges without work; field by field what torch 2.15 writes."""

import importlib.util
import inspect
import json

import pytest

import kinetoscope
from kinetoscope.formats.chrome.graph_annotations import GraphAnnotations
from kinetoscope.formats.chrome.write import write_chrome_trace
from kinetoscope.model.schema import SpanKind
from tests.support.chrome_file import read_strictly, slices, track_names
from tests.support.trace_builder import TraceBuilder

ANNOTATIONS = {
    11: {"name": "forward", "layer": 3},
    12: [
        {"name": "all_gather", "stream": 40, "Process Group Description": "tensor parallel"},
        {"dtype": "bf16"},
    ],
    13: {"stream": 20, "name": "copy"},
    14: {},
    15: {"stream": 40, "name": "late"},
    99: {"name": "of another graph"},
}


def replayed() -> TraceBuilder:
    """A graph with six nodes over three streams, work outside of it, and a range that each stream shows."""
    made = TraceBuilder()
    made.thread("python", os_tid=4242)
    compute, other, third = made.stream(7), made.stream(20), made.stream(33)
    made.runtime("cudaGraphLaunch", 10, 20, correlation=5)
    for stream in (compute, other, third):
        made.device_annotation("replay", 100, 900, stream=stream)
    made.kernel("plain", 100, 50, stream=compute)
    for node, stream, start_ns, name in (
        (11, compute, 200, "gemm"), (12, third, 220, "nccl"), (14, other, 300, "empty"), (15, other, 400, "late"), (16, third, 500, "bare"),
    ):  # fmt: skip
        made.kernel(
            name, start_ns, 60, stream=stream, correlation=5, launch={"graph": 4, "graph_node": node},
            arguments={"queued": 0} if name == "gemm" else None,
        )  # fmt: skip
    made.on_device(
        "Memcpy DtoD", 320, 30, SpanKind.MEMCPY, stream=third, correlation=5,
        copied={"bytes": 8, "graph": 4, "graph_node": 13},
    )  # fmt: skip
    return made


def written(folder, annotations=None, name="trace.json"):
    write_chrome_trace(replayed().build(), folder / name, annotations=annotations)
    return read_strictly(folder / name)


def on_device(file):
    """Lane and arguments of each slice of the device; the arguments without those that say what the work is."""
    return {
        (event["name"], event["tid"]): {
            key: value for key, value in event["args"].items()
            if key in {"name", "layer", "dtype", "stream", "original_stream", "annotated_stream", "queued", "Process Group Description"}
        }
        for event in slices(file) if event["pid"] == 0
    }  # fmt: skip


def test_work_of_a_node_has_the_fields_of_its_annotation(tmp_path):
    file = written(tmp_path, GraphAnnotations(ANNOTATIONS))
    assert file["cudaGraphInlineAnnotated"] is True
    assert list(file).index("cudaGraphInlineAnnotated") < list(file).index("traceEvents")
    assert on_device(file) == {
        ("replay", 7): {}, ("replay", 20): {}, ("replay", 33): {},
        ("plain", 7): {"stream": 7},
        ("gemm", 7): {"stream": 7, "queued": 0, "name": "forward", "layer": "3"},
        ("nccl", 33): {
            "stream": 33, "name": "all_gather", "Process Group Description": "tensor parallel", "dtype": "bf16",
            "annotated_stream": 40,
        },
        ("Memcpy DtoD", 33): {"stream": 33, "name": "copy", "annotated_stream": 20},
        ("empty", 20): {"stream": 20},
        ("late", 20): {"stream": 20, "name": "late", "annotated_stream": 40},
        ("bare", 33): {"stream": 33},
    }  # fmt: skip


def test_on_lanes_all_work_of_graphs_is_on_the_stream_that_its_annotation_names(tmp_path):
    file = written(tmp_path, GraphAnnotations(ANNOTATIONS, on_lanes=True))
    assert on_device(file) == {
        # No work is left on stream 33.
        ("replay", 7): {}, ("replay", 20): {},
        ("plain", 7): {"stream": 7},
        ("gemm", 7): {"stream": 7, "queued": 0, "name": "forward", "layer": "3"},
        ("nccl", 40): {
            "stream": 40, "name": "all_gather", "Process Group Description": "tensor parallel", "dtype": "bf16",
            "original_stream": 33,
        },
        ("Memcpy DtoD", 20): {"stream": 20, "name": "copy", "original_stream": 33},
        ("empty", 7): {"stream": 7, "original_stream": 20},
        ("late", 40): {"stream": 40, "name": "late", "original_stream": 20},
        ("bare", 7): {"stream": 7, "original_stream": 33},
    }  # fmt: skip
    assert track_names(file)[0, 40] == "tensor parallel"


def test_a_new_default_lane_is_a_stream_without_a_name(tmp_path):
    file = written(tmp_path, GraphAnnotations({11: {"name": "a"}}, on_lanes=True, default_lane=0))
    (gemm,) = slices(file, "gemm")
    assert (gemm["args"]["stream"], gemm["args"]["original_stream"]) == (0, 7)
    assert track_names(file)[0, gemm["tid"]] == "stream 0"


def test_arrows_and_launches_follow_the_work(tmp_path):
    file = written(tmp_path, GraphAnnotations(ANNOTATIONS, on_lanes=True))
    moved = {
        (event["tid"], event["ts"]) for event in slices(file) if event["cat"] in ("kernel", "gpu_memcpy")
    }
    ends = [event for event in file["traceEvents"] if event["ph"] == "f"]
    assert len(ends) == 6
    assert {(event["tid"], event["ts"]) for event in ends} <= moved


def test_annotations_of_other_graphs_leave_the_trace_as_it_is(tmp_path):
    file = written(tmp_path, GraphAnnotations({99: {"name": "of another graph"}}))
    assert "cudaGraphInlineAnnotated" not in file
    assert slices(file) == slices(written(tmp_path))


def test_an_annotated_trace_is_read_again(tmp_path):
    written(tmp_path, GraphAnnotations(ANNOTATIONS, on_lanes=True), "lanes.json")
    trace = kinetoscope.open(tmp_path / "lanes.json")
    numbers = trace.column("streams", "number")
    strings, spans = trace.strings, trace.columns("spans")
    streams = {
        strings[name]: int(numbers[stream])
        for name, stream in zip(spans["name"], spans["stream"], strict=True)
        if stream >= 0
    }
    assert streams["nccl"] == 40
    assert streams["bare"] == 7
    trace.close()


def test_a_stream_that_is_not_a_number_is_an_error_as_in_torch(tmp_path):
    with pytest.raises(ValueError, match="'compute'"):
        written(tmp_path, GraphAnnotations({11: {"stream": "compute"}}))
    assert not list(tmp_path.iterdir())


def torchs_writer():
    """torch's writer of annotated traces, which it has from 2.15 on."""
    if importlib.util.find_spec("torch.profiler._chrome_trace_export") is None:
        return None
    from torch.profiler._chrome_trace_export import export_chrome_trace

    return export_chrome_trace if "graph_lanes" in inspect.signature(export_chrome_trace).parameters else None


class Activity:
    """An event of a written trace as torch's writer asks for it."""

    def __init__(self, event):
        args = dict(event["args"])
        self.external_id = args.pop("External id", 0)
        values = {
            "device_id": event["pid"], "resource_id": event["tid"], "timestamp": round(event["ts"] * 1000) + 10**18,
            "duration": round(event["dur"] * 1000), "type": event["cat"], "name": event["name"],
            "metadata_json": json.dumps(args, default=float)[1:-1], "linked_correlation_id": self.external_id,
            "correlation_id": 0, "linked_activity": None, "flow_id": 0,
        }  # fmt: skip
        for name, value in values.items():
            setattr(self, name, lambda value=value: value)


@pytest.mark.skipif(torchs_writer() is None, reason="torch has this from 2.15 on")
@pytest.mark.parametrize("lanes", ["none", "all"])
@pytest.mark.parametrize("default", [7, 5])
def test_torch_writes_the_same_fields(lanes, default, tmp_path):
    class Results:
        def trace_activities(self):
            return [Activity(event) for event in slices(written(tmp_path)) if isinstance(event["pid"], int)]

    torchs_writer()(Results(), str(tmp_path / "torch.json"), {}, ANNOTATIONS, lanes, default)
    theirs = json.loads((tmp_path / "torch.json").read_text())
    ours = written(tmp_path, GraphAnnotations(ANNOTATIONS, lanes == "all", default))
    assert theirs["cudaGraphInlineAnnotated"] == ours["cudaGraphInlineAnnotated"]
    both = [
        sorted(
            (event["cat"], event["name"], event["pid"], event["tid"], json.dumps(event.get("args", {}), default=float, sort_keys=True))
            for event in slices(file) if isinstance(event["pid"], int)
        )
        for file in (theirs, ours)
    ]  # fmt: skip
    assert both[0] == both[1]
    names = [{track: name.strip() for track, name in track_names(file).items()} for file in (theirs, ours)]
    assert {track: names[1][track] for track in names[0]} == names[0] | {
        track: name for track, name in names[1].items() if track[0] != 0 and track in names[0]
    }
