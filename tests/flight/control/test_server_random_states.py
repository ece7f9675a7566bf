"""Requests at random moments of a job: each is answered, with a path or a reason, none is lost, and what is to be refused is."""

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from kinetoscope import ArgumentError, StateError
from kinetoscope.flight.control.client import targets
from tests.support.controlled_job import controlled_job
from tests.support.effort import times

REQUESTS = times(60, 1000)
# What is asked, with which arguments, and the code of the only answer where it is to be refused.
KINDS = (
    ("GET", "/status", {}, None),
    ("GET", "/status", {}, None),
    ("POST", "/capture", {}, None),
    ("POST", "/capture", {"steps": 12}, None),
    ("POST", "/snapshot", {}, None),
    ("POST", "/stacks", {}, None),
    ("POST", "/capture", {"folder": "/etc"}, 400),
    ("POST", "/snapshot", {"reason": "x" * 5000}, 413),
)
STATES = ("steps", "steps", "stopped", "hold", "restart", "start", "compile")
GOOD = {200, 201, 202}


class Asker:
    """Sends requests until it is stopped, and keeps what was answered.

    Attributes:
        answers: For each request: the kind, the status code or None where nobody listened, what was said, and how long that took.
    """

    def __init__(self, job, seed):
        self.answers = []
        self._job = job
        self._random = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self):
        self._stopped.set()
        self._thread.join()

    @property
    def is_asking(self):
        return self._thread.is_alive()

    def _run(self):
        while not self._stopped.is_set():
            kind = method, path, named, _ = self._random.choice(KINDS)
            began = time.monotonic()
            try:
                (target,) = targets(str(self._job.process.pid), self._job.folder)
                code, said = target.ask(method, path, **named)
            except (ArgumentError, StateError) as error:
                code, said = None, {"error": str(error)}
            self.answers.append((kind, code, said, time.monotonic() - began))


def wait_for_answers(askers):
    """Wait until each has had an answer to a request that it sent meanwhile."""
    before = [len(one.answers) for one in askers]
    while any(len(one.answers) < count + 2 for one, count in zip(askers, before, strict=True)):
        assert all(one.is_asking for one in askers)
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
    elif state == "start":
        job.do("stop")
        # Its process does not answer yet.
        job.begin("leave_on", "socket")
        wait_for_answers(askers)
        assert job.answer() == ""
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
                put_into(job, choose.choice(STATES), askers)
        finally:
            for one in askers:
                one.stop()
        job.do("steps", 10)
        job.do("stop")
        assert int(job.do("leave_on", "off") == "")
        answers = [answer for one in askers for answer in one.answers]
        counts = Counter((path, code) for (_, path, _, _), code, _, _ in answers)
        longest_s = max(took_s for *_, took_s in answers)
        print(
            f"{len(answers)} requests, the longest took {longest_s:.2f} s; by path and code: {dict(counts)}"
        )
        for (_, path, _, refused), code, said, _ in answers:
            assert code in ({refused, None} if refused else {*GOOD, 409, 503, None}), said
            assert said.get("error") or path == "/status" or said["path"]
        # What was promised is there. Where the program had not answered, it may have ended before it did.
        promised = [
            said["path"]
            for (_, path, _, _), code, said, _ in answers
            if path in ("/capture", "/snapshot") and code in GOOD and "note" not in said
        ]
        assert promised
        kept = [path for path in promised if "incidents" in path or "captures" in path]
        missing = [path for path in kept[-10:] if not Path(path).exists()]
        assert not missing
