"""Finding jobs and their ranks from outside, by files that are made by hand."""

import json
import os
import tempfile
import time

import pytest

from kinetoscope._errors import ArgumentError
from kinetoscope._runtime import StepCount
from kinetoscope.flight import jobs
from kinetoscope.flight.jobs import (
    ENDED,
    GONE,
    HANGS,
    RUNS,
    attempt_of_process,
    attempts_in,
    incident_ranks,
    list_folder,
    sweep,
)
from kinetoscope.flight.settings import default_folder
from kinetoscope.flight.step_log import StepLogWriter
from tests.flight.test_step_log import empty_log

SECOND_NS = 1_000_000_000
RUNNING = 99


def write_log(
    attempt,
    rank=0,
    *,
    process=None,
    step=7,
    for_s=1.0,
    hang_s=30.0,
    stopped=False,
    recorded=True,
    last=None,
    **said,
):
    attempt.mkdir(parents=True, exist_ok=True)
    data = empty_log()
    data[8:16] = (os.getpid() if process is None else process).to_bytes(8, "little")
    log = StepLogWriter(memoryview(data))
    began_ns = int(time.monotonic_ns() - for_s * SECOND_NS)
    steps = StepCount(lambda number, loss: None)
    log.follow(steps)
    if last is not None:
        steps.number, steps.began_ns, steps.recording = last, began_ns - SECOND_NS, False
        steps.log_end(SECOND_NS)
    steps.number, steps.began_ns, steps.recording = step, began_ns, recorded
    steps.log_begin(int(hang_s * SECOND_NS))
    steps.close()
    if said:
        log.note_judgement(said, time.monotonic_ns())
    if said.get("verdict") == HANGS:
        log.note_hang(began_ns)
    if stopped:
        log.stop()
    (attempt / f"rank{rank}.steps").write_bytes(data)
    return attempt


def write_incident(attempt, name, **facts):
    place = attempt / "incidents" / name
    place.mkdir(parents=True)
    (place / "rank0.json").write_text(json.dumps(facts))
    return place


NOBODY = 2**22 + 1


INIT = 1


def test_states_of_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "is_running", lambda log: log.number == RUNNING)
    attempt = tmp_path / "job" / "0"
    # Steps that began after this process did.
    write_log(attempt, 0, for_s=0.001)
    # Overdue, and nobody says what the process does.
    write_log(attempt, 1, process=INIT, for_s=10.0, hang_s=1.0)
    write_log(attempt, 2, process=NOBODY)
    write_log(attempt, 3, stopped=True)
    (attempt / "rank4.recording").write_bytes(b"")
    write_log(attempt, 5, process=INIT, for_s=10.0, hang_s=1.0, step=RUNNING)
    write_log(attempt, 6, process=INIT, for_s=10.0, hang_s=1.0, verdict="works")
    write_log(attempt, 7, process=INIT, for_s=10.0, hang_s=1.0, verdict=HANGS)
    rings = attempts_in(tmp_path)[0].rings()
    assert [(ring.rank, ring.state) for ring in rings] == [
        (0, RUNS),
        (1, HANGS),
        (2, GONE),
        (3, ENDED),
        (4, ENDED),
        (5, RUNS),
        (6, RUNS),
        (7, HANGS),
    ]


def test_a_later_process_with_the_same_id_is_another_one(tmp_path):
    began_long_ago_s = time.monotonic() - 0.001
    write_log(tmp_path / "job" / "0", for_s=began_long_ago_s)
    assert attempts_in(tmp_path)[0].rings()[0].state == GONE


def test_attempts_are_found_from_any_folder_above(tmp_path):
    first = write_log(tmp_path / "job" / "0")
    second = write_log(tmp_path / "job" / "1")
    for path, age in ((first, 50), (second, 10)):
        os.utime(path / "rank0.steps", times=(time.time() - age, time.time() - age))
        os.utime(path, times=(time.time() - age, time.time() - age))
    assert [one.folder for one in attempts_in(tmp_path)] == [first, second]
    assert [one.folder for one in attempts_in(tmp_path / "job")] == [first, second]
    assert [one.folder for one in attempts_in(second)] == [second]
    assert [one.name for one in attempts_in(tmp_path)] == ["job", "job, start 1"]
    assert attempts_in(tmp_path / "nothing") == []


def test_a_process_is_found_by_its_ring_or_its_incident(tmp_path):
    write_log(tmp_path / "a" / "0", process=NOBODY)
    attempt = tmp_path / "b" / "0"
    write_incident(attempt, "20260101T000000Z-crash", process=NOBODY + 1, reason="crash")
    assert attempt_of_process(tmp_path, NOBODY).name == "a"
    assert attempt_of_process(tmp_path, NOBODY + 1).name == "b"
    with pytest.raises(ArgumentError, match=f"process {NOBODY + 2} was not left on"):
        attempt_of_process(tmp_path, NOBODY + 2)


def test_the_facts_of_an_incident(tmp_path):
    place = write_incident(tmp_path / "job" / "0", "20260101T000000Z-crash", process=3, reason="crash")
    (rank,) = incident_ranks(place)
    assert (rank.rank, rank.process, rank.state) == (0, 3, ENDED)
    assert rank.facts["reason"] == "crash"


def test_only_the_last_ended_attempts_stay(tmp_path):
    running = write_log(tmp_path / "runs" / "0", for_s=0.001)
    attempts = [write_log(tmp_path / f"job{number}" / "0", process=NOBODY) for number in range(20)]
    for age, path in enumerate([running, *attempts], 1):
        for one in (path / "rank0.steps", path):
            os.utime(one, times=(time.time() - 60 * age, time.time() - 60 * age))
    sweep(tmp_path)
    assert sorted(one.folder for one in attempts_in(tmp_path)) == sorted([running, *attempts[:16]])
    assert not (tmp_path / "job19").exists()
    sweep(tmp_path, time.time() + 15 * 86400)
    assert [one.folder for one in attempts_in(tmp_path)] == [running]


def test_folders_of_their_own_are_found_from_the_default_one_until_they_are_gone(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    here, gone = tmp_path / "here", tmp_path / "gone"
    for folder, process in ((here, os.getpid()), (gone, NOBODY), (here, os.getpid())):
        write_log(folder / "job" / "0", process=process, for_s=0.001)
        list_folder(folder)
    folders = [attempt.folder for attempt in attempts_in(default_folder())]
    assert sorted(folders) == [gone / "job" / "0", here / "job" / "0"]
    assert attempt_of_process(tmp_path, NOBODY).folder == gone / "job" / "0"
    # What is removed of ended jobs is removed in one folder only.
    assert attempts_in(default_folder(), listed=False) == []
    gone.rename(tmp_path / "elsewhere")
    list_folder(here)
    assert [attempt.folder for attempt in attempts_in(default_folder())] == [here / "job" / "0"]
    assert len(list(default_folder().glob("*/*"))) == 1
