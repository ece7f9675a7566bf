"""Which ranks a person means, and captures that are waited for."""

import re
import socket
from dataclasses import replace

import pytest

from kinetoscope import ArgumentError, StateError
from kinetoscope.flight.control.client import ANSWER_S, ControlRequest, capture, targets
from kinetoscope.flight.control.in_job import short_path
from tests.support.controlled_job import controlled_job


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with controlled_job(tmp_path_factory.mktemp("control")) as running:
        yield running


def test_a_job_is_found_by_its_process_its_name_and_its_folder(job):
    base = job.folder
    (place,) = base.glob("*/0")
    for words in (str(job.process.pid), place.parent.name, str(place.parent), str(place), str(base)):
        (target,) = targets(words, base)
        assert target.files.process == job.process.pid
        with pytest.raises(ArgumentError, match="no process with rank 7"):
            targets(words, base, rank=7)


@pytest.mark.parametrize("words", ["nobody", "0", "nowhere/at:all", "127.0.0.1:1"])
def test_what_is_no_job(tmp_path, words):
    with pytest.raises(ArgumentError, match=re.escape(words)):
        targets(words, tmp_path)


def test_a_capture_that_is_not_complete_in_time_is_canceled(job):
    with pytest.raises(StateError, match=r"was not complete after 0.001 s, and is canceled: it needs steps"):
        capture([job.target()], 5, 0.001)
    while job.target().ask("status")["capture"] is not None:
        job.do("steps", 0)
    # Nothing of it is left, and the next one is not refused.
    job.do("steps", 6)
    assert not list(job.folder.glob("*/0/captures/*"))


def test_where_nobody_listens_the_reason_is_that_of_the_job(job, tmp_path):
    target = job.target()
    elsewhere = replace(target, files=replace(target.files, recording=tmp_path / "rank0.recording"))
    with pytest.raises(StateError, match="does not answer: it was left on without control; start it with"):
        elsewhere.ask("status")
    gone = replace(elsewhere, files=replace(elsewhere.files, state="gone"))
    with pytest.raises(StateError, match="its process has ended, or has stopped the flight recorder"):
        gone.ask("status")


def test_a_request_that_is_dropped_unread_says_that_the_process_has_ended(job, tmp_path):
    target = job.target()
    elsewhere = replace(target, files=replace(target.files, recording=tmp_path / "rank0.recording"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        with short_path(tmp_path / "rank0.control") as path:
            listening.bind(path)
        listening.listen()
        request = ControlRequest(elsewhere, do="status")
    # The end of a process resets what it has not accepted.
    with request, pytest.raises(StateError, match="does not answer: its process has ended, or has stopped"):
        request.answer()


def test_a_capture_of_a_job_that_ends_is_not_waited_for(tmp_path):
    with controlled_job(tmp_path) as job:
        target = job.target()
        job.process.kill()
        job.process.wait()
        with pytest.raises(StateError, match="does not answer"):
            capture([target], 1, 600 * ANSWER_S)
