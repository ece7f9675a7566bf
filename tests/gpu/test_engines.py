"""What both engines make of a device: the same work, launched by the same operators, in the same order."""

import threading

import pytest
import torch
from torch.profiler import profile as torch_profile

import kinetoscope
from kinetoscope import ProfilerActivity
from kinetoscope.ledger.parts import PARTS
from tests.gpu.conftest import activity_of

OPERATORS = ["mul", "neg", "add", "exp", "mul", "mul", "sub", "neg"]


def launch_known_kernels(device, repeat=4):
    x = torch.ones(16, 16, device=device)
    for _ in range(repeat):
        for name in OPERATORS:
            x = getattr(torch, name)(x, *([0.5] if name in ("mul", "add", "sub") else []))


def launched(trace):
    """The operator and the kernel of each launch of one, in the order of the calls."""
    rows = [row for row in trace.table("launches").to_pylist() if row["device_kind"] == "kernel"]
    rows.sort(key=lambda row: row["host_start_ns"])
    return [(row["operator"], row["device_name"]) for row in rows]


def work(trace):
    """How often everything ran that the device did."""
    return sorted((row["name"], row["count"]) for row in trace.table("kernels").to_pylist())


def training_step(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(16, 32).to(device), torch.zeros(16, dtype=torch.long).to(device)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    step()
    torch.accelerator.synchronize()
    return step


def test_each_kernel_is_the_operators_that_launched_it(record, device):
    launch_known_kernels(device)
    torch.accelerator.synchronize()
    trace = record(lambda: launch_known_kernels(device)).trace
    operators = [operator for operator, _ in launched(trace)]
    assert [name for name in operators if name != "aten::fill_"] == [
        f"aten::{name}" for name in OPERATORS
    ] * 4
    assert trace.complete, trace.losses
    if record.engine == "native":
        checks = trace.info["clock_checks"]
        assert checks["device_calls"] >= 4 * len(OPERATORS)
        assert checks["device_calls_crossing"] <= 0.01 * checks["device_calls"]


def test_a_training_step_is_what_torch_profiler_says_it_is(record, device, tmp_path):
    step = training_step(device)
    ours = record(step).trace
    with torch_profile(activities=[ProfilerActivity.CPU, activity_of(device)]) as theirs:
        step()
        torch.accelerator.synchronize()
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))
    with kinetoscope.open(tmp_path / "theirs.json") as read:
        assert launched(ours) == launched(read)
        assert work(ours) == work(read)
    by_name = {event.key: event for event in theirs.key_averages()}
    for row in ours.table("ops").to_pylist():
        if row["name"].startswith("aten::"):
            assert row["count"] == by_name[row["name"]].count
            assert (row["device_self_ns"] > 0) == (by_name[row["name"]].self_device_time_total > 0)


def test_the_times_of_a_device_fit_together(record, device):
    step = training_step(device)

    def program(session):
        for _ in range(3):
            step()
            session.step()

    trace = record(program, session_is_given=True).trace
    launches = trace.table("launches").to_pylist()
    assert launches
    # No work can begin before the call that asked for it; the clocks of a real device and its host differ by microseconds.
    assert [row for row in launches if row["delay_ns"] < -50_000] == []
    rows = trace.table("breakdown").to_pylist()
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert row["device"] != "cpu"
        assert sum(row[part] for part in PARTS) == row["duration_ns"]
    (one,) = trace.table("devices").to_pylist()
    streams = trace.table("streams").to_pylist()
    assert one["kernels"] == sum(stream["kernels"] for stream in streams)
    assert one["busy_ns"] <= sum(stream["busy_ns"] for stream in streams)
    assert one["work_ns"] == sum(row["device_ns"] for row in launches)
    overlap = trace.table("overlap").to_pylist()
    assert [row["compute_ns"] for row in overlap] == [row["compute_ns"] for row in rows]


def test_backward_kernels_are_those_of_its_functions(record, device):
    trace = record(training_step(device)).trace
    operators = {operator for operator, _ in launched(trace)}
    assert {"aten::gelu_backward", "aten::mm"} <= operators
    modules = {row["path"]: row for row in trace.table("modules").to_pylist()}
    if record.engine == "native":
        # The kernels of the forward and of the backward pass.
        assert {"0", "1", "2"} <= {name for name, row in modules.items() if row["device_self_ns"] > 0}


def test_stacks_and_shapes_are_there_for_what_launched_a_kernel(record, device):
    if record.engine != "native":
        pytest.skip("torch's collector has stacks only together with its Python calls")
    trace = record(training_step(device), record_shapes=True, with_stack=True).trace
    lines = [row for row in trace.table("lines").to_pylist() if row["device_self_ns"] > 0]
    assert any(row["file"].endswith("test_engines.py") for row in trace.table("lines").to_pylist()), lines
    with_shapes = [row for row in trace.table("ops").to_pylist() if row["name"] == "aten::addmm"]
    assert with_shapes
    assert with_shapes[0]["device_self_ns"] > 0


def test_threads_each_have_their_kernels(record, device):
    launch_known_kernels(device, 1)

    # All at once: runtimes give the number of a thread that has ended to the next one.
    together = threading.Barrier(3)

    def work_of_a_thread():
        together.wait()
        launch_known_kernels(device)
        together.wait()

    def program():
        others = [threading.Thread(target=work_of_a_thread) for _ in range(2)]
        for thread in others:
            thread.start()
        work_of_a_thread()
        for thread in others:
            thread.join()

    trace = record(program).trace
    operators = [operator for operator, _ in launched(trace)]
    # torch's collector knows the operators of the thread that started it, and the launches of all.
    threads_with_operators = 1 if record.engine == "kineto" else 3
    for name in set(OPERATORS):
        assert operators.count(f"aten::{name}") == threads_with_operators * 4 * OPERATORS.count(name)
    threads = {row["os_tid"] for row in trace.table("launches").to_pylist()}
    assert len(threads) == 3


@pytest.mark.parametrize("record", ["native"], indirect=True)
@pytest.mark.parametrize(
    "check",
    [
        test_each_kernel_is_the_operators_that_launched_it,
        test_backward_kernels_are_those_of_its_functions,
        test_threads_each_have_their_kernels,
    ],
    ids=lambda check: check.__name__.removeprefix("test_"),
)
def test_runtimes_that_number_threads_in_their_own_way_are_understood(check, record, device, monkeypatch):
    """As CUPTI does: by pthread's numbers, also of threads that Python does not know (autograd's); other devices have one way."""
    monkeypatch.setenv("TEST_DEVICE_THREADS", "pthread")
    check(record, device)


def test_what_was_recorded_is_saved_and_read_again(record, device, tmp_path):
    session = record(training_step(device))
    session.save(tmp_path / "run.ktrace")
    session.export_chrome_trace(tmp_path / "run.json")
    for name in ("run.ktrace", "run.json"):
        with kinetoscope.open(tmp_path / name) as again:
            assert work(again) == work(session.trace)
            assert launched(again) == launched(session.trace)


def test_one_recording_after_another_sees_the_same(record, device):
    step = training_step(device)
    traces = [record(step).trace for _ in range(3)]
    assert work(traces[0]) == work(traces[1]) == work(traces[2])
