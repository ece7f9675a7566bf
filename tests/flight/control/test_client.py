"""Which ranks a person means."""

import re

import pytest

from kinetoscope import ArgumentError, StateError
from kinetoscope.flight.control.client import targets, wait_for_capture
from tests.support.controlled_job import controlled_job


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with controlled_job(tmp_path_factory.mktemp("control")) as found:
        yield found


def test_a_job_is_found_by_its_process_its_name_and_its_folder(job):
    base = job.folder
    (place,) = base.iterdir()
    for words in (str(job.process.pid), place.name, str(place), str(place / "0"), str(base)):
        (found,) = targets(words, base)
        assert found.files.process == job.process.pid
        with pytest.raises(ArgumentError, match="no process with rank 7"):
            targets(words, base, rank=7)


@pytest.mark.parametrize("words", ["nobody", "0", "nowhere/at:all"])
def test_what_is_no_job(tmp_path, words):
    with pytest.raises(ArgumentError, match=re.escape(words)):
        targets(words, tmp_path)


def test_a_port_where_nobody_listens():
    (target,) = targets("127.0.0.1:1", None)
    with pytest.raises(StateError, match="127.0.0.1:1 does not answer: .*refused"):
        target.ask("GET", "/status")


def test_a_capture_is_not_waited_for_without_limit(job):
    times = iter([0.0, 5.0, 11.0])
    path = job.target().ask("POST", "/capture")[1]["path"]
    with pytest.raises(
        StateError, match=f"not complete after 10 s, because it needs steps that begin: it will be at {path}"
    ):
        wait_for_capture(job.target(), path, 10, lambda: next(times))


def test_a_capture_of_a_job_that_has_ended_is_not_waited_for(job):
    target = job.target()
    job.process.kill()
    job.process.wait()
    with pytest.raises(StateError, match="has ended before the first step of the capture began"):
        wait_for_capture(target, str(job.folder / "none.recording"), 600)
