"""Real traces of accelerators: times of devices through HolisticTraceAnalysis and through our tables.

HTA leaves the last step out unless told otherwise, cuts times to microseconds unless told otherwise, and takes every event
with a `stream` among its arguments for work of a device. Where a file has waits or operators with such an argument
(a100_alexnet_small, vllm_graph_capture_stack), work outside the steps (mtia_455k), or more rows than HTA can count with
today's pandas (mi300), its numbers are others than ours, and are not compared.
"""

import pytest

pytest.importorskip("hta", reason="the comparison is with HolisticTraceAnalysis; to enable: `make develop`")

from hta.trace_analysis import TraceAnalysis

import kinetoscope
from tests.support.shared_traces import needs_shared_traces, shared_trace

pytestmark = [needs_shared_traces, pytest.mark.filterwarnings("ignore")]
FILES = (
    "a100_nccl_rank3of8", "h100_owlv2_stack_mem", "rtx2080ti_resnet", "v100_resnet50_mem",
    *(f"dlrm_8rank/rank-{rank}" for rank in range(8)),
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_busy_computing_and_hidden_communication_agree(name, monkeypatch):
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    path = shared_trace(name)
    theirs = TraceAnalysis(trace_files={0: str(path)}, trace_dir="/", include_last_profiler_step=True)
    trace = kinetoscope.open(path)
    (device,) = trace.table("devices").to_pylist()
    (overlap,) = trace.table("overlap", by="trace").to_pylist()
    whole = theirs.get_temporal_breakdown(visualize=False).iloc[0]
    assert [whole["idle_time(us)"], whole["compute_time(us)"], whole["non_compute_time(us)"]] == pytest.approx(
        [device["idle_ns"] / 1000, device["compute_ns"] / 1000, (device["busy_ns"] - device["compute_ns"]) / 1000],
        rel=1e-9,
    )  # fmt: skip
    hidden = theirs.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0]
    if overlap["communication_ns"]:
        assert hidden == pytest.approx(overlap["overlapped_communication_percent"], abs=0.006)
    else:
        assert overlap["overlapped_communication_percent"] is None
    if name != "h100_owlv2_stack_mem":
        # HTA adds up whole microseconds here, whatever it was told.
        sorts, _ = theirs.get_gpu_kernel_breakdown(visualize=False)
        assert sorts["sum"].sum() == device["busy_ns"] / 1000
