"""`kinetoscope last` on programs that hang, read from outside."""

import json
import os
import subprocess
import time
from contextlib import contextmanager, suppress

import pytest

from kinetoscope._errors import ArgumentError
from kinetoscope.flight.last import LastEvent, RankPlace, _in_order, _who_is_missing, last_event
from kinetoscope.flight.step_log import read_step_log
from tests.flight.test_jobs import NOBODY, write_incident, write_log
from tests.support import warm_python

PATIENCE_S = 120.0

HANGS = """
import ctypes, sys, threading
import torch, kinetoscope
from kinetoscope.flight.triggers import StepTimes

model = torch.nn.Linear(8, 8)
recorder = kinetoscope.leave_on(keep="8MiB", folder="jobs")
recorder._times, recorder.quiet_s = StepTimes(0.3, 0.3), 1.0
recorder._follow_plan = lambda *_: None
recorder._plan.records = lambda step: {recorded}
lock = threading.Lock()
lock.acquire()

class Stuck(torch.nn.Module):
    def forward(self, x):
        with torch.profiler.record_function("waiting"):
            {hangs}  # here
        return x

stuck = Stuck()
for number in range(181_000, 181_050):
    recorder.step(number)
    model(torch.ones(2, 8))
stuck(torch.ones(1))
"""
LINE = next(at for at, line in enumerate(HANGS.splitlines(), 1) if line.endswith("# here"))


