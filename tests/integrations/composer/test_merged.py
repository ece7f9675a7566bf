"""Traces of several ranks and cycles as one, from the files of each."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.combine.extend import extend
from kinetoscope.trace import concatenate
from tests.support import warm_python
from tests.support.trace_builder import TraceBuilder

BOOT_NS, SECOND = 1_700_000_000_000_000_000, 10**9


def cycle(rank, number):
    """A cycle of a rank, which began at a second of its own on the clock of the machine."""
    begun_ns = number * SECOND + rank * 1_000
    facts = {
        "process": 100 + rank,
        "boot_id": "one",
        "start_monotonic_ns": begun_ns,
        "start_realtime_ns": BOOT_NS + begun_ns,
    }
    builder = TraceBuilder()
    builder.span(f"op{rank}.{number}", 10, 20)
    return extend(builder.build(), info=facts | {"rank": rank})


def names_in(path):
    with kinetoscope.open(path) as trace:
        found = {}
        for span in trace.table("spans").to_pylist():
            found.setdefault(span["rank"], []).append(span["name"])
        return found


def files_below(folder):
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


def merge_files(name, of_ranks):
    """Write what `kinetoscope.merge` makes of the files of each rank."""
    with ExitStack() as opened:
        traces = [
            concatenate([opened.enter_context(kinetoscope.open(path)) for path in paths])
            for paths in of_ranks
        ]
        kinetoscope.merge(traces).save(name)


@pytest.fixture
def paths():
    """Two cycles of each of two ranks."""
    for rank in range(2):
        for number in range(2):
            cycle(rank, number).save(f"rank{rank}.{number}.json")
    return [[f"rank{rank}.{number}.json" for number in range(2)] for rank in range(2)]


def events_of_composer(rank):
    """What Composer's own JSONTraceHandler writes of a cycle of a rank: its process is the rank."""
    place = {"pid": rank, "tid": 5_000 + rank}
    named = {
        "process_name": {"name": f"Rank {rank} training loop process"},
        "thread_name": {"name": "Training Loop"},
        "global_rank": {"value": rank},
        "clock_sync_timestamp_us": {"value": 1_700_000_000_000_000},
    }
    head = [{"name": name, "ph": "M", "args": args, **place} for name, args in named.items()]
    return head + [
        {"name": f"event/batch{rank}", "cat": "event", "ph": phase, "ts": 1_700_000_000_000_000 + at, **place}
        for phase, at in (("B", 100 + rank), ("E", 900))
    ]


@pytest.mark.parametrize("name", ["merged.json", "merged.json.gz"])
def test_json_is_read_as_it_was_written(name, paths):
    merge_files(name, paths)
    merge_files("merged.ktrace", paths)
    assert names_in(name) == names_in("merged.ktrace") == {0: ["op0.0", "op0.1"], 1: ["op1.0", "op1.1"]}
    with kinetoscope.open(name) as again, kinetoscope.open("merged.ktrace") as merged:
        for column in ("start_ns", "duration_ns"):
            assert again.column("spans", column).tolist() == merged.column("spans", column).tolist()
        assert again.info["start_realtime_ns"] == merged.info["start_realtime_ns"]
        assert again.info["stop_ns"] == merged.info["stop_ns"]
        assert again.column("cycles", "start_ns").tolist() == merged.column("cycles", "start_ns").tolist()


def test_ranks_of_composers_own_files_are_read_and_merged():
    for rank in range(2):
        Path(f"theirs{rank}.json").write_text(json.dumps(events_of_composer(rank)))
    Path("theirs.json").write_text(json.dumps(events_of_composer(0) + events_of_composer(1)))
    wanted = {0: ["event/batch0"], 1: ["event/batch1"]}
    assert names_in("theirs.json") == wanted
    with kinetoscope.open("theirs1.json") as trace:
        assert trace.info["rank"] == 1
    merge_files("merged.json", [["theirs1.json"], ["theirs0.json"]])
    assert names_in("merged.json") == wanted


