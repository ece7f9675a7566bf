"""Several processes in one Chrome trace: each is read as from a file of its own."""

import gzip
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinetoscope
from kinetoscope.combine.processes import merge_processes
from kinetoscope.formats.chrome.write import write_chrome_trace
from kinetoscope.model.processes import Placement
from tests.support.chrome_text import x
from tests.support.kineto_text import named, opened
from tests.support.real_traces import IN_REPOSITORY

COMPARED = ("spans", "steps", "ops", "kernels", "launches", "counters", "allocations", "threads", "streams")


def of_rank(rank, pid, device=0, steps=2, begin_us=0.0):
    """The events of one rank: steps with operators that launch kernels; numbers repeat in every rank."""
    events = [
        named("process_name", pid, 0, "python"),
        named("process_labels", pid, 0, "CPU"),
        named("process_labels", device, 0, f"GPU {device}"),
    ]
    for step in range(steps):
        at = begin_us + step * 1000
        number = 2 * step + 1
        events += [
            x(f"ProfilerStep#{step}", at, 900, "user_annotation", pid, pid),
            x(f"aten::mm{rank}", at + 100, 300, "cpu_op", pid, pid, **{"External id": number}),
            x("cudaLaunchKernel", at + 150, 5, "cuda_runtime", pid, pid, correlation=number, **{"External id": number}),
            x(f"gemm{rank}", at + 170, 200 + rank, "kernel", device, 7, correlation=number, device=device, stream=7,
              **{"External id": number}),
            {"ph": "C", "name": "queue", "pid": pid, "ts": at, "args": {"length": rank + step}},
            {"ph": "i", "name": "[memory]", "pid": pid, "tid": pid, "ts": at + 120,
             "args": {"Bytes": 1024 * (rank + 1), "Addr": 4096, "Device Type": 0, "Device Id": -1,
                      "Total Allocated": 1024, "Total Reserved": 0}},
        ]  # fmt: skip
    return [event for part in events for event in (part if isinstance(part, list) else [part])]


def shown(trace):
    """The tables that people see."""
    return {name: trace.table(name).to_pylist() for name in COMPARED}


def read(folder, name, events, **header):
    path = folder / name
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return kinetoscope.open(path)


def as_merged(traces, begins_us):
    """The traces of several files as one."""
    places = [
        Placement(round(begin * 1000), error_ns=-1 if place else 0) for place, begin in enumerate(begins_us)
    ]
    return merge_processes(traces, places)


@pytest.mark.parametrize("devices", [(0, 1), (0, 0)], ids=["own devices", "same device id"])
def test_each_process_is_as_in_a_file_of_its_own(tmp_path, devices):
    begins = (0.0, 3.5)
    each = [of_rank(rank, 100 * (rank + 1), devices[rank], begin_us=begins[rank]) for rank in (0, 1)]
    merged = read(tmp_path, "merged.json", each[0] + each[1])
    alone = [read(tmp_path, f"{rank}.json", events) for rank, events in enumerate(each)]
    expected = as_merged(alone, begins)
    assert shown(merged) == shown(expected)
    assert merged.table("processes").to_pylist() == expected.table("processes").to_pylist()
    assert [row["process"] for row in merged.table("steps").to_pylist()] == [100, 200] * 2


@pytest.mark.parametrize(
    ("renamed", "ranks"),
    [
        (lambda rank, pid: f"[TP{rank:02d}] {pid}", [0, 1]),
        (lambda rank, pid: f"[TP{rank:02d}-PP01] {pid}", [None, None]),
        (lambda rank, pid: f"rank {rank} {pid}", [0, 1]),
        (lambda rank, pid: pid + 1_000_000 * rank, [None, None]),
    ],
    ids=["SGLang", "with pipeline", "rank", "offset"],
)
def test_scripts_that_rename_processes_keep_them_apart(tmp_path, renamed, ranks):
    events = []
    for rank in (0, 1):
        own = of_rank(rank, 4711, 0, begin_us=2.0 * rank)
        events += [{**event, "pid": renamed(rank, event["pid"])} for event in own]
    trace = read(tmp_path, "merged.json", events, distributedInfo={"rank": 0, "world_size": 2})
    rows = trace.table("processes").to_pylist()
    assert [row["rank"] for row in rows] == ranks
    by_name = {
        row["name"]: row["process"]
        for row in trace.table("spans").to_pylist()
        if row["name"].startswith(("aten", "gemm"))
    }
    assert by_name["gemm0"] == by_name["aten::mm0"] == rows[0]["process"]
    assert by_name["gemm1"] == by_name["aten::mm1"] == rows[1]["process"]
    assert {loss["code"] for loss in trace.losses} == {"uncompared_clocks"}
    assert [entry.get("distributedInfo", {}).get("rank") for entry in trace.info["processes"]] == ranks


def test_the_devices_overhead_and_windows_of_kineto_are_no_processes():
    trace = opened(
        of_rank(0, 100, 0),
        named("process_labels", 1, 0, "GPU 1"),
        x("CUPTI overhead", 5, 1, "overhead", -1, 0),
        x("other", 7, 1, "some_tool", 1, 3),
        x("PyTorch Profiler (0)", 0, 3000, "Trace", "Spans", "PyTorch Profiler"),
    )
    assert trace.table("processes")["process"].to_pylist() == [100]
    assert len(trace.table("steps")) == 2


