"""Chrome traces of hand-made traces: structure, valid JSON, nesting, and atomic writing."""

import gzip
import json
import os
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.formats.chrome.write import write_chrome_trace
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.host.rebuilt_calls import rebuilt_calls, shown_frames
from kinetoscope.trace import Trace
from tests.support.chrome_file import partly_overlapping, read_strictly, slices, track_names
from tests.support.effort import examples
from tests.support.perfetto import ask_perfetto, complaints, needs_perfetto
from tests.support.trace_builder import TraceBuilder

HOSTILE = [
    'quote " backslash \\ slash / end',
    "control \x00\x01\x1f\x7f\b\f\n\r\t",
    "lone \ud800 and \udfff surrogates",
    "\U0001f600 日本語 \u2028 \u2029 \ufeff",
    "</script><!-- {}[]:, -->",
    "n" * 100_000,
    "",
    "NaN",
]


def training() -> TraceBuilder:
    """Build a trace with two threads, forward and backward, a module, stacks, shapes, memory and steps."""
    made = TraceBuilder()
    main, engine = made.thread("python", os_tid=4242), made.thread("autograd", os_tid=4243)
    model = made.module("GPT")
    layer = made.module("Linear", name="fc", parent=model)
    stack = made.stack(("train.py", 3, "<module>"), ("model.py", 7, "GPT.forward"))
    shapes = made.shapes([[2, 4], [4]], ["float", "float"], ["", "1.5"])
    made.step(3, 0, 10_000)
    made.span("aten::linear", 1_234, 4_321, module=layer, stack=stack, sequence=1, shapes=shapes)
    made.span("aten::addmm", 1_300, 4_000, module=layer, stack=stack)
    made.backward("AddmmBackward0", 6_000, 1_000, sequence=1, forward_thread=main, thread=engine)
    made.allocate(1_350, 0xF00, 64, thread=main)
    made.free(6_500, 0xF00, thread=engine)
    return made.know("with_stack", 1).know("note", 'say "hi"')


def written(trace: Trace, folder, name="trace.json"):
    write_chrome_trace(trace, folder / name)
    return read_strictly(folder / name)


def test_top_level_keys(tmp_path):
    file = written(training().build(), tmp_path)
    assert list(file)[:2] == ["schemaVersion", "deviceProperties"]
    assert file["schemaVersion"] == 1
    assert file["displayTimeUnit"] == "ms"
    assert file["baseTimeNanoseconds"] == 1_700_000_000_000_000_000
    assert file["traceName"] == str(tmp_path / "trace.json")
    assert file["with_stack"] == 1
    assert file["note"] == 'say "hi"'
    assert "losses" not in file


def test_an_operator_has_everything_that_is_known_of_it(tmp_path):
    (event,) = slices(written(training().build(), tmp_path), "aten::linear")
    args = event.pop("args")
    assert event == {
        "ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 4242, "tid": 4242,
        "ts": Decimal("1.234"), "dur": Decimal("4.321"),
    }  # fmt: skip
    assert args["Input Dims"] == [[2, 4], [4]]
    assert args["Input type"] == ["float", "float"]
    assert args["Concrete Inputs"] == ["", "1.5"]
    assert args["Sequence number"] == 1
    assert args["Module"] == "fc"
    assert args["Module class"] == "Linear"
    assert args["Call stack"] == "model.py(7): GPT.forward;train.py(3): <module>"


def test_processes_and_threads_are_introduced(tmp_path):
    file = written(training().build(), tmp_path)
    told = [
        (event["name"], event["tid"], event["args"]) for event in file["traceEvents"] if event["ph"] == "M"
    ]
    assert told == [
        ("process_name", 0, {"name": "python"}),
        ("process_labels", 0, {"labels": "CPU"}),
        ("process_sort_index", 0, {"sort_index": 4242}),
        ("thread_name", 4242, {"name": "thread 4242 (python)"}),
        ("thread_sort_index", 4242, {"sort_index": 0}),
        ("thread_name", 4243, {"name": "thread 4243 (autograd)"}),
        ("thread_sort_index", 4243, {"sort_index": 1}),
    ]


def test_steps_are_user_annotations(tmp_path):
    (step,) = slices(written(training().build(), tmp_path), "ProfilerStep#3")
    assert (step["cat"], step["ts"], step["dur"]) == ("user_annotation", 0, 10)


def test_arrows_lead_from_forward_to_backward(tmp_path):
    file = written(training().build(), tmp_path)
    start, finish = (
        next(e for e in file["traceEvents"] if e["ph"] == ph and e["cat"] == "fwdbwd") for ph in "sf"
    )
    assert start["id"] == finish["id"]
    assert (start["tid"], start["ts"]) == (4242, Decimal("1.234"))
    assert (finish["tid"], finish["ts"], finish["bp"]) == (4243, 6, "e")


