import json

import numpy as np
import pytest
from hypothesis import given, settings

import kinetoscope
from kinetoscope.combine.processes import merge_processes
from kinetoscope.viewer.server.report import requests_of
from kinetoscope.viewer.server.routes import answer, respond
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.real_traces import real_trace
from tests.support.request_marks import begin_mark, end_mark
from tests.support.server_trace import Server
from tests.support.trace_builder import TraceBuilder


def trained(steps=(100, 60, 80, 70), matrix=1000):
    """Steps with a product of matrices each, which a device works on."""
    builder = TraceBuilder()
    stream = builder.stream(7)
    shapes = builder.shapes([[matrix, matrix], [matrix, matrix]], ["float", "float"])
    start = 0
    for number, duration in enumerate(steps):
        builder.step(number, start, duration)
        builder.span("aten::mm", start + 10, 30, shapes=shapes)
        builder.runtime("cudaLaunchKernel", start + 12, 5, correlation=number + 1)
        builder.kernel("gemm", start + 20, 25, stream=stream, correlation=number + 1)
        start += duration
    return builder.build()


@settings(max_examples=examples(10), deadline=None)
@given(any_traces(max_spans=20))
def test_every_reported_question_has_an_answer_that_json_can_hold(trace):
    for path, query in requests_of(trace, ["overview"]):
        assert respond([("trace", trace)], f"api/0/{path}", query).status == 200, path


def test_requests_are_a_sentence_for_each_name():
    server = Server()
    server.mark(begin_mark(0, "generate", ""), 100, 50).operator(110, 20).mark(
        end_mark(0, "finished", ""), 150
    )
    server.mark(begin_mark(1, "embed", ""), 200, 10).mark(end_mark(1, "finished", ""), 210)
    trace = server.builder.build()
    found = answer(trace, "overview", {})["requests"]
    assert [line.split(":")[0] for line in found] == ["generate", "embed"]
    assert found == trace.overview().requests
    assert answer(trained(), "overview", {})["requests"] == []


def test_an_empty_trace_is_described_as_empty():
    found = answer(TraceBuilder().build(), "overview", {})
    assert (found["spans"], found["operators"], found["steps"]) == (0, 0, None)
    assert [one["percent"] for one in found["utilization"]] == [0]
    assert found["duration_ns"] == 0


def test_amounts_are_those_of_the_tables():
    trace = trained()
    found = answer(trace, "overview", {})
    kinds = trace.table("spans")["kind"].to_pylist()
    assert found["spans"] == len(kinds)
    assert found["operators"] == kinds.count("operator") == 4
    assert found["kernels"] == sum(trace.table("kernels")["count"].to_pylist()) == 4
    assert found["device_work"] == 4
    assert found["duration_ns"] == trace.duration_ns


def test_times_of_steps_are_those_of_the_table():
    trace = trained()
    durations = trace.table("steps")["duration_ns"].to_pylist()
    found = answer(trace, "overview", {})["steps"]
    assert found["count"] == found["numbers"] == 4
    assert (found["mean_ns"], found["min_ns"], found["max_ns"]) == (np.mean(durations), 60, 100)
    assert found["p95_ns"] == pytest.approx(np.percentile(durations, 95))
    assert found["start_up"] == 0


def optimized(ends=(500, 560, 630, 690)):
    """Steps that only the calls of the optimizer tell."""
    builder = TraceBuilder()
    for end in ends:
        builder.span("aten::mm", end - 40, 20)
        builder.annotation("Optimizer.step#SGD.step", end - 10, 10)
    return builder


def test_a_first_step_with_what_came_before_the_loop_is_left_out():
    trace = optimized().build()
    table = trace.table("steps").to_pylist()
    assert {row["source"] for row in table} == {"optimizer"}
    found = answer(trace, "overview", {})["steps"]
    assert [row["start_up"] for row in table] == [True, False, False, False]
    assert (found["count"], found["start_up"]) == (4, 1)
    assert found["mean_ns"] == np.mean([row["duration_ns"] for row in table[1:]])


def test_the_only_step_is_not_left_out():
    found = answer(optimized((500,)).build(), "overview", {})["steps"]
    assert (found["count"], found["start_up"], found["mean_ns"]) == (1, 0, 500)
    found = answer(optimized((500, 560)).build(), "overview", {})["steps"]
    assert (found["count"], found["start_up"], found["mean_ns"]) == (2, 1, 60)


