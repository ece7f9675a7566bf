"""Real traces of accelerators: times of devices through HolisticTraceAnalysis and through our tables.

HTA leaves the last step out unless told otherwise, cuts times to microseconds unless told otherwise, and takes every event
with a `stream` among its arguments for work of a device. Where a file has waits or operators with such an argument
(a100_alexnet_small, vllm_graph_capture_stack), work outside the steps (mtia_455k), or more rows than HTA can count with
today's pandas (mi300), its numbers are others than ours, and are not compared.
"""

from collections import Counter

import numpy as np
import pytest

import kinetoscope
from kinetoscope.comparison.measures import run_of
from kinetoscope.model.kinds import is_device_work, is_operator
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.host.data_loading import in_waits
from tests.support.effort import STRESS
from tests.support.on_demand import OnDemand
from tests.support.real_traces import real_trace

NO_HTA = "the comparison is with HolisticTraceAnalysis; to enable: `make develop`"
hta_trace = OnDemand("hta.common.trace", NO_HTA)
hta_analysis = OnDemand("hta.trace_analysis", NO_HTA)
hta_diff = OnDemand("hta.trace_diff", NO_HTA)

pytestmark = pytest.mark.filterwarnings("ignore")
# A rank of a job with NCCL, a program with one device, and a rank of another job; HTA takes seconds for each large one.
FILES = (
    "a100_nccl_rank3of8", "v100_resnet50_mem", *(("h100_owlv2_stack_mem", "rtx2080ti_resnet") if STRESS else ()),
    *(f"dlrm_8rank/rank-{rank}" for rank in (range(8) if STRESS else (5,))),
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_busy_computing_and_hidden_communication_agree(name, monkeypatch):
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    path = real_trace(name)
    theirs = hta_analysis.TraceAnalysis(
        trace_files={0: str(path)}, trace_dir="/", include_last_profiler_step=True
    )
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


PAIRS = (
    ("dlrm_8rank/rank-0", "dlrm_8rank/rank-1"),
    ("dlrm_8rank/rank-2", "dlrm_8rank/rank-5"),
)


def sums(path):
    """Of each kernel in the steps how often it ran and how long, in us, and of each operator how often; and what HTA counts otherwise."""
    with kinetoscope.open(path) as trace:
        run = run_of(trace, str(path), warm_up=0)
        counts, times, alone = Counter(), Counter(), Counter()
        for kind in ("kernel", "operator"):
            population = run.populations[kind]
            for row, count, time_ns in zip(population.row, population.count, population.time_ns, strict=True):
                name = population.keys[row][0]
                counts[kind, name] += count
                times[kind, name] += time_ns / 1000
        spans = trace.columns("spans")
        rows = np.flatnonzero(
            is_device_work(spans["kind"]) & (starters(trace).call[:-1] < 0) & (spans["step"] >= 0)
        )
        for row in rows.tolist():
            name = trace.strings[spans["name"][row]]
            alone["kernel", name] += 1
            alone["ns", name] += spans["duration_ns"][row]
        for row in np.flatnonzero(
            is_operator(spans["kind"]) & in_waits(trace) & (spans["step"] >= 0)
        ).tolist():
            alone["operator", trace.strings[spans["name"][row]]] -= 1
    return run, counts, times, alone


def labeled(label, path):
    found = hta_trace.Trace(trace_files={0: str(path)}, trace_dir="/")
    found.parse_traces()
    found.decode_symbol_ids(use_shorten_name=False)
    return hta_diff.LabeledTrace(label=label, t=found)


@pytest.mark.parametrize("names", PAIRS)
def test_counts_and_sums_of_two_traces_agree(names, monkeypatch):
    """HTA leaves out device work whose launch is not in the trace; a comparison of ours counts it in the step in which it ran.

    HTA counts operators inside waits for data; a comparison of ours does not, because the wait is a part of the step by itself.
    """
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    paths = [real_trace(name) for name in names]
    theirs = [labeled(label, path) for label, path in zip(("base", "new"), paths, strict=True)]
    ours = [sums(path) for path in paths]
    assert [sorted(one.iterations()) for one in theirs] == [run.numbers.tolist() for run, *_ in ours]
    for kind, device in (("kernel", hta_diff.DeviceType.GPU), ("operator", hta_diff.DeviceType.CPU)):
        iterations = [run.numbers.tolist() for run, *_ in ours]
        table = hta_diff.TraceDiff.compare_traces(
            *theirs, control_iteration=iterations[0], test_iteration=iterations[1], device_type=device
        )
        compared = 0
        for name, row in table.iterrows():
            if kind == "operator" and not name.startswith("aten::"):
                continue
            counts = [one[1][kind, name] - one[3][kind, name] for one in ours]
            assert counts == [row["base_counts"], row["new_counts"]], name
            assert counts[1] - counts[0] == row["diff_counts"]
            compared += 1
            if kind == "kernel":
                times = [one[2][kind, name] - one[3]["ns", name] / 1000 for one in ours]
                assert times == pytest.approx(
                    [row["base_total_duration"], row["new_total_duration"]], abs=1e-3
                )
        assert compared > 20


def test_the_ranks_of_a_job_agree(tmp_path):
    """HTA names the ranks that start the most uneven of the last long communication kernels of a step last."""
    paths = [real_trace(f"dlrm_8rank/rank-{rank}") for rank in range(8)]
    theirs = hta_analysis.TraceAnalysis(
        trace_files=dict(enumerate(map(str, paths))), trace_dir="/", include_last_profiler_step=True
    )
    job = kinetoscope.summarize(*paths, output=tmp_path)
    rows = sorted(job.ranks().to_pylist(), key=lambda row: -row["holds_up_ns"])
    for count in (1, 2, 3):
        assert set(theirs.get_potential_stragglers(num_candidates=count)) == {
            row["rank"] for row in rows[:count]
        }
    calls = job.section("collectives").to_pandas().groupby("rank")[["exposed_ns", "duration_ns"]].sum()
    hidden = theirs.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    assert (100 * (1 - calls["exposed_ns"] / calls["duration_ns"])).tolist() == pytest.approx(
        hidden.tolist(), abs=0.006
    )
