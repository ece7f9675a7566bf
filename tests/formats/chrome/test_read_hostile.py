"""Malicious and damaged Chrome traces: a clear error, or a trace with losses; never a crash, never unlimited memory."""

import gzip
import io
import json
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kinetoscope
from kinetoscope import FormatError
from kinetoscope.model.schema import STORED
from tests.support.effort import examples, times
from tests.support.hostile import hostile_text

CORPUS = sorted((Path(__file__).parents[3] / "native" / "tests" / "corpus").glob("*.json"))
GOLDEN = Path(__file__).parents[2] / "golden"


def read(content, **options):
    return kinetoscope.open(io.BytesIO(content), **options)


def op(name="a", ts=1, **more):
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 1, **more}


def lost(trace):
    return {loss["what"]: loss["count"] for loss in trace.losses}


def everything(trace):
    """Return every stored and derived column and the strings, without the losses."""
    columns = {
        (name, column): list(trace.column(name, column))
        for name, table in STORED.items()
        for column in table.column_names
        if name != "losses"
    }
    return columns, trace.strings, trace.info, trace.losses


class InPieces(io.RawIOBase):
    """A file that returns a limited number of bytes at a time."""

    def __init__(self, content, size):
        self._rest, self._size = content, size

    def readable(self):
        return True

    def readinto(self, buffer):
        piece, self._rest = self._rest[: self._size], self._rest[self._size :]
        room = min(len(buffer), len(piece))
        buffer[:room] = piece[:room]
        self._rest = piece[room:] + self._rest
        return room


def test_a_file_cut_anywhere_keeps_every_whole_event_and_says_so():
    events = [op(f"a{at}", at, args={"External id": at, "x": 'q"{['}) for at in range(6)]
    content = json.dumps({"schemaVersion": 1, "traceEvents": events, "tail": [1]}).encode()
    begin = content.index(b"[") + 1
    ends = []
    for event in events:
        ends.append(
            content.index(json.dumps(event).encode(), ends[-1] if ends else 0) + len(json.dumps(event))
        )
    for length in range(len(content)):
        if length < begin:
            with pytest.raises(FormatError):
                read(content[:length])
            continue
        trace = read(content[:length])
        whole = sum(end <= length for end in ends)
        assert len(trace.columns("spans")) == whole, length
        assert lost(trace)["truncated file"] == 1
        assert not trace.complete
    assert read(content).complete


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_any_text_cut_anywhere_is_a_trace_or_a_format_error(path):
    content = path.read_bytes()
    for length in range(0, len(content), 1 if len(content) < 400 else 23):
        try:
            trace = read(content[:length])
        except FormatError:
            continue
        spans = trace.columns("spans")
        assert (spans["duration_ns"] >= 0).all()
        assert (spans["start_ns"] >= 0).all()
        assert (spans["parent"] < np.arange(len(spans))).all()


@pytest.mark.parametrize("name", ["operators", "names"])
def test_a_packed_file_cut_anywhere_is_a_trace_or_a_format_error(name):
    content = (GOLDEN / f"{name}.json.gz").read_bytes()
    kept = []
    for length in range(2, len(content), 7):
        try:
            trace = read(content[:length])
        except FormatError:
            continue
        kept.append(len(trace.columns("spans")))
        assert not trace.complete
    assert kept == sorted(kept), "what is longer holds no less"
    assert kept[-1] > 0


@pytest.mark.parametrize("path", [*CORPUS, GOLDEN / "names.json.gz"], ids=lambda path: path.stem)
def test_blocks_make_no_difference(path):
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    try:
        whole = everything(read(content))
    except FormatError:
        whole = None
    for size in (1, 2, 3, 5, 17, 100):
        try:
            trace = kinetoscope.open(InPieces(content, size))
        except FormatError:
            assert whole is None
            continue
        found = everything(trace)
        assert {key: value for key, value in found[2].items() if key != "source"} == {
            key: value for key, value in whole[2].items() if key != "source"
        }
        assert (found[0], found[1], found[3]) == (whole[0], whole[1], whole[3])


def test_all_layouts_are_one():
    trace = {"schemaVersion": 1, "traceEvents": [op("ä\n", 5, args={"x": [1, {"y": "z"}]}), op("b", 9)]}
    layouts = [
        json.dumps(trace),
        json.dumps(trace, separators=(",", ":")),
        json.dumps(trace, indent=4),
        json.dumps(trace, ensure_ascii=False, indent=1).replace("\n", "\r\n"),
        "\ufeff" + json.dumps(trace, ensure_ascii=False),
        "\n\t " + json.dumps(trace) + "\n\n",
    ]
    found = [everything(read(layout.encode())) for layout in layouts]
    assert all(one == found[0] for one in found)
    assert found[0][3] == []


