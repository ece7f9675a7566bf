"""The log of steps: what is written is read, also while it goes round."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope._runtime import StepCount
from kinetoscope.flight.live_stacks import CRASHED
from kinetoscope.flight.step_log import SIZE_BYTES, StepLogWriter, read_step_log

MAGIC = b"KSSTEPS1"


def empty_log():
    data = bytearray(SIZE_BYTES)
    data[:8] = MAGIC
    data[8:16] = (4711).to_bytes(8, "little")
    return data


@given(st.integers(0, 3000), st.integers(0, 2**40))
def test_the_last_steps_are_read(tmp_path_factory, count, first):
    data = empty_log()
    log, steps = StepLogWriter(memoryview(data)), StepCount(lambda number, loss: None)
    log.follow(steps)
    for at in range(count + 1):
        steps.number, steps.began_ns, steps.recording = first + at, 1000 * at + 1, at % 2 == 0
        steps.log_begin(77)
        if at < count:
            steps.log_end(900)
    steps.close()
    path = tmp_path_factory.getbasetemp() / "rank0.steps"
    path.write_bytes(data)
    read = read_step_log(path)
    assert (read.process, read.number, read.began_ns, read.hang_ns) == (
        4711,
        first + count,
        1000 * count + 1,
        77,
    )
    assert [step.number for step in read.steps] == list(range(first + max(count - 1024, 0), first + count))
    assert all(step.recorded == ((step.number - first) % 2 == 0) for step in read.steps)
    assert not read.stopped
    log.stop()
    path.write_bytes(data)
    assert read_step_log(path).stopped


@pytest.mark.parametrize("data", [b"", b"x" * SIZE_BYTES, MAGIC])
def test_other_files_are_no_logs(tmp_path, data):
    (tmp_path / "rank0.steps").write_bytes(data)
    assert read_step_log(tmp_path / "rank0.steps") is None


def test_the_end_is_said_in_the_log_however_long_it_is(tmp_path):
    data = empty_log()
    log = StepLogWriter(memoryview(data))
    path = tmp_path / "rank0.steps"
    for text in ("the end", "\x00\u00e9\U0001f600" * 3000):
        log.note_end({"reason": "crash", "what": text, "ring": text, "stacks": {"thread": ["a"]}, "step": 7})
        log.stop(leaves_ring=True)
        path.write_bytes(data)
        read = read_step_log(path)
        assert (read.end["reason"], read.end["step"], read.left_ring, read.stopped) == (
            "crash",
            7,
            True,
            True,
        )
        assert text.startswith(read.end["what"])
        assert "stacks" not in read.end
    log.note_end({})
    path.write_bytes(data)
    assert read_step_log(path).end == {}


def test_the_newer_of_two_places_is_read_but_none_half_written(tmp_path):
    data, path = empty_log(), tmp_path / "rank0.steps"
    StepLogWriter(memoryview(data)).note_thread(12)
    older = (500, 3, 12, ord("S"), b"/a\tb.py\t7\tinner\n/c.py\t9\t<module>\n")
    for newer, time_ns, step, state in (
        ((900, -1, 13, ord("X"), b"/d.py\t1\tf\n"), 900, None, CRASHED),
        ((0, 4, 12, ord("R"), b"/d.py\t1"), 500, 3, "blocked"),
    ):
        struct.pack_into("<4q4064s4q4064s", data, SIZE_BYTES - 2 * 4096, *newer, *older)
        path.write_bytes(data)
        log = read_step_log(path)
        assert (log.place.time_ns, log.place_step, log.place.state) == (time_ns, step, state)
        assert (log.last_seen_ns, log.thread) == (time_ns, 12)
    assert [str(line) for line in log.place.lines] == ["/c.py:9 <module>", "/a\tb.py:7 inner"]
