"""The notes of followed processes."""

import os
import subprocess
import sys

from kinetoscope.launcher import notes


def test_a_note_is_read_as_it_was_left(tmp_path):
    assert notes.claim(str(tmp_path), "12", {"process": 12}) == "12"
    notes.rewrite(str(tmp_path), "12", {"process": 12, "ended": "exit code 3"})
    assert notes.read_all(str(tmp_path)) == {"12": {"process": 12, "ended": "exit code 3"}}
    assert os.listdir(tmp_path) == ["12.json"]


def test_a_process_that_became_another_program_has_a_second_note(tmp_path):
    names = [notes.claim(str(tmp_path), "12", {"turn": turn}) for turn in range(3)]
    assert names == ["12", "12.2", "12.3"]
    found = notes.read_all(str(tmp_path))
    assert [found[name]["turn"] for name in names] == [0, 1, 2]


def test_where_the_run_is_over_nothing_is_left(tmp_path):
    gone = str(tmp_path / "gone")
    assert notes.claim(gone, "12", {}) is None
    notes.rewrite(gone, "12", {})
    notes.rewrite(str(tmp_path), "12", {})
    assert os.listdir(tmp_path) == []


def test_a_note_that_was_not_written_whole_says_nothing(tmp_path):
    (tmp_path / "7.json").write_text('{"process": 7, "na')
    (tmp_path / "8.json").write_text("[]")
    (tmp_path / "9.recording").write_text("")
    assert notes.read_all(str(tmp_path)) == {"7": {}, "8": {}}


def test_a_process_is_known_by_its_number_and_its_beginning():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    own = notes.start_ticks(os.getpid())
    assert notes.start_ticks(child.pid) >= own > 0
    assert notes.ancestors(child.pid)[:2] == [os.getpid(), os.getppid()]
    child.communicate(b"\n")
    assert notes.start_ticks(child.pid) == 0
    assert notes.ancestors(child.pid) == []


def test_a_process_that_nobody_waited_for_has_ended():
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert notes.start_ticks(child) == 0
    os.waitpid(child, 0)