def test_bytes_that_are_no_text_become_replacement_characters():
    trace = read(b'[{"ph":"X","ts":1,"dur":1,"pid":1,"tid":1,"name":"a\xffb\xed\xa0\x80c\xc3"}]')
    (name,) = (trace.strings[row] for row in trace.column("spans", "name"))
    assert name.startswith("a\ufffdb")
    assert name.endswith("c\ufffd")
    assert trace.key_averages().table()


def test_of_two_equal_keys_the_last_counts():
    trace = read(b'[{"ph":"B","ph":"X","ts":1,"ts":7,"dur":1,"name":"a","name":"b","pid":1,"tid":1}]')
    assert [trace.strings[row] for row in trace.column("spans", "name")] == ["b"]
    assert trace.column("spans", "duration_ns").tolist() == [1000]


NUMBERS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "99999999999999999999",
    "-9e18",
    "null",
    "true",
    '""',
    "[]",
    "{}",
]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("key", ["ts", "dur", "pid", "tid", "name", "cat", "args", "id", "ph"])
def test_any_value_anywhere_costs_at_most_its_event(key, number):
    event = json.dumps(op("odd") | {key: "HERE"}).replace('"HERE"', number)
    trace = read(f"[{event},{json.dumps(op('good', 9))}]".encode())
    names = [trace.strings[row] for row in trace.column("spans", "name")]
    assert "good" in names
    assert len(names) + sum(lost(trace).values()) >= 1
    assert trace.key_averages().table()
    assert (trace.column("spans", "duration_ns") >= 0).all()


@pytest.mark.parametrize("number", [*NUMBERS, "9223372036854775807", "-9223372036854775808", "1.5", '"7"'])
@pytest.mark.parametrize(
    "key",
    [
        "correlation",
        "External id",
        "Sequence number",
        "Fwd thread id",
        "stream",
        "device",
        "grid",
        "bytes",
        "Input Dims",
    ],
)
def test_any_value_among_arguments_costs_at_most_itself(key, number):
    event = json.dumps(op("odd", cat="kernel", args={key: "HERE", "kept": 1})).replace('"HERE"', number)
    trace = read(f"[{event}]".encode())
    assert len(trace.columns("spans")) == 1
    assert trace.table("spans").num_rows == 1
    assert trace.key_averages().table()


def test_times_at_the_edge_of_64_bits_never_wrap():
    edge = [9.2e15, 4.6e15, -4.6e15, -9.2e15, 2**53, 0]
    trace = read(json.dumps([op("a", ts, dur=dur) for ts in edge for dur in (0, 1, 9.2e15, 4.6e15)]).encode())
    start, length = trace.column("spans", "start_ns"), trace.column("spans", "duration_ns")
    assert (start >= 0).all()
    assert (length >= 0).all()
    assert all(int(a) + int(b) < 2**63 for a, b in zip(start, length, strict=True))
    assert lost(trace)["events without a usable time"] > 0
    assert (trace.column("spans", "self_ns") >= 0).all()


def test_megabytes_of_one_text_are_kept():
    name, value = "n" * 3_000_000, 'é\\"' * 700_000
    trace = read(json.dumps([op(name, args={"x": value}), op("b", 5)]).encode())
    assert trace.strings[trace.column("spans", "name")[0]] == name
    assert json.loads(trace.column("arguments", "json")[0]) == {"x": value}
    assert trace.complete


def test_a_quote_that_is_missing_costs_no_more_than_what_it_hides():
    good = [json.dumps(op(f"a{at}", at)) for at in range(50)]
    good[10] = good[10].replace('"a10"', '"a10')
    good[20] = good[20].replace('"a20"', '"a"20"')
    trace = read(f"[{','.join(good)}]".encode())
    assert len(trace.columns("spans")) >= 46
    assert lost(trace)["unusable events"] >= 1


