"""Jobs of many ranks by their summaries: who is late and why, on built ranks, a real job, and a real trace of eight GPUs."""

import json
import os
import sys
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope
from kinetoscope import ArgumentError
from kinetoscope.analyses.findings import examine
from kinetoscope.cli import main
from kinetoscope.cli.history import _build_of_summaries
from kinetoscope.summaries.job import Job
from kinetoscope.summaries.summary import save_summaries, summary_of
from kinetoscope.viewer.pages.ranks import cells
from tests.support.real_traces import ranks_of_a_job
from tests.support.trace_builder import TraceBuilder

STEP_NS, COMPUTE_NS, TRANSFER_NS = 10_000_000, 4_000_000, 500_000


def rank_trace(rank, arrivals, last, *, input_ns=0, python_ns=0, host="node"):
    """A rank that loads, runs Python and computes until it arrives at the all_reduce of each step, which ends half a millisecond after the last arrival."""
    builder = TraceBuilder()
    builder.thread("main")
    worker = builder.thread("gloo")
    builder.know("rank", rank).know("host", host)
    sizes = builder.shapes([[4]], ["float"])
    for step, (own, latest) in enumerate(zip(arrivals, last, strict=True)):
        start = step * STEP_NS
        builder.step(step, start, STEP_NS)
        if input_ns:
            loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            builder.annotation(loader, start, input_ns)
        builder.span("aten::mm", start + input_ns + python_ns, own - input_ns - python_ns)
        builder.span("c10d::allreduce_", start + own, 10, shapes=sizes)
        builder.annotation(
            "gloo:all_reduce", start + own + 10, latest + TRANSFER_NS - own - 10, thread=worker, shapes=sizes
        )
    return builder.build()


def job_of(arrivals):
    """The job whose ranks arrive at the collective of each step at given times."""
    last = [max(step) for step in zip(*arrivals, strict=True)]
    return Job(
        pa.concat_tables([summary_of(rank_trace(rank, own, last)) for rank, own in enumerate(arrivals)])
    )


def test_the_late_rank_is_named_with_what_takes_it_longer():
    arrivals = [[COMPUTE_NS + 1_000 * ((rank + step) % 3) for step in range(12)] for rank in range(5)]
    arrivals[3] = [one + 2_000_000 for one in arrivals[3]]
    job = job_of(arrivals)
    (row,) = job.stragglers().to_pylist()
    assert (row["rank"], row["phase"], row["steps_percent"]) == (3, "compute", 100.0)
    assert row["late_ns"] == pytest.approx(2_000_000, abs=3_000)
    assert row["extra_ns"] == pytest.approx(2_000_000, abs=3_000)
    assert row["late_percent"] == pytest.approx(20.0, abs=0.1)
    rows = job.collective_arrivals().to_pylist()
    assert [one["last_rank"] for one in rows] == [3] * 12
    (finding,) = [one for one in job.report.findings if one.code == "straggler-rank"]
    assert "more in a step on operators" in finding.finding["text"]
    assert finding.advice.startswith("Look at rank 3 alone: the sizes of its batches")
    assert [one["step"] for one in rows] == [*range(12)]
    assert {(one["ranks"], one["transfer_ns"], one["name"]) for one in rows} == {
        (5, TRANSFER_NS - 10, "all_reduce")
    }
    assert [one["rank"] for one in job.ranks().to_pylist()] == [*range(5)]


def test_what_needs_other_ranks_is_null_without_them():
    (row,) = job_of([[COMPUTE_NS] * 3]).ranks().to_pylist()
    assert (row["late_ns"], row["holds_up_ns"]) == (None, None)


def test_ranks_that_take_turns_in_being_late_are_no_stragglers():
    arrivals = [[COMPUTE_NS + 1_000_000 * ((rank + step) % 4) for step in range(16)] for rank in range(4)]
    job = job_of(arrivals)
    assert job.stragglers().num_rows == 0
    (found,) = job.report.findings
    assert found.code == "irregular-ranks"
    # As if each took what the (lower) median rank does.
    assert found.share_percent == pytest.approx(20.0, abs=1.5)


