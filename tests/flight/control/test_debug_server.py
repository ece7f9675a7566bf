"""Handlers for torch's debug server, through a real one."""

import json

import pytest
import torch

from tests.flight.test_flight import run

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_distributed_c10d") or not hasattr(torch._C._distributed_c10d, "_WorkerServer"),
    reason="this torch has no debug server",
)

SERVE = """
import json, urllib.error, urllib.request
from torch._C._distributed_c10d import _WorkerServer

def ask(name):
    request = urllib.request.Request(f"http://localhost:{server.port}/handler/kinetoscope_{name}", method="POST")
    try:
        with urllib.request.urlopen(request) as answer:
            code, said = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        code, said = error.code, error.read()
    print(json.dumps([code, said.decode()]))

server = _WorkerServer("localhost", 0)
"""


def answers(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_job_that_uses_the_debug_server_is_asked_through_it(tmp_path):
    done = run(
        tmp_path,
        SERVE + "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    ask('status')\n"
        "    import torch.distributed.debug\n"
        "    recorder.step()\n"
        "    ask('status')\n"
        "    ask('capture?steps=2')\n"
        "    ask('capture?steps=2')\n"
        "    ask('capture?steps=-2')\n"
        "    for _ in range(3):\n"
        "        recorder.step()\n"
        "        train_step()\n"
        "    ask('snapshot?reason=look')\n"
        "ask('status')\n"
        "kinetoscope.leave_on(keep='8MiB')\n"
        "ask('status')\n"
        "server.shutdown()\n",
    )
    assert done.returncode == 0, done.stderr
    before, status, capture, second, wrong, snapshot, stopped, again = answers(done)
    # It registers nothing in a job that does not use the debug server.
    assert before[0] == 404
    assert status[0] == 200
    assert json.loads(status[1])["incidents"] == []
    assert (capture[0], second[0], wrong[0], snapshot[0]) == (202, 409, 400, 201)
    assert list(tmp_path.glob("jobs/*/0/captures/rank0-*.recording"))
    assert json.loads(snapshot[1])["path"].endswith("-look/rank0.recording")
    assert (stopped[0], again[0]) == (503, 200)
    assert "nothing is recorded" in stopped[1]


def test_a_torch_without_it_is_left_alone(tmp_path):
    done = run(
        tmp_path,
        "del torch._C._distributed_c10d._register_handler\n"
        "sys.modules['torch.distributed.debug'] = os\n"
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder.step()\n"
        "    print(recorder.status().on)\n",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
