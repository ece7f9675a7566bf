"""Whether a step that is overdue hangs is judged by what its process does, on built looks: no test waits for one."""

import sys
import threading
import time

import pytest
import torch
import torch.distributed as distributed

from kinetoscope.flight.hangs import (
    WAITS,
    WORKS,
    HangWatch,
    Look,
    collective_call,
    is_hang,
    judge,
    verdict_of,
)
from kinetoscope.flight.jobs import ENDED, GONE, HANGS, attempts_in
from kinetoscope.flight.live_stacks import StackLine
from tests.flight.test_jobs import NOBODY, write_log

SECOND_NS = 1_000_000_000
QUIET_S = 8
LOOP = """
def train(ready, batches):
    while not ready:
        sleep(1)
    for batch in batches:
        work(batch)
    while error > 0.1:
        values = solve(values)
    while error > 0.1:
        values = matrix @ values
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LOOP)
    return str(path)


def looks(seconds, *lines, state="blocked by a lock", each=1.0, **per_second):
    """A look each second, while the process does so much in each."""
    stack = lines or (StackLine("/job/train.py", 3, "train"),)
    return [
        Look(
            int((100 + second) * each * SECOND_NS),
            state,
            tuple(stack),
            **{name: int(value * second) for name, value in per_second.items()},
        )
        for second in range(seconds + 1)
    ]


def judged(taken, overdue_s=20):
    return judge(taken, overdue_s * SECOND_NS, QUIET_S * SECOND_NS)


def test_nothing_happens_for_eight_seconds():
    assert judged(looks(QUIET_S)) == HANGS
    assert judged(looks(QUIET_S - 1)) == WORKS
    # Threads that look now and then whether there is something to do.
    assert judged(looks(20, others_ns=0.01 * SECOND_NS, switches=3)) == HANGS


@pytest.mark.parametrize(
    "does",
    [
        {"ran_ns": 0.5 * SECOND_NS, "state": "running"},
        {"others_ns": 0.5 * SECOND_NS},
        {"switches": 500},
    ],
    ids=["an evaluation", "a compilation in child processes", "an upload"],
)
def test_what_works_does_not_hang_for_ten_minutes(does):
    assert judged(looks(40, **does), 40) == WORKS
    assert judged(looks(40, **does), 600) == HANGS


def test_a_checkpoint_goes_from_line_to_line_or_waits_for_the_disk():
    taken = [
        Look(
            second * SECOND_NS,
            "blocked",
            (StackLine("/job/train.py", 1, "train"), StackLine("/job/save.py", second, f"part{second % 3}")),
        )
        for second in range(40)
    ]
    assert judged(taken, 40) == WORKS
    assert judged(looks(40, state="blocked by a file"), 40) == WORKS


@pytest.mark.parametrize(
    ("state", "file"),
    [
        ("blocked by a pipe", "/usr/lib/python3.11/pdb.py"),
        ("blocked by a socket", "/site-packages/_pydevd_bundle/pydevd.py"),
        ("blocked by the terminal", "/job/train.py"),
        ("stopped by a debugger", "/job/train.py"),
    ],
)
def test_a_program_that_waits_for_a_person_never_hangs(state, file):
    lines = (StackLine("/job/train.py", 3, "train"), StackLine(file, 9, "interaction"))
    assert judged(looks(60, *lines, state=state), 86_400) == WORKS


def test_a_loop_that_another_thread_has_to_end_hangs(program):
    endless = StackLine(program, 4, "train")
    assert judged(looks(9, endless, state="running", ran_ns=SECOND_NS)) == HANGS
    assert judged(looks(9, endless, state="blocked by sleep", switches=1000)) == HANGS
    # What it waits for works.
    assert judged(looks(9, endless, state="blocked by sleep", others_ns=SECOND_NS)) == WORKS
    # A loop over batches ends, as does one that computes until something converges.
    for line in (6, 8, 10):
        computes = StackLine(program, line, "train")
        assert judged(looks(9, computes, state="running", ran_ns=SECOND_NS)) == WORKS


def test_a_rank_that_waits_hangs_with_the_others():
    taken = [Look(look.time_ns, look.state, look.lines, collective="all_reduce") for look in looks(9)]
    assert judged(taken) == WAITS
    overdue_ns = 40 * SECOND_NS
    assert not is_hang(WAITS, [WORKS, WAITS], 3, overdue_ns)
    for other in (HANGS, GONE, ENDED):
        assert is_hang(WAITS, [other, WAITS], 3, overdue_ns)
    # All are in collectives that do not fit together.
    assert is_hang(WAITS, [WAITS, WAITS], 3, overdue_ns)
    # Ranks of other machines are not seen.
    assert not is_hang(WAITS, [WAITS], 3, overdue_ns)
    assert is_hang(WAITS, [WAITS], 3, 3 * overdue_ns)
    assert is_hang(HANGS, [], 1, 0)
    assert not is_hang(WORKS, [GONE], 2, overdue_ns)


def test_what_ranks_do_is_read_from_their_files(tmp_path):
    attempt = tmp_path / "job" / "0"
    write_log(attempt, 0, for_s=0.001)
    write_log(attempt, 1, for_s=0.001, verdict=WAITS, collective="barrier")
    write_log(attempt, 2, process=NOBODY, verdict=WAITS)
    write_log(attempt, 3, stopped=True)
    (found,) = attempts_in(tmp_path)
    assert [verdict_of(ring) for ring in found.rings()] == [WORKS, WAITS, GONE, ENDED]


def test_a_thread_of_this_process_is_looked_at():
    release, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (ready.set(), release.wait()))
    thread.start()
    ready.wait()
    try:
        watch = HangWatch(1, thread.native_id, {}, quiet_s=0.0)
        assert watch.judge(time.monotonic_ns())["verdict"] in (WORKS, HANGS)
        assert collective_call(thread.native_id) == {}
    finally:
        release.set()
        thread.join()


def test_the_collective_that_a_thread_is_in_is_described(tmp_path, monkeypatch):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meets", rank=0, world_size=1)
    try:
        calls = []

        class Work:
            def wait(self):
                calls.append(collective_call(threading.get_native_id()))

        monkeypatch.setattr(distributed.group.WORLD.__class__, "allreduce", lambda *_: Work(), raising=False)
        distributed.all_reduce(torch.ones(2, 3))
        (call,) = calls
        assert (call["collective"], call["shape"]) == ("all_reduce", [2, 3])
        assert isinstance(call["sequence"], int)
    finally:
        distributed.destroy_process_group()
        assert sys.modules["torch.distributed"] is distributed
