"""The table `samples`, and what becomes of samples in parts of traces and in traces of several."""

import pytest

import kinetoscope
from kinetoscope.combine.concatenate import concatenate
from kinetoscope.combine.processes import merge_processes
from kinetoscope.model.losses import sample_losses
from kinetoscope.model.schema import SAMPLE_STATES, SAMPLE_WAITS, SampleState, SampleWait
from tests.support.trace_builder import TraceBuilder


def sampled() -> TraceBuilder:
    builder = TraceBuilder()
    builder.thread("main", os_tid=70)
    builder.thread("loader", os_tid=71)
    net = builder.module("Net")
    outer = builder.stack(("train.py", 3, "main"))
    inner = builder.stack(("train.py", 3, "main"), ("net.py", 8, "Net.forward"))
    builder.annotation("ProfilerStep#4", 0, 50).annotation("ProfilerStep#5", 50, 50)
    builder.span("aten::add", 10, 5, stack=inner, module=net)
    builder.sample(12, inner, module=net, period_ns=12)
    builder.sample(13, outer, thread=1, state=SampleState.BLOCKED, period_ns=12)
    builder.sample(60, outer, state=SampleState.WAITING_FOR_GIL, period_ns=47)
    builder.sample(200, outer, state=SampleState.UNKNOWN, period_ns=140)
    builder.stop_ns = 210
    return builder


def rows(trace, *names):
    return trace.samples().select(list(names)).to_pylist()


def test_each_state_and_each_wait_has_a_name():
    assert len(SAMPLE_STATES) == len(SampleState)
    assert len(SAMPLE_WAITS) == len(SampleWait) == len(set(SAMPLE_WAITS))


def test_samples_say_what_a_blocked_thread_waits_for():
    builder = TraceBuilder()
    inside = builder.stack(("train.py", 3, "main"))
    builder.sample(10, inside, state=SampleState.BLOCKED, wait=SampleWait.SOCKET)
    builder.sample(20, inside, state=SampleState.BLOCKED)
    assert rows(builder.build(), "waits_for") == [{"waits_for": "a socket"}, {"waits_for": None}]


def test_samples_show_lines_states_and_places():
    trace = sampled().build()
    found = rows(
        trace, "time_ns", "period_ns", "state", "function", "file", "line", "module", "step", "thread_name"
    )
    assert found[0] == {
        "time_ns": 12, "period_ns": 12, "state": "running", "function": "Net.forward", "file": "net.py", "line": 8,
        "module": "Net", "step": 4, "thread_name": "main",
    }  # fmt: skip
    assert [row["state"] for row in found] == ["running", "blocked", "waiting for the GIL", "unknown"]
    assert [row["step"] for row in found] == [4, 4, 5, None]
    assert [row["module"] for row in found] == ["Net", None, None, None]
    assert [row["thread_name"] for row in found] == ["main", "loader", "main", "main"]
    assert rows(trace, "stack_row", "stack")[0] == {
        "stack_row": trace.column("spans", "own_stack").max(),
        "stack": "train.py(3): main;net.py(8): Net.forward",
    }


def test_a_trace_without_samples_has_no_rows():
    assert TraceBuilder().span("aten::add", 0, 1).build().samples().num_rows == 0


def test_a_window_has_the_samples_that_were_taken_in_it():
    part = sampled().build().window(13, 61)
    assert rows(part, "time_ns", "line", "step", "thread_name") == [
        {"time_ns": 0, "line": 3, "step": 4, "thread_name": "loader"},
        {"time_ns": 47, "line": 3, "step": 5, "thread_name": "main"},
    ]


def test_chosen_steps_have_their_samples_and_their_numbers():
    part = sampled().build().select_steps([5])
    assert rows(part, "time_ns", "step") == [{"time_ns": 10, "step": 5}]


def test_cycles_put_together_keep_their_samples_in_order():
    traces = [sampled().build(), sampled().build()]
    joined = concatenate(traces)
    times = joined.column("samples", "time_ns").tolist()
    assert len(times) == 8
    assert times == sorted(times)
    lines = rows(joined, "file", "line", "state", "module", "thread_name", "step")
    assert lines == 2 * rows(traces[0], "file", "line", "state", "module", "thread_name", "step")


def test_processes_put_together_keep_samples_of_their_own_steps():
    traces = [sampled().build(), sampled().build()]
    joined = merge_processes(traces)
    found = rows(joined, "file", "line", "state", "module", "thread_name", "step")
    expected = rows(traces[0], "file", "line", "state", "module", "thread_name", "step")
    assert len(found) == 8
    assert all(found.count(row) == 2 * expected.count(row) for row in expected)


@pytest.mark.parametrize("name", ["trace.ktrace", "trace.tables"])
def test_files_keep_samples(tmp_path, name):
    trace = sampled().build()
    trace.save(tmp_path / name)
    assert kinetoscope.open(tmp_path / name).samples().to_pylist() == trace.samples().to_pylist()


def test_few_torn_samples_are_no_loss():
    assert sample_losses(9, 0, None) == []
    assert sample_losses(100, 10_000, None) == []
    (loss,) = sample_losses(300, 10_000, None)
    assert (loss.code, loss.count) == ("torn_samples", 300)
    (loss,) = sample_losses(10, 0, None)
    assert loss.code == "torn_samples"


def test_a_recording_that_could_not_be_sampled_says_why():
    trace = sampled().know("samples_missing", "this kernel has no /proc").lose("torn_samples", 19).build()
    losses = trace.table("losses").select(["code", "count", "why"]).to_pylist()
    assert losses == [
        {"code": "samples_missing", "count": 1, "why": "this kernel has no /proc."},
        {"code": "torn_samples", "count": 19, "why": losses[1]["why"]},
    ]
