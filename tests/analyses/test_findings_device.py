"""Findings about devices, planted in traces that tests build."""

import pytest

from kinetoscope.analyses.findings import examine, finding_blocks
from kinetoscope.display.lines import plain_lines
from kinetoscope.display.sentence import plain
from tests.analyses.planted_devices import PLANTED, US, Gpu, all_reduce, loop


def codes(trace):
    return [one.code for one in examine(trace).findings]


@pytest.mark.parametrize("program", PLANTED)
def test_a_planted_fault_of_a_device_is_named_first(program):
    assert codes(PLANTED[program](True))[:1] == [program.partition(":")[0]]


@pytest.mark.parametrize("program", PLANTED)
def test_the_same_device_without_the_fault_has_no_finding(program):
    assert codes(PLANTED[program](False)) == []


def test_a_symptom_yields_to_its_cause():
    gpu = Gpu()
    for _ in range(8):
        for one in range(200):
            gpu.launch(f"layer{one % 6}", 4 * US, "aten::cumsum", line=10 + one, blocks_per_sm=0.1)
        gpu.step()
    # The device is idle, its kernels are small and have few blocks: all because the program launches so many.
    assert codes(gpu.build()) == ["launch-bound"]


def test_a_device_that_does_hardly_anything_is_named_without_a_gain():
    gpu = Gpu()
    gpu.launch("gemm", 100 * US)
    for _ in range(8):
        gpu.python(40_000 * US)
        gpu.step()
    found = {one.code: one for one in examine(gpu.build()).findings}
    assert plain(found["device-idle"].finding) == "cuda:0 works for <0.1 % of step time"
    assert found["device-idle"].gain_ns is None


def test_work_that_was_launched_before_the_recording_is_no_fault_of_the_program():
    gpu = Gpu()
    for number in range(40):
        gpu.builder.runtime("hipLaunchKernel", 5 * number * US, 4 * US, correlation=number)
        gpu.builder.kernel(f"gemm{number % 4}", (8_000 + 200 * number) * US, 200 * US, correlation=number)
    found = {one.code: one for one in examine(gpu.build()).findings}
    assert "device-idle" not in found
    assert "launched before the recording began" in found["stalled-queue"].finding["text"]


def test_functions_that_a_source_calls_runtime_do_not_start_up_a_device():
    gpu = Gpu()
    gpu.work()
    start, gpu.host_ns = gpu.host_ns, gpu.host_ns + 400_000 * US
    gpu.builder.runtime("predictor_executor::run", start, 400_000 * US)
    gpu.work()
    gpu.step()
    assert "device-start-up" not in codes(gpu.build())


def test_captured_launches_leave_a_device_idle_by_intention():
    gpu = Gpu()
    gpu.builder.runtime("cudaStreamBeginCapture", 0, 1 * US)
    for _ in range(8):
        for one in range(60):
            gpu.launch(f"layer{one % 6}", 4 * US, "aten::cumsum", line=10 + one)
        gpu.step()
    assert not {"device-idle", "launch-bound"} & set(codes(gpu.build()))


def test_a_device_without_shapes_or_memory_is_said_to_lack_them():
    gpu = Gpu()
    for _ in range(8):
        for _ in range(12):
            gpu.launch("gemm_tf32", 500 * US, "aten::mm")
        gpu.step()
    report = examine(gpu.build())
    lacking = {one.code: one.signal.how for one in report.cannot_tell}
    assert set(lacking) == {
        "below-roofline", "fragmentation", "matmul-alignment", "memory-growth", "memory-near-limit",
    }  # fmt: skip
    assert "record_shapes=True" in lacking["matmul-alignment"]
    assert "--memory" in lacking["fragmentation"]
    # One line for all that the same flag records.
    assert sum(text.startswith("Cannot tell") for text in plain_lines(finding_blocks(report), 100)) == 2


def test_one_rank_of_many_cannot_tell_who_is_late():
    gpu = Gpu(rank=0, ranks=8)
    for _ in range(8):
        gpu.work(kernels=3)
        gpu.free_ns[1] = max(gpu.free_ns)
        all_reduce(gpu, 3000 * US)
        gpu.free_ns[0] = max(gpu.free_ns)
        gpu.step()
    assert "straggler-rank" in [one.code for one in examine(gpu.build()).cannot_tell]


def test_an_idle_device_names_where_the_host_is_meanwhile():
    def body(gpu, number):
        for _ in range(6):
            gpu.launch("tril_kernel", 40_000, "aten::tril", cost_ns=900_000, line=31)
            gpu.launch("gemm", 200_000)

    (found,) = (one for one in examine(loop(body)).findings if one.code == "device-idle")
    assert (found.place.line, found.place.function) == (31, "train")
    assert plain(found.finding).endswith("the host is meanwhile at train.py:31, mostly in aten::tril")
