"""What is kept of the end of a job, whatever stands in the way, and what is no end."""

import json
import os
import re
import subprocess
import sys

import pytest

import kinetoscope
from kinetoscope.flight.jobs import GONE, attempts_in
from kinetoscope.flight.last import last_event
from tests.flight.test_flight import LOOP, incidents, run
from tests.support import warm_python

# No file can grow beyond so many bytes from then on, as on a disk that is full.
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, -1))\n"
TWENTY = "record_all(recorder)\nfor number in range(20):\n    recorder.step(number)\n    train_step()\n"


def facts(path):
    return json.loads(path.with_suffix(".json").read_text())


def test_an_episode_of_nan_is_one_incident_and_the_crash_behind_it_is_kept(tmp_path):
    done = run(
        tmp_path,
        "nan = float('nan')\n"
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    for number in range(300):\n"
        "        recorder.step(number, loss=nan if number % 3 == 0 and 50 < number < 200 else 1.0)\n"
        "    for number in range(300, 310):\n"
        "        recorder.step(number, loss=nan)\n"
        "    raise ValueError('the real end')\n",
    )
    assert done.returncode == 1
    folders = sorted((tmp_path / "jobs").glob("*/*/incidents/*"))
    # Of those of one second, later ones have a number behind their reason.
    assert sorted(folder.name.split("-")[1] for folder in folders) == ["crash", "nan", "nan"]
    assert facts(incidents(tmp_path)["crash"])["what"].startswith("ValueError: the real end")


def test_the_end_is_kept_where_the_limit_of_its_reason_is_reached(tmp_path):
    done = run(
        tmp_path,
        "recorder = kinetoscope.leave_on(keep='8MiB', limits='1/hour')\n"
        "for _ in range(2):\n"
        "    recorder.step()\n"
        "    recorder._incident('crash', {'what': 'of another thread'})\n"
        "print(recorder.status().refused)\n"
        "raise ValueError('the real end')\n",
    )
    assert done.stdout == "1\n"
    assert len(list((tmp_path / "jobs").glob("*/*/incidents/*-crash*"))) == 2


@pytest.mark.parametrize("most_bytes", [0, 20_000], ids=["nothing", "only what was said"])
def test_a_ring_that_cannot_be_copied_is_moved(tmp_path, most_bytes):
    done = run(
        tmp_path,
        "recorder = kinetoscope.leave_on(keep='8MiB')\n"
        + TWENTY
        + LIMIT.format(most_bytes)
        + "raise ValueError('the real end')\n",
    )
    # 120: the limit is also that of the file of standard error, which Python could not flush.
    assert done.returncode in (1, 120)
    ((path,),) = ([*(tmp_path / "jobs").glob("*/*/incidents/*/rank0.recording")],)
    assert path.parent.name.endswith("-crash")
    with kinetoscope.open(path) as trace:
        assert trace.table("steps")["number"].to_pylist()[-1] == 19
    event = last_event(str(tmp_path / "jobs"), tmp_path)
    assert event.reason == "crash"
    assert "ValueError: the real end" in event.sentence
    assert (
        "the ring could not be copied (File too large), so it was moved when the program ended"
        in event.sentence
    )


def test_a_ring_that_cannot_be_moved_stays_and_the_next_job_keeps_it(tmp_path):
    done = run(
        tmp_path,
        "recorder = kinetoscope.leave_on(keep='8MiB')\n"
        + TWENTY
        + "(recorder.status().folder / 'incidents').write_text('in the way')\n"
        "raise ValueError('the real end')\n",
    )
    assert done.returncode == 1
    (attempt,) = attempts_in(tmp_path / "jobs")
    (ring,) = attempt.rings()
    assert (ring.state, ring.recording.exists()) == (GONE, True)
    event = last_event(None, tmp_path / "jobs")
    assert "in step 19: ValueError: the real end" in event.sentence
    (attempt.folder / "incidents").unlink()
    assert run(tmp_path, "kinetoscope.leave_on(keep='8MiB')\n").returncode == 0
    assert facts(incidents(tmp_path)["crash"])["step"] == 19
    assert incidents(tmp_path)["crash"].exists()