@contextmanager
def hanging(folder, text, ranks=1, environment=None):
    """Runs a program, or several as the ranks of a job, until their hangs were noticed."""
    (folder / "train.py").write_text(text)
    programs = []
    until = time.monotonic() + PATIENCE_S
    try:
        for rank in range(ranks):
            own = {} if environment is None else {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            programs.append(warm_python.start("train.py", cwd=folder, env={**os.environ, **own}))
        while sum(is_hung(path) for path in folder.glob("jobs/*/0/*.steps")) < ranks:
            look_again(programs[0], until)
        yield programs[0]
    finally:
        for program in programs:
            program.kill()
            program.close()


def is_hung(path):
    log = read_step_log(path)
    return log is not None and log.hung


def look_again(program, until):
    assert time.monotonic() < until, "nothing was noticed"
    with suppress(subprocess.TimeoutExpired):
        program.wait(0.05)
        raise AssertionError("the program has ended")


def wait_for_incident(folder, program, ranks=1):
    until = time.monotonic() + PATIENCE_S
    while len(list(folder.glob("jobs/*/0/incidents/*/rank*.json"))) < ranks:
        look_again(program, until)


def test_a_lock_that_is_never_released(tmp_path):
    with hanging(tmp_path, HANGS.format(hangs="lock.acquire()", recorded="True")) as program:
        wait_for_incident(tmp_path, program)
        found = last_event(None, tmp_path / "jobs")
        by_process = last_event(str(program.pid), tmp_path / "jobs")
    assert (found.reason, by_process.reason) == ("hang", "hang")
    assert found.sentence.startswith("it hangs: step 181049 has not ended for ")
    (rank,) = found.ranks
    assert (rank.state, rank.step, rank.last_step) == ("hangs", 181_049, 181_048)
    assert (rank.operator, rank.module) == ("waiting", "Stuck")
    assert rank.line == f"{tmp_path / 'train.py'}:{LINE} Stuck.forward"
    assert (rank.thread_state, rank.age_s) == ("blocked by a lock", None)
    assert rank.memory.startswith("memory ")
    # Its own, told as one that was kept, and not as another one.
    assert f"1 incident of this job in {found.folder}/incidents" in found.lines()
    # Killed, it is still the hang that is told, by the copy that the process made.
    killed = last_event(None, tmp_path / "jobs")
    assert killed.reason == "hang"
    assert killed.sentence.endswith("step 181049 has not ended for " + killed.sentence.split(" for ")[1])
    assert not any("more incident" in line for line in killed.lines())
    assert (killed.ranks[0].operator, killed.ranks[0].last_step) == ("waiting", 181_048)
    told = json.loads(next(tmp_path.glob("jobs/*/0/incidents/*/rank0.json")).read_text())
    (first, stack), *others = told["stacks"].items()
    assert first.startswith("MainThread (")
    assert any("train.py" in line for line in stack)
    assert all(name.startswith("kinetoscope") for name, _ in others)


def test_a_call_that_never_gives_the_gil_back_in_a_step_that_is_not_recorded(tmp_path):
    text = HANGS.format(hangs="ctypes.PyDLL(None).sleep(100_000)", recorded="step % 1000 < 25")
    with hanging(tmp_path, text) as program:
        found = last_event(None, tmp_path / "jobs")
        until = time.monotonic() + PATIENCE_S
        # The sampler begins when the hang is noticed.
        while found.ranks[0].line is None:
            look_again(program, until)
            found = last_event(None, tmp_path / "jobs")
    (rank,) = found.ranks
    assert found.reason == "hang"
    assert (rank.state, rank.step, rank.last_step) == ("hangs", 181_049, 181_048)
    assert rank.problem == ""
    assert not list(tmp_path.glob("jobs/*/0/incidents/*"))
    # The process needed the GIL for a copy, but its ring is there.
    gone = last_event(None, tmp_path / "jobs")
    assert gone.reason == "gone"
    assert "ended without a word in step 181049" in gone.sentence
    (rank,) = gone.ranks
    assert rank.line == f"{tmp_path / 'train.py'}:{LINE} Stuck.forward"


RANKS = """
import os, threading
import torch, kinetoscope
import torch.distributed as distributed
from kinetoscope.flight.triggers import StepTimes

place = {"rank": int(os.environ["RANK"]), "world_size": 2, "init_method": f"file://{__file__}.meets"}
distributed.init_process_group("gloo", **place)
recorder = kinetoscope.leave_on(keep="8MiB", folder="jobs")
recorder._times, recorder.quiet_s = StepTimes(0.3, 0.3), 1.0
lock = threading.Lock()
lock.acquire()
for number in range(60):
    recorder.step(number)
    if number == 59 and distributed.get_rank() == 1:
        lock.acquire()  # here
    distributed.all_reduce(torch.ones(8))
"""


def test_a_rank_that_does_not_enter_a_collective(tmp_path):
    line = next(at for at, text in enumerate(RANKS.splitlines(), 1) if text.endswith("# here"))
    with hanging(tmp_path, RANKS, 2, {"WORLD_SIZE": "2"}) as program:
        wait_for_incident(tmp_path, program, 2)
        found = last_event(None, tmp_path / "jobs")
    where = f"{tmp_path / 'train.py'}:{line} <module>"
    assert found.sentence.startswith(
        f"rank 1 holds up the job: blocked by a lock at {where}, in step 59 for "
    )
    assert found.sentence.endswith("; rank 0 waits in all_reduce")
    assert {(rank.rank, rank.collective, rank.last_step) for rank in found.ranks} == {
        (0, "all_reduce", 58),
        (1, None, 58),
    }


@pytest.mark.parametrize(
    ("last", "step", "recorded", "complete"),
    [
        (41, 50, False, 49),
        (49, 50, False, 49),
        (41, 50, True, 41),
        (41, 5_000, False, 41),
        (41, 3, False, 41),
    ],
)
def test_the_last_complete_step_is_the_one_before_also_if_it_was_only_counted(
    tmp_path, last, step, recorded, complete
):
    attempt = write_log(tmp_path / "job" / "0", step=step, recorded=recorded, last=last)
    place = write_incident(attempt, "20260101T000000Z-nan", process=3, reason="nan", what="it", step=step)
    (place / "rank0.steps").write_bytes((attempt / "rank0.steps").read_bytes())
    (rank,) = last_event(None, attempt).ranks
    assert (rank.step, rank.last_step) == (step, complete)


def test_commands(tmp_path):
    environment = {**os.environ, "KINETOSCOPE_DIR": str(tmp_path)}
    # No hang, however long the commands take.
    attempt = write_log(tmp_path / "job" / "0", step=12, hang_s=86_400.0)
    write_incident(attempt, "20260101T000000Z-nan", process=3, reason="nan", what="the loss is nan", step=12)

    def command(*words):
        done = warm_python.run("-m", "kinetoscope", *words, env=environment)
        return done.returncode, done.stdout, done.stderr

    code, told, wrong = command("last", "3", "--json")
    assert (code, wrong) == (0, "")
    found = json.loads(told)
    assert (found["job"], found["reason"], found["ranks"][0]["what"]) == ("job", "nan", "the loss is nan")
    code, told, _ = command("last", str(attempt))
    assert (code, told.splitlines()[1]) == (0, "rank 0: in step 12, process 3")
    assert "nan at " in told.splitlines()[0]
    assert command("ps")[1].startswith(f"job  rank 0  process {os.getpid()}  ")
    assert json.loads(command("ps", "--json")[1])[0]["step"] == 12
    assert command("last", str(NOBODY))[0] == 1
    assert command("last", "nothing")[2].startswith("kinetoscope: error: 'nothing' is neither a folder")


def test_nothing_was_left_on(tmp_path):
    with pytest.raises(ArgumentError, match="has no incidents"):
        last_event(None, tmp_path)


def waiting(rank, collective="all_reduce", line="train.py:5 train", **said):
    return RankPlace(rank, None, "hangs", "", step=7, collective=collective, line=line, **said)


def test_a_rank_that_did_not_enter_a_collective_is_named():
    missing = RankPlace(1, None, "hangs", "")
    assert (
        _who_is_missing([waiting(0), waiting(2), missing])
        == "rank 1 holds up the job: at an unknown place; ranks 0, 2 wait in all_reduce"
    )
    assert _who_is_missing([waiting(0), waiting(2)]) == ""
    assert _who_is_missing([missing]) == ""


def test_what_a_rank_waits_for_is_named_with_it():
    loads = RankPlace(
        0, None, "hangs", "", line="train.py:3 train", workers=["data loader worker 1 (process 9) blocked"]
    )
    assert _who_is_missing([loads, waiting(1)]).startswith(
        "rank 0 holds up the job: waits for data loader worker 1 (process 9) blocked; rank 1 waits"
    )
    runs = RankPlace(0, None, "hangs", "", line="train.py:3 train", may_wait_for=["process 9 (sleep 100)"])
    assert "last seen at train.py:3 train (process 9 (sleep 100))" in _who_is_missing([runs, waiting(1)])


def call(rank, name, number, shape=(8,), **more):
    said = {"collective": name, "sequence": number, "shape": list(shape)}
    return waiting(rank, name, call=said, **more)


@pytest.mark.parametrize(
    "others",
    [
        ("all_reduce", 12, (8,)),
        ("all_reduce", 11, (9,)),
        ("broadcast", 11, (8,)),
    ],
)
def test_a_rank_in_another_collective_than_most_is_named(others):
    ranks = [call(0, "all_reduce", 11), call(1, *others), call(2, "all_reduce", 11)]
    said = _who_is_missing(ranks)
    name, number, shape = others
    assert said.startswith(
        f"rank 1 is in another collective: {name} of shape {list(shape)}, number {number} of its group, "
    )
    assert said.endswith("; ranks 0, 2 wait in all_reduce of shape [8], number 11 of its group")
    assert [(rank.rank, rank.part) for rank in _in_order(ranks)] == [
        (1, "holds up"),
        (0, "waits"),
        (2, "waits"),
    ]


def test_a_rank_that_calls_a_collective_at_a_new_line_is_named_also_if_the_others_have_gone_on():
    ranks = [
        call(0, "broadcast", 11, line="train.py:4 train"),
        call(1, "all_reduce", 11, line="train.py:2 train", is_new_line=True),
        call(2, "all_reduce", 12),
    ]
    assert _who_is_missing(ranks).startswith("rank 1 is in another collective: ")


def test_two_ranks_in_different_collectives_are_both_named():
    ranks = [call(0, "broadcast", 11), call(1, "all_reduce", 11)]
    assert _who_is_missing(ranks) == (
        "ranks wait in different collectives: rank 0 in broadcast of shape [8], number 11 of its group at train.py:5 train; "
        "rank 1 in all_reduce of shape [8], number 11 of its group at train.py:5 train"
    )


def test_a_rank_that_has_ended_is_named_only_if_others_wait_for_it():
    ended = RankPlace(1, None, "ended", "", last_step=6, line="train.py:9 train", part="has ended")
    assert _who_is_missing([waiting(0), waiting(2), ended]) == (
        "rank 1 has ended: last seen at train.py:9 train; ranks 0, 2 wait in all_reduce"
    )
    ended.part = "has ended"
    runs = RankPlace(0, None, "runs", "")
    assert _who_is_missing([runs, ended]) == ""
    assert _in_order([runs, ended]) == [runs]


def test_ranks_that_only_wait_take_one_line():
    missing = RankPlace(
        1, None, "hangs", "", step=7, line="train.py:3 train", thread_state="blocked by sleep"
    )
    ranks = [waiting(0, in_step_s=9.0), missing, waiting(2, in_step_s=9.0)]
    event = LastEvent("job", "hang", _who_is_missing(ranks), 0.0, "folder", _in_order(ranks))
    assert event.lines() == [
        "job: rank 1 holds up the job: blocked by sleep at train.py:3 train, in step 7; ranks 0, 2 wait in all_reduce",
        "rank 1: in step 7",
        "  in train.py:3 train, main thread blocked by sleep",
        "  ",
        "ranks 0, 2: in all_reduce at train.py:5 train, in step 7 for 9 s",
        "folder",
    ]
