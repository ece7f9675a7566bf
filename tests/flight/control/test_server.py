"""Requests that are answered, whatever the job does, and those that are refused: the job goes on."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

import kinetoscope
from kinetoscope.flight.control.client import wait_for_capture
from tests.support.controlled_job import controlled_job

TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with controlled_job(tmp_path_factory.mktemp("control")) as found:
        assert found.problem == ""
        found.do("steps", 30)
        yield found


def socket_of(job):
    (path,) = job.folder.glob("*/0/rank0.control")
    return path


def send(job, text):
    """What is answered to bytes: the status code and the body."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(os.path.relpath(socket_of(job)))
        return exchange(client, text)


def exchange(client, text):
    client.sendall(text)
    whole = b""
    while part := client.recv(65536):
        whole += part
    head, _, body = whole.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def post(path, body, *headers):
    lines = [f"POST {path} HTTP/1.1", "Host: job", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def test_status(job):
    code, said = job.target().ask("GET", "/status")
    assert code == 200
    assert (said["state"], said["answered"], said["process"]) == ("runs", True, job.process.pid)
    assert said["step"] == int(job.do("steps", 0))
    assert said["overhead"].endswith("of 1 %")


def test_metrics(job):
    code, text = send(job, b"GET /metrics HTTP/1.1\r\nHost: job\r\n\r\n")
    assert code == 200
    assert "\nkinetoscope_step{" in text
    assert "\nkinetoscope_incidents_total{" in text


def test_a_capture_has_the_next_steps_and_a_second_one_is_told_of_the_first(job):
    target = job.target()
    before = int(job.do("steps", 1))
    code, first = target.ask("POST", "/capture", steps=2)
    assert code == 202
    code, second = target.ask("POST", "/capture", steps=2)
    assert (code, second["path"]) == (409, first["path"])
    job.do("steps", 3)
    wait_for_capture(target, first["path"], 60)
    with open(first["path"].replace(".recording", ".json")) as file:
        assert json.load(file)["steps"] == [before + 1, before + 2]
    with kinetoscope.open(first["path"]) as trace:
        assert trace.table("steps")["number"].to_pylist()[-3:-1] == [before + 1, before + 2]
    assert target.ask("GET", "/status")[1]["capture"] is None


def test_a_snapshot_is_made_without_the_program(job):
    job.hold()
    try:
        code, said = job.target().ask("POST", "/snapshot", reason="../../look here")
    finally:
        job.release()
    assert code in (201, 202)
    assert "/incidents/" in said["path"]
    assert ".." not in said["path"]
    assert said["path"] in job.target().ask("GET", "/status")[1]["incidents"]
    with kinetoscope.open(said["path"]) as trace:
        assert len(trace.table("steps"))
    with open(said["path"].replace(".recording", ".json")) as file:
        assert json.load(file)["reason"] == "../../look here"


def test_stacks_are_those_of_the_program(job):
    code, said = job.target().ask("POST", "/stacks")
    assert (code, said["from"]) == (200, "program")
    assert "thread MainThread" in said["stacks"]
    with open(said["path"]) as file:
        assert file.read() == said["stacks"]


def test_a_job_that_holds_the_global_lock_is_known_from_outside(job):
    job.do("steps", 1)
    job.hold()
    try:
        target = job.target()
        # The job says that it holds the lock a moment before it does.
        while (said := target.ask("GET", "/status")[1])["answered"]:
            pass
        assert said["state"] == "runs"
        code, stacks = target.ask("POST", "/stacks")
        assert code in (200, 202)
        assert stacks["from"] == "ring"
        assert "path" in stacks
        code, capture = target.ask("POST", "/capture", steps=1)
        assert (code, capture["note"]) == (
            202,
            "the program does not answer now: the capture begins at its next step",
        )
        assert target.ask("POST", "/capture")[0] == 409
    finally:
        job.release()
    # It was not lost. The thread of the job has read it once the job answers later questions.
    assert target.ask("GET", "/status")[1]["capture"] == capture["path"]
    job.do("steps", 2)
    wait_for_capture(target, capture["path"], 60)


def test_a_job_that_is_stopped_by_a_signal_is_known_from_outside(job):
    os.kill(job.process.pid, signal.SIGSTOP)
    try:
        code, said = job.target().ask("GET", "/status")
    finally:
        os.kill(job.process.pid, signal.SIGCONT)
    assert (code, said["answered"]) == (200, False)


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404, "there are only /status"),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404, "there are only /status"),
        (b"GET /capture HTTP/1.1\r\n\r\n", 405, "/capture is for POST, not for GET"),
        (post("/status", b""), 405, "/status is for GET"),
        (b"DELETE /snapshot HTTP/1.1\r\n\r\n", 405, "is for POST, not for DELETE"),
        (b"BREW /status HTTP/1.1\r\n\r\n", 501, "BREW"),
        (post("/capture", b'{"steps": 0}'), 400, "need a whole number from 1 to 100,000"),
        (post("/capture", b'{"steps": true}'), 400, "need a whole number"),
        (post("/capture", b'{"steps": 1e300}'), 400, "need a whole number"),
        (post("/capture", b'{"path": "/etc/passwd"}'), 400, "has no argument 'path'"),
        (post("/snapshot", b'{"reason": 7}'), 400, "need a text of 1 to 100 characters"),
        (post("/snapshot", json.dumps({"reason": "x" * 101}).encode()), 400, "need a text"),
        (post("/capture", b"[1]"), 400, "not a JSON object"),
        (post("/capture", b'{"steps":'), 400, "not a JSON object"),
        (post("/capture", b"\xff\xfe"), 400, "not a JSON object"),
        (post("/capture", b"[" * 4000), 400, "not a JSON object"),
        (post("/snapshot", b" " * 5_000), 413, "4,096 bytes at most, not 5,000"),
        (post("/snapshot", b" " * 500_000), 413, "4,096 bytes at most, not 500,000"),
        (b"POST /capture HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 411, "Content-Length"),
        (b"POST /capture HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411, "Content-Length"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414, "Too Long"),
        (b"GET /status HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431, "headers"),
        (b"nonsense\r\n\r\n", 400, "nonsense"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, ""),
    ],
)
def test_what_is_refused_does_not_hurt_the_job(job, request_, code, message):
    before = int(job.do("steps", 1))
    got, said = send(job, request_)
    assert (got, message in said) == (code, True), said
    assert int(job.do("steps", 1)) == before + 1
    assert job.target().ask("GET", "/status")[1]["capture"] is None


def test_connections_that_say_nothing_do_not_keep_others_out(job):
    clients = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    try:
        for client in clients:
            client.connect(os.path.relpath(socket_of(job)))
        assert job.target().ask("GET", "/status")[0] == 200
    finally:
        for client in clients:
            client.close()


def test_only_this_user_can_reach_the_socket(job):
    path = socket_of(job)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


ANOTHER_USER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(b"POST /capture HTTP/1.1\\r\\nContent-Length: 0\\r\\n\\r\\n")
while part := client.recv(4096):
    print(part.decode(), end="")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_even_where_the_files_let_him_in(tmp_path):
    import tempfile
    from pathlib import Path

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
            assert done.stdout.startswith("HTTP/1.1 403 Forbidden"), done.stderr
            assert '{"error": "user 65534 is not the one of the job"}' in done.stdout
            assert job.target().ask("GET", "/status")[1]["capture"] is None


def test_a_port_needs_the_token(tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    with controlled_job(tmp_path, "0", KINETOSCOPE_TOKEN_FILE=str(token)) as job:
        # The socket of this user needs none, and tells the port.
        host, _, port = job.target().ask("GET", "/status")[1]["address"].rpartition(":")
        assert host == "127.0.0.1"

        def ask(*headers):
            with socket.create_connection((host, int(port))) as client:
                return exchange(client, post("/stacks", b"", *headers))

        for wrong in ((), ("Authorization: Bearer wrong",), (f"Authorization: Basic {TOKEN}",)):
            code, said = ask(*wrong)
            assert code == 401
            assert json.loads(said) == {"error": "the request needs the header 'Authorization: Bearer TOKEN'"}
        code, said = ask(f"Authorization: Bearer {TOKEN[:-1]}é")
        assert code == 401
        assert ask(f"Authorization: Bearer {TOKEN}")[0] == 200


def test_without_a_good_token_there_is_no_port(tmp_path):
    token = tmp_path / "token"
    token.write_text("short")
    with controlled_job(tmp_path, "0", KINETOSCOPE_TOKEN_FILE=str(token)) as job:
        assert job.problem.startswith("the job cannot be controlled: ArgumentError: ")
        assert "has a token of 5 bytes" in job.problem
        assert int(job.do("steps", 3)) == 2
        assert not list(job.folder.glob("*/0/*.control"))
