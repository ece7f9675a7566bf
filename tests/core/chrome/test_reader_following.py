"""The native reader reading a trace from a pipe while another thread writes it."""

import json
import os
import threading
from contextlib import contextmanager

import pytest

import kinetoscope._core as _core
from kinetoscope.model.schema import SpanKind

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "dur": 1}


def reader():
    return _core.ChromeReader(["cpu_op"], [int(SpanKind.OPERATOR)], [False], 0)


def text_of(count: int) -> bytes:
    return json.dumps({"traceEvents": [EVENT | {"ts": ts} for ts in range(count)]}).encode()


@contextmanager
def named_pipe(folder):
    """Yield the reading end of a named pipe and its name, and a pipe that signals the end of writing."""
    path = folder / "pipe"
    os.mkfifo(path)
    text = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    finished, say = os.pipe()
    yield path, text, finished, say
    for one in (text, finished, say):
        os.close(one)


def following(target, *arguments):
    """Run `follow` in a thread; yield the thread and its exceptions."""
    raised = []

    def run():
        try:
            target.follow(*arguments)
        except ValueError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


@pytest.mark.parametrize("count", [0, 1, 50_000])
def test_it_takes_all_that_is_written_until_the_writer_is_gone(tmp_path, count):
    with named_pipe(tmp_path) as (path, text, finished, _):
        target = reader()
        thread, raised = following(target, text, finished)
        path.write_bytes(text_of(count))
        thread.join()
    assert not raised
    assert target.events == count
    assert len(target.finish()["spans"]["name"]) == count


def test_a_writing_end_that_somebody_else_keeps_open_does_not_hold_it_up(tmp_path):
    with named_pipe(tmp_path) as (path, text, finished, say):
        target = reader()
        kept = os.open(path, os.O_WRONLY)
        thread, _ = following(target, text, finished)
        os.write(kept, text_of(100))
        os.write(say, b"x")
        thread.join()
        os.close(kept)
    assert target.events == 100


def test_a_writer_that_never_comes_does_not_either(tmp_path):
    with named_pipe(tmp_path) as (_, text, finished, say):
        target = reader()
        thread, raised = following(target, text, finished)
        os.write(say, b"x")
        thread.join()
    assert not raised
    assert target.events == 0


def test_what_is_no_trace_is_read_to_its_end_and_then_refused(tmp_path):
    with named_pipe(tmp_path) as (path, text, finished, _):
        target = reader()
        thread, raised = following(target, text, finished)
        path.write_bytes(b"\x7fELF" + bytes(4 << 20))
        thread.join()
    assert len(raised) == 1
    with pytest.raises(ValueError, match="finished"):
        target.finish()


def test_what_is_no_pipe_is_refused():
    with pytest.raises(RuntimeError, match="following a pipe"):
        reader().follow(-1, -1)
