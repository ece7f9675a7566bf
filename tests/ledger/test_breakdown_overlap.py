from hypothesis import given

from tests.ledger.test_breakdown import NCCL, traces
from tests.support.trace_builder import TraceBuilder


def test_what_runs_beside_computing_is_hidden_and_the_rest_exposed():
    builder = TraceBuilder()
    builder.thread()
    first, second = builder.stream(7), builder.stream(20)
    builder.step(0, 0, 1000)
    builder.kernel("gemm", 100, 100, stream=first)
    builder.kernel(NCCL, 150, 100, stream=second).kernel(NCCL, 200, 100, stream=first)
    builder.copy("Memcpy DtoD (Device -> Device)", 290, 30, stream=second)
    (row,) = builder.build().table("overlap").to_pylist()
    assert row == {
        "step": 0, "process": 4242, "start_up": False, "rank": None, "device": "cuda:0", "start_ns": 0, "duration_ns": 1000, "compute_ns": 100,
        "communication_ns": 150, "overlapped_communication_ns": 50, "exposed_communication_ns": 100,
        "overlapped_communication_percent": 100 * 50 / 150, "copy_ns": 30, "overlapped_copy_ns": 10, "exposed_copy_ns": 20,
        "overlapped_copy_percent": 100 * 10 / 30,
    }  # fmt: skip


def test_without_communication_and_copies_there_is_no_share_of_them():
    (row,) = TraceBuilder().step(0, 0, 10).kernel("gemm", 0, 5).build().table("overlap").to_pylist()
    assert (row["overlapped_communication_percent"], row["overlapped_copy_percent"]) == (None, None)


@given(traces())
def test_what_is_exposed_is_the_part_of_the_breakdown(builder):
    trace = builder.build()
    for by in ("step", "trace"):
        rows = zip(
            trace.table("overlap", by=by).to_pylist(),
            trace.table("breakdown", by=by).to_pylist(),
            strict=True,
        )
        for overlap, breakdown in rows:
            assert overlap["device"] == breakdown["device"]
            assert overlap["exposed_communication_ns"] == breakdown["communication_ns"]
            assert overlap["exposed_copy_ns"] == breakdown["copy_ns"]
            assert overlap["compute_ns"] == breakdown["compute_ns"]
