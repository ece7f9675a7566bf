"""Reading files of Kineto and other tools: kinds, names, losses, limits and progress."""

import gzip
import io
import json
from dataclasses import asdict

import pytest

from kinetoscope import FormatError
from kinetoscope import open as open_trace
from kinetoscope.formats.chrome.read import read_chrome_trace
from kinetoscope.formats.chrome.read_tracks import CATEGORIES
from kinetoscope.model.losses import Loss
from kinetoscope.model.schema import KIND_NAMES, SpanKind
from tests.support.chrome_text import x
from tests.support.kineto_text import PID, kernel, kinds, op, opened, spans


def test_every_category_of_kineto_has_its_kind_and_place():
    events = [x(cat, 10 * place, 5, cat, PID, PID) for place, cat in enumerate(CATEGORIES)]
    trace = opened(events)
    found = {
        name: (SpanKind(KIND_NAMES.index(kind)), stream >= 0, trace.strings[category])
        for name, kind, stream, category in spans(trace, "kind", "stream", "category")
    }
    assert found == {cat: (*expected, cat) for cat, expected in CATEGORIES.items()}


def test_categories_of_other_tools_are_ranges_and_kernels_where_they_name_a_stream():
    trace = opened(x("a", 0, 5, "mine"), x("b", 1, 2, "mine too", stream=3, device=1))
    assert kinds(trace) == {"a": "user_annotation", "b": "kernel"}
    assert trace.table("streams").select(["device_index", "number"]).to_pylist()[0]["device_index"] == 1


def test_marks_of_torch_are_steps_and_transfers_on_the_host_only():
    trace = opened(
        op("ProfilerStep#3", 0, 100, cat="user_annotation"),
        op("nccl:all_reduce", 5, 9, cat="user_annotation"),
        op("hccl:broadcast", 20, 9, cat="user_annotation"),
        kernel("ProfilerStep#3", 10, 50, cat="gpu_user_annotation"),
        kernel("nccl:all_reduce", 11, 5, cat="gpu_user_annotation"),
    )
    assert spans(trace, "kind") == [
        ("ProfilerStep#3", "step"),
        ("nccl:all_reduce", "collective"),
        ("hccl:broadcast", "collective"),
        ("ProfilerStep#3", "user_annotation"),
        ("nccl:all_reduce", "user_annotation"),
    ]
    assert trace.column("steps", "number").tolist() == [3]
    assert trace.column("steps", "duration_ns").tolist() == [100_000]


def test_the_marks_of_torch_1_8_are_ranges_although_it_calls_them_operators():
    trace = opened(
        op("ProfilerStep#1", 0, 100, cat="Operator"),
        op("Optimizer.step#SGD.step", 10, 10, cat="Operator"),
        op("aten::add", 11, 2, cat="Operator"),
    )
    assert kinds(trace) == {
        "ProfilerStep#1": "step", "Optimizer.step#SGD.step": "user_annotation", "aten::add": "operator",
    }  # fmt: skip
    assert [row["phase"] for row in trace.table("spans").to_pylist()] == ["forward", "optimizer", "optimizer"]


def test_steps_are_found_from_optimizers_on_the_host_and_not_from_their_copies_on_streams():
    optimizer = "Optimizer.step#SGD.step"
    trace = opened(
        [op(optimizer, at, 10, cat="user_annotation") for at in (50, 150)],
        [kernel(optimizer, at, 10, cat="gpu_user_annotation") for at in (60, 165)],
    )
    assert trace.column("steps", "duration_ns").tolist() == [10_000, 100_000]