def test_memory_is_instants_with_signed_bytes(tmp_path):
    blocks = [
        event for event in written(training().build(), tmp_path)["traceEvents"] if event["name"] == "[memory]"
    ]
    assert [(b["ts"], b["tid"], b["args"]["Bytes"], b["args"]["Total Allocated"]) for b in blocks] == [
        (Decimal("1.35"), 4242, 64, 64),
        (Decimal("6.5"), 4243, -64, 0),
    ]


def test_losses_are_told(tmp_path):
    made = training().killed()
    made.lose("dropped_spans", 7)
    losses = written(made.build(), tmp_path)["losses"]
    assert 7 in [loss["count"] for loss in losses]


@pytest.mark.parametrize("key", ["schemaVersion", "traceEvents", "displayTimeUnit", "losses"])
def test_metadata_cannot_make_a_key_twice(tmp_path, key):
    made = training().lose("dropped_spans", 1)
    assert len(written(made.know(key, "mine").build(), tmp_path)["traceEvents"]) > 10


def test_metadata_that_json_does_not_have_becomes_text(tmp_path):
    trace = training().build()
    trace.info.update(nan=float("nan"), thing=tmp_path)
    file = written(trace, tmp_path)
    assert (file["nan"], file["thing"]) == ("nan", str(tmp_path))


def test_an_empty_trace_is_a_whole_file(tmp_path):
    file = written(TraceBuilder().build(), tmp_path)
    assert slices(file) == []


def test_ranges_that_partly_overlap_get_tracks_of_their_own_with_names(tmp_path):
    made = TraceBuilder()
    made.thread("python", os_tid=77)
    made.annotation("a", 0, 100).annotation("b", 50, 100).annotation("c", 60, 200).span("op", 10, 10)
    file = written(made.build(), tmp_path)
    assert partly_overlapping(file) == []
    names = track_names(file)
    assert names[4242, 77] == "thread 77 (python)"
    assert len(names) == 3
    assert [name for name in names.values() if "overlapping" in name] == [
        "thread 77 (python), overlapping 1",
        "thread 77 (python), overlapping 2",
    ]


def test_a_thread_id_used_twice_makes_two_tracks(tmp_path):
    made = TraceBuilder()
    for _ in range(2):
        made.span("op", 0, 10, thread=made.thread("worker", os_tid=99))
    file = written(made.build(), tmp_path)
    assert len({event["tid"] for event in slices(file)}) == 2


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 300), st.sampled_from(HOSTILE[:5])),
        max_size=40,
    )
)
def test_slices_of_a_track_nest_and_none_is_missing(tmp_path_factory, drawn):
    made = TraceBuilder()
    for _ in range(3):
        made.thread()
    for thread, start_ns, duration_ns, name in drawn:
        made.annotation(name, start_ns, duration_ns, thread=thread)
    file = written(made.build(), tmp_path_factory.mktemp("drawn"))
    assert partly_overlapping(file) == []
    exact = sorted((event["ts"] * 1000, event["dur"] * 1000, event["name"]) for event in slices(file))
    assert exact == sorted((start_ns, duration_ns, name) for _, start_ns, duration_ns, name in drawn)


def hostile() -> TraceBuilder:
    """Build a trace with every hard-to-escape text in every text column."""
    made = TraceBuilder()
    for place, text in enumerate(HOSTILE):
        thread = made.thread(text)
        module = made.module(text, name=text, parent=made.module(text))
        stack = made.stack((text, place, text), (text, 1, text))
        made.span(text, place, 10, thread=thread, module=module, stack=stack, overload=text)
        made.know(text, text)
    return made


def test_hostile_texts_survive_everywhere(tmp_path):
    file = written(hostile().build(), tmp_path)
    assert sorted(event["name"] for event in slices(file)) == sorted(HOSTILE)
    assert all(file[text] == text for text in HOSTILE)


# ------------------------------------------------------------------------------------------------------------ files


def test_gz_holds_the_same(tmp_path):
    trace = training().build()
    plain, packed = written(trace, tmp_path), written(trace, tmp_path, "trace.json.gz")
    assert plain.pop("traceName") != packed.pop("traceName")
    assert plain == packed
    assert sorted(os.listdir(tmp_path)) == ["trace.json", "trace.json.gz"]


