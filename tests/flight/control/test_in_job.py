"""Control inside a job: what it answers, to whom, and what it opens and closes again."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope import StateError
from kinetoscope.flight.control.client import ANSWER_S, ControlRequest, capture
from kinetoscope.flight.control.in_job import MOST_CLIENTS, MOST_REQUEST_BYTES, short_path
from tests.support.controlled_job import controlled_job


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with controlled_job(tmp_path_factory.mktemp("control")) as running:
        assert running.problem == ""
        running.do("steps", 30)
        yield running
        running.do("leave_on", "off")


def socket_of(job):
    (path,) = job.folder.glob("*/0/rank0.control")
    return path


def connected(job):
    client = socket.socket(socket.AF_UNIX)
    with short_path(socket_of(job)) as path:
        client.connect(path)
    return client


def everything(client):
    """What a connection sends until it is closed."""
    received = b""
    while part := client.recv(65536):
        received += part
    return received


def wait_until(condition):
    while not condition():
        os.sched_yield()


def count_of(job, what):
    return len(list(Path(f"/proc/{job.process.pid}/{what}").iterdir()))


def test_status(job):
    answer = job.target().ask("status")
    assert answer["overhead"].endswith("of 1 %")
    assert answer["capture"] is None
    state, why = job.target().status()
    assert (why, state["answered"], state["state"]) == ("", True, "runs")
    assert state["step"] == int(job.do("steps", 0))
    assert set(answer) <= set(state)


def test_stacks_are_those_of_the_program(job):
    stacks = job.target().stacks()
    assert stacks["from"] == "program"
    assert stacks["stacks"].startswith("thread MainThread")


def test_a_capture_has_the_next_steps_only_and_a_second_one_is_refused(job):
    before = int(job.do("steps", 1))
    with ControlRequest(job.target(), do="capture", steps=2) as first:
        wait_until(lambda: job.target().ask("status")["capture"])
        with pytest.raises(StateError, match="another capture is running: .*/captures/"):
            capture([job.target()], 2, 60)
        job.do("steps", 3)
        path = Path(first.answer(60)["path"])
    assert json.loads(path.with_suffix(".json").read_text())["steps"] == [before + 1, before + 2]
    with kinetoscope.open(path) as trace:
        assert set(trace.table("steps")["number"].to_pylist()) <= {before + 1, before + 2, before + 3}


def test_a_capture_is_canceled_when_its_client_goes(job):
    files = set(job.folder.glob("*/0/captures/*"))
    with ControlRequest(job.target(), do="capture", steps=100_000):
        wait_until(lambda: job.target().ask("status")["capture"])
        job.do("steps", 2)
    wait_until(lambda: job.target().ask("status")["capture"] is None)
    job.do("steps", 2)
    assert set(job.folder.glob("*/0/captures/*")) == files


def test_a_capture_that_the_job_is_too_short_for_has_the_steps_that_there_were(tmp_path):
    with controlled_job(tmp_path) as job:
        with ControlRequest(job.target(), do="capture", steps=100) as some:
            wait_until(lambda: job.target().ask("status")["capture"])
            job.do("steps", 3)
            job.do("stop")
            path = Path(some.answer(60)["path"])
        assert json.loads(path.with_suffix(".json").read_text())["steps"] == [0, 1, 2]
        assert path.exists()
        job.do("leave_on", "socket")
        with ControlRequest(job.target(), do="capture", steps=100) as none:
            wait_until(lambda: job.target().ask("status")["capture"])
            job.do("stop")
            with pytest.raises(StateError, match="has stopped before the first step of the capture began"):
                none.answer(60)


def test_a_job_that_holds_the_global_lock_is_known_from_outside(job):
    job.do("steps", 1)
    job.hold()
    try:
        target = job.target()
        # The job says that it holds the lock a moment before it does.
        while (state := target.status())[0]["answered"]:
            pass
        assert state[0]["state"] == "runs"
        assert f"nothing came within {ANSWER_S:g} s" in state[1]
        assert target.stacks()["from"] in ("process", "ring")
        request = ControlRequest(target, do="capture", steps=1)
    finally:
        job.release()
    # It was not lost: it waited in the socket.
    with request:
        wait_until(lambda: job.target().ask("status")["capture"])
        job.do("steps", 2)
        assert Path(request.answer(60)["path"]).exists()


def test_a_job_that_is_stopped_by_a_signal_is_known_from_outside(job):
    os.kill(job.process.pid, signal.SIGSTOP)
    try:
        state, _ = job.target().status()
    finally:
        os.kill(job.process.pid, signal.SIGCONT)
    assert (state["state"], state["answered"]) == ("runs", False)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (b"GET /status HTTP/1.1", "is not a request such as"),
        (b"[1]", "is not a request such as"),
        (b"7", "is not a request such as"),
        (b"{}", "is not a request such as"),
        (b'{"do":', "is not a request such as"),
        (b"\xff\xfe", "is not a request such as"),
        (b"[" * 4000, "is not a request such as"),
        (b'{"do": "run", "path": "/etc/passwd"}', "do='run' is not one of 'status', 'stacks', 'capture'"),
        (b'{"do": ["status"]}', "is not one of"),
        (b'{"do": "capture", "steps": 0}', "need a whole number from 1 to 100,000"),
        (b'{"do": "capture", "steps": true}', "need a whole number"),
        (b'{"do": "capture", "steps": 1e300}', "need a whole number"),
    ],
)
def test_what_is_refused_does_not_hurt_the_job(job, request_, message):
    before = int(job.do("steps", 1))
    with connected(job) as client:
        client.sendall(request_ + b"\n")
        answer = json.loads(everything(client))
    assert message in answer["error"]
    assert int(job.do("steps", 1)) == before + 1
    assert job.target().ask("status")["capture"] is None


def test_a_request_without_an_end_is_cut_off(job):
    with connected(job) as client:
        client.sendall(b"x" * (MOST_REQUEST_BYTES + 1))
        with pytest.raises(ConnectionError):
            wait_until(lambda: client.send(b"x") == 0)


def test_clients_that_say_or_read_nothing_keep_nobody_out(job):
    descriptors = count_of(job, "fd")
    clients = [connected(job) for _ in range(3 * MOST_CLIENTS)]
    try:
        for client in clients[-MOST_CLIENTS // 2 :]:
            # Its answers are not read.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.sendall(b'{"do": "stacks"}\n')
        assert job.target().ask("status")["problem"] == ""
        before = int(job.do("steps", 3))
        assert int(job.do("steps", 1)) == before + 1
        assert count_of(job, "fd") <= descriptors + MOST_CLIENTS + 2
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: count_of(job, "fd") <= descriptors)


def test_only_this_user_can_reach_the_socket(job):
    path = socket_of(job)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


ANOTHER_USER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
client = socket.socket(socket.AF_UNIX)
# The whole path may be too long for a socket.
folder, name = os.path.split(sys.argv[1])
os.chdir(folder)
client.connect(name)
try:
    client.sendall(b'{"do": "status"}\\n')
    print(client.recv(4096))
except (BrokenPipeError, ConnectionResetError):
    print(b"")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_even_where_the_files_let_him_in():
    # Not tmp_path, whose parents nobody else can enter.
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with controlled_job(folder) as job:
            for opened in (folder, *folder.glob("jobs"), *folder.glob("jobs/*"), *folder.glob("jobs/*/0")):
                opened.chmod(0o755)
            path = socket_of(job)

            def ask():
                return subprocess.run(
                    [sys.executable, "-c", ANOTHER_USER, path], capture_output=True, text=True, check=False
                )

            assert "PermissionError" in ask().stderr
            path.chmod(0o666)
            done = ask()
            assert done.stdout == "b''\n", done.stderr
            assert job.target().ask("status")["capture"] is None


def test_nothing_listens_unless_asked(tmp_path):
    with controlled_job(tmp_path, "off") as job:
        job.do("steps", 2)
        assert not list(job.folder.glob("*/0/*.control"))
        state, why = job.target().status()
        # What its files tell is there all the same.
        assert (state["state"], state["step"], state["overhead"]) == ("runs", 1, None)
        assert "it was left on without control; start it with KINETOSCOPE_CONTROL=socket" in why


def test_all_is_closed_when_it_stops(tmp_path):
    with controlled_job(tmp_path, "off") as job:
        job.do("steps", 1)
        job.do("stop")
        descriptors, threads = count_of(job, "fd"), count_of(job, "task")
        for _ in range(5):
            assert job.do("leave_on", "socket") == ""
            path = socket_of(job)
            with connected(job):
                assert job.target().ask("status")["problem"] == ""
                job.do("stop")
            assert not path.exists()
        wait_until(lambda: count_of(job, "fd") <= descriptors and count_of(job, "task") <= threads)


def test_what_stands_in_the_way_of_the_socket_is_a_problem_and_no_exception(tmp_path):
    with controlled_job(tmp_path, "off") as job:
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
        target = job.target()
        assert target.ask("status")["problem"] == ""
        job.process.kill()
        job.process.wait()
        try:
            with pytest.raises(StateError, match="does not answer: .*has ended|does not answer: .*left on"):
                target.ask("status")
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_job_that_closes_its_files_goes_on_without_control(tmp_path):
    with controlled_job(tmp_path) as job:
        job.do("close_files")
        assert job.do("steps", 3) == "2"
