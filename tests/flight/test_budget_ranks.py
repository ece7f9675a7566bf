"""Ranks of a job record the same steps without talking to each other: across changes of the plan, and after a restart."""

import gc
import os

import pytest
import torch

import kinetoscope
from kinetoscope.flight.budget import StepPlan
from kinetoscope.flight.step_log import read_step_log
from tests.support.effort import times

RANKS = times(4, 64)
# From which step which level holds; the job starts anew at the third.
CHANGES = {1000: 2, 1100: 4, 1200: 1}
RESTARTED, END = 1200, 1300


def train(folder, first, last):
    """A rank: its budget allows what is planned here, and every other rank a level less."""
    recorder = kinetoscope.leave_on(keep="1MiB", folder=folder, on=())
    recorder._budget.add = lambda *_: False
    for number in range(first, last):
        if number in CHANGES:
            recorder._plan.level = CHANGES[number] + int(os.environ["RANK"]) % 2
            recorder._look_at_next()
        recorder.step(number)
        torch.ones(4).add(1)
    # A step ends with the next one.
    recorder.step(last)


def run(folder, attempt, first, last):
    """Run all ranks of an attempt at once; the steps that each recorded, by its log, read while all of them live."""
    job = {
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "WORLD_SIZE": str(RANKS),
    }
    hears, says = os.pipe()
    may_end, ends = os.pipe()
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            try:
                os.close(ends)
                os.environ |= job | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                train(folder, first, last)
                os.write(says, b".")
                os.read(may_end, 1)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    os.close(says)
    done = b""
    while len(done) < RANKS and (more := os.read(hears, RANKS)):
        done += more
    logs = {path.stem: read_step_log(path) for path in folder.glob(f"*/{attempt}/rank*.steps")}
    for end in (ends, hears, may_end):
        os.close(end)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * RANKS
    return [[one.number for one in logs[f"rank{rank}"].steps if one.recorded] for rank in range(RANKS)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_all_ranks_record_the_same_steps(tmp_path):
    # Load and test the recorder once, so that the children need not.
    with kinetoscope.profile(activities=[torch.profiler.ProfilerActivity.CPU], engine="native"):
        torch.ones(2).add(1)
    gc.freeze()
    before, after = run(tmp_path, 0, min(CHANGES), RESTARTED), run(tmp_path, 1, RESTARTED, END)
    gc.unfreeze()

    def planned(more):
        """What is recorded at a level so much above that of the job."""
        starts = [*CHANGES, END]
        return [
            step
            for level, first, last in zip(CHANGES.values(), starts, starts[1:], strict=False)
            for step in range(first, last)
            if StepPlan("job", level + more).records(step)
        ]

    for rank in range(RANKS):
        assert before[rank] + after[rank] == planned(rank % 2), rank
    assert set(planned(1)) < set(planned(0))
