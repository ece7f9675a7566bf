"""Summaries that a session writes at the end of each cycle, and that rank 0 gathers: real sessions, and real jobs of a few processes."""

import json
import os
import signal

import pytest
import torch

import kinetoscope
from kinetoscope import ArgumentError, profile
from kinetoscope.summaries.job import Job
from kinetoscope.summaries.summary import SECTIONS, summary_of
from tests.support.ranks import run_ranks


def contents(job):
    """All sections of the summaries of a job."""
    return {name: job.section(name).to_pylist() for name in SECTIONS}


def two_cycles(summary, **options):
    """A session of two cycles of two steps each, and the traces of both."""
    traces = []
    with profile(
        schedule=kinetoscope.schedule(wait=0, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda session: traces.append(session.trace),
        summary=summary,
        **options,
    ) as session:
        for _ in range(6):
            torch.ones(8, 8) @ torch.ones(8, 8)
            session.step()
    return traces


def test_each_cycle_has_a_summary_of_its_trace_in_a_folder_of_a_job(tmp_path):
    folder = tmp_path / "summaries"
    traces = two_cycles(folder)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet")) == [
        "cycle-1/rank-00000.parquet",
        "rank-00000.parquet",
    ]
    for place, trace in zip((folder, folder / "cycle-1"), traces, strict=True):
        written = kinetoscope.Job.open(place)
        assert contents(written) == contents(Job(summary_of(trace)))
        # The recording was private: there will be no trace to open.
        assert written.summaries["source"].to_pylist() == [""]
    assert kinetoscope.Job.open(folder).section("steps")["step"].to_pylist() == [1, 2]


def test_a_file_of_its_own_has_the_rank_and_the_cycle_in_its_name_and_says_where_the_trace_is(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    two_cycles(tmp_path / "{rank}" / "sum.parquet", path=tmp_path / "run.recording")
    assert sorted(path.name for path in (tmp_path / "3").iterdir()) == ["sum.1.parquet", "sum.parquet"]
    (row,) = kinetoscope.Job.open(tmp_path / "3" / "sum.1.parquet").summaries.to_pylist()
    assert (row["rank"], row["source"]) == (3, str(tmp_path / "run.rank3.1.recording"))
    assert kinetoscope.open(row["source"]).duration_ns > 0


def test_a_summary_that_cannot_be_written_is_a_warning_and_the_trace_is_there(tmp_path):
    (tmp_path / "file").write_text("in the way")
    said = r"the summary of this cycle could not be written to .*file/folder: NotADirectoryError"
    with pytest.warns(UserWarning, match=said), profile(summary=tmp_path / "file" / "folder") as session:
        torch.ones(8, 8) @ torch.ones(8, 8)
    assert session.trace.table("ops").num_rows > 0


JOB = """
store = dist.distributed_c10d._get_default_store()
x = torch.ones(64, 64)
dist.all_reduce(x)
with kinetoscope.profile(activities=CPU, record_shapes=True, summary="own",
                         schedule=kinetoscope.schedule(wait=1, warmup=1, active=3, repeat=1)) as session:
    for _ in range(6):
        dist.all_reduce(x @ x)
        session.step()
job = kinetoscope.gather_summaries(session.trace, "gathered", source=f"{rank}.ktrace")
Path(f"gathered.{rank}").write_text("nothing" if job is None else f"{len(job)} ranks")

# Rank 1 does not come here before rank 0 has stopped, saved and summarized.
if rank == 1:
    store.wait(["rank 0 is done"])
else:
    with kinetoscope.profile(activities=CPU, summary="alone") as alone:
        x = x @ x
    alone.trace.save("alone.ktrace")
    store.set("rank 0 is done", "")
"""


def test_every_rank_writes_the_summary_of_the_same_steps_and_rank_0_gathers_them(tmp_path):
    run_ranks(JOB, tmp_path)
    own, gathered = (kinetoscope.Job.open(tmp_path / name) for name in ("own", "gathered"))
    steps = own.section("steps")
    assert [steps["step"].to_pylist(), steps["rank"].to_pylist()] == [[2, 3, 4] * 2, [0] * 3 + [1] * 3]
    assert {row["ranks"] for row in own.collective_arrivals().to_pylist()} == {2}
    assert contents(gathered) == contents(own)
    assert gathered.summaries["source"].to_pylist() == [str(tmp_path / f"{rank}.ktrace") for rank in range(2)]
    assert [(tmp_path / f"gathered.{rank}").read_text() for rank in range(2)] == ["2 ranks", "nothing"]
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["rank-00000.parquet"]


KILLED = """
store = dist.distributed_c10d._get_default_store()
with kinetoscope.profile(activities=CPU) as session:
    torch.ones(8, 8) @ torch.ones(8, 8)
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    store.wait(["sent"])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    job = kinetoscope.gather_summaries(session.trace, "gathered", timeout_s=0.0)
if rank == 1:
    store.set("sent", "")
Path(f"said.{rank}.json").write_text(json.dumps([str(one.message) for one in caught]))
os._exit(0)  # without rank 2 there is no barrier
"""


def test_a_killed_rank_is_named_and_the_others_are_gathered_without_it(tmp_path):
    run_ranks("import signal\n" + KILLED, tmp_path, 3, exit_codes=(0, 0, -signal.SIGKILL))
    assert kinetoscope.Job.open(tmp_path / "gathered").summaries["rank"].to_pylist() == [0, 1]
    said = [json.loads((tmp_path / f"said.{rank}.json").read_text()) for rank in range(2)]
    assert said == [
        ["no summary arrived within 0 s from rank 2: 2 of 3 were gathered."],
        [],
    ]


def test_without_a_job_there_is_one_summary(tmp_path):
    with profile() as session:
        torch.ones(8, 8) @ torch.ones(8, 8)
    job = kinetoscope.gather_summaries(session.trace, tmp_path)
    assert len(job) == 1
    assert os.listdir(tmp_path) == ["rank-00000.parquet"]
    for wrong in (-1, "1", True, float("nan")):
        with pytest.raises(ArgumentError, match="need a number of seconds"):
            kinetoscope.gather_summaries(session.trace, tmp_path, timeout_s=wrong)
