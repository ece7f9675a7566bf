"""read_recording with complete recordings."""

import numpy as np
import pytest

import kinetoscope
import kinetoscope._core as _core
from kinetoscope.analyses.findings import examine
from tests.support.recording_builder import SPAN_BEFORE_7, SPANS, Chunk, RecordingBuilder

UNFINISHED = 2


def read(builder: RecordingBuilder, tmp_path):
    return _core.read_recording(str(builder.write(tmp_path / "recording")))


def test_an_empty_recording(tmp_path):
    recording = read(RecordingBuilder(), tmp_path)
    assert recording["state"] == "stopped"
    assert recording["process"] == 4242
    assert recording["stop_ns"] == 999_000
    assert recording["strings"] == [""]
    assert len(recording["spans"]["start_ns"]) == 0
    assert len(recording["allocations"]["time_ns"]) == 0
    assert not any(recording["losses"].values())


def test_columns_have_their_types(tmp_path):
    recording = read(RecordingBuilder(), tmp_path)
    types = {name: str(column.dtype) for name, column in recording["spans"].items()}
    assert types == {
        "thread": "int32",
        "start_ns": "int64",
        "duration_ns": "int64",
        "name": "int32",
        "overload": "int32",
        "scope": "uint8",
        "sequence": "int64",
        "forward_thread": "int32",
        "kept": "uint16",
        "stack": "int32",
        "module": "int32",
        "shapes": "int32",
        "parameter": "int32",
        "flags": "uint8",
    }
    types = {name: str(column.dtype) for name, column in recording["allocations"].items()}
    assert types == {
        "time_ns": "int64",
        "address": "uint64",
        "bytes": "int64",
        "thread": "int32",
        "device_type": "uint8",
        "device_index": "int8",
        "stack": "int32",
    }


# Since version 7 what spans have in common is in the dictionary.
@pytest.mark.parametrize("version", [1, 6, 7])
def test_a_span_with_everything(tmp_path, version):
    builder = RecordingBuilder(version=version)
    builder.thread(7, os_tid=70, torch_tid=1, name="main")
    builder.thread(9, os_tid=90, torch_tid=2, name="autograd")
    outer = builder.stack(0, builder.frame("main", "train.py", 3))
    inner = builder.stack(outer, builder.frame("forward", "model.py", 12))
    root = builder.module("GPT", address=0xDEAD)
    head = builder.module("Linear", parent=root, name="head", caller=root)
    weight = builder.parameter(head, "weight", 0xBEEF)
    shapes = builder.shapes("[[2, 3]]", '["float"]', '[""]', "[[1, 2]]")
    name = builder.name("aten::add", "Tensor")
    builder.span(
        10,
        25,
        name,
        thread=9,
        stack=inner,
        module=head,
        shapes=shapes,
        sequence=5,
        forward_thread=1,
        scope=1,
        flags=1,
        parameter=weight,
    )
    recording = read(builder, tmp_path)
    strings, spans = recording["strings"], recording["spans"]
    assert recording["threads"]["name"] == ["main", "autograd"]
    assert recording["threads"]["index"].tolist() == [7, 9]
    assert recording["threads"]["os_tid"].tolist() == [70, 90]
    assert recording["threads"]["torch_tid"].tolist() == [1, 2]
    row = {column: values[0].item() for column, values in spans.items()}
    assert strings[row.pop("name")] == "aten::add"
    assert strings[row.pop("overload")] == "Tensor"
    assert row == {
        "thread": 1,
        "start_ns": 10,
        "duration_ns": 15,
        "scope": 1,
        "sequence": 5,
        "forward_thread": 0,
        "kept": 0,
        "stack": 1,
        "module": 1,
        "shapes": 0,
        "parameter": 0,
        "flags": 1,
    }
    assert recording["stacks"]["parent"].tolist() == [-1, 0]
    assert recording["stacks"]["frame"].tolist() == [0, 1]
    frames = recording["frames"]
    assert [strings[text] for text in frames["file"]] == ["train.py", "model.py"]
    assert [strings[text] for text in frames["function"]] == ["main", "forward"]
    assert frames["line"].tolist() == [3, 12]
    modules = recording["modules"]
    assert modules["parent"].tolist() == [-1, 0]
    assert modules["caller"].tolist() == [-1, 0]
    assert [strings[text] for text in modules["class"]] == ["GPT", "Linear"]
    assert [strings[text] for text in modules["name"]] == ["", "head"]
    assert modules["address"].tolist() == [0xDEAD, 0]
    assert recording["parameters"]["module"].tolist() == [1]
    assert strings[recording["parameters"]["name"][0]] == "weight"
    assert recording["parameters"]["address"].tolist() == [0xBEEF]
    assert recording["shapes"] == {
        "dims": ["[[2, 3]]"],
        "types": ['["float"]'],
        "concrete": ['[""]'],
        "strides": ["[[1, 2]]"],
    }
    assert not any(recording["losses"].values())