def test_a_failing_export_leaves_the_old_file_and_nothing_else(tmp_path):
    trace = training().build()
    trace.columns("spans")._ready["kind"] = trace.columns("spans")["kind"] + 99
    for name in ("a.json", "a.json.gz"):
        (tmp_path / name).write_text("old")
        with pytest.raises(ValueError, match="kind without a category"):
            write_chrome_trace(trace, tmp_path / name)
        assert (tmp_path / name).read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["a.json", "a.json.gz"]


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_chrome_trace(training().build(), tmp_path / "none" / "a.json")


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path):
    trace = training().build()
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "trace.json")
    write_chrome_trace(trace, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert slices(read_strictly(tmp_path / "real" / "trace.json"))
    write_chrome_trace(trace, os.devnull)
    assert not os.path.isfile(os.devnull)


def test_a_path_may_be_text_and_save_finds_the_writer(tmp_path):
    trace = training().build()
    write_chrome_trace(trace, str(tmp_path / "a.json"))
    trace.save(tmp_path / "b.json")
    trace.save(tmp_path / "c.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "c.json.gz").read_bytes()))["schemaVersion"] == 1
    assert os.stat(tmp_path / "a.json").st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# ----------------------------------------------------------------------------------------------------------- device


def with_device() -> Trace:
    """Build a trace with a launch on the host and, on a stream, a copy, a kernel and a range around it."""
    strings = ["", "aten::mm", "cudaLaunchKernel", "sgemm", "Memcpy HtoD", "range"]
    return Trace.from_columns(
        {
            "spans": {
                "thread": [0, 0, 1, 1, 1],
                "start_ns": [0, 100, 500, 1000, 1001],
                "duration_ns": [900, 50, 100, 2000, 1500],
                "name": [1, 2, 4, 5, 3],
                "scope": [0, 0, 0, 7, 0],
                "stream": [-1, -1, 0, 0, 0],
                "kind": [
                    SpanKind.OPERATOR, SpanKind.RUNTIME, SpanKind.MEMCPY, SpanKind.USER_ANNOTATION, SpanKind.KERNEL,
                ],
            },
            "threads": {"index": [0, 1], "os_tid": [4242, 7], "torch_tid": [1, -1], "name": ["python", ""]},
            "streams": {"device_type": [1], "device_index": [0], "number": [7]},
            "launches": {"host": [1], "device": [4]},
        },
        strings=strings,
        info={"process": 4242, "start_realtime_ns": 1},
    )  # fmt: skip


def test_device_spans_lie_under_their_device(tmp_path):
    file = written(with_device(), tmp_path)
    (kernel,) = slices(file, "sgemm")
    assert (kernel["cat"], kernel["pid"], kernel["tid"]) == ("kernel", 0, 7)
    assert kernel["args"] | {"correlation": 0} == {
        "device": 0,
        "stream": 7,
        "correlation": 0,
        "External id": 2,
    }
    assert slices(file, "cudaLaunchKernel")[0]["args"]["External id"] == 2
    assert [event["cat"] for event in slices(file)] == [
        "cpu_op", "cuda_runtime", "gpu_memcpy", "gpu_user_annotation", "kernel",
    ]  # fmt: skip
    assert track_names(file) == {(4242, 4242): "thread 4242 (python)", (0, 7): "stream 7"}
    arrows = [(e["ph"], e["pid"], e["tid"], e["ts"]) for e in file["traceEvents"] if e.get("cat") == "ac2g"]
    assert arrows == [("s", 4242, 4242, Decimal("0.1")), ("f", 0, 7, Decimal("1.001"))]


# --------------------------------------------------------------------------------------------------------- Perfetto


@needs_perfetto
@pytest.mark.parametrize("make", [training, hostile], ids=["training", "hostile"])
def test_perfetto_takes_every_slice(tmp_path, make):
    trace = make().build()
    write_chrome_trace(trace, tmp_path / "trace.json")
    instants, calls = len(trace.columns("allocations")), rebuilt_calls(trace, shown_frames(trace))
    shown = len(trace.columns("spans")) + instants + (0 if calls is None else len(calls.start_ns))
    assert complaints(tmp_path / "trace.json") == (shown, [])


@needs_perfetto
def test_perfetto_sees_tracks_arrows_and_exact_times(tmp_path):
    write_chrome_trace(with_device(), tmp_path / "trace.json.gz")
    names, arrows, times = ask_perfetto(
        tmp_path / "trace.json.gz",
        "select distinct thread.name from slice join thread_track on track_id = thread_track.id join thread using (utid)",
        "select count(*) from flow",
        "select name, dur from slice order by ts",
    )
    assert sorted(names) == [["stream 7"], ["thread 4242 (python)"]]
    assert arrows == [[1]]
    assert times == [
        ["aten::mm", 900], ["cudaLaunchKernel", 50], ["Memcpy HtoD", 100], ["range", 2000], ["sgemm", 1500],
    ]  # fmt: skip


@needs_perfetto
def test_perfetto_takes_a_hundred_thousand_neighbours(tmp_path):
    made = TraceBuilder()
    for row in range(100_000):
        made.span("op", row * 1_001, 1_001)
    write_chrome_trace(made.build(), tmp_path / "trace.json")
    assert complaints(tmp_path / "trace.json") == (100_000, [])


def test_nothing_that_ends_with_the_recording_seems_to_end_after_it(tmp_path):
    builder = TraceBuilder().know("engine", "native").know("stop_ns", 18_921_941)
    for start in range(1, 18_921_941, 123_457):
        builder.span("aten::add", start, 18_921_941 - start)
    path = tmp_path / "trace.json"
    builder.build().save(path)
    events = json.loads(path.read_text())["traceEvents"]
    (end,) = [event["ts"] for event in events if event["name"] == "Record Window End"]
    late = [event for event in events if "dur" in event and event["ts"] + event["dur"] > end]
    assert (late, round(end, 3)) == ([], 18921.941)
