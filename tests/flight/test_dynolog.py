"""Recordings that a daemon asks for, which speaks the protocol of dynolog."""

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from kinetoscope import ArgumentError
from kinetoscope.flight.dynolog import DaemonLink, ancestors, parse_request
from tests.support import warm_python

HEADER = struct.Struct("=Q32s")
LOOP = """
import sys, torch, kinetoscope
from kinetoscope.flight.dynolog import Dynolog
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
client = Dynolog(0.01)
client.start()
for step in range(10_000_000):
    model(torch.ones(2, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0 and ended():
        break
client.stop()
"""


class Daemon:
    """The other end of the protocol.

    Attributes:
        registered: The processes that have registered, with their job.
        asked: The processes that each question named.
    """

    def __init__(self, address):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(60)
        self._socket.bind(address)
        self.registered, self.asked = [], []

    def answer(self, text=""):
        """Answer the next message, a question with a text; return its type."""
        message, sender = self._socket.recvfrom(65536)
        size, kind = HEADER.unpack_from(message)
        kind = kind.rstrip(b"\0").decode()
        payload = message[HEADER.size :]
        assert len(payload) == size
        if kind == "ctxt":
            gpu, process, job = struct.unpack("=iiq", payload)
            self.registered.append((gpu, process, job))
            said = struct.pack("=i", len(self.registered))
        else:
            type_, count, job = struct.unpack_from("=iiq", payload)
            assert type_ == 2
            self.asked.append((job, struct.unpack_from(f"={count}i", payload, 16)))
            said = text.encode()
        self._socket.sendto(HEADER.pack(len(said), kind.encode()) + said, sender)
        return kind

    def close(self):
        self._socket.close()