@pytest.mark.parametrize("depth", [300, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_no_recursion(depth, opening):
    closing = "]" if opening == "[" else "}"
    value = opening * depth + ("1" if opening != "[" else "") + closing * depth
    content = f'{{"deep":{value},"traceEvents":[{{"ph":"X","ts":1,"dur":1,"name":"a","args":{{"x":{value},"y":1}}}}]}}'
    trace = read(content.encode())
    assert len(trace.columns("spans")) == 1
    assert not trace.complete


@pytest.mark.parametrize(
    "piece",
    [b'{"ph":', b',{"name":[', b'{"ph":"', b"[", b"{", b'"', b"\\", b'{"ph" x},', b"\x80", b'{"a":{"ts":'],
)
def test_brackets_without_end_take_no_longer_than_they_are_long(piece):
    content = json.dumps([op()]).encode()[:-1] + b"," + piece * (1_000_000 // len(piece))
    trace = read(content)
    assert len(trace.columns("spans")) == 1
    assert not trace.complete


@pytest.mark.parametrize(
    "content",
    [
        b"", b" ", b"\n\n", b"null", b"5", b'"traceEvents"', b"{}", b'{"traceEvents":5}', b"<html>", b"\x00" * 100,
        b"\xff\xfe[\x00", b"%PDF-1.7", bytes(range(256)), b'{"a":1}', b"{traceEvents:[]}", b"\x1f\x8b", b"\x1f\x8b\x08\x00junk",
        gzip.compress(b"hello", mtime=0), b"\x28\xb5\x2f\xfd", b"ARROW1\0\0", b"SQLite format 3\0", b"[1,2", b"{",
    ],
)  # fmt: skip
def test_what_is_no_trace_is_a_format_error_or_an_empty_trace_with_losses(content):
    try:
        trace = read(content)
    except FormatError:
        return
    assert len(trace.columns("spans")) == 0
    assert not trace.complete


def test_a_gzip_bomb_stops_at_the_limit():
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(b'[{"ph":"X","ts":1,"dur":1,"name":"' + b"a" * 1000)
    for _ in range(12):
        packed += packer.compress(b" " * (8 << 20))
    packed += packer.flush()
    trace = read(packed, max_uncompressed_bytes=16 << 20)
    assert lost(trace)["file too large when decompressed"] == 1
    assert len(packed) < 1 << 20


def test_memory_stays_below_the_limit_whatever_the_file_holds():
    program = """
import io, json, resource, sys, kinetoscope
import kinetoscope.formats.chrome.read

class Endless(io.RawIOBase):
    def __init__(self): self.at, self.rest = 0, bytearray(b"[")
    def readable(self): return True
    def readinto(self, buffer):
        while len(self.rest) < len(buffer) and self.at < 120_000:
            self.at += 1
            self.rest += json.dumps({"ph": "X", "ts": self.at, "dur": 1, "pid": 1, "tid": self.at, "name": f"n{self.at}" * 9,
                                     "args": {"x": self.at, "Input Dims": [self.at]}}).encode() + b","
        size = min(len(buffer), len(self.rest))
        buffer[:size] = self.rest[:size]
        del self.rest[:size]
        return size

def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
trace = kinetoscope.open(Endless(), max_memory_bytes=4 << 20)
print(peak() - before, len(trace.columns("spans")), trace.complete)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    megabytes, spans, complete = done.stdout.split()
    assert int(megabytes) < 60
    assert 0 < int(spans) < 120_000
    assert complete == "False"


def test_two_are_read_at_once():
    contents = [
        json.dumps([op(f"{which}{at % 7}", at, args={"x": at % 11}) for at in range(20_000)]).encode()
        for which in "ab"
    ]
    alone = [everything(read(content)) for content in contents]
    found = [None, None]

    def work(which):
        found[which] = everything(read(contents[which]))

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | hostile_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile_text, inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["ph", "ts", "dur", "name", "cat", "pid", "tid", "id", "args", "s", "bp", "scope"])
phases = st.sampled_from("XBEbenSFstfiICMPNOD")


@settings(deadline=None, max_examples=times(20, 2000))
@given(
    st.lists(
        st.dictionaries(keys, json_values, max_size=8)
        | st.builds(lambda phase: op() | {"ph": phase}, phases),
        max_size=6,
    ),
    st.integers(1, 50),
)
@example([{"ph": "C", "ts": 1, "name": "a", "args": {"x": float("nan")}}], 3)
def test_any_json_is_a_trace_or_a_format_error(events, size):
    content = json.dumps(events).encode()
    try:
        whole = read(content)
    except FormatError:
        with pytest.raises(FormatError):
            kinetoscope.open(InPieces(content, size))
        return
    in_pieces = kinetoscope.open(InPieces(content, size))
    assert everything(whole)[0] == everything(in_pieces)[0] or "nan" in repr(everything(whole)[0])
    assert isinstance(whole.key_averages().table(), str)
    assert whole.table("spans").num_rows == len(whole.columns("spans"))


@settings(deadline=None, max_examples=examples(60))
@given(hostile_text, hostile_text)
def test_every_name_comes_back(name, other):
    trace = read(json.dumps([op(name, args={other: name})]).encode())
    assert trace.strings[trace.column("spans", "name")[0]] == name
    if other not in ("stream", "device"):
        assert json.loads(trace.column("arguments", "json")[0]) == {other: name}


def test_losses_of_arguments_say_what_was_kept():
    deep = "[" * 3000 + "]" * 3000
    arguments = [f'{{"x":{deep},"y":1}}', '{"z":1x}', '{"z":1x}']
    events = [
        f'{{"ph":"X","name":"a","cat":"cpu_op","pid":1,"tid":1,"ts":{at * 9},"dur":4,"args":{text}}}'
        for at, text in enumerate(arguments)
    ]
    trace = read(f'{{"traceEvents":[{",".join(events)}]}}'.encode())
    assert lost(trace) == {
        "distinct arguments that could not be read": 1, "events nested too deeply": 1,
    }  # fmt: skip
    kept = [json.loads(text) for text in trace.column("arguments", "json")]
    assert [kept[row] for row in trace.column("spans", "arguments")] == [
        {"x": None, "y": 1}, {"unreadable": '{"z":1x}'}, {"unreadable": '{"z":1x}'},
    ]  # fmt: skip
    why = {loss["what"]: loss["why"] for loss in trace.losses}
    assert "Their events are included" in why["distinct arguments that could not be read"]
    assert "They are included" in why["events nested too deeply"]


def test_a_kernel_of_days_in_a_trace_of_milliseconds_is_clipped_and_named():
    days_us = 7 * 24 * 3600 * 1e6
    trace = read(
        json.dumps(
            [op("aten::mm", 0, dur=4_000), op("gemm", 10, dur=days_us, cat="kernel", pid=0, tid=7)]
        ).encode()
    )
    assert trace.duration_ns == 4_000_000
    (loss,) = trace.losses
    assert (loss["code"], loss["where"]) == ("implausible_durations", "spans: gemm")
    (row,) = (row for row in trace.table("spans").to_pylist() if row["name"] == "gemm")
    assert row["duration_ns"] == 3_990_000
    assert row["unfinished"]


def test_a_long_trace_has_long_spans_without_a_loss():
    hours_us = 3600 * 1e6
    trace = read(json.dumps([op("main", 0, dur=30 * hours_us), op("late", 29 * hours_us, dur=5)]).encode())
    assert trace.complete


@pytest.mark.parametrize("byte", [b"\x00", b"\x01", b"\x1f", b"\x0a", b"\xff", b"\xc3("])
@pytest.mark.parametrize("field", ["name", "cat", "tid", "key", "argument", "thread name"])
def test_a_damaged_byte_in_a_text_is_a_loss(byte, field):
    texts = {"name": "a@b", "cat": "cpu_op", "tid": 4, "key": "spare", "argument": "x", "thread name": "t"}
    texts |= {field: "a@b"}
    events = [
        {"ph": "X", "name": texts["name"], "cat": texts["cat"], "pid": 1, "tid": texts["tid"], "ts": 1, "dur": 2,
         texts["key"]: 1, "args": {"note": texts["argument"]}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 4, "args": {"name": texts["thread name"]}},
    ]  # fmt: skip
    clean = json.dumps(events).encode()
    assert read(clean).complete
    assert read(clean.replace(b"@", byte)).losses


@pytest.mark.parametrize("count", [1, 5])
def test_unix_times_in_nanoseconds_are_read_as_such(count):
    begin_ns = 1_700_000_000_000_000_000
    events = [op(f"a{at}", begin_ns + 100 * at, dur=50) for at in range(count)]
    trace = read(json.dumps(events).encode())
    assert trace.column("spans", "start_ns").tolist() == [100 * at for at in range(count)]
    assert set(trace.column("spans", "duration_ns").tolist()) == {50}
    assert trace.info["start_realtime_ns"] == begin_ns
    assert trace.complete


def test_one_time_in_nanoseconds_is_a_mistake():
    events = [op("a", 1_700_000_000_000_000_000), op("b", 5, dur=2), op("c", 8, dur=2)]
    trace = read(json.dumps(events).encode())
    assert trace.column("spans", "duration_ns").tolist() == [2_000, 2_000]
    assert lost(trace) == {"events without a usable time": 1}


def test_the_error_for_unusable_times_says_so():
    with pytest.raises(
        FormatError, match="none of its 2 events has a usable time: `ts` is to be microseconds"
    ):
        read(json.dumps([op("a", 1e17), op("b", 1e17)]).encode())


def test_stack_frames_and_thread_times_of_chrome_are_read():
    frames = {"1": {"name": "main"}, "2": {"name": "step", "parent": "1"}, "3": {"name": "f", "parent": 3}}
    event = {**op("a", 0), "tts": 7, "tdur": 3.5}
    events = [event | {"sf": 2}, op("b", 9) | {"sf": "3"}, op("c", 19) | {"sf": 9}, op("d", 29)]
    trace = read(json.dumps({"stackFrames": frames, "traceEvents": events}).encode())
    stacks = [row["stack"] for row in trace.table("spans").to_pylist()]
    assert [stack is not None for stack in stacks] == [True, True, False, False]
    names = trace.column("frames", "function")
    assert {trace.strings[name] for name in names.tolist()} == {"main", "step", "f"}
    assert json.loads(trace.column("arguments", "json")[0]) == {"tts": 7, "tdur": 3.5}
    assert "stackFrames" not in trace.info