def job_of_hosts(late, *, hosts=3, steps=12, uneven_ns=1_000):
    """The job of hosts with two ranks each, of which some ranks are late by a time in each step."""
    arrivals = [
        [COMPUTE_NS + uneven_ns * ((rank * 5 + step * 3) % 7) + late.get(rank, 0) for step in range(steps)]
        for rank in range(2 * hosts)
    ]
    last = [max(step) for step in zip(*arrivals, strict=True)]
    traces = [rank_trace(rank, own, last, host=f"node{rank // 2}") for rank, own in enumerate(arrivals)]
    return Job(pa.concat_tables([summary_of(trace) for trace in traces]))


def test_a_host_whose_ranks_are_all_late_is_one_finding():
    (found,) = job_of_hosts({2: 2_000_000, 3: 2_100_000}).report.findings
    assert found.finding["text"].startswith("The other ranks wait for the 2 ranks of node1 (2, 3) for ")
    assert found.share_percent == pytest.approx(20, abs=0.5)
    assert found.gain_ns == pytest.approx(12 * 2_100_000, rel=0.05)


def test_one_late_rank_of_a_host_is_named_itself():
    (found,) = job_of_hosts({3: 2_000_000}).report.findings
    assert (found.code, found.rank) == ("straggler-rank", 3)
    assert found.finding["text"].startswith("The other ranks wait for rank 3 for ")


@pytest.mark.parametrize("late", [{1: 2_000_000, 4: 2_000_000}, {0: 2_500_000, 5: 2_000_000}])
def test_constant_culprits_are_not_now_one_now_another(late):
    # Without one of them, the other one is waited for: alone, each gains little.
    findings = job_of_hosts(late, steps=24).report.findings
    codes = [finding.code for finding in findings]
    assert "irregular-ranks" not in codes
    assert codes[:2] == ["straggler-rank", "straggler-rank"]
    assert {finding.rank for finding in findings[:2]} == set(late)


def test_who_is_slower_beside_a_straggler_without_costing_anything_is_not_named():
    found = job_of_hosts({2: 3_000_000, 5: 60_000}, steps=24).report.findings
    assert [(one.code, one.rank) for one in found] == [("straggler-rank", 2)]


def test_of_two_ranks_one_can_be_late():
    arrivals = [[COMPUTE_NS + 1_000 * (step % 2) for step in range(9)], [COMPUTE_NS + 3_000_000] * 9]
    assert job_of(arrivals).stragglers()["rank"].to_pylist() == [1]


def traces_of(arrivals):
    """The traces of ranks that arrive at the collective of each step at given times."""
    last = [max(step) for step in zip(*arrivals, strict=True)]
    return [rank_trace(rank, own, last) for rank, own in enumerate(arrivals)]


@pytest.mark.parametrize("late", [{}, {3: 2_000_000}, {1: 300_000}, {0: 40_000}])
@pytest.mark.parametrize("steps", [2, 12])
def test_the_merged_traces_and_their_summaries_name_the_same_rank(late, steps):
    arrivals = [
        [COMPUTE_NS + 1_000 * ((rank + step) % 3) + late.get(rank, 0) for step in range(steps)]
        for rank in range(5)
    ]
    job = job_of(arrivals)
    worst = job.stragglers().to_pylist()[:1]
    with kinetoscope.merge(traces_of(arrivals)) as merged:
        found = [one for one in examine(merged).findings if one.code == "straggler-rank"]
    assert [one.rank for one in found] == [row["rank"] for row in worst]
    if steps == 12 and late and max(late.values()) >= 0.01 * STEP_NS:
        assert [one.rank for one in found] == [*late]
        assert found[0].share_percent == pytest.approx(worst[0]["late_percent"])
        # And the map has that rank as the one that holds up the others.
        values = cells(job, "holds_up_ns")["value"].to_numpy().reshape(5, steps)
        assert np.argmax(values.sum(axis=1)) == worst[0]["rank"]


def test_the_findings_of_ranks_are_in_the_order_of_what_a_replay_gains():
    arrivals = [[COMPUTE_NS + 1_000 * ((rank + step) % 3) for step in range(20)] for rank in range(6)]
    # The second one hides behind the first one: without it alone, nothing is gained.
    arrivals[4] = [one + 3_000_000 for one in arrivals[4]]
    arrivals[1] = [one + 1_000_000 for one in arrivals[1]]
    job = job_of(arrivals)
    gains = {row["rank"]: row["gain_percent"] for row in job.without_lateness().to_pylist()}
    found = [one for one in job.report.findings if one.code == "straggler-rank"]
    assert [one.rank for one in found] == [4, 1]
    for one in found:
        assert one.gain_ns == pytest.approx(0.01 * max(gains[one.rank], 0) * job.report.whole_ns, abs=2)
    assert found[1].gain_ns < 0.005 * job.report.whole_ns


