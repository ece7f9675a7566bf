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


def slow_operators(times_needed, *, busy=False):
    """A trace of steps with many calls at line 7 that take so many times what the best of them shows to be possible, and a product elsewhere."""
    builder = TraceBuilder()
    builder.know("program", {"command": ["train.py"], "folder": "/home/ann/project"})
    main, loop = builder.stack(MAIN), builder.stack(MAIN, (TRAIN, 7, "channels"))
    shapes = builder.shapes([[256, 256], [256, 256]], ["float", "float"])
    best_ns = 50_000
    for step in range(STEPS):
        start = step * STEP_NS
        builder.step(step, start, STEP_NS)
        for number in range(10):
            builder.span("aten::mm", start + number * best_ns, best_ns, stack=main, shapes=shapes)
        took_ns = round(best_ns * times_needed)
        for number in range(STEP_NS // took_ns - 10):
            at = start + STEP_NS // 9 + number * took_ns
            builder.span("aten::mm", at, took_ns - 1_000, stack=loop, shapes=shapes)
            if busy:
                builder.sample(at + took_ns // 2, loop, period_ns=took_ns, waited_ns=took_ns // 3)
    return builder.build()


def test_a_line_of_slow_operators_is_named_with_the_operator():
    findings = findings_of(slow_operators(5))
    slow = findings["slow-line"]
    assert (slow.place.file, slow.place.line) == (TRAIN, 7)
    assert " above what its operators need: 30 calls a step of aten::mm, 249 µs each" in plain(slow.finding)


def test_a_line_that_does_not_reach_the_best_rates_is_no_finding():
    assert "slow-line" not in findings_of(slow_operators(2))


def test_on_a_busy_machine_slow_operators_are_no_evidence():
    assert "slow-line" not in findings_of(slow_operators(5, busy=True))


def test_short_lines_that_follow_each_other_are_one_place():
    lines = [((TRAIN, line, "draw"),) for line in (20, 21, 23)]
    apart = [((TRAIN, line, "draw"),) for line in (20, 40, 60)]
    mine = (TRAIN, 12, "mine")
    near = findings_of(trace_of((mine,), (mine,), (mine,), (mine,), (mine,), (mine,), *lines))["slow-line"]
    assert (near.place.line, near.place.until) == (20, 23)
    assert "slow-line" not in findings_of(
        trace_of((mine,), (mine,), (mine,), (mine,), (mine,), (mine,), *apart)
    )


def test_a_comprehension_is_at_the_lines_of_its_function():
    lines = [(TRAIN, 20, "draw"), (TRAIN, 21, "draw.<locals>.<listcomp>"), (TRAIN, 22, "draw")]
    mine = ((TRAIN, 12, "mine"),)
    slow = findings_of(trace_of(mine, mine, mine, mine, mine, mine, *((line,) for line in lines)))[
        "slow-line"
    ]
    assert (slow.place.line, slow.place.until, slow.place.function) == (20, 22, "draw")
