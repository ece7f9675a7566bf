"""The native reader of Chrome traces with truncated, damaged, malicious and other files."""

import json

import pytest

import kinetoscope._core as _core
from tests.support.chrome_text import lost, names, plain, read, read_text, x


def test_a_bare_list_is_a_trace_even_without_its_end():
    whole = json.dumps([x("a", 0, 1), x("b", 1, 1)]).encode()
    for text in (whole, whole[:-1], whole[:-1] + b",\n"):
        assert lost(parts := read_text(text)) == {}
        assert names(parts) == ["a", "b"]
    assert lost(parts := read_text(whole[:-3])) == {"truncated_file": 1}
    assert names(parts) == ["a"]


@pytest.mark.parametrize(
    "text", [b"", b"  \n", b"hello", b"\x1f\x8b\x08", b"<html>", b"{}", b'{"a": 1}', b"{oops", b"12"]
)
def test_what_is_no_trace_is_refused(text: bytes):
    with pytest.raises(ValueError, match="not a trace"):
        read_text(text)


def test_texts_are_decoded():
    text = '{"traceEvents":[{"ph":"X","name":"a\\u00e9\\ud83d\\ude00\\ud800 \\"q\\" \\/","ts":"1","dur":1,"pid":1,"tid":1}]}'
    assert names(read_text(text.encode())) == ['aé\U0001f600\ud800 "q" /']
    assert names(read_text(b'{"traceEvents":[{"ph":"X","name":"\xff","ts":1,"dur":1,"pid":1,"tid":1}]}')) == [
        "\ufffd"
    ]


def test_a_broken_event_costs_only_itself():
    good = json.dumps(x("good", 0, 1))
    for bad in (
        '{"ph": "X", "name": "a "quoted" b", "ts": 1}',
        '{"ph" "X"}',
        '{"ph": "X", "ts": }',
        '"text"',
        "17",
        "{]",
    ):
        parts = read_text(f'{{"traceEvents": [{good}, {bad}, {good}]}}'.encode())
        assert names(parts) == ["good", "good"], bad
        assert lost(parts) == {"bad_events": 1}, bad


def test_numbers_that_are_none_become_texts_among_the_arguments():
    text = b'{"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":1,"pid":1,"tid":1,"args":{"x":NaN,"y":-Infinity,"z":inf}}]}'
    assert read_text(text)["arguments"]["json"] == ['{"x":"NaN","y":"-Infinity","z":"inf"}']


def test_times_that_cannot_be_are_counted():
    parts = read(
        x("a", 1e300, 1),
        x("b", 1, -5),
        x("c", 2, 1e300),
        {"ph": "X", "name": "d", "pid": 1, "tid": 1, "ts": 3},
    )
    assert names(parts) == ["b", "c", "d"]
    assert lost(parts) == {"bad_times": 2, "negative_durations": 1, "missing_durations": 1}
    assert plain(parts["spans"])["duration_ns"] == [0, 0, 0]


def test_deep_nesting_is_cut():
    deep = "[" * 5000 + "]" * 5000
    text = f'{{"traceEvents":[{{"ph":"X","name":"a","ts":1,"dur":1,"pid":1,"tid":1,"args":{{"d":{deep}}}}}]}}'
    parts = read_text(text.encode())
    assert parts["arguments"]["json"] == ['{"d":null}']
    assert lost(parts) == {"too_deep": 1}


def test_a_limit_of_memory_keeps_what_came_before():
    events = [x(f"name {number} {'x' * 200}", number, 1) for number in range(20_000)]
    parts = read_text(json.dumps(events).encode(), max_bytes=1 << 20)
    kept = len(parts["spans"]["name"])
    assert 0 < kept < 20_000
    assert lost(parts) == {"beyond_memory_limit": 20_000 - kept}
    assert parts["events"] == 20_000


def test_a_finished_reader_says_so():
    reader = _core.ChromeReader([], [], [], 0)
    reader.feed(b"[]")
    reader.finish()
    with pytest.raises(ValueError, match="create a new one"):
        reader.feed(b"[]")
    with pytest.raises(ValueError, match="same length"):
        _core.ChromeReader(["a"], [], [], 0)


@pytest.mark.parametrize("bad", ["1a", "1\x01", "1x2", "0x10", "--1"])
@pytest.mark.parametrize("key", ["pid", "tid"])
def test_a_damaged_number_of_a_thread_is_told(bad, key):
    event = {**x("a", 0, 1), key: 4711}
    text = json.dumps({"traceEvents": [event, event, x("b", 1, 1)]}).replace("4711", bad)
    parts = read_text(text.encode("latin-1"))
    # A control character ends a number, and makes the event invalid.
    assert lost(parts) == ({"bad_events": 2} if "\x01" in bad else {"bad_ids": 1})


@pytest.mark.parametrize("byte", [0, 1, 8, 0x0B, 0x0C, 0x1F, 0x7F, 0x80, 0xFF])
def test_a_number_whose_last_digit_was_overwritten_is_no_shorter_number(byte):
    text = json.dumps({"traceEvents": [x("a", 0, 1), x("b", 123, 4567), x("c", 1, 1)]}).encode()
    damaged = text.replace(b"4567", b"456" + bytes([byte]))
    assert damaged != text
    parts = read_text(damaged)
    assert sorted(names(parts)) in (["a", "c"], ["a", "b", "c"])
    assert sum(lost(parts).values()) == 1


def test_a_damaged_number_of_an_arrow_is_told():
    arrow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 1, "id": 4711}
    text = json.dumps({"traceEvents": [x("a", 0, 1), arrow]})
    assert lost(read_text(text.encode())) == {}
    assert lost(read_text(text.replace("4711", "4x7").encode())) == {"bad_ids": 1}


def test_a_second_list_of_events_is_told():
    one, other = json.dumps([x("a", 0, 1)]), json.dumps([x("b", 1, 1)])
    parts = read_text(f'{{"traceEvents": {one}, "other": 1, "traceEvents": {other}}}'.encode())
    assert names(parts) == ["a", "b"]
    assert lost(parts) == {"repeated_lists": 1}
