"""Lines with much Python or many waits that no rule knows: they are named, with what they call."""

import pytest

from kinetoscope.analyses.findings import examine
from kinetoscope.display.sentence import plain
from kinetoscope.model.schema import SampleState
from tests.support.trace_builder import TraceBuilder

STEP_NS, STEPS = 10_000_000, 8
TRAIN = "/home/ann/project/train.py"
MAIN = (TRAIN, 50, "<module>")
LIBRARY = ("/usr/lib/python3.12/random.py", 400, "Random.choices")


def trace_of(*stacks, operators=1):
    """A trace of steps with an operator at each end, between which samples of these stacks are, in turn."""
    builder = TraceBuilder()
    builder.know("program", {"command": ["train.py"], "folder": "/home/ann/project"})
    main, *sampled = (builder.stack(MAIN, *frames) for frames in ((), *stacks))
    for step in range(STEPS):
        start = step * STEP_NS
        builder.step(step, start, STEP_NS)
        share = STEP_NS // 10 * operators
        builder.span("aten::mm", start, share // 2, stack=main)
        builder.span("aten::mm", start + STEP_NS - share // 2, share // 2, stack=main)
        for part in range(1, 10):
            stack = sampled[(part - 1) * len(sampled) // 9]
            builder.sample(start + part * STEP_NS // 10, stack, state=SampleState.RUNNING)
    return builder.build()


def findings_of(trace):
    return {finding.code: finding for finding in examine(trace).findings}


MINE, RESAMPLING = ((TRAIN, 12, "mine"),), ((TRAIN, 30, "bootstrap"), LIBRARY)


def test_a_second_line_is_named_with_the_function_that_it_calls():
    findings = findings_of(trace_of(MINE, MINE, RESAMPLING))
    assert findings["python-bound"].place.line == 12
    slow = findings["slow-line"]
    assert (slow.place.file, slow.place.line) == (TRAIN, 30)
    assert plain(slow.finding) == (
        f"train.py:30 runs Python for {slow.share_percent:.1f} % of step time, most of it in Random.choices (random.py)"
    )
    assert 20 < slow.share_percent < 40
    assert slow.gain_ns > 0


def test_what_another_finding_names_is_not_named_again():
    assert "slow-line" not in findings_of(trace_of(RESAMPLING))


def test_a_failure_is_a_warning_and_leaves_the_other_findings(monkeypatch):
    def fails(_loop, _others):
        raise ValueError("a stack without lines")

    monkeypatch.setattr("kinetoscope.analyses.findings.slow_lines", fails)
    with pytest.warns(RuntimeWarning, match="the rule fails failed on this trace .*a stack without lines"):
        findings = findings_of(trace_of(MINE, MINE, RESAMPLING))
    assert "python-bound" in findings


def test_a_step_near_its_floor_has_no_slow_line():
    assert "slow-line" not in findings_of(trace_of(MINE, MINE, RESAMPLING, operators=9))
