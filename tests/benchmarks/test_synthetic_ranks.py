"""Jobs of many ranks that are made of real ones: their summaries are those of the traces that they stand for."""

import numpy as np
import pyarrow as pa
import pytest

import kinetoscope
from kinetoscope.summaries.job import Job
from tests.support.real_traces import ranks_of_a_job
from tools.synthesize_ranks import Delay, Plan, SyntheticJob

REAL = ranks_of_a_job()


def rows_of(job, section, rank):
    return [row for row in job.section(section).to_pylist() if row["rank"] == rank]


def test_a_summary_is_that_of_the_trace_it_stands_for(tmp_path):
    made = SyntheticJob(REAL[:2], Plan(8, 3, (Delay(5, "host", 20.0),), (("dp", 4), ("tp", 2)), seed=3))
    (tmp_path / "rank5.json").write_bytes(made.trace_text(5))
    real = kinetoscope.summarize(tmp_path / "rank5.json", output=tmp_path / "out")
    job = Job(pa.concat_tables(made.summaries()))
    for one, other in zip(rows_of(job, "collectives", 5), rows_of(real, "collectives", 5), strict=True):
        same = ("step", "group", "name", "number", "bytes", "leaves_together")
        assert [one[name] for name in same] == [other[name] for name in same]
        assert one["duration_ns"] == pytest.approx(other["duration_ns"], abs=2)
    for one, other in zip(rows_of(job, "steps", 5), rows_of(real, "steps", 5), strict=True):
        assert one["step"] == other["step"]
        assert one["duration_ns"] == pytest.approx(other["duration_ns"], abs=2)
    whole = job.section("steps")
    parts = [
        name
        for name in whole.column_names
        if name.endswith("_ns") and name not in ("start_ns", "duration_ns")
    ]
    assert np.array_equal(sum(whole[name].to_numpy() for name in parts), whole["duration_ns"].to_numpy())


def test_ranks_of_a_group_leave_together_and_the_slow_one_comes_last():
    made = SyntheticJob(REAL[:2], Plan(16, 4, (Delay(6, "host", 30.0),), (("dp", 8), ("tp", 2))))
    for collective in range(made.left_ns.shape[2]):
        for rank in range(16):
            together = made.group_of(collective, rank)[2]
            assert len(set(made.left_ns[together, :, collective].T[0].tolist())) == 1
    assert (made.arrived_ns[:, :, 0].argmax(axis=0) == 6).all()
    job = Job(pa.concat_tables(made.summaries()))
    assert job.stragglers()["rank"].to_pylist()[:1] == [6]


def test_each_of_two_planted_delays_is_a_finding_of_the_job_with_its_gain():
    delays = (Delay(13, "host", 30.0), Delay(22, "compute", 8.0))
    made = SyntheticJob(REAL, Plan(32, 12, delays, (("dp", 4), ("tp", 8))))
    job = Job(pa.concat_tables(made.summaries()))
    first, second = job.report.findings
    assert (first.code, second.code) == ("straggler-rank", "unbalanced-ranks")
    assert "rank 13" in first.finding["text"]
    assert "Rank 22" in second.finding["text"]
    # Without rank 13, steps are shorter by its delay, but for what the other one still delays.
    planted_ns = 12 * next(row["extra_ns"] for row in job.stragglers().to_pylist() if row["rank"] == 13)
    assert 0.5 * planted_ns < first.gain_ns <= planted_ns


def test_clocks_are_those_of_machines():
    made = SyntheticJob(REAL[:1], Plan(4, 2, ranks_per_host=2, largest_offset_ns=1_000_000))
    rows = pa.concat_tables(made.summaries()).to_pylist()
    assert [row["host"] for row in rows] == ["host000"] * 2 + ["host001"] * 2
    shown = [
        row["start_monotonic_ns"] + row["collectives"][0]["start_ns"] + row["collectives"][0]["duration_ns"]
        for row in rows
    ]
    assert shown[0] == pytest.approx(shown[1], abs=2)
    assert shown[2] - shown[0] == pytest.approx(made.offset_ns[2] - made.offset_ns[0], abs=1_000)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"groups": (("dp", 3),)}, "do not multiply to 8"),
        ({"delays": (Delay(8, "host", 1),)}, "rank below 8"),
    ],
)
def test_plans_that_make_no_job_are_refused(plan, said):
    with pytest.raises(ValueError, match=said):
        Plan(8, 1, **plan)