def test_the_last_word_about_a_thing_counts(tmp_path):
    builder = RecordingBuilder()
    builder.info("host", '"one"')
    builder.info("flags", "{}")
    builder.info("host", '"two"')
    builder.thread(1, name="new")
    builder.thread(1, name="renamed")
    module = builder.module("Linear")
    root = builder.module("GPT")
    builder.module_name(module, root, "head")
    recording = read(builder, tmp_path)
    assert recording["info"] == {"host": '"two"', "flags": "{}"}
    assert recording["threads"]["name"] == ["renamed"]
    assert recording["modules"]["parent"].tolist() == [1, -1]


def test_hand_out_order_decides_within_a_thread(tmp_path):
    builder = RecordingBuilder()

    def chunk(order: int, *starts: int, thread: int = 1) -> Chunk:
        records = [SPAN_BEFORE_7.pack(1000 + at, 1001 + at, 0, 0, 0, 0, at, 0, 0, 0, 0) for at in starts]
        return Chunk(SPANS, thread, b"".join(records), len(records), order)

    builder.extra_chunks = [chunk(9, 50, 60), chunk(4, 1, thread=0), chunk(3, 10, 20), chunk(5, 30, 40)]
    spans = read(builder, tmp_path)["spans"]
    assert spans["thread"].tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert spans["start_ns"].tolist() == [1, 10, 20, 30, 40, 50, 60]


def test_spans_out_of_order_are_sorted_and_equal_starts_keep_theirs(tmp_path):
    builder = RecordingBuilder()
    for sequence, start in enumerate([5, 3, 3, 9, 1]):
        builder.span(start, 20, sequence=sequence)
    spans = read(builder, tmp_path)["spans"]
    assert spans["sequence"].tolist() == [4, 1, 2, 0, 3]
    assert spans["start_ns"].tolist() == [1, 3, 3, 5, 9]


def test_what_lies_above_committed_is_ignored(tmp_path):
    builder = RecordingBuilder()
    records = b"".join(
        SPAN_BEFORE_7.pack(1000 + at, 1001 + at, 0, 0, 0, 0, -1, 0, 0, 0, 0) for at in range(3)
    )
    builder.extra_chunks = [Chunk(SPANS, 1, records, committed=2, order=1)]
    recording = read(builder, tmp_path)
    assert recording["spans"]["start_ns"].tolist() == [0, 1]
    assert not any(recording["losses"].values())


def test_allocations_of_all_threads_are_in_order_of_time(tmp_path):
    builder = RecordingBuilder(chunk_bytes=192)
    builder.allocation(3, 100, 64, thread=1, device_index=-1)
    builder.allocation(9, 100, 0, thread=1)
    builder.allocation(1, 200, 32, thread=2, device_type=1, device_index=3)
    builder.allocation(5, 200, 0, thread=2, device_type=1, device_index=3)
    builder.allocation(4, 300, 8, thread=3)
    allocations = read(builder, tmp_path)["allocations"]
    assert allocations["time_ns"].tolist() == [1, 3, 4, 5, 9]
    assert allocations["thread"].tolist() == [1, 0, 2, 1, 0]
    assert allocations["bytes"].tolist() == [32, 64, 8, 0, 0]
    assert allocations["address"].tolist() == [200, 100, 300, 200, 100]
    assert allocations["device_type"].tolist() == [1, 0, 0, 1, 0]
    assert allocations["device_index"].tolist() == [3, -1, -1, 3, -1]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"caf\xc3\xa9", "café"),
        ("\ud800".encode("utf-8", "surrogatepass"), "\ud800"),
        ("\ud83d\ude00".encode("utf-8", "surrogatepass"), "\ud83d\ude00"),
        ("a\udfffb😀".encode("utf-8", "surrogatepass"), "a\udfffb😀"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"a\xe2\x82", "a\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xc0\x80\xf5", "\ufffd\ufffd\ufffd"),
        (b"\0\n", "\0\n"),
    ],
)
def test_texts_that_are_not_quite_utf_8(tmp_path, raw, text):
    builder = RecordingBuilder()
    builder.string(raw)
    assert read(builder, tmp_path)["strings"] == ["", text]


def test_broken_bytes_read_as_python_replaces_them(tmp_path):
    random = np.random.default_rng(7)
    builder = RecordingBuilder(chunk_bytes=65536)
    # Without the first byte of surrogates, which Python would replace but we keep.
    letters = np.array([0x41, 0x7F, 0x80, 0x8F, 0x90, 0xBF, 0xC1, 0xC2, 0xE0, 0xE2, 0xEF, 0xF0, 0xF4, 0xF5])
    raws = {bytes(random.choice(letters, 6).astype(np.uint8)) for _ in range(500)}
    for raw in raws:
        builder.string(raw)
    expected = [raw.decode("utf-8", "replace") for raw in raws]
    assert read(builder, tmp_path)["strings"][1:] == expected