@pytest.fixture
def place():
    """A folder with a name short enough for sockets, below /tmp as dynolog's files are."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def daemon(place):
    found = Daemon(str(place / "dynolog"))
    yield found
    found.close()


def record(place, daemon, text, **environment):
    """Answer a training loop once with a text, then with nothing until it has ended."""
    ended = place / "ended"
    loop = f"import os\nended = lambda: os.path.exists({str(ended)!r})\n" + LOOP
    program = subprocess.Popen(
        [sys.executable, "-c", loop],
        env={**os.environ, "KINETO_IPC_SOCKET_DIR": str(place), **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert daemon.answer() == "ctxt"
    assert daemon.answer(text) == "req"
    # It asks again when it has written the file.
    assert daemon.answer() == "req"
    ended.touch()
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    return program.pid, errors


def events(path):
    found = json.loads(path.read_text())
    return found, [event for event in found["traceEvents"] if event.get("name") == "aten::linear"]


def test_steps_are_recorded_and_written_where_the_daemon_asked(place, daemon):
    process, errors = record(
        place,
        daemon,
        f"ACTIVITIES_LOG_FILE={place}/out/trace.json\n"
        "PROFILE_START_ITERATION=0\nPROFILE_START_ITERATION_ROUNDUP=10\nACTIVITIES_ITERATIONS=3\n"
        "PROFILE_REPORT_INPUT_SHAPES=true\nPROFILE_WITH_STACK=false\nREQUEST_TRACE_ID=abc-1\nSOMETHING_NEW=1\n",
        SLURM_JOB_ID="77",
    )
    assert errors == ""
    assert daemon.registered == [(0, process, 77)]
    job, processes = daemon.asked[0]
    assert (job, processes[:2]) == (77, (process, os.getpid()))
    found, linear = events(place / "out" / f"trace_{process}.json")
    assert len(linear) == 3
    assert linear[0]["args"]["Input Dims"][0] == [2, 8]
    assert found["trace_id"] == "abc-1"


def test_a_time_is_recorded(place, daemon):
    process, errors = record(
        place,
        daemon,
        f"ACTIVITIES_LOG_FILE={place}/trace.json\nACTIVITIES_DURATION_MSECS=50\nPROFILE_START_TIME=1\n",
    )
    assert errors == ""
    _, linear = events(place / f"trace_{process}.json")
    assert linear
    assert "Input Dims" not in linear[0].get("args", {})


def test_a_file_elsewhere_is_refused_with_a_warning(place, daemon):
    process, errors = record(
        place, daemon, "ACTIVITIES_LOG_FILE=/var/trace.json\nACTIVITIES_DURATION_MSECS=1\n"
    )
    assert not Path(f"/var/trace_{process}.json").exists()
    assert "dynolog asks for /var/trace_" in errors
    assert "set KINETO_ONDEMAND_TRACE_DIR to the folder of traces" in errors


def test_without_a_daemon_nothing_happens():
    done = warm_python.run(
        "-c",
        "ended = lambda: step == 500\n" + LOOP,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_environment_starts_it_after_the_import_of_torch(place, daemon):
    program = subprocess.Popen(
        [sys.executable, "-c", "import kinetoscope, torch, sys; sys.stdin.read()"],
        env={**os.environ, "KINETO_IPC_SOCKET_DIR": str(place), "KINETOSCOPE_DYNOLOG": "1"},
        stdin=subprocess.PIPE,
    )
    assert daemon.answer() == "ctxt"
    assert daemon.answer() == "req"
    assert [process for _, process, _ in daemon.registered] == [program.pid]
    program.communicate(timeout=60)
    assert program.returncode == 0
    assert [path.name for path in place.iterdir()] == ["dynolog"]


def test_a_daemon_with_an_abstract_name_is_found():
    try:
        daemon = Daemon(b"\0dynolog\0")
    except OSError:
        pytest.skip("a daemon of dynolog runs on this machine")
    link = DaemonLink({})
    answers = threading.Thread(target=lambda: (daemon.answer(), daemon.answer("A=1\n")))
    answers.start()
    assert link.ask() == "A=1\n"
    answers.join()
    link.close()
    daemon.close()


def test_a_daemon_that_is_silent_or_gone_is_told_of_this_process_again(place):
    link = DaemonLink({"KINETO_IPC_SOCKET_DIR": str(place)})
    assert link.ask() == ""
    for _ in range(2):
        daemon = Daemon(str(place / "dynolog"))
        answers = threading.Thread(target=lambda daemon=daemon: (daemon.answer(), daemon.answer("A=1\n")))
        answers.start()
        assert link.ask() == "A=1\n"
        answers.join()
        assert daemon.registered == [(0, os.getpid(), 0)]
        daemon.close()
        (place / "dynolog").unlink()
        assert link.ask() == ""
    link.close()
    assert not list(place.iterdir())


def test_what_is_asked_for():
    request = parse_request(
        "ACTIVITIES_LOG_FILE=/tmp/a/b.json\nPROFILE_START_TIME=5000\nACTIVITIES_DURATION_MSECS=250\nPROFILE_WITH_STACK=TRUE\n",
        7,
        {},
    )
    assert str(request.path) == "/tmp/a/b_7.json"
    assert (request.start_s, request.duration_s, request.iterations) == (5.0, 0.25, 0)
    assert [name for name, on in request.options.items() if on] == ["with_stack"]
    assert (
        str(parse_request("", 7, {"KINETO_ONDEMAND_TRACE_DIR": "/traces"}).path)
        == "/traces/libkineto_activities_7.json"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ACTIVITIES_LOG_FILE=/etc/x.json", "/etc/x_7.json, which is not below /tmp"),
        ("ACTIVITIES_LOG_FILE=/tmp/../etc/x.json", "which is not below /tmp"),
        ("ACTIVITIES_LOG_FILE=x.json", "which is not below /tmp"),
        ("ACTIVITIES_ITERATIONS=many", "ACTIVITIES_ITERATIONS='many', which is no whole number"),
    ],
)
def test_what_cannot_be_used(text, message, monkeypatch):
    monkeypatch.chdir("/")
    with pytest.raises(ArgumentError) as caught:
        parse_request(text, 7, {})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("start", "roundup", "now", "expected"),
    [(-1, 1, 41, 42), (0, 10, 41, 50), (100, 1, 41, 100), (101, 50, 41, 150), (0, 1, -1, 0)],
)
def test_the_first_iteration(start, roundup, now, expected):
    text = f"PROFILE_START_ITERATION={start}\nPROFILE_START_ITERATION_ROUNDUP={roundup}"
    assert parse_request(text, 7, {}).first_iteration(now) == expected


def test_ancestors():
    assert ancestors(os.getpid())[:2] == [os.getpid(), os.getppid()]
