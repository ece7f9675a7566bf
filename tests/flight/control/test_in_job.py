"""Control inside a job: what it opens, starts and closes again."""

import os
import signal
from pathlib import Path

import pytest

from kinetoscope import StateError
from tests.support.controlled_job import controlled_job


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with controlled_job(tmp_path_factory.mktemp("control")) as found:
        yield found
        found.do("leave_on", "off")


def servers(job):
    """The processes that answer for a job."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            words = (place / "cmdline").read_bytes()
            ended = (place / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            continue
        if b"control.server" in words and str(job.folder).encode() in words and not ended:
            found.append(int(place.name))
    return found


def wait_until(condition):
    while not condition():
        os.sched_yield()


def descriptors(job):
    return len(list(Path(f"/proc/{job.process.pid}/fd").iterdir()))


def threads(job):
    return len(list(Path(f"/proc/{job.process.pid}/task").iterdir()))


def test_nothing_listens_unless_asked(job):
    job.do("stop")
    assert job.do("leave_on", "off") == ""
    job.do("steps", 2)
    assert not list(job.folder.glob("*/0/*.control"))
    wait_until(lambda: not servers(job))
    with pytest.raises(
        StateError, match="it was left on without control; start it with KINETOSCOPE_CONTROL=socket"
    ):
        job.target().ask("GET", "/status")
    # What its files tell is there all the same.
    status, why = job.target().status()
    assert (status["state"], status["step"], status["overhead"]) == ("runs", 1, None)
    assert "without control" in why


def test_all_is_closed_when_it_stops(job):
    job.do("stop")
    job.do("leave_on", "off")
    job.do("steps", 1)
    job.do("stop")
    before, threads_before = descriptors(job), threads(job)
    for _ in range(5):
        assert job.do("leave_on", "socket") == ""
        assert job.target().ask("GET", "/status")[0] == 200
        (path,) = job.folder.glob("*/0/rank0.control")
        assert servers(job)
        job.do("stop")
        assert not path.exists()
    wait_until(lambda: not servers(job))
    # When they were counted first, the recorder's own thread may not have ended yet.
    wait_until(lambda: descriptors(job) <= before and threads(job) <= threads_before)


def test_the_process_that_answers_is_no_child_of_the_job(job):
    job.do("stop")
    job.do("leave_on", "socket")
    assert servers(job)
    assert job.do("children") == "none"


def test_what_stands_in_the_way_of_the_socket_is_a_problem_and_no_exception(job):
    job.do("stop")
    job.do("leave_on", "off")
    (attempt,) = job.folder.glob("*/0")
    path = attempt / "rank0.control"
    path.mkdir()
    job.do("stop")
    assert job.do("leave_on", "socket").startswith("the job cannot be controlled: ")
    assert job.do("steps", 3) == "2"
    path.rmdir()


def test_a_forked_child_does_not_answer_for_its_killed_parent(tmp_path):
    with controlled_job(tmp_path) as job:
        child = int(job.do("fork"))
        (path,) = job.folder.glob("*/0/rank0.control")
        target = job.target()
        job.process.kill()
        wait_until(lambda: not servers(job))
        assert not path.exists()
        with pytest.raises(StateError, match="does not answer"):
            target.ask("GET", "/status")
        os.kill(child, signal.SIGKILL)


def test_a_job_goes_on_when_its_child_ends_and_when_its_server_is_killed(tmp_path):
    with controlled_job(tmp_path) as job:
        assert job.do("end", job.do("fork")) == str(signal.SIGKILL.value)
        assert job.target().ask("GET", "/status")[1]["answered"]
        (path,) = job.folder.glob("*/0/rank0.control")
        (server,) = servers(job)
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not path.exists())
        assert job.do("steps", 3) == "2"


def test_a_capture_that_the_job_is_too_short_for_has_the_steps_that_there_were(job):
    job.do("stop")
    job.do("leave_on", "socket")
    _, some = job.target().ask("POST", "/capture", steps=100)
    job.do("steps", 3)
    job.do("stop")
    assert '"steps": [0, 1, 2]' in Path(some["path"]).with_suffix(".json").read_text()
    assert Path(some["path"]).exists()
    job.do("leave_on", "socket")
    _, none = job.target().ask("POST", "/capture", steps=100)
    job.do("stop")
    assert '"steps": []' in Path(none["path"]).with_suffix(".json").read_text()