def test_a_text_that_breaks_off_gives_all_before_the_break():
    text = json.dumps({"traceEvents": [op(f"a{at}", at, 1) for at in range(100)]}).encode()
    trace = open_trace(io.BytesIO(text[: len(text) // 2]))
    assert 40 < len(trace.columns("spans")) < 60
    assert not trace.complete
    assert trace.losses == [asdict(Loss.of("truncated_file"))]


def test_a_packed_file_that_breaks_off_says_both():
    text = json.dumps({"traceEvents": [op(f"a{at}", at, 1) for at in range(5000)]}).encode()
    packed = gzip.compress(text)
    trace = open_trace(io.BytesIO(packed[: len(packed) // 2]))
    assert 1000 < len(trace.columns("spans")) < 4000
    assert {loss["code"] for loss in trace.losses} == {"truncated_file", "packed_cut"}


def test_events_beyond_the_memory_limit_are_counted():
    events = [op("a", at, 1, odd=at) for at in range(50_000)]
    trace = opened(events, max_memory_bytes=1 << 20)
    lost = {loss["code"]: loss["count"] for loss in trace.losses}
    assert lost["beyond_memory_limit"] + len(trace.columns("spans")) == 50_000
    assert len(trace.columns("spans")) > 1000
    assert len(opened(events, max_memory_bytes=0).columns("spans")) == 50_000


def test_a_packed_file_is_read_up_to_the_limit_on_what_it_unpacks_to():
    packed = gzip.compress(json.dumps([op(f"a{at}", at, 1) for at in range(1000)]).encode())
    trace = open_trace(io.BytesIO(packed), max_uncompressed_bytes=5000)
    assert 10 < len(trace.columns("spans")) < 100
    assert {loss["code"] for loss in trace.losses} == {
        "truncated_file",
        "beyond_unpacking_limit",
    }


def test_odd_events_are_counted_in_words():
    trace = opened(
        op("good", 0, 5),
        op("backwards", 5, -3),
        {"ph": "X", "name": "timeless", "pid": 1, "tid": 1, "dur": 2},
        "not an event",
        {"ph": "E", "pid": PID, "tid": 3, "ts": 9},
        {"ph": "B", "name": "open", "pid": PID, "tid": 4, "ts": 2},
    )
    lost = {loss["code"]: loss["count"] for loss in trace.losses}
    assert lost == {
        "negative_durations": 1,
        "bad_times": 1,
        "bad_events": 1,
        "unmatched_ends": 1,
        "unfinished_begins": 1,
    }


def test_losses_that_a_file_tells_of_are_taken_over():
    told = [
        {
            "code": "dropped_spans",
            "what": "spans not written",
            "count": 7,
            "where": "spans",
            "why": "The disk was full.",
        },
        {"what": "odd", "count": -1},
        5,
    ]
    trace = opened(op("a", 0, 1), header={"losses": told})
    assert trace.losses[0] == told[0]
    assert [(loss["code"], loss["count"]) for loss in trace.losses] == [("dropped_spans", 7), ("", 1)]


@pytest.mark.parametrize(
    "text", [b'{"a": 1}', b"[1, 2]", b"{]", b'{"traceEvents": 5}', b"[" * 200 + b"]" * 200]
)
def test_json_that_is_no_trace_is_refused_in_words(text):
    with pytest.raises(FormatError, match="<BytesIO>: "):
        open_trace(io.BytesIO(text))


def test_progress_is_told_and_may_end_the_reading(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([op("a", at, 1) for at in range(30_000)]))
    told = []
    trace = open_trace(path, progress=lambda *facts: told.append(facts))
    size = path.stat().st_size
    assert told[-1] == (size, size, 30_000)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert len(told) > 2
    assert trace.path == path

    class Enough(ValueError):
        pass

    def stop(*facts):
        raise Enough

    with pytest.raises(Enough):
        open_trace(path, progress=stop)


def test_the_reader_takes_paths_and_files_too(tmp_path):
    path = tmp_path / "no suffix"
    path.write_bytes(gzip.compress(json.dumps([op("a", 0, 1)]).encode()))
    assert spans(read_chrome_trace(path)) == ["a"]
    with path.open("rb") as file:
        assert spans(read_chrome_trace(file)) == ["a"]
        assert not file.closed
