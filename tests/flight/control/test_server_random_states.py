"""Requests at random moments of a job: each is answered, with a path or a reason, and none is lost."""

import os
import random
import signal
import threading
import time
from pathlib import Path

from kinetoscope import ArgumentError, StateError
from kinetoscope.flight.control.client import targets
from tests.support.controlled_job import controlled_job
from tests.support.effort import times

REQUESTS = times(60, 1000)
KINDS = (
    ("GET", "/status"),
    ("GET", "/status"),
    ("POST", "/capture"),
    ("POST", "/snapshot"),
    ("POST", "/stacks"),
)
GOOD = {200, 201, 202}


class Asker:
    """Sends requests until it is stopped, and keeps what was answered.

    Attributes:
        answers: For each request: the kind, the status code or None where nobody listened, and what was said.
        longest_s: The longest time that a request took.
    """

    def __init__(self, job, seed):
        self.answers, self.longest_s = [], 0.0
        self._job = job
        self._random = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self):
        self._stopped.set()
        self._thread.join()

    def _run(self):
        while not self._stopped.is_set():
            method, path = self._random.choice(KINDS)
            began = time.monotonic()
            try:
                (target,) = targets(str(self._job.process.pid), self._job.folder)
                code, said = target.ask(method, path)
            except (ArgumentError, StateError) as error:
                code, said = None, {"error": str(error)}
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.answers.append((path, code, said))


def wait_for_answers(askers):
    """Wait until each has had an answer to a request that it sent meanwhile."""
    before = [len(one.answers) for one in askers]
    while any(len(one.answers) < count + 2 for one, count in zip(askers, before, strict=True)):
        os.sched_yield()


def put_into(job, state, askers):
    """Let a job be in a state for a moment."""
    if state == "stopped":
        os.kill(job.process.pid, signal.SIGSTOP)
        wait_for_answers(askers)
        os.kill(job.process.pid, signal.SIGCONT)
    elif state == "hold":
        job.hold()
        wait_for_answers(askers)
        job.release()
    elif state == "restart":
        job.do("stop")
        assert job.do("leave_on", "socket") == ""
    elif state == "compile":
        job.do("compile")
    else:
        job.do("steps", 5)


def test_each_request_is_answered_and_each_capture_is_there(tmp_path):
    choose = random.Random(7)
    with controlled_job(tmp_path) as job:
        askers = [Asker(job, seed) for seed in range(2)]
        try:
            while sum(len(one.answers) for one in askers) < REQUESTS:
                put_into(
                    job, choose.choice(("steps", "steps", "stopped", "hold", "restart", "compile")), askers
                )
        finally:
            for one in askers:
                one.stop()
        job.do("steps", 10)
        job.do("stop")
        assert int(job.do("leave_on", "off") == "")
        answers = [answer for one in askers for answer in one.answers]
        unreached = sum(code is None for _, code, _ in answers)
        longest_s = max(one.longest_s for one in askers)
        print(
            f"{len(answers)} requests, {unreached} while nobody listened, the longest took {longest_s:.2f} s"
        )
        for path, code, said in answers:
            assert code in {*GOOD, 409, 503, None}, said
            assert said.get("error") or path == "/status" or said["path"]
        # What was promised is there. Where the program had not answered, it may have ended before it did.
        promised = [
            said["path"]
            for path, code, said in answers
            if path in ("/capture", "/snapshot") and code in GOOD and "note" not in said
        ]
        assert promised
        kept = [path for path in promised if "incidents" in path or "captures" in path]
        missing = [path for path in kept[-10:] if not Path(path).exists()]
        assert not missing
