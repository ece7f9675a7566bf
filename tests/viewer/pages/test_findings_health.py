import json
import os

import numpy as np
import pytest
from hypothesis import given, settings

import kinetoscope
from kinetoscope.analyses.health import UNTIL_STOPPED, losses, numbers
from kinetoscope.collect.process.machine import boot
from kinetoscope.combine.processes import merge_processes
from kinetoscope.model.losses import UNFINISHED_SPANS
from kinetoscope.model.schema import SpanKind
from kinetoscope.trace import Trace
from kinetoscope.viewer.server.report import report, requests_of
from kinetoscope.viewer.server.routes import answer, respond
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder


def health(builder):
    return answer(builder.build(), "health", {})


def launched():
    """One kernel with its call, one without, and a call that starts nothing."""
    builder = TraceBuilder()
    stream = builder.stream(7)
    builder.runtime("cudaLaunchKernel", 10, 5, correlation=1)
    builder.kernel("gemm", 20, 50, stream=stream, correlation=1)
    builder.kernel("relu", 80, 10, stream=stream, correlation=2)
    builder.runtime("cudaMemcpyAsync", 90, 5, correlation=3)
    builder.runtime("cudaStreamSynchronize", 100, 5)
    return builder


@settings(max_examples=examples(10), deadline=None)
@given(any_traces(max_spans=20))
def test_every_reported_question_has_an_answer_that_json_can_hold(trace):
    for path, query in requests_of(trace, ["health"]):
        assert respond([("trace", trace)], f"api/0/{path}", query).status == 200, path


def test_losses_are_counted_as_the_table_has_them():
    builder = TraceBuilder().span("aten::mm", 0, 10).lose("recycled_spans", 7).lose("truncated_strings", 2)
    trace = builder.build()
    found = answer(trace, "health", {})
    table = trace.table("losses")
    affects = ["times", "counts", "names"]
    effect = "times and counts are lower bounds"
    assert found["losses"] == {"kinds": len(table), "affects": affects, "consequence": effect}
    assert found["state"] == "warn"


def test_a_killed_recording_was_never_stopped():
    builder = TraceBuilder().span("aten::mm", 0, 10)
    builder.killed()
    found = health(builder)
    assert found["not_stopped"] == 1
    assert found["line"]["text"].startswith("The recording was not stopped")


def test_a_process_that_never_stopped_is_no_recording_that_stopped():
    loop, worker = TraceBuilder().span("aten::mm", 0, 10), TraceBuilder().span("aten::mm", 0, 10).killed()
    trace = merge_processes([loop.know("process", 1).build(), worker.know("process", 2).build()], [0, 0])
    found = answer(trace, "health", {})
    (recording,) = [check for check in found["checks"] if check["title"] == "Recording"]
    assert (recording["state"], recording["finding"]["text"]) == (
        "warn",
        "{} of {} processes was not stopped",
    )
    assert [value for value, _ in recording["finding"]["values"]] == [1, 2]
    trace = merge_processes(
        [loop.build(), TraceBuilder().span("aten::mm", 0, 10).know("process", 2).build()], [0, 0]
    )
    assert answer(trace, "health", {})["not_stopped"] == 0


def test_kernels_of_nccl_are_collectives():
    with kinetoscope.open(real_trace("mi300_resnet_stack_rccl_rank0of8")) as trace:
        recorded = {row["title"]: row["rows"] for row in answer(trace, "health", {})["recorded"]}
        assert recorded["Collectives"] == len(trace.table("collectives")) >= 17


