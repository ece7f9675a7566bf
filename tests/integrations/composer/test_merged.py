"""Traces of several ranks and cycles as one, by the rank that is the first of its machine."""

import json
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

import kinetoscope
from kinetoscope import ArgumentError, StateError
from kinetoscope.combine.extend import extend
from kinetoscope.integrations.composer import JSONTraceHandler, Timestamp, files, merge_traces, trace_handler
from tests.support import warm_python
from tests.support.trace_builder import TraceBuilder

BOOT_NS, SECOND = 1_700_000_000_000_000_000, 10**9


def cycle(rank, number, *, known=True):
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
    return extend(builder.build(), info=facts | ({"rank": rank} if known else {}))


class Clock:
    """Passes only while somebody sleeps."""

    def __init__(self):
        self.now_s = 0.0
        self.then = {}

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds
        for moment in [moment for moment in self.then if moment <= self.now_s]:
            self.then.pop(moment)()


@pytest.fixture(autouse=True)
def _empty_store():
    """Nothing is in the store of memory:// URLs, before and after."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield
    store.store.clear()


@pytest.fixture
def as_rank(monkeypatch):
    """Lets what is made next be of some rank."""

    def become(rank, *, machine=2, world=2):
        places = {
            "RANK": rank,
            "WORLD_SIZE": world,
            "LOCAL_RANK": rank % machine,
            "LOCAL_WORLD_SIZE": machine,
            "NODE_RANK": rank // machine,
        }
        for name, value in places.items():
            monkeypatch.setenv(name, str(value))

    return become


@pytest.fixture
def handler_of(as_rank, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(trace_handler, "clock", clock)
    monkeypatch.setattr(trace_handler, "sleep", clock.sleep)
    monkeypatch.setattr(files, "sleep", clock.sleep)

    def make(rank, folder="all", *, machine=2, world=2, logger=None, **options):
        as_rank(rank, machine=machine, world=world)
        given = {
            "remote_file_name": "memory://rest/{rank}.{batch}.json",
            "merged_trace_filename": "merged.ktrace",
        }
        given |= {"overwrite": True, **options}
        handler = JSONTraceHandler(folder, "{batch}-rank{rank}.json", **given)
        handler.init(SimpleNamespace(run_name="run", timestamp=Timestamp(), profiler=object()), logger)
        return handler, clock

    return make


def finish(handler):
    handler.close(None, None)


def names_in(path):
    with kinetoscope.open(path) as trace:
        found = {}
        for span in trace.table("spans").to_pylist():
            found.setdefault(span["rank"], []).append(span["name"])
        return found


def files_below(folder):
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


# -------------------------------------------------------------------------------------------------- at the end of a run


@pytest.mark.parametrize("kept", [-1, 1])
@pytest.mark.parametrize("folder", ["all", "all/{rank}"])
def test_the_first_rank_merges_what_all_keep(kept, folder, handler_of):
    handlers = [handler_of(rank, folder, num_traces_to_keep=kept)[0] for rank in range(2)]
    for number in range(2):
        for rank, handler in enumerate(handlers):
            handler.take(cycle(rank, number), Timestamp(batch=number))
    finish(handlers[1])
    finish(handlers[0])
    merged = Path(folder.format(rank=0), "merged.ktrace")
    numbers = range(2)[-kept:] if kept > 0 else range(2)
    assert names_in(merged) == {rank: [f"op{rank}.{number}" for number in numbers] for rank in range(2)}
    with kinetoscope.open(merged) as trace:
        rows = trace.table("processes").to_pylist()
        assert [row["process"] for row in rows] == [100, 101]
        assert rows[0]["error_ns"] == 0
        starts = {row["name"]: row["start_ns"] for row in trace.table("spans").to_pylist()}
        assert starts["op1.1"] - starts["op0.1"] == 1_000
        if kept < 0:
            assert starts["op0.1"] - starts["op0.0"] == SECOND
    traces = [f"{number}-rank{rank}.json" for number in numbers for rank in range(2)]
    assert files_below("all") == sorted([*traces, "merged.ktrace"])


def test_it_waits_for_the_others(handler_of):
    first, clock = handler_of(0)
    second, _ = handler_of(1)
    first.take(cycle(0, 0), Timestamp())
    clock.then[30.0] = lambda: second.take(cycle(1, 0), Timestamp())
    finish(first)
    assert names_in("all/merged.ktrace") == {0: ["op0.0"], 1: ["op1.0"]}
    assert 30 <= clock.now_s < 31


def test_it_waits_a_minute_and_merges_without_the_rank_that_is_late(handler_of):
    first, clock = handler_of(0)
    first.take(cycle(0, 0), Timestamp())
    with pytest.warns(
        UserWarning, match=r"merged.ktrace is missing traces of rank 1, which were not written within 60 s"
    ):
        finish(first)
    assert names_in("all/merged.ktrace") == {0: ["op0.0"]}
    assert 60 <= clock.now_s < 61
    finish(first)
    assert clock.now_s < 61


def test_each_machine_merges_its_own(handler_of):
    handlers = [handler_of(rank, f"node{rank // 2}", world=4)[0] for rank in range(4)]
    for rank, handler in enumerate(handlers):
        handler.take(cycle(rank, 0), Timestamp())
    for handler in reversed(handlers):
        finish(handler)
    assert names_in("node0/merged.ktrace") == {0: ["op0.0"], 1: ["op1.0"]}
    assert names_in("node1/merged.ktrace") == {2: ["op2.0"], 3: ["op3.0"]}


def test_without_a_launcher_the_first_rank_of_the_job_merges(handler_of, monkeypatch):
    made = []
    for rank in range(2):
        with monkeypatch.context() as patch:
            handler, _ = handler_of(rank)
            patch.delenv("LOCAL_WORLD_SIZE")
            patch.delenv("LOCAL_RANK")
            made.append(handler)
            handler.init(SimpleNamespace(run_name="run", timestamp=Timestamp(), profiler=object()), None)
            handler.take(cycle(rank, 0), Timestamp())
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    finish(made[1])
    finish(made[0])
    assert names_in("all/merged.ktrace") == {0: ["op0.0"], 1: ["op1.0"]}


def test_what_an_earlier_run_left_is_not_merged(handler_of):
    Path("all").mkdir()
    Path("all/merged.ktrace").write_bytes(b"of an earlier run")
    cycle(1, 5).save("all/0-rank1.json")
    first, clock = handler_of(0)
    second, _ = handler_of(1)
    assert files_below("all") == ["0-rank1.json"]
    first.take(cycle(0, 0), Timestamp())
    clock.then[30.0] = lambda: second.take(cycle(1, 0), Timestamp())
    finish(first)
    assert names_in("all/merged.ktrace") == {0: ["op0.0"], 1: ["op1.0"]}


def test_nothing_recorded_is_nothing_merged_and_no_waiting_for_a_single_rank(handler_of):
    handler, clock = handler_of(0, machine=1, world=1)
    finish(handler)
    finish(handler)
    assert (files_below("all"), clock.now_s) == ([], 0.0)


def test_merging_can_be_left_out(handler_of):
    handler, _ = handler_of(0, machine=1, world=1, merged_trace_filename=None)
    handler.take(cycle(0, 0), Timestamp())
    finish(handler)
    assert (handler.merges, files_below("all")) == (False, ["0-rank0.json"])


def test_the_merged_trace_is_uploaded_under_its_own_name(handler_of):
    store = fsspec.filesystem("memory")
    handler, _ = handler_of(
        0, machine=1, world=1, merged_trace_remote_file_name="memory://far/{run_name}.json"
    )
    handler.take(cycle(0, 0), Timestamp())
    finish(handler)
    assert store.cat("/far/run.json") == Path("all/merged.ktrace").read_bytes()


def test_the_merged_trace_goes_through_a_logger_and_a_failure_is_a_warning(handler_of):
    taken = []

    def upload_file(**options):
        taken.append(options["remote_file_name"])
        raise OSError("no route")

    handler, _ = handler_of(0, machine=1, world=1, logger=SimpleNamespace(upload_file=upload_file))
    handler.take(cycle(0, 0), Timestamp())
    with pytest.warns(UserWarning, match=r"was not uploaded as run/traces/merged_trace.json in 3 attempts"):
        finish(handler)
    assert taken == ["run/traces/merged_trace.json"] * 3
    assert files_below("all") == ["0-rank0.json", "merged.ktrace"]


def test_machines_that_upload_to_one_name_are_told(handler_of):
    with pytest.warns(UserWarning, match="all upload to one name, memory://far/a.json: put {node_rank} into"):
        handler_of(0, machine=1, world=2, merged_trace_remote_file_name="memory://far/a.json")


def test_a_merge_that_fails_is_a_warning_and_loses_nothing(handler_of):
    handler, _ = handler_of(0, machine=1, world=1)
    handler.take(cycle(0, 0), Timestamp())
    Path("all/0-rank0.json").write_bytes(b"no trace")
    with pytest.warns(UserWarning, match="traces were not merged: FormatError"):
        finish(handler)
    assert files_below("all") == ["0-rank0.json"]


# ---------------------------------------------------------------------------------------------- at the end of each fit


def test_a_cycle_after_the_last_fit_is_merged_at_the_close(handler_of):
    handler, _ = handler_of(0, machine=1, world=1)
    handler.take(cycle(0, 0), Timestamp(batch=0))
    handler.fit_end(None, None)
    assert names_in("all/merged.ktrace") == {0: ["op0.0"]}
    handler.take(cycle(0, 1), Timestamp(batch=1))
    finish(handler)
    assert names_in("all/merged.ktrace") == {0: ["op0.0", "op0.1"]}


def test_ranks_wait_for_each_other_at_each_fit(handler_of):
    first, clock = handler_of(0)
    second, _ = handler_of(1)
    for number in range(2):
        first.take(cycle(0, number), Timestamp(batch=number))
        before_s = clock.now_s
        taken = cycle(1, number), Timestamp(batch=number)
        clock.then[clock.now_s + 7] = lambda taken=taken: second.take(*taken)
        first.fit_end(None, None)
        assert 7 <= clock.now_s - before_s < 8
        expected = {rank: [f"op{rank}.{each}" for each in range(number + 1)] for rank in range(2)}
        assert names_in("all/merged.ktrace") == expected


def test_the_merged_trace_of_a_second_fit_replaces_the_uploaded_one(handler_of):
    store = fsspec.filesystem("memory")
    options = {"merged_trace_remote_file_name": "memory://far/a.ktrace", "overwrite": False}
    handler, _ = handler_of(0, machine=1, world=1, **options)
    for number in range(2):
        handler.take(cycle(0, number), Timestamp(batch=number))
        handler.fit_end(None, None)
        assert store.cat("/far/a.ktrace") == Path("all/merged.ktrace").read_bytes()
    finish(handler)


# --------------------------------------------------------------------------------------------------- from files, later


@pytest.fixture
def paths():
    """Two cycles of each of two ranks."""
    for rank in range(2):
        for number in range(2):
            cycle(rank, number).save(f"rank{rank}.{number}.json")
    return [f"rank{rank}.{number}.json" for number in (1, 0) for rank in (1, 0)]


def test_files_are_merged_in_whatever_order_they_are_named(paths):
    assert merge_traces("merged.ktrace", *paths) == Path("merged.ktrace")
    assert names_in("merged.ktrace") == {0: ["op0.0", "op0.1"], 1: ["op1.0", "op1.1"]}


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
    merge_traces(name, *paths)
    merge_traces("merged.ktrace", *paths)
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
    merge_traces("merged.json", "theirs1.json", "theirs0.json")
    assert names_in("merged.json") == wanted


@pytest.mark.parametrize("value", [-1, True, 1.5, "1", None, 10**12])
def test_what_is_no_rank_is_none(value):
    events = events_of_composer(0)
    events[0]["args"] = {"name": "training loop process"}
    events[2]["args"] = {"value": value}
    Path("odd.json").write_text(json.dumps(events))
    assert names_in("odd.json") == {None: ["event/batch0"]}


def test_a_merged_file_is_not_merged_again(paths):
    merge_traces("merged.json", *paths)
    merge_traces("copy.json", "merged.json")
    assert names_in("copy.json") == names_in("merged.json")
    with pytest.raises(ArgumentError, match="one of the traces already contains several processes"):
        merge_traces("more.json", "merged.json", *paths)


def test_a_file_of_no_rank_is_merged_alone_only():
    cycle(0, 0, known=False).save("a.json")
    cycle(1, 0).save("b.json")
    merge_traces("merged.json", "a.json")
    with pytest.raises(ArgumentError, match="a.json does not state its rank"):
        merge_traces("merged.json", "a.json", "b.json")


@pytest.mark.parametrize(
    ("given", "said"), [((), "no traces"), (("a.json", "a.json"), "a.json is given twice")]
)
def test_what_cannot_be_merged_is_refused(given, said):
    with pytest.raises(ArgumentError, match=said):
        merge_traces("merged.json", *given)


def test_a_handler_that_was_not_started_is_told_apart():
    with pytest.raises(StateError, match=r"call start\(\) before training"):
        JSONTraceHandler().take(cycle(0, 0), Timestamp())


# ----------------------------------------------------------------------------------------------- ranks of a real job

PROGRAM = """
import sys
import torch
from kinetoscope import ProfilerActivity
from kinetoscope.integrations.composer import JSONTraceHandler, Profiler, cyclic_schedule

rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
with Profiler(
    cyclic_schedule(warmup=0, active=2, repeat=2),
    [JSONTraceHandler("all", remote_file_name=None, merged_trace_filename="merged.ktrace"), JSONTraceHandler("json", remote_file_name=None)],
    torch_prof_folder="torch", torch_prof_remote_file_name=None, activities=[ProfilerActivity.CPU], run_name="run",
    sys_prof_cpu=False,
) as profiler:
    for _ in range(4):
        with profiler.marker("reduce"):
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
    return folder


def test_ranks_of_a_job_are_in_one_trace_on_one_clock(job):
    assert files_below(job / "all") == [
        *(f"ep0-ba{batch}-rank{rank}.json" for batch in (2, 4) for rank in range(2)),
        "merged.ktrace",
    ]
    with kinetoscope.open(job / "all/merged.ktrace") as trace:
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
    events = json.loads((job / "json/merged_trace.json").read_text("utf-8"))["traceEvents"]
    labels = {
        event["pid"]: event["args"]["labels"]
        for event in events
        if event["name"] == "process_labels" and "CPU" in event["args"]["labels"]
    }
    assert sorted(labels.values()) == ["CPU of rank 0", "CPU of rank 1"]
    marked = [event["pid"] for event in events if event["name"] == "reduce" and event["ph"] == "X"]
    assert {pid: marked.count(pid) for pid in labels} == dict.fromkeys(labels, 4)
