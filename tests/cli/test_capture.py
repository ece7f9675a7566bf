"""`kinetoscope capture`, `status` and `stacks` of jobs that run."""

import json
import threading

import pytest
from click.testing import CliRunner

import kinetoscope
from kinetoscope.cli import main
from tests.support.controlled_job import controlled_job


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with controlled_job(tmp_path_factory.mktemp("control")) as found:
        found.do("steps", 10)
        yield found


def call(job, *words):
    return CliRunner().invoke(main, list(words), env={"KINETOSCOPE_DIR": str(job.folder)})


def test_the_steps_that_were_asked_for_are_in_the_trace(job, tmp_path):
    process, output = str(job.process.pid), tmp_path / "x.ktrace"
    done = []
    thread = threading.Thread(
        target=lambda: done.append(call(job, "capture", process, "--steps", "3", "-o", str(output)))
    )
    thread.start()
    while thread.is_alive():
        job.do("steps", 1)
    thread.join()
    assert (done[0].exit_code, done[0].output) == (0, f"{output}\n")
    with kinetoscope.open(output) as trace:
        numbers = trace.table("steps")["number"].to_pylist()
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        assert trace.table("spans")["name"].to_pylist().count("aten::linear") == 3


def test_status(job):
    done = call(job, "status", str(job.process.pid))
    assert done.exit_code == 0
    assert " rank 0: runs, step " in done.output
    (told,) = json.loads(call(job, "status", str(job.process.pid), "--json").stdout)
    assert (told["process"], told["from_outside"], told["answered"]) == (job.process.pid, None, True)


def test_status_of_a_job_that_cannot_be_controlled_is_read_from_outside(tmp_path):
    with controlled_job(tmp_path, "off") as job:
        job.do("steps", 2)
        done = call(job, "status", str(job.process.pid))
        assert "rank 0: runs, step 1 for" in done.output
        assert "  read from outside: rank 0 of " in done.output
        (stacks,) = json.loads(call(job, "stacks", str(job.process.pid), "--json").stdout)
        assert (stacks["rank"], stacks["from"] in ("process", "ring")) == (0, True)
        refused = call(job, "capture", str(job.process.pid))
        assert refused.exit_code == 1
        assert "KINETOSCOPE_CONTROL=socket" in str(refused.output)


def test_stacks_are_told_by_the_program(job):
    done = call(job, "stacks", str(job.process.pid))
    assert done.exit_code == 0
    assert "thread MainThread" in done.output
    assert "in <module>" in done.output


def test_no_waiting_is_longer_than_asked(job):
    done = call(job, "capture", str(job.process.pid), "--wait", "1ms", "--steps", "2")
    assert done.exit_code == 1
    assert "was not complete after 0.001 s, and is canceled" in done.output
    job.do("steps", 4)