def test_a_ring_is_kept_for_an_incident_that_the_program_survives(tmp_path):
    done = run(
        tmp_path,
        "recorder = kinetoscope.leave_on(keep='8MiB')\n"
        + TWENTY
        + LIMIT.format(20_000)
        + "recorder.step(20, loss=float('nan'))\n"
        "recorder.stop()\n",
    )
    assert done.returncode == 0, done.stderr
    path = incidents(tmp_path)["nan"]
    assert "the loss of step 19 is nan" in facts(path)["what"]
    with kinetoscope.open(path) as trace:
        assert 19 in trace.table("steps")["number"].to_pylist()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_on_a_disk_that_is_full_the_ring_is_kept(tmp_path):
    (tmp_path / "jobs").mkdir()
    program = (
        "import torch, kinetoscope\n"
        "recorder = kinetoscope.leave_on(keep='8MiB')\n"
        "recorder._follow_plan = lambda *_: None\n"
        "recorder._plan.records = lambda step: True\n"
        "for number in range(20):\n"
        "    recorder.step(number)\n"
        "    torch.ones(3).add(1)\n"
        "with open('jobs/checkpoint', 'wb', buffering=0) as file:\n"
        "    while True:\n"
        "        file.write(bytes(4096))\n"
    )
    last = "from kinetoscope.cli import main; main(['last', 'jobs'])"
    commands = f'mount -t tmpfs -o size=100m none jobs; "{sys.executable}" -c "{program}"; "{sys.executable}" -c "{last}"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "KINETOSCOPE_DIR": str(tmp_path / "jobs")},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this container may not mount: {done.stderr[:200]}")
    assert ": crash at " in done.stdout, done.stderr
    assert "OSError: [Errno 28] No space left on device" in done.stdout
    assert "the ring could not be copied (No space left on device), so it was moved" in done.stdout
    assert re.search(r"^rank 0 on \S+: in step 19", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("end", "reason", "what"),
    [
        (
            "try:\n    raise ValueError('the real cause')\nexcept ValueError:\n    traceback.print_exc()\n    sys.exit(1)\n",
            "crash",
            "sys.exit(1), after ValueError: the real cause at <string>:",
        ),
        ("sys.exit('no data')\n", "exit", "sys.exit(no data)"),
        ("with recorder:\n    raise SystemExit(3)\n", "exit", "sys.exit(3)"),
    ],
)
def test_an_exit_that_is_no_success_is_an_incident(tmp_path, end, reason, what):
    done = run(
        tmp_path, "import sys, traceback\nrecorder = kinetoscope.leave_on(keep='8MiB')\n" + TWENTY + end
    )
    assert done.returncode in (1, 3)
    (path,) = incidents(tmp_path).values()
    assert facts(path)["reason"] == reason
    assert facts(path)["what"].startswith(what)
    with kinetoscope.open(path) as trace:
        assert trace.table("steps")["number"].to_pylist()[-1] == 19


NO_FAILURES = (
    "sys.exit()\n",
    "sys.exit(0)\n",
    "try:\n    sys.exit(2)\nexcept SystemExit:\n    recorder.step()\n",
    "threading.Thread(target=sys.exit, args=(3,)).start()\n",
    "if os.fork() == 0:\n    sys.exit(5)\nos.wait()\n",
    "os.execv('/bin/true', ['true'])\n",
    "os.execlp('true', 'true')\n",
    "sys.ps1 = '>>> '\nsys.excepthook(ValueError, ValueError('a typo'), None)\ndel sys.ps1\n",
)


def test_what_is_no_failure_leaves_nothing(tmp_path):
    environment = {**os.environ, "KINETOSCOPE_DIR": str(tmp_path / "jobs")}
    start = LOOP + "import os, sys, threading\nrecorder = kinetoscope.leave_on(keep='8MiB')\n" + TWENTY
    ended = warm_python.run_together(
        [(("-c", start + end), environment) for end in NO_FAILURES], cwd=tmp_path
    )
    assert [done.returncode for done in ended] == [0] * len(NO_FAILURES), [done.stderr for done in ended]
    assert not incidents(tmp_path)
    assert not [
        ring for attempt in attempts_in(tmp_path / "jobs") for ring in attempt.rings() if ring.state == GONE
    ]
    # Nor does the next job take one of them for killed.
    assert run(tmp_path, "kinetoscope.leave_on(keep='8MiB')\n").returncode == 0
    assert not incidents(tmp_path)


def test_another_program_that_cannot_be_started_changes_nothing(tmp_path):
    done = run(
        tmp_path,
        "import os\n"
        "recorder = kinetoscope.leave_on(keep='8MiB')\n" + TWENTY + "try:\n"
        "    os.execvp('no-such-program', ['no-such-program'])\n"
        "except FileNotFoundError:\n"
        "    recorder.step()\n"
        "os.kill(os.getpid(), 9)\n",
    )
    assert done.returncode == -9
    assert ": killed, or crashed" in last_event(None, tmp_path / "jobs").sentence


def test_a_job_in_a_folder_of_its_own_is_found_by_its_process_and_listed(tmp_path):
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    environment.pop("KINETOSCOPE_DIR", None)
    program = (
        "import os, sys, subprocess, tempfile\n"
        "tempfile.tempdir = None\n"
        "import torch, kinetoscope\n"
        "from click.testing import CliRunner\n"
        "from kinetoscope.cli import main\n"
        "with kinetoscope.leave_on(keep='8MiB', folder='flights') as recorder:\n"
        "    recorder.step(7)\n"
        "    for words in (['ps'], ['last', str(os.getpid())], ['status', str(os.getpid())]):\n"
        "        print(CliRunner().invoke(main, words).output)\n"
    )
    done = warm_python.run("-c", program, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.count("in step 7") + done.stdout.count("step 7  ") + done.stdout.count(", step 7 ") >= 3
    )
    assert str(tmp_path / "flights") in done.stdout
    # A folder that is gone is not listed any longer, nor is one twice.
    assert len(list((tmp_path / "temporary").glob("*/elsewhere/*"))) == 1