def test_what_makes_a_rank_late_is_not_what_sets_it_apart():
    """A rank that computes less, but has more Python, is late by its input: by the time that this takes longer."""
    arrivals = [[COMPUTE_NS + 1_000 * ((rank + step) % 3) for step in range(12)] for rank in range(5)]
    arrivals[2] = [one + 1_000_000 for one in arrivals[2]]
    last = [max(step) for step in zip(*arrivals, strict=True)]
    summaries = []
    for rank, own in enumerate(arrivals):
        summaries.append(
            summary_of(
                rank_trace(
                    rank, own, last, python_ns=3_000_000 * (rank == 2), input_ns=1_000_000 * (rank == 2)
                )
            )
        )
    (row,) = Job(pa.concat_tables(summaries)).stragglers().to_pylist()
    assert (row["rank"], row["phase"]) == (2, "data_wait")
    assert row["extra_ns"] == pytest.approx(1_000_000, rel=0.01)


@given(st.lists(st.lists(st.integers(1, 9_000_000), min_size=3, max_size=3), min_size=1, max_size=4))
def test_lateness_is_what_a_look_at_each_collective_finds(arrivals):
    job = job_of(arrivals)
    rows = job.collective_arrivals().to_pylist()
    if len(arrivals) == 1:
        assert rows == []
        return
    for row, step in zip(rows, zip(*arrivals, strict=True), strict=True):
        assert row["late_ns"] == max(step) - min(step)
        assert row["waited_ns"] == sum(max(step) - one for one in step)
        assert step[row["last_rank"]] == max(step)
    late = job.ranks()["late_ns"].to_pylist()
    for rank, own in enumerate(arrivals):
        each = [one - min(step) for one, step in zip(own, zip(*arrivals, strict=True), strict=True)]
        assert late[rank] == int(np.median(each))


@pytest.mark.slow
@pytest.mark.stress("it trains on ranks for 15 s")
def test_a_planted_delay_of_a_real_rank_is_named_with_its_phase(tmp_path):
    pytest.importorskip("torch", reason="the job is one of torch")
    if sys.platform != "linux":
        pytest.skip("links are slowed down by an option of Linux sockets")
    # The package of the benchmarks sets a variable for the programs that they start.
    with mock.patch.dict(os.environ):
        from benchmarks.stragglers import JOB, PHASES, named
    from tests.support.ranks import run_in_ranks

    script = tmp_path / "job.py"
    script.write_text(JOB)
    late = {where: 4 if where == "link" else 1 for where in PHASES}
    # Ranks sleep where others compute, so that a busy machine delays them only as they wake up. Rules look at medians: 12 steps
    # are named right where half of them are disturbed.
    run_in_ranks([script, json.dumps([(where, late[where]) for where in PHASES]), "12", "0.06"], tmp_path, 6)
    found = {where: Job.open(tmp_path / str(trial)) for trial, where in enumerate(PHASES)}
    assert {where: named(job, where) for where, job in found.items()} == {
        where: (late[where], phase) for where, phase in PHASES.items()
    }
    for where in ("forward", "backward", "input", "host"):
        # Others may follow, which the machine made late.
        assert found[where].stragglers().to_pylist()[0]["late_ns"] > 30_000_000
        gains = {row["rank"]: row["gain_percent"] for row in found[where].without_lateness().to_pylist()}
        assert gains[1] > 10
    assert {row["clock"] for row in found["host"].clocks().to_pylist()} == {"own", "monotonic"}
    assert set(found["host"].coordinates()["dimension"].to_pylist()) == {"TP"}


def test_eight_real_ranks(tmp_path):
    paths = ranks_of_a_job()
    job = kinetoscope.summarize(*paths, output=tmp_path)
    merged = [kinetoscope.open(path).table("collectives").to_pylist() for path in paths]
    own = [[row["transfer_ns"] for row in rows if row["name"] == "all_reduce"] for rows in merged]
    arrivals = job.collective_arrivals().to_pylist()
    assert [row["ranks"] for row in arrivals] == [8] * 3
    for place, row in enumerate(arrivals):
        each = [durations[place] for durations in own]
        assert row["late_ns"] == max(each) - min(each)
        assert each[row["last_rank"]] == min(each)
        assert row["waited_ns"] == sum(each) - 8 * min(each)
    durations = job.durations().to_pylist()
    kernels = [
        row
        for path in paths
        for row in kinetoscope.open(path).table("spans").to_pylist()
        if row["kind"] in ("kernel", "memcpy", "memset")
    ]
    assert sum(row["count"] for row in durations if row["kind"] == "kernel") == len(kernels)
    assert sum(row["total_ns"] for row in durations if row["kind"] == "kernel") == sum(
        row["duration_ns"] for row in kernels
    )


