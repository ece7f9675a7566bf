"""A recording seen from outside: whether its process still records, and how far it is."""

import dataclasses
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from kinetoscope.collect.process.machine import boot
from kinetoscope.model.run_info import RunInfo
from kinetoscope.storage.live_recording import LAYOUT, MAGIC, is_running, progress
from tests.support import bare_recorder, recording_builder
from tests.support.recorded import profile
from tests.support.recording_builder import RecordingBuilder


def growing() -> RecordingBuilder:
    """A recording that was not stopped, with a span."""
    builder = RecordingBuilder(state=0)
    builder.span(0, 10, builder.name("a"))
    return builder


def position(path: Path) -> int:
    found = progress(path)
    assert found is not None
    return found.position


def this_process() -> RunInfo:
    """The metadata of a recording that this process has just begun."""
    return RunInfo.of(
        {
            "complete": False,
            "process": os.getpid(),
            "boot_id": boot()["boot_id"].strip('"'),
            "start_monotonic_ns": time.monotonic_ns(),
        }
    )


def test_tests_write_records_as_long_as_those_of_the_header() -> None:
    sizes = {
        "spans": recording_builder.SPAN.size,
        "notes": recording_builder.NOTE.size,
        "allocations": recording_builder.ALLOCATION.size,
        "samples": recording_builder.SAMPLE.size,
    }
    assert {kind: LAYOUT["record_bytes"][kind] for kind in sizes} == sizes
    assert recording_builder.SPAN_BEFORE_7.size == LAYOUT["span_bytes_before_7"]


def test_tests_of_other_pythons_read_records_where_the_header_has_them() -> None:
    for known, layout in (
        (bare_recorder.LAYOUT, LAYOUT),
        (bare_recorder.RECORD_BYTES, LAYOUT["record_bytes"]),
        (bare_recorder.KINDS, LAYOUT["chunk_kinds"]),
    ):
        assert {name: layout[name] for name in known} == known


def test_tests_write_fields_where_the_header_has_them() -> None:
    builder = growing()
    builder.version, builder.dropped_notes, builder.dropped_samples = 4, 17, 18
    content = builder.to_bytes()

    def number(field: str, kind: str = "<I", at: int = 0) -> int:
        (value,) = struct.unpack_from(kind, content, at + LAYOUT[field])
        return int(value)

    chunk = LAYOUT["header_bytes"]
    assert content.startswith(MAGIC)
    assert number("header.chunk_bytes") == builder.chunk_bytes
    assert (number("header.state"), number("header.process")) == (0, 4242)
    assert number("header.chunks", "<Q") == number("header.orders", "<Q") == 2
    assert number("header.pairs", "<Q") == builder.start_tick
    assert (number("header.dropped_notes", "<Q"), number("header.dropped_samples", "<Q")) == (17, 18)
    assert number("chunk.kind", at=chunk) == recording_builder.DICTIONARY
    assert (number("chunk.units", at=chunk), number("chunk.order", "<Q", chunk)) == (0, 1)
    assert number("chunk.committed", "<Q", chunk) == sum(map(len, builder.entries))


def test_the_state_of_a_recording(tmp_path: Path) -> None:
    path = growing().write(tmp_path / "x.recording")
    found = progress(path)
    assert found is not None
    assert (found.stopped, found.process) == (False, 4242)
    stopped = progress(RecordingBuilder().write(path))
    assert stopped is not None
    assert stopped.stopped


@pytest.mark.parametrize("content", [b"", b"KSCOPE", b"{}", MAGIC + bytes(10), MAGIC + bytes(5000)])
def test_what_is_no_recording_has_no_progress(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert progress(path) is None


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        progress(tmp_path / "x")


def test_every_record_and_chunk_changes_the_position(tmp_path: Path) -> None:
    path, builder = tmp_path / "x.recording", growing()
    seen = [position(builder.write(path))]
    builder.span(20, 30)
    seen.append(position(builder.write(path)))
    builder.allocation(40, 1 << 20, 64)
    seen.append(position(builder.write(path)))
    builder.info("key", "1")
    seen.append(position(builder.write(path)))
    builder.recycled_spans = 1
    seen.append(position(builder.write(path)))
    builder.state = 1
    seen.append(position(builder.write(path)))
    assert len(set(seen)) == 6


def test_a_reading_of_the_clock_is_nothing_new(tmp_path: Path) -> None:
    path, builder = tmp_path / "x.recording", growing()
    before = position(builder.write(path))
    builder.pairs.append((500_000, 504_000, 1_700_000_000_000_499_000))
    assert position(builder.write(path)) == before


def test_headers_of_damaged_chunks_do_no_harm(tmp_path: Path) -> None:
    path, builder = tmp_path / "x.recording", growing()
    content = bytearray(builder.to_bytes())
    at = LAYOUT["header_bytes"] + LAYOUT["chunk.units"]
    for units in (0, 1, 2, 2**31, 2**32 - 1):
        struct.pack_into("<I", content, at, units)
        path.write_bytes(content)
        assert progress(path) is not None
    path.write_bytes(content[: LAYOUT["header_bytes"] + 30])
    assert progress(path) is not None


def test_a_running_session_gets_on_with_what_it_records_and_only_with_that(tmp_path: Path) -> None:
    path, x = tmp_path / "x.recording", torch.ones(1)
    with profile(path=path, samples=False):
        torch.neg(x)
        before = position(path)
        assert position(path) == before
        torch.neg(x)
        after = position(path)
        found = progress(path)
        assert after != before
        assert found is not None
        assert (found.stopped, found.process) == (False, os.getpid())
    found = progress(path)
    assert found is not None
    assert found.stopped


def test_a_process_that_records() -> None:
    run = this_process()
    assert is_running(run)
    assert is_running(dataclasses.replace(run, start_monotonic_ns=None))
    # This process has the id, but whether it is the one that recorded is not known.
    assert not is_running(dataclasses.replace(run, boot_id=""))
    assert not is_running(dataclasses.replace(run, complete=True))
    assert not is_running(dataclasses.replace(run, process=None))
    assert not is_running(dataclasses.replace(run, process=2**22 + 1))
    assert not is_running(dataclasses.replace(run, boot_id="another machine"))


def test_another_process_that_has_the_id_now_does_not_record() -> None:
    run = this_process()
    # A recording of before this process began.
    assert run.start_monotonic_ns is not None
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    began_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    ago_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began_ns + 1_000_000_000
    assert not is_running(dataclasses.replace(run, start_monotonic_ns=run.start_monotonic_ns - ago_ns))


def test_a_process_that_has_ended_does_not_record_even_if_nobody_has_waited_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(dataclasses.replace(this_process(), process=ended.pid))
