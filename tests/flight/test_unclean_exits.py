"""Incidents of processes that ended without a word, by files that are made by hand."""

import fcntl
import os
import signal
import struct

from kinetoscope.flight.incidents import incident_folders
from kinetoscope.flight.jobs import incident_ranks
from kinetoscope.flight.last import last_event
from kinetoscope.flight.step_log import SIZE_BYTES, StepLogWriter, read_step_log
from kinetoscope.flight.unclean_exits import end_text, rescue_rings
from tests.flight.test_jobs import NOBODY, write_incident, write_log


def write_dead(attempt, rank=0, **log):
    write_log(attempt, rank, **{"process": NOBODY, **log})
    (attempt / f"rank{rank}.recording").write_bytes(b"ring")
    return attempt


def test_the_ring_and_its_log_are_moved_to_an_incident(tmp_path):
    attempt = write_dead(tmp_path / "job" / "0", step=12)
    (made,) = rescue_rings(tmp_path)
    assert made.read_bytes() == b"ring"
    assert not (attempt / "rank0.recording").exists()
    assert not (attempt / "rank0.steps").exists()
    (rank,) = incident_ranks(made.parent)
    assert rank.log.number == 12
    what = "the process ended without a word in step 12: killed, or crashed outside of Python"
    assert rank.facts["what"] == what
    assert (rank.facts["reason"], rank.facts["step"], rank.facts["process"]) == ("gone", 12, NOBODY)
    found = last_event(None, tmp_path)
    assert (found.reason, found.folder) == ("gone", str(made.parent))
    assert found.sentence.endswith(what)
    assert rescue_rings(tmp_path) == []


def test_ranks_that_died_together_share_an_incident(tmp_path):
    attempt = write_dead(tmp_path / "job" / "0", 0)
    write_dead(attempt, 1)
    write_log(attempt, 2, for_s=0.001)
    (attempt / "rank2.recording").write_bytes(b"of a process that runs")
    first, second = rescue_rings(tmp_path)
    assert first.parent == second.parent
    assert (attempt / "rank2.recording").exists()


def test_a_process_that_cannot_be_seen_from_here_is_not_taken_for_dead(tmp_path):
    attempt = write_dead(tmp_path / "job" / "0")
    log = attempt / "rank0.steps"
    data = bytearray(log.read_bytes())
    assert read_step_log(log).is_of_here
    for namespace, boot in ((0, 0), (1, 1)):
        struct.pack_into("<2q", data, 104, namespace, boot)
        log.write_bytes(data)
        assert not read_step_log(log).is_of_here
        assert rescue_rings(tmp_path) == []


def test_an_end_that_was_told_is_not_told_again(tmp_path):
    attempt = write_dead(tmp_path / "job" / "0", step=12)
    write_incident(attempt, "20260101T000000Z-exit", process=NOBODY, reason="exit", rank=0, step=12)
    assert rescue_rings(tmp_path) == []
    assert last_event(None, tmp_path).reason == "exit"


def test_a_death_in_a_later_step_is_told(tmp_path):
    attempt = write_dead(tmp_path / "job" / "0", step=13)
    write_incident(attempt, "20260101T000000Z-exit", process=NOBODY, reason="exit", rank=0, step=12)
    assert last_event(None, tmp_path).reason == "gone"
    assert len(rescue_rings(tmp_path)) == 1


def test_one_process_at_a_time(tmp_path):
    attempt = write_dead(tmp_path / "job" / "0")
    other = os.open(attempt, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert rescue_rings(tmp_path) == []
    os.close(other)
    assert len(rescue_rings(tmp_path)) == 1


def test_files_that_cannot_be_moved_stay(tmp_path):
    attempt = write_dead(tmp_path / "job" / "0")
    (attempt / "incidents").write_text("not a folder")
    assert rescue_rings(tmp_path) == []
    assert (attempt / "rank0.recording").exists()
    assert incident_folders(attempt) == []


def test_memory_that_was_nearly_all_used_is_named(tmp_path):
    path = tmp_path / "rank0.steps"
    for had_bytes, hint in ((500, False), (950, True)):
        write_log(tmp_path, process=NOBODY)
        data = bytearray(path.read_bytes())
        struct.pack_into("<q", data, 56, 1000)
        struct.pack_into("<q", data, 88, 1)
        struct.pack_into("<2q", data, 128 + 1024 * 32, 1, had_bytes)
        path.write_bytes(data)
        assert ("the system may have killed it" in end_text(7, read_step_log(path))) is hint
    struct.pack_into("<q", data, 120, signal.SIGABRT)
    path.write_bytes(data)
    assert "crashed in step 7 with SIGABRT" in end_text(7, read_step_log(path))
    assert end_text(None, None).startswith("ended without a word before its first step")


def test_a_log_says_where_its_process_can_be_seen():
    data = bytearray(SIZE_BYTES)
    StepLogWriter(memoryview(data))
    assert struct.unpack_from("<q", data, 104)[0] == os.stat("/proc/self/ns/pid").st_ino
    assert struct.unpack_from("<q", data, 112)[0] > 0
