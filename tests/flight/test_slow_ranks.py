"""Which ranks of a running job hold up the others, by rings of built traces."""

import json
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from kinetoscope.cli import main
from kinetoscope.flight import last, slow_ranks
from kinetoscope.flight.jobs import Attempt
from tests.flight.test_jobs import write_log
from tests.support.trace_builder import TraceBuilder

STEP_NS, COMPUTE_NS, TRANSFER_NS = 10_000_000, 4_000_000, 500_000
RANKS = 4


def rank_trace(rank, late_ns, latest_ns, *, steps, groups):
    """A rank whose step computes at line 7 and loads at line 5, and waits for the others at line 9."""
    builder = TraceBuilder()
    builder.thread("main")
    worker = builder.thread("gloo")
    builder.know("rank", rank).know("world_size", RANKS)
    builder.know(
        "distributedInfo", {"pg_config": [{"pg_name": str(group), "ranks": []} for group in range(groups)]}
    )
    computes, reduces = (builder.stack(("train.py", line, "train")) for line in (7, 9))
    for step in range(steps):
        start = step * STEP_NS
        builder.step(step, start, STEP_NS)
        own_ns = COMPUTE_NS + late_ns + 1_000 * ((rank + step) % 3)
        builder.span("aten::mm", start, own_ns, stack=computes)
        builder.span("c10d::allreduce_", start + own_ns, 10, stack=reduces)
        waits_ns = COMPUTE_NS + latest_ns + TRANSFER_NS - own_ns
        builder.annotation("gloo:all_reduce", start + own_ns + 10, waits_ns, thread=worker)
    # The step that runs while the ring is read.
    builder.step(steps, steps * STEP_NS, STEP_NS // 100, unfinished=True)
    return builder.build()


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Makes a job whose ranks run, each of which is late by a time."""

    def make(late_ns, *, steps=12, groups=1):
        attempt = tmp_path / "train" / "0"
        for rank in range(RANKS):
            write_log(attempt, rank)

        @contextmanager
        def opened_ring(path, from_ns=None):
            rank = int(path.stem.removeprefix("rank"))
            latest_ns = max(late_ns.values(), default=0)
            with rank_trace(rank, late_ns.get(rank, 0), latest_ns, steps=steps, groups=groups) as trace:
                yield trace

        monkeypatch.setattr(slow_ranks, "opened_ring", opened_ring)
        return attempt

    return make


@pytest.mark.parametrize("groups", [1, 2])
def test_the_late_rank_is_first_everywhere_with_its_part_and_line(job, groups):
    attempt = job({2: 1_000_000}, groups=groups)
    named = slow_ranks.slow_ranks(Attempt(attempt).rings())
    assert list(named) == [2]
    assert named[2].startswith("The other ranks wait for rank 2 for ")
    assert named[2].endswith("more in a step on operators at train (train.py:7)")
    event = last.last_event(None, attempt.parent.parent)
    assert event.reason == "runs"
    assert event.sentence.endswith(named[2])
    assert (event.ranks[0].rank, event.ranks[0].holds_up) == (2, named[2])
    assert [rank.rank for rank in event.ranks if not rank.holds_up] == [0, 1, 3]
    assert sum(named[2] in line for line in event.lines()) == 1
    status = CliRunner().invoke(main, ["status", str(attempt), "--json"])
    first, *others = json.loads(status.stdout)
    assert (first["rank"], first["holds_up"]) == (2, named[2])
    assert {other["holds_up"] for other in others} == {None}
    ranks = json.loads(CliRunner().invoke(main, ["ranks", str(attempt), "--json"]).stdout)
    (straggler,) = ranks["tables"]["stragglers"]
    assert (straggler["rank"], straggler["phase"], straggler["line"]) == (2, "compute", "train (train.py:7)")
    assert "wait for rank 2 for" in ranks["report"]["findings"][0]["finding"]


def test_two_ranks_are_both_named(job):
    attempt = job({1: 1_500_000, 3: 1_000_000})
    assert list(slow_ranks.slow_ranks(Attempt(attempt).rings())) == [1, 3]


def test_nobody_is_named_in_a_job_without_a_late_rank(job):
    attempt = job({})
    assert slow_ranks.slow_ranks(Attempt(attempt).rings()) == {}
    assert last.last_event(None, attempt.parent.parent).sentence == "4 of 4 ranks run, in step 7"


def test_too_few_steps_say_nothing(job):
    attempt = job({2: 1_000_000}, steps=5)
    assert slow_ranks.job_of_rings(Attempt(attempt).rings()) is None
    refused = CliRunner().invoke(main, ["ranks", str(attempt)])
    assert "too few steps" in refused.output


def test_the_step_that_runs_does_not_count(job):
    attempt = Attempt(job({2: 1_500_000}, steps=7))
    compared = slow_ranks.compared(attempt)
    assert compared.ranks()["steps"].to_pylist() == [7] * RANKS
    assert set(compared.section("steps")["duration_ns"].to_pylist()) == {STEP_NS}