@pytest.mark.parametrize("value", [-1, True, 1.5, "1", None, 10**12])
def test_what_is_no_rank_is_none(value):
    events = events_of_composer(0)
    events[0]["args"] = {"name": "training loop process"}
    events[2]["args"] = {"value": value}
    Path("odd.json").write_text(json.dumps(events))
    assert names_in("odd.json") == {None: ["event/batch0"]}


# ----------------------------------------------------------------------------------------------- ranks of a real job

PROGRAM = """
import sys
import torch
from kinetoscope import ProfilerActivity, record_function
from kinetoscope.integrations.composer import TorchProfiler, cyclic_schedule

rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
with TorchProfiler(
    "all", "ep{epoch}-ba{batch}-rank{rank}.json", None, schedule=cyclic_schedule(warmup=0, active=2, repeat=2),
    activities=[ProfilerActivity.CPU], align_ranks=True,
) as profiler:
    for _ in range(4):
        with record_function("reduce"):
            torch.distributed.all_reduce(torch.ones(8))
        profiler.step()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job of two ranks of this machine, and the folder of its traces."""
    folder = tmp_path_factory.mktemp("job")
    done = warm_python.run_together(
        [(("-c", PROGRAM, str(rank), str(folder / "store")), None) for rank in range(2)], cwd=folder
    )
    assert [rank.returncode for rank in done] == [0, 0], [rank.stderr for rank in done]
    of_ranks = [[folder / f"all/ep0-ba{batch}-rank{rank}.json" for batch in (2, 4)] for rank in range(2)]
    merge_files(folder / "merged.ktrace", of_ranks)
    merge_files(folder / "merged.json", of_ranks)
    return folder


def test_ranks_of_a_job_are_in_one_trace_on_one_clock(job):
    assert files_below(job / "all") == [
        f"ep0-ba{batch}-rank{rank}.json" for batch in (2, 4) for rank in range(2)
    ]
    with kinetoscope.open(job / "merged.ktrace") as trace:
        rows = trace.table("processes").to_pylist()
        assert [row["rank"] for row in rows] == [0, 1]
        assert all(0 <= row["error_ns"] < 1_000_000 for row in rows)
        of_rank = {0: [], 1: []}
        for span in trace.table("spans").to_pylist():
            if span["name"] == "reduce":
                of_rank[span["rank"]].append((span["start_ns"], span["start_ns"] + span["duration_ns"]))
    assert len(of_rank[0]) == len(of_rank[1]) == 4
    # Nobody leaves before everybody has come.
    for (began, ended), (other_began, other_ended) in zip(of_rank[0], of_rank[1], strict=True):
        error_ns = rows[1]["error_ns"]
        assert max(began, other_began) <= min(ended, other_ended) + error_ns


def test_ranks_of_several_machines_are_aligned_by_barriers_within_the_error_that_is_told(job):
    """As if the two were of two machines: the clock that they share says what is true."""
    traces, begun_ns = [], []
    for rank in range(2):
        with kinetoscope.open(job / f"all/ep0-ba2-rank{rank}.json") as trace:
            traces.append(extend(trace, info={"boot_id": f"machine {rank}"}))
            begun_ns.append(trace.info["start_monotonic_ns"])
        assert traces[-1].info["clock_marks"]
    merged = kinetoscope.merge(traces)
    first, second = merged.info["processes"]
    assert "barriers" in second["clock"]
    assert 0 == first["error_ns"] < second["error_ns"]
    assert abs(second["offset_ns"] - (begun_ns[1] - begun_ns[0])) <= second["error_ns"]


def test_other_viewers_show_a_merged_trace_with_a_process_for_each_rank(job):
    events = json.loads((job / "merged.json").read_text("utf-8"))["traceEvents"]
    labels = {
        event["pid"]: event["args"]["labels"]
        for event in events
        if event["name"] == "process_labels" and "CPU" in event["args"]["labels"]
    }
    assert sorted(labels.values()) == ["CPU of rank 0", "CPU of rank 1"]
    marked = [event["pid"] for event in events if event["name"] == "reduce" and event["ph"] == "X"]
    assert {pid: marked.count(pid) for pid in labels} == dict.fromkeys(labels, 4)
