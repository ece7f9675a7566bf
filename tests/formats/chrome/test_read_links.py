"""Links from launches to device work, and from forward operators to backward functions."""

import numpy as np
import pytest

from kinetoscope import open as open_trace
from kinetoscope.model.schema import SpanKind
from tests.support.kineto_text import PID, arrow, call, kernel, kinds, launches, op, opened, spans
from tests.support.real_traces import real_trace

WRAPPER = "autograd::engine::evaluate_function: "


def test_a_kernel_is_launched_by_the_call_of_its_correlation():
    trace = opened(
        op("aten::mm", 0, 10, **{"External id": 4}),
        call("cudaLaunchKernel", 1, 2, 77, **{"External id": 4}),
        kernel("gemm", 20, 5, 77, **{"External id": 4}),
    )
    assert launches(trace) == [("cudaLaunchKernel", "gemm")]
    assert dict(spans(trace, "device_ns"))["aten::mm"] == 5000


def test_of_nested_calls_with_one_correlation_the_inner_one_launches():
    trace = opened(
        call("cudaLaunchKernel", 1, 5, 7),
        op("cuLaunchKernel", 2, 2, cat="cuda_driver", correlation=7),
        kernel("k", 9, 1, 7),
    )
    assert launches(trace) == [("cuLaunchKernel", "k")]


def test_a_correlation_used_again_means_the_last_call_before_the_kernel():
    trace = opened(
        call("first", 1, 1, 7), kernel("k1", 5, 1, 7), call("second", 10, 1, 7), kernel("k2", 15, 1, 7),
        call("third", 20, 1, 8), kernel("early", 19, 1, 8),
    )  # fmt: skip
    assert launches(trace) == [("first", "k1"), ("second", "k2"), ("third", "early")]


def test_a_graph_launches_many_kernels_with_one_call():
    trace = opened(
        call("cudaGraphLaunch", 0, 3, 5),
        [kernel(f"k{at}", 10 + at, 1, 5, **{"graph id": 2}) for at in range(4)],
    )
    assert launches(trace) == [("cudaGraphLaunch", f"k{at}") for at in range(4)]
    assert trace.column("kernels", "graph").tolist() in ([], [2, 2, 2, 2])


def test_without_a_call_the_operator_of_the_external_id_launches():
    trace = opened(
        op("aten::mm", 0, 10, **{"External id": 4}),
        call("cudaLaunchKernel", 1, 2, 76, **{"External id": 4}),
        kernel("gemm", 20, 5, 77, **{"External id": 4}),
    )
    assert launches(trace) == [("aten::mm", "gemm")]


def test_without_numbers_an_arrow_says_who_launches():
    trace = opened(
        op("aten::mm", 0, 10), kernel("gemm", 20, 5), arrow(3, (PID, PID, 0), (0, 7, 20), "launch")
    )
    assert launches(trace) == [("aten::mm", "gemm")]


def test_waits_and_copies_of_ranges_are_not_launched_and_what_has_no_launch_is_no_loss():
    trace = opened(
        call("cudaStreamSynchronize", 0, 9, 5),
        kernel("Stream Sync", 1, 3, 5, cat="cuda_sync"),
        kernel("a range", 1, 8, 5, cat="gpu_user_annotation"),
        kernel("from before", 5, 2, 99),
        call("cudaLaunchKernel", 10, 1, 100),
    )
    assert launches(trace) == []
    assert trace.complete


def backward_pass(*, numbers=True, arrows=False):
    """Build a forward operator on one thread and its backward function on another."""
    of_forward = {"Sequence number": 40, "Fwd thread id": 0} if numbers else {}
    of_backward = {"Sequence number": 40, "Fwd thread id": 1} if numbers else {}
    events = [
        op("aten::linear", 0, 9, **of_forward),
        op("aten::addmm", 1, 5, **of_forward),
        op(f"{WRAPPER}AddmmBackward0", 20, 9, tid=8, **of_backward),
        op("AddmmBackward0", 21, 7, tid=8, **of_backward),
        op("aten::mm", 22, 3, tid=8),
        op(f"{WRAPPER}torch::autograd::AccumulateGrad", 30, 5, tid=8),
        op("torch::autograd::AccumulateGrad", 31, 3, tid=8),
    ]
    return [*events, *(arrow(1, (PID, PID, 1), (PID, 8, 21)) if arrows else [])]


