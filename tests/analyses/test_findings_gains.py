"""What findings promise: each no more than the time of its rows, all together no more than the steps; and which of them hide others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.findings import examine
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule_findings import findings_with_gains, owners, rule_findings
from kinetoscope.display.sentence import plain, sentence
from kinetoscope.tables.host.units_of_work import Unit
from kinetoscope.tables.intervals import Intervals
from tests.analyses.planted_devices import MS, PLANTED, US, Gpu
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
BLOCKS = 10
BLOCK_NS = 1_000


def attention_beside_elementwise(layers, elementwise_ns=150 * US):
    """Steps of an attention kernel of 4 ms, a product of 3 ms, and so many times four elementwise kernels in a row."""
    gpu = Gpu()
    for _ in range(6):
        gpu.launch("flash_fwd_kernel", 4 * MS, "my::attention")
        for _ in range(layers):
            for name in ("aten::add", "aten::mul", "aten::add", "aten::mul"):
                gpu.launch(ELEMENTWISE, elementwise_ns, name)
        gpu.launch("sm90_xmma_gemm", 3 * MS)
        gpu.wait()
        gpu.step()
    return gpu.builder.build()


@pytest.mark.parametrize("layers", [2, 4, 6, 8, 10, 20])
def test_a_kernel_stays_a_finding_whatever_other_kernels_cost(layers):
    report = examine(attention_beside_elementwise(layers))
    codes = [one.code for one in report.findings if "flash_fwd_kernel" in one.finding["text"]]
    assert codes == ["dominant-kernel"]
    assert "memory-bound-elementwise" in [one.code for one in report.findings]


def test_a_kernel_that_another_finding_explains_is_not_told_twice():
    report = examine(attention_beside_elementwise(20))
    assert not [one for one in report.findings if "vectorized" in one.finding["text"]]


def finding(code, gain_ns, time=None, rank=-1, **more):
    return Finding(
        code, sentence("{} of step time", (1.0, "%")), "", 50.0, gain_ns, time=time, rank=rank, **more
    )


def test_only_a_cause_in_the_same_time_hides_a_finding():
    earlier, later = Intervals.between(0, 100), Intervals.between(100, 200)
    kernel = finding("dominant-kernel", 100, earlier)

    def ranked(findings):
        return findings_with_gains(findings, Intervals.between(0, 2_000))

    assert ranked([kernel, finding("low-occupancy", 60, earlier)])[0].code == "low-occupancy"
    assert len(ranked([kernel, finding("low-occupancy", 60, earlier)])) == 1
    assert len(ranked([kernel, finding("low-occupancy", 1_000, later)])) == 2
    assert (
        len(ranked([kernel, finding("low-occupancy", 60, earlier | later), finding("tf32-off", 90, later)]))
        == 2
    )


def test_what_explains_a_loop_gains_all_of_the_loop():
    line, loop = SourceLine("train.py", 5, "train"), SourceLine("train.py", 4, "train", 7)
    when = Intervals.between(0, 8_000)
    read = finding("scalar-read", 5_000, when, place=line)
    (owner,) = findings_with_gains(
        [read, finding("tiny-operators", 8_000, when, place=loop)], Intervals.between(0, 10_000)
    )
    assert (owner.code, owner.gain_ns) == ("scalar-read", 8_000)
    assert plain(owner.finding) == "1.0 % of step time; 80.0 % with what else runs at train.py:4-7"
    # What is not of a loop, or elsewhere, is left out as before.
    elsewhere = SourceLine("net.py", 4, "forward")
    for effect in (
        finding("device-idle", 8_000, when, place=loop),
        finding("tiny-operators", 8_000, when, place=elsewhere),
    ):
        (owner,) = findings_with_gains([read, effect], Intervals.between(0, 10_000))
        assert (owner.code, owner.gain_ns) == ("scalar-read", 5_000)


def one_step():
    builder = TraceBuilder()
    builder.step(0, 0, BLOCKS * BLOCK_NS)
    builder.span("aten::mm", 0, 10)
    return Loop(builder.build())


def blocks_of(places):
    if places is None:
        return None
    start_ns = BLOCK_NS * np.array(sorted(places), dtype=np.int64)
    return Intervals.of(start_ns, start_ns + BLOCK_NS)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3 * BLOCKS * BLOCK_NS),
            st.none() | st.sets(st.integers(-2, BLOCKS + 2), min_size=1, max_size=6),
        ),
        max_size=8,
    )
)
def test_findings_together_gain_no_more_than_the_time_of_their_rows(given_findings):
    found = [
        finding(f"code-{number}", gain, blocks_of(places))
        for number, (gain, places) in enumerate(given_findings)
    ]
    gains = {finding.code: gain_ns for finding, gain_ns in owners(found, one_step().moments)}
    step = Intervals.between(0, BLOCKS * BLOCK_NS)
    assert all(0 <= gains[one.code] <= one.gain_ns for one in found)
    assert sum(gains.values()) <= BLOCKS * BLOCK_NS
    for outer in [one for one in found if one.time is not None]:
        inner = [one for one in found if one.time is not None and not len(one.time - outer.time)]
        assert sum(gains[one.code] for one in inner) <= (outer.time & step).total_ns


def test_the_largest_finding_gains_what_it_finds_where_others_gain_elsewhere():
    found = [finding("code-0", 6_000), finding("code-1", 4_000, Intervals.between(6_000, 10_000))]
    assert [gain_ns for _, gain_ns in owners(found, one_step().moments)] == [6_000, 4_000]


def assert_gains_are_bounded(trace):
    report, loop = examine(trace), Loop(trace)
    assert sum(one.gain_ns or 0 for one in report.findings) <= report.whole_ns
    if loop.unit is not Unit.REQUEST:
        for one in report.findings:
            if one.time is not None and one.gain_ns is not None:
                assert one.gain_ns <= one.time.within(loop.start_ns, loop.end_ns).sum()


@settings(max_examples=examples(50), deadline=None)
@given(any_traces(max_spans=40))
def test_gains_of_any_trace_are_no_more_than_its_steps(trace):
    assert_gains_are_bounded(trace)


@pytest.mark.parametrize("program", PLANTED)
def test_gains_of_a_faulty_device_program_are_no_more_than_its_steps(program):
    trace = PLANTED[program](True)
    assert_gains_are_bounded(trace)
    assert rule_findings(trace).found