def test_a_recording_that_began_in_the_loop_has_no_start_up():
    builder = optimized((60, 120, 180)).know("program", {"command": ["train.py"], "first_step": 10})
    assert answer(builder.build(), "overview", {})["steps"]["start_up"] == 0


def test_each_rank_leaves_out_its_own_first_step():
    ranks = [optimized().know("distributedInfo", {"rank": rank, "world_size": 2}).build() for rank in (0, 1)]
    found = answer(merge_processes(ranks, [0, 7]), "overview", {})["steps"]
    assert (found["count"], found["numbers"], found["processes"]) == (8, 4, 2)
    assert found["start_up"] == 2


def test_each_process_is_as_busy_as_its_own_operators_make_it():
    loop = TraceBuilder().know("process", 1).know("process_name", "train.py")
    loop.step(0, 0, 100).annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 90)
    loop.span("aten::mm", 92, 5)
    worker = TraceBuilder().know("process", 2).know("process_name", "DataLoader worker 0")
    worker.span("aten::tanh", 0, 80).span("aten::tanh", 90, 0)
    trace = merge_processes([loop.build(), worker.build()], [0, 0])
    found = answer(trace, "overview", {})
    assert [(one["title"], one["percent"], one["steps"]) for one in found["utilization"]] == [
        ("train.py · cpu", 5, 1),
        ("DataLoader worker 0 · cpu", pytest.approx(100 * 80 / 90), 0),
    ]
    tile = next(one for one in found["tiles"] if one["title"] == "In operators")
    assert tile["value"] == [5, "%"]
    rows = answer(trace, "top/ops", {}).table.to_pylist()
    assert [(row["name"], row["time_ns"], row["share"]) for row in rows] == [("aten::mm", 5, 5)]


def test_work_is_that_of_the_tables():
    trace = trained()
    found = answer(trace, "overview/work", {})
    table = trace.table("steps")
    assert found["flops"] == sum(trace.table("flops")["flops"].to_pylist()) == 4 * 2 * 1000**3
    assert found["flops_per_s"] == pytest.approx(np.median(table["flops_per_s"].to_pylist()))
    assert found["covered_percent"] == 100
    assert found["mfu_percent"] is None


def test_without_steps_work_is_by_the_whole_trace():
    builder = TraceBuilder()
    shapes = builder.shapes([[10, 10], [10, 10]], ["float", "float"])
    found = answer(builder.span("aten::mm", 0, 100, shapes=shapes).build(), "overview/work", {})
    assert found["flops"] == 2000
    assert found["flops_per_s"] == pytest.approx(2000 * 1e9 / 100)


def test_without_inputs_nothing_is_said_of_work():
    found = answer(TraceBuilder().span("aten::mm", 0, 100).build(), "overview/work", {})
    assert {found[name] for name in ("flops", "flops_per_s", "mfu_percent", "covered_percent")} == {None}


def test_peaks_add_up_from_their_categories():
    builder = TraceBuilder().know("profile_memory", 1)
    builder.span("aten::empty", 0, 100)
    builder.allocate(10, 0x1000, 600, device=(1, 0))
    builder.allocate(20, 0x2000, 400, device=(1, 0))
    builder.free(30, 0x1000, device=(1, 0))
    builder.allocate(40, 0x3000, 64)
    peaks = answer(builder.build(), "overview/memory", {})["peaks"]
    assert [(peak["device"], peak["bytes"], peak["time_ns"]) for peak in peaks] == [
        ("cuda:0", 1000, 20),
        ("cpu", 64, 40),
    ]
    for peak in peaks:
        assert sum(held["bytes"] for held in peak["categories"]) == peak["bytes"]


def test_without_memory_there_are_no_peaks():
    assert answer(trained(), "overview/memory", {})["peaks"] == []


def test_an_unknown_part_is_not_found():
    assert respond([("trace", trained())], "api/0/overview/else", {}).status == 404


@pytest.mark.parametrize("name", ["h100_owlv2_stack_mem", "v100_resnet50_mem"])
def test_numbers_of_real_traces_are_those_of_their_tables(name):
    with kinetoscope.open(real_trace(name)) as trace:
        steps = trace.table("steps")
        found = json.loads(respond([("trace", trace)], "api/0/overview", {}).body)
        assert found["steps"]["mean_ns"] == np.mean(steps["duration_ns"].to_pylist())
        assert found["kernels"] == sum(trace.table("kernels")["count"].to_pylist())
        peaks = answer(trace, "overview/memory", {})["peaks"]
        top = trace.table("memory_peak", device="cuda:0")
        assert peaks[0]["attributed_bytes"] == sum(top["bytes"].to_pylist())