def test_losses_of_the_recorder_are_passed_on(tmp_path):
    names = (
        "dropped_spans",
        "dropped_allocations",
        "recycled_spans",
        "recycled_allocations",
        "dropped_notes",
        "recycled_notes",
        "truncated_strings",
        "dropped_dictionary",
        "dropped_samples",
        "ring_dropped_samples",
        "recycled_samples",
        "torn_samples",
    )
    counts = {name: number for number, name in enumerate(names, 1)}
    losses = read(RecordingBuilder(**counts), tmp_path)["losses"]
    assert {name: losses[name] for name in names} == counts


def test_samples_are_in_order_of_time_and_name_their_places(tmp_path):
    builder = RecordingBuilder(version=3)
    builder.thread(7, os_tid=70)
    builder.thread(9, os_tid=90)
    outer = builder.stack(0, builder.frame("main", "train.py", 3))
    inner = builder.stack(outer, builder.frame("load", "data.py", 8))
    module = builder.module("Net")
    # Blocked, on a socket: the two lowest bits are the state, the others what it waits for.
    builder.sample(30, 20, inner, thread=9, state=3 | 5 << 2)
    builder.sample(10, 0, outer, thread=7, module=module, waited=2 + 70_000)
    builder.sample(20, 10, 99, thread=7, state=200, waited=2)
    recording = read(builder, tmp_path)
    samples = {name: column.tolist() for name, column in recording["samples"].items()}
    assert samples == {
        "time_ns": [10, 20, 30],
        "period_ns": [10, 10, 10],
        "waited_ns": [70_000_000, 0, -1],
        "thread": [0, 0, 1],
        "state": [1, 0, 3],
        "wait": [0, 0, 5],
        "stack": [0, -1, 1],
        "module": [0, -1, -1],
    }
    assert not any(recording["losses"].values())


def test_samples_of_a_system_that_does_not_tell_waits_are_counted(tmp_path):
    builder = RecordingBuilder(version=3)
    for time in (10, 20, 30):
        builder.sample(time, time - 10, 0, waited=1)
    with kinetoscope.open(builder.write(tmp_path / "a.recording")) as trace:
        assert trace.column("samples", "waited_ns").tolist() == [-1, -1, -1]
        (loss,) = [one for one in trace.losses if one["code"] == "unknown_waits"]
        assert (loss["count"], "schedstat is missing" in loss["why"]) == (3, True)
        assert "incomplete-trace" not in [one.code for one in examine(trace).findings]


def test_a_sample_that_ends_before_it_begins_is_counted_as_damaged(tmp_path):
    builder = RecordingBuilder(version=3)
    builder.sample(10, 20, 0)
    recording = read(builder, tmp_path)
    assert recording["samples"]["period_ns"].tolist() == [0]
    assert recording["losses"]["damaged_records"] == 1


def test_unfinished_spans_end_with_their_caller_or_with_the_recording(tmp_path):
    builder = RecordingBuilder(stop_tick=1_000 + 500)
    builder.span(0, 0)  # open at the end
    builder.span(10, 100)
    builder.span(20, 0)  # within [10, 100)
    builder.span(30, 60)
    builder.span(40, 0)  # within [30, 60)
    builder.span(100, 0)
    builder.span(110, 300, flags=1)  # asynchronous: no caller
    builder.span(120, 0)
    recording = read(builder, tmp_path)
    spans = recording["spans"]
    ends = (spans["start_ns"] + spans["duration_ns"]).tolist()
    assert ends == [500, 100, 100, 60, 60, 500, 300, 500]
    assert spans["flags"].tolist() == [2, 0, 2, 0, 2, 2, 1, 2]
    assert recording["losses"]["unfinished_spans"] == 5


def test_a_killed_process_ends_with_the_last_thing_seen(tmp_path):
    builder = RecordingBuilder(state=0)
    builder.span(0, 0)
    builder.span(5, 70)
    builder.span(8, 0, thread=2)
    builder.allocation(90, 1, 1)
    recording = read(builder, tmp_path)
    assert recording["state"] == "recording"
    assert recording["stop_ns"] == 90
    assert recording["spans"]["duration_ns"].tolist() == [90, 65, 82]