def test_our_own_export_of_several_processes_comes_back(tmp_path):
    each = [read(tmp_path, f"{rank}.json", of_rank(rank, 100 + rank, 0, begin_us=rank)) for rank in (0, 1)]
    for rank, trace in enumerate(each):
        trace.info["rank"] = rank
    merged = as_merged(each, (0.0, 1.0))
    merged.save(tmp_path / "merged.json")
    back = kinetoscope.open(tmp_path / "merged.json")
    facts = ("process", "rank")
    rows = [
        [{name: row[name] for name in facts} for row in trace.table("processes").to_pylist()]
        for trace in (back, merged)
    ]
    assert rows[0] == rows[1]
    assert [loss["code"] for loss in back.losses] == [loss["code"] for loss in merged.losses]
    for name in ("steps", "ops", "kernels", "copies", "memory"):
        assert back.table(name).to_pylist() == merged.table(name).to_pylist(), name
    back.save(tmp_path / "again.json")
    again = kinetoscope.open(tmp_path / "again.json")
    assert again.table("ops").to_pylist() == back.table("ops").to_pylist()


_RANKS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(0, 400)), min_size=2, max_size=4
)


@settings(max_examples=15)
@given(_RANKS, st.randoms(use_true_random=False))
def test_no_process_takes_anything_from_another(tmp_path_factory, ranks, random):
    folder = tmp_path_factory.mktemp("ranks")
    each = [
        of_rank(rank, 100 + rank, 10 + rank, steps=steps, begin_us=float(begin))
        for rank, (_, steps, begin) in enumerate(ranks)
    ]
    merged = read(folder, "merged.json", [event for events in each for event in events])
    alone = [read(folder, f"{rank}.json", events) for rank, events in enumerate(each)]
    expected = as_merged(alone, [float(begin) for _, _, begin in ranks])
    assert shown(merged) == shown(expected)
    shuffled = [event for events in each for event in events]
    random.shuffle(shuffled)
    assert shown(read(folder, "shuffled.json", shuffled)) == shown(expected)


def test_kernels_whose_operator_number_is_their_launch_number_find_their_process(tmp_path):
    # As Kineto wrote them before torch 2.1: the `External id` of device work is its correlation.
    each = [of_rank(rank, 100 + rank, rank, begin_us=3.0 * rank) for rank in (0, 1)]
    for event in each[0] + each[1]:
        if event.get("cat") == "cpu_op":
            event["args"]["External id"] += 1000
    merged = read(tmp_path, "merged.json", each[0] + each[1])
    alone = [read(tmp_path, f"{rank}.json", events) for rank, events in enumerate(each)]
    assert shown(merged) == shown(as_merged(alone, (0.0, 3.0)))


def test_an_implausible_duration_among_several_processes_is_one_loss(tmp_path):
    events = of_rank(0, 100, 0) + of_rank(1, 101, 1)
    events.append(x("endless", 200, 7 * 24 * 3600e6, "kernel", 1, 7, device=1, stream=7))
    trace = read(tmp_path, "merged.json", events)
    found = [(loss["code"], loss["count"]) for loss in trace.losses if loss["code"] != "uncompared_clocks"]
    assert found == [("implausible_durations", 1)]
    assert trace.duration_ns < 3_000_000


def saved_merged(folder):
    """The text of our own export of two processes, whose machine and commands are known."""
    each = [read(folder, f"{rank}.json", of_rank(rank, 100 + rank)) for rank in (0, 1)]
    for trace in each:
        trace.info |= {"host": "secret-host", "command_line": ["secret-command"]}
    return as_merged(each, (0.0, 0.0))


def test_an_export_without_identity_names_no_host_and_no_command_of_a_process(tmp_path):
    write_chrome_trace(saved_merged(tmp_path), tmp_path / "out.json", identity=False)
    assert "secret-host" not in (tmp_path / "out.json").read_text()
    assert kinetoscope.open(tmp_path / "out.json").table("processes")["process"].to_pylist() == [100, 101]


@pytest.mark.parametrize(
    "renamed", [lambda rank, pid: pid, lambda rank, pid: f"[TP{rank:02d}] {pid}"], ids=["plain", "renamed"]
)
def test_real_ranks_in_one_file_have_what_each_has_alone(tmp_path, renamed):
    files = sorted((IN_REPOSITORY / "dlrm_8rank").glob("*.json.gz"))
    events, expected = [], []
    for rank, path in enumerate(files):
        events += [
            {**event, "pid": renamed(rank, event["pid"])} if "pid" in event else event
            for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        ]
        rows = kinetoscope.open(path).table("spans").to_pylist()
        expected.append(Counter((row["kind"], row["name"], row["duration_ns"]) for row in rows))
    trace = read(tmp_path, "merged.json", events)
    found = {row["process"]: Counter() for row in trace.table("processes").to_pylist()}
    for row in trace.table("spans").to_pylist():
        found[row["process"]][row["kind"], row["name"], row["duration_ns"]] += 1
    assert list(found.values()) == expected