def test_health_takes_nothing_from_what_a_report_holds(tmp_path):
    trace = launched().build()
    answer(trace, "health", {})
    report(trace, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 0


def test_a_recording_that_goes_on_is_no_reason_to_worry():
    builder = TraceBuilder().span("aten::mm", 0, 10).lose("unfinished_spans", 3)
    builder.killed()
    trace = builder.build()
    trace.info.update(process=os.getpid(), boot_id=json.loads(boot()["boot_id"]))
    found = answer(trace, "health", {})
    assert (found["state"], found["line"]["text"]) == ("note", "Still being recorded")
    assert found["losses"]["kinds"] == 0
    # Then it is killed.
    trace.info["process"] = 2**22 + 1
    found = answer(trace, "health", {})
    assert found["line"]["text"].startswith("The recording was not stopped")
    assert found["losses"]["kinds"] == 2


def test_losses_are_recognized_by_their_codes_and_not_by_their_sentences():
    builder = TraceBuilder().span("aten::mm", 0, 10).lose(UNFINISHED_SPANS, 3).killed()
    trace = builder.build()
    table = trace.columns("losses")
    columns = {name: table[name] for name in table}
    sentences = columns["what"]
    columns["what"] = ["in other words"] * len(sentences)
    reworded = Trace.from_columns({"losses": columns}, strings=[""], info=trace.info)
    assert numbers(reworded)["not_stopped"] == 1
    assert losses(reworded, UNTIL_STOPPED)["kinds"] == 0
    columns |= {"what": sentences, "code": [""] * len(sentences)}
    uncoded = Trace.from_columns({"losses": columns}, strings=[""])
    assert numbers(uncoded)["not_stopped"] == 0
    assert losses(uncoded, UNTIL_STOPPED)["kinds"] == 2


def test_a_whole_trace_is_good():
    found = health(TraceBuilder().span("aten::mm", 0, 10))
    assert found["not_stopped"] == 0
    assert (found["state"], found["line"]["text"]) == ("good", "Nothing is missing")


def test_spans_without_an_end_are_counted():
    found = health(TraceBuilder().span("aten::mm", 0, 10).span("aten::add", 20, 5, unfinished=True))
    assert (found["unfinished"], found["spans"]) == (1, 2)


def test_launches_without_a_partner_are_counted_on_both_sides():
    found = health(launched())["launches"]
    assert found == {"work": 2, "tied": 1, "calls": 2, "without_work": 1, "early": 0, "earliest_ns": 0}


def test_without_devices_nothing_is_said_of_launches():
    assert health(TraceBuilder().span("aten::mm", 0, 10))["launches"] is None


def test_work_before_its_call_shows_that_clocks_disagree():
    builder = TraceBuilder()
    stream = builder.stream(7)
    builder.runtime("cudaLaunchKernel", 5000, 10, correlation=1)
    builder.kernel("gemm", 1000, 50, stream=stream, correlation=1)
    trace = builder.build()
    found = answer(trace, "health", {})["launches"]
    assert (found["early"], found["earliest_ns"]) == (1, -trace.table("launches")["delay_ns"][0].as_py())


def test_overhead_on_two_threads_at_once_counts_once():
    builder = TraceBuilder()
    builder.thread("main")
    builder.thread("other")
    builder.span("Buffer Flush", 0, 10, kind=SpanKind.OVERHEAD)
    builder.span("Buffer Flush", 5, 10, thread=1, kind=SpanKind.OVERHEAD)
    assert health(builder)["overhead"] == {"spans": 2, "time_ns": 15, "duration_ns": 15}


def test_clocks_of_processes_are_those_of_the_table():
    both = merge_processes([TraceBuilder().span("aten::mm", 0, 10).build() for _ in range(2)], [0, 100])
    found = answer(both, "health", {})["processes"]
    assert found["count"] == len(both.table("processes")) == 2
    assert found["unknown_clocks"] == both.table("processes")["error_ns"].null_count


@pytest.mark.parametrize("told", ["soon", 3, {"readings": "many"}, {"readings": 2**60}, [1]])
def test_clock_checks_of_a_strange_file_are_left_out(told):
    trace = TraceBuilder().span("aten::mm", 0, 10).build()
    trace.info["clock_checks"] = told
    assert answer(trace, "health", {})["clock"] is None


def test_what_was_recorded_is_what_the_tables_hold():
    builder = launched().know("record_shapes", 1).know("with_stack", 0)
    found = {row["title"]: (row["rows"], row["requested"]) for row in health(builder)["recorded"]}
    assert found["Devices"] == (2, None)
    assert found["Shapes"] == (0, True)
    assert found["Stacks"] == (0, False)
    assert found["Modules"] == (0, None)


@pytest.mark.parametrize("name", ["h100_owlv2_stack_mem", "mi300_resnet_stack_rccl_rank0of8"])
def test_numbers_of_real_traces_are_those_of_their_tables(name):
    with kinetoscope.open(real_trace(name)) as trace:
        found = answer(trace, "health", {})
        launches, devices = trace.table("launches"), trace.table("devices")
        work = sum(devices["kernels"].to_pylist()) + sum(devices["copies"].to_pylist())
        kinds = np.array(launches["device_kind"].to_pylist())
        is_work = np.isin(kinds, ["kernel", "memcpy", "memset"])
        tied = set(np.array(launches["device"].to_pylist())[is_work].tolist())
        assert (found["launches"]["work"], found["launches"]["tied"]) == (work, len(tied))
        early = np.array(launches["delay_ns"].to_pylist())[is_work]
        assert found["launches"]["early"] == int((early < 0).sum())