def test_ticks_follow_the_clock_pairs_piece_by_piece(tmp_path):
    # 2 ticks per ns, then 4, then the average, rounded down; time 0 lies between the first two readings.
    pairs = [(1000, 50_000, 7_000_000), (3000, 51_000, 7_001_000), (7000, 52_000, 7_002_000)]
    builder = RecordingBuilder(clock=1, start_tick=2000, stop_tick=13_000, pairs=pairs)
    for tick in (2000, 2500, 3000, 5000, 7000, 10_000):
        builder.span(tick - 2000, tick - 2000 + 5)
    recording = read(builder, tmp_path)
    assert recording["spans"]["start_ns"].tolist() == [0, 250, 500, 1000, 1500, 2499]
    assert recording["spans"]["duration_ns"].tolist() == [2, 2, 1, 1, 1, 2]
    assert recording["stop_ns"] == 3499
    assert recording["start_realtime_ns"] == 7_000_500
    checks = recording["clock_checks"]
    assert checks["time_ns"].tolist() == [-333, 333, 1666]
    assert checks["error_ns"].tolist() == [0, 334, 1]
    assert recording["losses"]["uncalibrated_clock"] == 0


def test_readings_that_go_backwards_are_left_out(tmp_path):
    pairs = [(1000, 1000, 0), (3000, 900, 0), (2000, 2000, 0), (0, 0, 0), (2000, 9000, 0), (5000, 5000, 0)]
    builder = RecordingBuilder(clock=1, pairs=pairs)
    builder.span(500, 3500)
    spans = read(builder, tmp_path)["spans"]
    assert (spans["start_ns"].tolist(), spans["duration_ns"].tolist()) == ([500], [3000])


def test_one_reading_gives_no_rate(tmp_path):
    builder = RecordingBuilder(clock=1)
    builder.span(500, 700)
    recording = read(builder, tmp_path)
    assert recording["losses"]["uncalibrated_clock"] == 1
    assert recording["spans"]["duration_ns"].tolist() == [200]


def test_time_never_runs_backwards(tmp_path):
    random = np.random.default_rng(3)
    ticks = np.cumsum(random.integers(1, 10_000, 100)) + 1_000
    times = np.cumsum(random.integers(1, 10_000, 100))
    pairs = [(int(tick), int(time), int(time)) for tick, time in zip(ticks, times, strict=True)]
    builder = RecordingBuilder(clock=2, start_tick=1_500, pairs=pairs, chunk_bytes=65536)
    for start in np.sort(random.integers(0, int(ticks[-1]) + 1000, 1000)).tolist():
        builder.span(start, start + 1)
    recording = read(builder, tmp_path)
    assert (np.diff(recording["spans"]["start_ns"]) >= 0).all()
    assert (recording["spans"]["duration_ns"] >= 0).all()


def test_shapes_of_earlier_releases_have_no_strides(tmp_path):
    builder = RecordingBuilder()
    builder.shapes("[[2, 3]]", '["float"]', '[""]')
    recording = read(builder, tmp_path)
    assert recording["shapes"] == {
        "dims": ["[[2, 3]]"],
        "types": ['["float"]'],
        "concrete": ['[""]'],
        "strides": [""],
    }


USER = 7


def test_marks_of_steps_are_named_with_the_number_of_their_record(tmp_path):
    builder = RecordingBuilder()
    mark, other = builder.name("ProfilerStep#"), builder.name("ProfilerStep#007")
    for at, (name, number) in enumerate([(mark, 41), (mark, 0), (other, -1), (mark, 41), (mark, -1)]):
        builder.span(10 * at, 10 * at + 5, name, scope=USER, sequence=number)
    builder.span(100, 105, builder.name("aten::mm"), sequence=41)
    builder.span(110, 115, builder.name("mine"), scope=USER, sequence=42)
    recording = read(builder, tmp_path)
    names = [recording["strings"][name] for name in recording["spans"]["name"]]
    assert names == [
        "ProfilerStep#41",
        "ProfilerStep#0",
        "ProfilerStep#007",
        "ProfilerStep#41",
        "ProfilerStep#",
        "aten::mm",
        "mine",
    ]
    assert recording["strings"].count("ProfilerStep#41") == 1
    assert recording["spans"]["sequence"].tolist() == [-1, -1, -1, -1, -1, 41, 42]
    assert len(recording["optimizer_steps"]["span"]) == 0


def test_steps_of_optimizers_have_their_numbers_in_whatever_order_they_were_written(tmp_path):
    builder = RecordingBuilder()
    name = builder.name("Optimizer.step#SGD.step")
    for start, number in ((30, 12), (20, 11), (10, 10)):
        builder.span(start, start + 5, name, scope=USER, sequence=number, thread=2)
    builder.span(40, 45, name, scope=USER, sequence=13, thread=1)
    builder.span(50, 55, name, scope=USER, thread=1)
    recording = read(builder, tmp_path)
    assert recording["spans"]["start_ns"].tolist() == [40, 50, 10, 20, 30]
    assert recording["optimizer_steps"]["span"].tolist() == [0, 2, 3, 4]
    assert recording["optimizer_steps"]["number"].tolist() == [13, 10, 11, 12]
    assert recording["spans"]["sequence"].tolist() == [-1] * 5
