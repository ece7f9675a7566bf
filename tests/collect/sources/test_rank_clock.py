"""Ranks that meet so that their clocks can be compared: a real job of two processes."""

import json
import os
import time
import warnings

import pytest
import torch.distributed

import kinetoscope
from kinetoscope.collect.sources.rank_clock import (
    _GIVEN_UP,
    RankBarriers,
    _OthersGaveUpError,
    _raise_if_given_up,
)
from kinetoscope.combine.processes import merge_processes
from kinetoscope.combine.ranks import aligned
from tests.support.ranks import run_ranks

JOB = """
x = torch.ones(64, 64)
with kinetoscope.profile(activities=CPU, align_ranks=True, profile_memory=True) as both_ends:
    for _ in range(20):
        x = x @ x / 64
    dist.all_reduce(x)
both_ends.trace.save(f"both_ends.{rank}.ktrace")

with kinetoscope.profile(activities=CPU) as called:
    said = [kinetoscope.align_clocks(rounds=2)]
    x = x @ x
    said.append(kinetoscope.align_clocks(rounds=2))
called.trace.save(f"called.{rank}.ktrace")

# Rank 1 does not come: rank 0 waits no longer than it was told, and the job goes on as if nothing had been.
with warnings.catch_warnings(record=True) as caught, kinetoscope.profile(activities=CPU) as alone:
    warnings.simplefilter("always")
    if rank == 0:
        said.append(kinetoscope.align_clocks(timeout_s=0.2))
    x = x @ x
alone.trace.save(f"alone.{rank}.ktrace")
dist.all_reduce(x)
# From now on nobody waits, also not those that come.
with warnings.catch_warnings(record=True) as too_late, kinetoscope.profile(activities=CPU, align_ranks=True) as again:
    warnings.simplefilter("always")
    said.append(kinetoscope.align_clocks())
again.trace.save(f"again.{rank}.ktrace")

# Another attempt of the job, in which rank 1 fails while it records.
os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
with warnings.catch_warnings(record=True) as failing:
    warnings.simplefilter("always")
    try:
        with kinetoscope.profile(activities=CPU, align_ranks=True) as one_end:
            x = x @ x
            if rank == 1:
                raise ValueError("a program that fails")
    except ValueError:
        pass
one_end.trace.save(f"one_end.{rank}.ktrace")
told = [[str(one.message) for one in seen] for seen in (caught, too_late, failing)]
Path(f"said.{rank}.json").write_text(json.dumps([said, told, dist.get_backend()]))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(JOB, folder)
    return folder


def traces(job, name):
    return [kinetoscope.open(job / f"{name}.{rank}.ktrace") for rank in range(2)]


def elsewhere(trace, ahead_ns):
    """The same trace as if it had been recorded on a machine whose clock is ahead."""
    trace.info["boot_id"] = "another machine"
    trace.info["start_monotonic_ns"] += ahead_ns
    trace.info["clock_marks"] = {
        name: [moment + ahead_ns for moment in mark] for name, mark in trace.info["clock_marks"].items()
    }
    return trace


@pytest.mark.parametrize(
    ("name", "met"), [("both_ends", {"barriers": 10, "collectives": 1}), ("called", {"barriers": 4})]
)
def test_clocks_of_two_machines_are_aligned(job, name, met):
    first, second = traces(job, name)
    truth = merge_processes([first, second])
    assert [row["clock"] for row in truth.table("processes").to_pylist()] == ["monotonic"] * 2
    true_ns = truth.info["processes"][1]["offset_ns"]
    place = aligned([first, elsewhere(second, 123_456_789)])[1]
    assert (place.clock, place.facts) == (" and ".join(met), met)
    # The error of what is taken for the truth is that of reading the clock of one machine.
    assert abs(place.offset_ns - true_ns) <= place.error_ns + truth.column("processes", "error_ns")[1]
    assert 0 < place.error_ns < first.duration_ns


def test_a_merged_job_has_the_ranks_and_what_each_counted(job):
    merged = kinetoscope.merge([job / f"both_ends.{rank}.ktrace" for rank in range(2)])
    rows = merged.table("processes").to_pylist()
    assert [row["rank"] for row in rows] == [0, 1]
    assert len({row["process"] for row in rows}) == 2
    assert all(0 <= row["error_ns"] < 1_000_000 for row in rows)
    products = [row for row in merged.table("ops").to_pylist() if row["name"] == "aten::mm"]
    assert sum(row["count"] for row in products) == 40
    # On one axis, nobody had the sum before both had given their part.
    calls = [row for row in merged.table("collectives").to_pylist() if row["name"] == "all_reduce"]
    assert sorted(row["rank"] for row in calls) == [0, 1]
    begun = max(row["transfer_start_ns"] for row in calls)
    assert begun <= min(row["transfer_start_ns"] + row["transfer_ns"] for row in calls) + 10_000
    assert merged.complete


def test_a_rank_that_does_not_arrive_is_one_warning(job):
    said, (caught, too_late, _), backend = json.loads((job / "said.0.json").read_text())
    assert said == [True, True, False, False]
    assert backend == "gloo"
    (text,) = caught
    assert text.startswith("the clocks of the ranks were not aligned: not all ranks arrived within 0.2 s.")
    assert too_late == []
    # The other one hears of it when it comes, once.
    others_said, (others_caught, (text,), _), _ = json.loads((job / "said.1.json").read_text())
    assert (others_said, others_caught) == ([True, True, False], [])
    assert "a rank did not arrive or failed (not all ranks arrived within 0.2 s)" in text
    assert all(trace.complete for trace in traces(job, "alone"))
    for trace in traces(job, "again"):
        assert "clock_marks" not in trace.info


def test_a_rank_that_fails_makes_others_stop_waiting(job):
    _, (*_, (text,)), _ = json.loads((job / "said.0.json").read_text())
    assert "a rank did not arrive or failed (ValueError ended a recording)" in text
    _, (*_, others_caught), _ = json.loads((job / "said.1.json").read_text())
    assert others_caught == []
    # What they noted at the begin is there.
    assert [len(trace.info["clock_marks"]) for trace in traces(job, "one_end")] == [5, 5]


def test_a_rank_that_fails_after_a_barrier_does_not_remove_its_marks():
    store = torch.distributed.HashStore()
    store.set(_GIVEN_UP, "ValueError ended a recording")
    with pytest.raises(_OthersGaveUpError, match="ValueError ended a recording"):
        _raise_if_given_up(store, "1/4/all")
    store.set("1/4/all", "")
    _raise_if_given_up(store, "1/4/all")
    with pytest.raises(_OthersGaveUpError):
        _raise_if_given_up(store)


def test_without_a_job_there_is_nothing_to_align():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], align_ranks=True) as session:
            assert kinetoscope.align_clocks()
    assert "clock_marks" not in session.trace.info
    assert RankBarriers().run(3, 1.0) == ({}, True)


def test_a_recording_says_when_and_on_which_machine_it_began():
    before_ns = time.monotonic_ns()
    with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU]) as session:
        pass
    info = session.trace.info
    assert before_ns - 1_000_000 <= info["start_monotonic_ns"] <= time.monotonic_ns() + 1_000_000
    assert info["parent_process"] == os.getppid()
    assert isinstance(info["boot_id"], str)


def test_with_the_kineto_engine_a_recording_says_when_and_where_it_began():
    before_ns = time.monotonic_ns()
    with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], engine="kineto") as session:
        pass
    assert (
        before_ns - 10_000_000 <= session.trace.info["start_monotonic_ns"] <= time.monotonic_ns() + 10_000_000
    )
    assert isinstance(session.trace.info["boot_id"], str)