def test_what_is_no_summary_is_said(tmp_path):
    plain, other = tmp_path / "plain.parquet", tmp_path / "text.parquet"
    pq.write_table(pa.table({"a": [1]}), plain)
    other.write_text("no Parquet")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(kinetoscope.FormatError, match="is no summary: `kinetoscope summarize` makes one"):
        Job.open(plain)
    with pytest.raises(kinetoscope.FormatError, match="damaged, or no Parquet file"):
        Job.open(other)
    with pytest.raises(kinetoscope.ArgumentError, match="there are no summaries"):
        Job.open(empty)
    with pytest.raises(kinetoscope.ArgumentError, match="several summaries are of rank 0"):
        Job(pa.concat_tables([summary_of(rank_trace(0, [1], [1]))] * 2))


def test_summaries_are_not_written_to_a_file(tmp_path):
    file = tmp_path / "all"
    file.write_bytes(b"mine")
    with pytest.raises(ArgumentError, match="all' is a file: name a folder for the summaries"):
        kinetoscope.summarize(tmp_path / "rank0.ktrace", output=file)
    assert file.read_bytes() == b"mine"


def test_a_damaged_summary_costs_no_other(tmp_path):
    files = [file for rank in range(3) for file in save_summaries(rank_trace(rank, [1], [1]), tmp_path, "")]
    files[0].write_bytes(files[0].read_bytes()[:-200])
    empty = tmp_path / "rank-00003.parquet"
    empty.write_bytes(b"")
    job = Job.open(tmp_path)
    assert job.ranks()["rank"].to_pylist() == [1, 2]
    assert job.durations().num_rows
    cut, nothing, missing = job.notes
    assert cut.startswith(f"{files[0]} is damaged")
    assert nothing.startswith(f"{empty} is damaged, or no Parquet file")
    assert missing == "2 of 3 ranks have a summary here; without one: rank 0."


def test_the_commands(tmp_path):
    arrivals = [[COMPUTE_NS] * 6, [COMPUTE_NS + 2_000_000] * 6, [COMPUTE_NS] * 6]
    last = [max(step) for step in zip(*arrivals, strict=True)]
    paths = [str(tmp_path / f"{rank}.ktrace") for rank in range(3)]
    for rank, path in enumerate(paths):
        rank_trace(rank, arrivals[rank], last).save(path)
    summarize = ["summarize", "--engine", "here"]
    made = CliRunner().invoke(main, [*summarize, *paths, "-o", str(tmp_path / "out")])
    assert (made.exit_code, made.stdout) == (0, f"{tmp_path / 'out'}: 3 summaries\n")
    shown = CliRunner().invoke(main, ["ranks", str(tmp_path / "out")])
    said = " ".join(shown.stdout.split())
    assert said.startswith(
        "1. The other ranks wait for rank 1 for 20.0 % of step time; it spends 2 ms more in a step on operators"
    )
    assert "[straggler-rank, at most 20.0 % to gain]" in said
    table = CliRunner().invoke(
        main, ["ranks", str(tmp_path / "out"), "--table", "collective_arrivals", "--csv"]
    )
    assert len(table.stdout.splitlines()) == 7
    facts = json.loads(CliRunner().invoke(main, ["ranks", str(tmp_path / "out"), "--json"]).stdout)
    assert facts["ranks"] == 3
    assert facts["report"]["findings"][0]["code"] == "straggler-rank"
    assert [row["rank"] for row in facts["tables"]["stragglers"]] == [1]
    assert len(facts["tables"]["ranks"]) == 3
    wrong = CliRunner().invoke(main, ["ranks", str(tmp_path / "out"), "--csv"])
    assert wrong.exit_code == 2
    twice = CliRunner().invoke(main, [*summarize, paths[0], paths[0], "-o", str(tmp_path / "twice")])
    assert twice.exit_code == 1
    assert "are both of rank 0" in twice.stderr