@pytest.mark.parametrize("arrows", [False, True])
def test_backward_functions_find_their_operators_through_sequence_numbers(arrows):
    trace = opened(backward_pass(arrows=arrows))
    rows = {row["name"]: row for row in trace.table("spans").to_pylist()}
    assert rows["AddmmBackward0"]["forward"] == rows["aten::addmm"]["id"]
    assert {name: row["kind"] for name, row in rows.items()} == {
        "aten::linear": "operator",
        "aten::addmm": "operator",
        f"{WRAPPER}AddmmBackward0": "operator",
        "AddmmBackward0": "backward",
        "aten::mm": "operator",
        f"{WRAPPER}torch::autograd::AccumulateGrad": "operator",
        "torch::autograd::AccumulateGrad": "backward",
    }
    assert {name: row["phase"] for name, row in rows.items()} == {
        name: "forward" if row["os_tid"] == PID else "backward" for name, row in rows.items()
    }
    torch_ids = {row["os_tid"]: row["torch_tid"] for row in trace.table("threads").to_pylist()}
    assert torch_ids[PID] == 1
    assert torch_ids[8] is None


def test_backward_functions_find_their_operators_through_arrows_where_there_are_no_numbers():
    trace = opened(backward_pass(numbers=False, arrows=True))
    rows = {row["name"]: row for row in trace.table("spans").to_pylist()}
    assert rows["AddmmBackward0"]["forward"] == rows["aten::addmm"]["id"]
    assert rows["aten::mm"]["forward"] is None


def test_an_arrow_leads_to_a_backward_function_of_any_name():
    trace = opened(op("fn", 0, 5), op("its gradient", 10, 5, tid=8), arrow(1, (PID, PID, 0), (PID, 8, 10)))
    assert kinds(trace)["its gradient"] == "backward"


def test_an_arrow_may_begin_and_end_inside_its_slices():
    trace = opened(
        op("fn", 0, 50),
        op("inner", 1, 2),
        op("its gradient", 100, 5, tid=8),
        arrow(1, (PID, PID, 30), (PID, 8, 102)),
    )
    rows = {row["name"]: row for row in trace.table("spans").to_pylist()}
    assert rows["its gradient"]["forward"] == rows["fn"]["id"]


def test_forward_threads_with_one_number_each_are_told_apart_by_their_sequence_numbers():
    def both(number, tid, sequences):
        for at in sequences:
            yield op("f", at, 1, tid=tid, **{"Sequence number": at, "Fwd thread id": 0})
            yield op("FBackward0", 500 + at, 1, tid=9, **{"Sequence number": at, "Fwd thread id": number})

    trace = opened(list(both(3, 21, range(10))), list(both(5, 22, range(100, 110))))
    threads = {row["os_tid"]: row["torch_tid"] for row in trace.table("threads").to_pylist()}
    assert (threads[21], threads[22]) == (3, 5)
    forward, names = trace.column("spans", "forward"), spans(trace)
    assert all((forward[row] >= 0) == (name == "FBackward0") for row, name in enumerate(names))


def test_a_backward_function_of_a_program_takes_the_module_of_its_forward():
    events = backward_pass()
    events.append(op("nn.Module: Linear_0", 0, 10, cat="python_function"))
    rows = {row["name"]: row for row in opened(events).table("spans").to_pylist()}
    assert rows["AddmmBackward0"]["module"] == "Linear"
    assert rows["aten::mm"]["module"] == "Linear"


@pytest.mark.parametrize(
    ("name", "linked"),
    [
        ("a100_nccl_rank3of8", 2382),
        ("mi300_resnet_stack_rccl_rank0of8", 213),
        ("rtx2080ti_resnet", 2160),
        ("v100_resnet50_mem", 1068),
    ],
)
def test_every_backward_function_with_a_number_finds_its_operator_in_real_files(name, linked):
    own = open_trace(real_trace(name)).columns("spans")
    numbered = (own["kind"] == SpanKind.BACKWARD) & (own["sequence"] >= 0)
    assert numbered.sum() == linked
    assert (own["forward"][numbered] >= 0).all()


@pytest.mark.parametrize(
    "name", ["a100_nccl_rank3of8", "rtx2080ti_resnet", "v100_resnet50_mem", "h100_owlv2_stack_mem"]
)
def test_every_kernel_of_real_files_has_one_launch(name):
    trace = open_trace(real_trace(name))
    own, rows = trace.columns("spans"), trace.columns("launches")
    work = np.flatnonzero(
        (own["stream"] >= 0) & np.isin(own["kind"], (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET))
    )
    assert np.array_equal(np.sort(rows["device"]), work)
    assert np.isin(own["kind"][rows["host"]], (SpanKind.RUNTIME, SpanKind.DRIVER)).all()
