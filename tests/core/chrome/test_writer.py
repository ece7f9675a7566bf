"""The output of ChromeWriter, parsed with a strict parser."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core
from tests.support.chrome_columns import (
    COLUMNS,
    COPY,
    FOOTER,
    HEADER,
    KERNEL,
    TABLES,
    arrows,
    columns,
    events,
    writer,
)  # fmt: skip
from tests.support.strict_json import paired, read_strictly


def test_a_slice_with_everything():
    span = {
        "start_ns": 1_234_567,
        "duration_ns": 1_000,
        "name": 1,
        "sequence": 5,
        "stack": 1,
        "module": 1,
        "shapes": 0,
        "forward_thread": 1,
    }
    assert events([span]) == [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 9,
            "tid": 100,
            "ts": 1234.567,
            "dur": 1.0,
            "args": {
                "External id": 1,
                "Sequence number": 5,
                "Fwd thread id": 2,
                "Concrete Inputs": [""],
                "Input type": ["float"],
                "Input Dims": [[2, 3]],
                "Module": "head",
                "Module class": "Linear",
                "Call stack": "model.py(12): forward;train.py(7): main",
            },
        }
    ]


def test_a_slice_with_nothing_and_an_unfinished_one():
    bare, unfinished = events([{"kind": 1, "thread": 1}, {"lane": 1, "flags": 7}])
    assert bare["args"] == {"External id": 1}
    assert (bare["cat"], bare["name"], bare["pid"], bare["tid"]) == ("user_annotation", "", 8, 200)
    assert unfinished["args"] == {
        "External id": 2, "Unfinished": True, "Begun before": True, "Asynchronous": True,
    }  # fmt: skip
    assert unfinished["tid"] == 1000


def test_a_moment_has_no_duration():
    (event,) = events([{"flags": 8, "start_ns": 5, "duration_ns": 9}])
    assert event == {
        "ph": "i", "s": "t", "cat": "cpu_op", "name": "", "pid": 9, "tid": 100, "ts": 0.005, "args": {"External id": 1},
    }  # fmt: skip


def test_arrows_stand_behind_their_ends():
    spans = [
        {"start_ns": 5_001, "lane": 1},
        {"start_ns": 9_000, "thread": 1},
        {"start_ns": 9_500, "thread": 1},
    ]
    written = events(spans, base_ns=1_000, flows=arrows((0, 1, 1, 0), (0, 2, 70, 1), (2, 1, 2, 0)))
    arrow = {"cat": "fwdbwd", "name": "fwdbwd"}
    launch = {"cat": "ac2g", "name": "ac2g"}
    assert [event if event["ph"] in "sf" else event["ts"] for event in written] == [
        6.001,
        {"ph": "s", "id": 1, "pid": 9, "tid": 1000, "ts": 6.001} | arrow,
        {"ph": "s", "id": 70, "pid": 9, "tid": 1000, "ts": 6.001} | launch,
        10.0,
        {"ph": "f", "bp": "e", "id": 1, "pid": 8, "tid": 200, "ts": 10.0} | arrow,
        {"ph": "f", "bp": "e", "id": 2, "pid": 8, "tid": 200, "ts": 10.0} | arrow,
        10.5,
        {"ph": "s", "id": 2, "pid": 8, "tid": 200, "ts": 10.5} | arrow,
        {"ph": "f", "bp": "e", "id": 70, "pid": 8, "tid": 200, "ts": 10.5} | launch,
    ]


def test_arrows_to_nowhere_and_of_no_kind_are_left_out():
    assert len(events([{}], flows=arrows((0, 1, 1, 0), (-1, 0, 2, 0), (0, 0, 3, 2)))) == 1


def test_allocations_are_instants():
    blocks = {
        "time_ns": np.array([1_500, 2_500], np.int64),
        "thread": np.array([0, 1], np.int32),
        "address": np.array([2**64 - 1, 0], np.uint64),
        "bytes": np.array([64, -64], np.int64),
        "total_bytes": np.array([64, 0], np.int64),
        "reserved_bytes": np.array([128, 0], np.int64),
        "device_type": np.array([0, 1], np.uint8),
        "device_index": np.array([-1, 3], np.int8),
    }
    first, second = events([], allocations=blocks)
    assert first == {
        "ph": "i",
        "s": "t",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 9,
        "tid": 100,
        "ts": 1.5,
        "args": {
            "Total Reserved": 128,
            "Total Allocated": 64,
            "Bytes": 64,
            "Addr": 2**64 - 1,
            "Device Id": -1,
            "Device Type": 0,
        },
    }
    assert (second["tid"], second["args"]["Bytes"], second["args"]["Device Id"]) == (200, -64, 3)
    assert "Addr" not in second["args"]


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    st.one_of(st.just(0), st.integers(-(2**63), 2**63 - 1)),
)
def test_times_are_exact(times, base_ns):
    text = b"".join(writer([{"start_ns": time} for time in times], base_ns=base_ns)).decode()
    written = json.loads(text, parse_float=Fraction)["traceEvents"]
    expected = [min(max(base_ns + time, -(2**63)), 2**63 - 1) for time in times]
    assert [event["ts"] * 1000 for event in written] == expected


any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)


@given(st.lists(any_text, min_size=4, max_size=4))
def test_any_text_anywhere(texts):
    name, file, function, module = texts
    (event,) = events(
        [{"name": 1, "stack": 0, "module": 0}],
        tables={
            "strings": ["", name, file, function],
            "stack_parent": np.array([-1], np.int32),
            "stack_frame": np.array([0], np.int32),
            "frame_file": np.array([2], np.int32),
            "frame_function": np.array([3], np.int32),
            "frame_line": np.array([1], np.int32),
            "module_path": [module],
            "module_class": [name],
            "categories": [module],
        },
    )
    assert event["name"] == event["args"]["Module class"] == paired(name)
    assert event["cat"] == event["args"]["Module"] == paired(module)
    assert event["args"]["Call stack"] == paired(f"{file}(1): {function}")


@pytest.mark.parametrize("text", ["x" * 100_000, '"' * 100_000, "\ud800" * 100_000, "\0" * 100_000])
def test_texts_longer_than_a_block(text):
    spans = [{"name": 1}, {}, {"name": 1}]
    blocks = list(writer(spans, tables={"strings": ["", text]}, block_bytes=1000))
    assert len(blocks) > 2
    names = [event["name"] for event in read_strictly(b"".join(blocks).decode())["traceEvents"]]
    assert names == [text, "", text]


@given(st.integers(0, 3000), st.integers(0, 20))
def test_the_size_of_blocks_changes_nothing(block_bytes, count):
    spans = [
        {
            "start_ns": -(2**62) + row,
            "name": 1,
            "stack": row % 2,
            "shapes": 0,
            "sequence": 2**62,
        }
        for row in range(count)
    ]
    more = {"flows": arrows(*((row, row // 2, row, 0) for row in range(count)))}
    whole = b"".join(writer(spans, **more))
    assert b"".join(writer(spans, block_bytes=block_bytes, **more)) == whole
    blocks = list(writer(spans, block_bytes=block_bytes, **more))
    # A slice reserves 1536 bytes in addition to its texts.
    assert all(len(block) <= max(block_bytes, 2048) for block in blocks)


@pytest.mark.parametrize(
    ("header", "expected"),
    [(b"[", 2), (b"[ \n", 2), (b'[{"ph":"M"}', 3), (b'[{"ph":"M"},\n', 3)],
)
def test_commas_behind_any_header(header, expected):
    text = b"".join(writer([{}, {}], header=header, footer=b"]")).decode()
    assert len(read_strictly(text)) == expected


def test_no_events_leave_header_and_footer():
    assert b"".join(writer([])) == HEADER + FOOTER
    assert list(writer([], header=b"", footer=b"")) == []


def test_iteration_ends_for_good():
    blocks = writer([{}])
    assert b"".join(blocks).startswith(HEADER)
    assert list(blocks) == []


def test_shapes_that_are_no_json_are_left_out():
    (event,) = events(
        [{"shapes": 0}],
        tables={
            "shape_dims": ["[[1]"], "shape_types": ['["a"]'], "shape_concrete": ["NaN"], "shape_strides": ["[[1]]"],
        },
    )  # fmt: skip
    assert event["args"] == {"External id": 1, "Input type": ["a"], "Input Strides": [[1]]}


def test_rows_that_do_not_exist_are_left_out():
    spans = [
        {"name": 99, "stack": 5, "module": 5, "shapes": 5, "forward_thread": 9, "sequence": 1, "arguments": 9,
         "stream": 8},
    ]  # fmt: skip
    (event,) = events(spans)
    assert event["name"] == ""
    assert event["args"] == {"Sequence number": 1}


def test_deep_stacks_are_cut():
    depth = 1_000
    (event,) = events(
        [{"stack": depth - 1}],
        tables={
            "stack_parent": np.arange(-1, depth - 1, dtype=np.int32),
            "stack_frame": np.zeros(depth, np.int32),
        },
    )
    frames = event["args"]["Call stack"].split(";")
    assert frames == ["train.py(7): main"] * 256 + ["..."]


@pytest.mark.parametrize(
    ("span", "changes", "message"),
    [
        ({"thread": 2}, {}, "without a track"),
        ({"thread": -1}, {}, "without a track"),
        ({"lane": 3}, {}, "without a track"),
        ({"lane": -1}, {}, "without a track"),
        ({"kind": 4}, {}, "without a category"),
        ({}, {"module_class": []}, "different lengths"),
        ({}, {"module_number": np.zeros(1, np.int64)}, "different lengths"),
        ({}, {"shape_types": []}, "different lengths"),
        ({}, {"shape_strides": ["", ""]}, "different lengths"),
        ({}, {"frame_line": np.zeros(1, np.int32)}, "different lengths"),
        ({}, {"track_pid": np.zeros(1, np.int64)}, "different lengths"),
        ({}, {"stream_device": np.zeros(0, np.int64)}, "different lengths"),
    ],
)
def test_tables_that_do_not_fit_are_refused(span, changes, message):
    with pytest.raises(ValueError, match=message):
        writer([span], tables=changes)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kernels": columns([{"span": 1}, {"span": 0}], KERNEL)}, "kernels are not sorted by span"),
        (
            {"kernels": columns([{}], KERNEL) | {"graph": np.zeros(0, np.int64)}},
            "kernels have different lengths",
        ),
        ({"copies": columns([{}], COPY) | {"bytes": np.zeros(2, np.int64)}}, "copies have different lengths"),
        ({"flows": arrows((0, 0, 1, 0)) | {"kind": np.zeros(0, np.uint8)}}, "flows have different lengths"),
        (
            {
                "counters": {
                    "time_ns": np.zeros(2, np.int64),
                    "counter": np.zeros(1, np.int32),
                    "value": np.zeros(1),
                }
            },
            "counters have different lengths",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(more, message):
    with pytest.raises(ValueError, match=message):
        writer([{}], **more)


def test_columns_of_spans_that_do_not_fit_are_refused():
    spans = columns([{}], COLUMNS)
    for changes in ({"lane": np.zeros(2, np.int32)}, {"correlation": np.zeros(2, np.int64)}):
        with pytest.raises(ValueError, match="spans have different lengths"):
            _core.ChromeWriter(spans=spans | changes, tables=TABLES)
    with pytest.raises(KeyError, match="flags"):
        _core.ChromeWriter(spans={name: spans[name] for name in spans if name != "flags"}, tables=TABLES)
    for wrong in (np.zeros(1, np.int16), [0], None):
        with pytest.raises(TypeError, match="lane must be a contiguous array"):
            _core.ChromeWriter(spans=spans | {"lane": wrong}, tables=TABLES)


def test_texts_must_be_str():
    with pytest.raises(TypeError, match="expected a str"):
        writer([], tables={"strings": [b"x"]})
    with pytest.raises(TypeError, match="module_path must be a list or tuple"):
        writer([], tables={"module_path": "x"})


def test_the_writer_keeps_its_columns_alive():
    blocks = writer([{"start_ns": row, "name": 1} for row in range(1000)], block_bytes=1)
    names = [event["name"] for event in read_strictly(b"".join(blocks).decode())["traceEvents"]]
    assert names == ["aten::mm"] * 1000


def test_a_file_gets_what_iterating_yields(tmp_path):
    spans = [{"name": 1, "start_ns": start, "record_function": start} for start in range(1_000)]
    whole = b"".join(writer(spans))
    assert read_strictly(whole.decode())["traceEvents"][7]["args"] == {
        "External id": 8,
        "Record function id": 7,
    }
    path = tmp_path / "trace.json"
    for block_bytes in (1, 5_000, 4 << 20):
        with path.open("wb") as file:
            written = writer(spans, block_bytes=block_bytes).write_to(file.fileno())
        assert path.read_bytes() == whole
        assert written == len(whole)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    path = tmp_path / "trace.json"
    path.touch()
    with path.open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        writer([{"name": 1}] * 100, block_bytes=1).write_to(file.fileno())


def test_the_class_of_a_module_stands_where_it_begins():
    spans = [{"module": module} for module in (0, 0, 1, 1, 0)]
    classes = [event["args"].get("Module class") for event in events(spans)]
    assert classes == ["GPT", None, "Linear", None, "GPT"]