def test_a_rank_that_is_late_at_times_is_named_as_that():
    arrivals = [[COMPUTE_NS + 1_000 * ((rank + step) % 3) for step in range(20)] for rank in range(5)]
    for step in range(0, 20, 4):
        arrivals[2][step] += 3_000_000
    (row,) = job_of(arrivals).stragglers().to_pylist()
    assert (row["rank"], row["persistent"], row["phase"]) == (2, False, None)
    assert row["late_ns"] == pytest.approx(3_000_000, abs=3_000)
    # Where others are late as often, it is the job.
    for step in range(1, 20, 4):
        arrivals[4][step] += 3_000_000
    assert job_of(arrivals).stragglers().num_rows == 0


def rank_of_two_kinds(rank, evaluation_ns):
    """A rank that trains for 10 ms a step and evaluates in every fifth step, which takes it longer."""
    builder = TraceBuilder()
    builder.know("rank", rank)
    builder.thread("main")
    now = 0
    for step in range(20):
        evaluates = step % 5 == 4
        lasts = 10_000_000 + (evaluation_ns if evaluates else 0)
        builder.step(step, now, lasts)
        for place in range(8):
            builder.span("aten::mm", now + place * 1_000_000, 900_000)
        if evaluates:
            builder.span("aten::softmax", now + 9_000_000, evaluation_ns)
        now += lasts
    return builder.build()


def test_steps_of_several_kinds_are_compared_with_their_own_kind(tmp_path):
    traces = [rank_of_two_kinds(rank, (80 + 10 * rank) * 1_000_000) for rank in range(3)]
    for rank, trace in enumerate(traces):
        trace.save(tmp_path / f"{rank}.ktrace")
    job = kinetoscope.summarize(*sorted(tmp_path.glob("*.ktrace")), output=tmp_path / "summaries")
    first, second = job.step_kinds().to_pylist()
    assert (first["ranks"], first["steps"], first["step_ns"], first["most_of"]) == (
        3,
        12,
        100_000_000,
        "aten::softmax",
    )
    assert (first["slowest_rank"], first["slowest_ns"]) == (2, 110_000_000)
    assert (second["steps"], second["step_ns"], second["most_of"], second["operators"]) == (
        48,
        10_000_000,
        None,
        8,
    )
    assert first["share_percent"] + second["share_percent"] == pytest.approx(100)
    # Four steps of one kind and 16 of the other: the median over all would be 10 ms.
    assert job.ranks()["step_ns"].to_pylist() == [26_000_000, 28_000_000, 30_000_000]
    by_kind = job.ranks(by="kind").to_pylist()
    assert [(row["rank"], row["step_kind"], row["steps"], row["step_ns"] // 10**6) for row in by_kind] == [
        (rank, kind, *of_kind)
        for rank in range(3)
        for kind, of_kind in enumerate([(4, 90 + 10 * rank), (16, 10)])
    ]
    assert sum(row["steps"] * row["compute_ns"] for row in by_kind) == 20 * sum(
        job.ranks()["compute_ns"].to_pylist()
    )
    with pytest.raises(ArgumentError, match="by='step' is not valid: use one of rank, kind"):
        job.ranks(by="step")
    runner, folder = CliRunner(), str(tmp_path / "summaries")
    text = " ".join(runner.invoke(main, ["ranks", folder]).output.split())
    assert (
        "2 kinds of steps: 12 of 100 ms with more aten::softmax, 71.4 % of the time; 48 of 10 ms, 28.6 %, on all ranks together"
        in text
    )
    rows = json.loads(
        runner.invoke(main, ["ranks", folder, "--table", "ranks", "--by", "kind", "--json"]).output
    )
    assert len(rows["tables"]["ranks"]) == 6
    assert "add --table ranks" in runner.invoke(main, ["ranks", folder, "--by", "kind"]).output
    assert _build_of_summaries(tmp_path / "summaries").values["step_ns"] == 30_000_000


def test_ranks_whose_kinds_have_other_numbers_are_matched():
    # Of the first rank, evaluation takes most time; of the second one, training.
    job = Job(
        pa.concat_tables(
            [summary_of(rank_of_two_kinds(rank, ms * 1_000_000)) for rank, ms in ((0, 80), (1, 5))]
        )
    )
    found = {row["most_of"]: row["ranks"] for row in job.step_kinds().to_pylist()}
    assert found == {"aten::softmax": 2, None: 2}
