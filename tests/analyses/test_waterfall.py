"""The way from the floor of a step to the step, as people read it."""

import pytest

from kinetoscope.analyses.findings import as_dict, examine, finding_blocks
from kinetoscope.analyses.waterfall import as_mapping, floor_sentence, no_problem, parts_of_step
from kinetoscope.display.lines import plain_lines
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def trace(*, sized=True, calibrated=True):
    """Steps of 10 ms: 4 in an operator that needs 2, and 6 in Python, of which no rule says more."""
    builder = TraceBuilder()
    shapes = builder.shapes([[25_000_000 // 8], []], ["float", "Scalar"], ["", "2."]) if sized else -1
    for step in range(4):
        at = step * 10 * MS
        builder.step(step, at, 10 * MS)
        for part in range(100):
            start = at + part * MS // 10
            builder.span("aten::mul", start, 40_000, shapes=shapes, stack=builder.stack(("m.py", 7, "f")))
    if calibrated:
        builder.know("attainable", {"call": [[1, 1000]], "stream": [[25_000_000, 21_000]]})
    return builder.build()


def test_the_parts_add_up_to_the_step_and_the_floor_is_first():
    account = trace().account()
    (kind,) = account.kinds
    parts = parts_of_step(account, kind)
    assert [one.is_floor for one in parts] == [True, *[False] * (len(parts) - 1)]
    assert sum(one.time_ns for one in parts) == pytest.approx(10 * MS)
    assert parts[0].time_ns == pytest.approx(2 * MS, rel=0.01)
    assert {one.what for one in parts} >= {"floor", "slow operators at m.py:7", "Python at m.py:7"}
    assert floor_sentence(account, kind) == "a step takes 10 ms, 5.0 times its floor"


def test_without_a_calibration_it_says_by_which_rates():
    report = examine(trace(calibrated=False))
    assert floor_sentence(report.account, report.account.kinds[0]).endswith(
        " times its floor, which is the same operators at the best rates of this trace"
    )
    printed = " ".join(plain_lines(finding_blocks(report)))
    assert "(kinetoscope calibrate measures those of the machine)" in printed


def test_waits_for_other_ranks_are_named_as_a_part_of_the_floor():
    builder = TraceBuilder().know("attainable", {"call": [[1, 1000]], "stream": [[25_000_000, 21_000]]})
    main, gloo = builder.thread(), builder.thread("gloo")
    shapes = builder.shapes([[25_000_000 // 8], []], ["float", "Scalar"], ["", "2."])
    for step in range(4):
        at = step * 10 * MS
        builder.step(step, at, 10 * MS, thread=main)
        builder.span("aten::mul", at, 4 * MS, thread=main, shapes=shapes)
        builder.span("c10d::allreduce_", at + 4 * MS, 1000, thread=main)
        builder.annotation("gloo:all_reduce", at + 4 * MS + 1000, 6 * MS - 1000, thread=gloo)
    account = builder.build().account()
    assert floor_sentence(account, account.kinds[0]).endswith(
        " times its floor, with 6 ms of waits for other ranks"
    )


def test_without_sizes_it_says_what_to_record():
    report = examine(trace(sized=False))
    account = report.account
    assert floor_sentence(account, account.kinds[0]) == (
        "a step takes 10 ms, of which 5.99 ms or more are above its floor; what its operators need is unknown: record the sizes of inputs "
        "(record_shapes=True, or kinetoscope run)"
    )
    assert account.kinds[0].floor_ns is None
    assert as_mapping(account)["above_floor_ns"] == pytest.approx(6 * MS, rel=0.01)


def test_where_hardly_anything_is_known_no_part_is_said_to_be_above_the_floor():
    builder = TraceBuilder()
    for step in range(4):
        builder.step(step, step * MS, MS).span("aten::mul", step * MS, MS)
    account = builder.build().account()
    assert floor_sentence(account, account.kinds[0]) == (
        "a step takes 1 ms; its floor is unknown: record the sizes of inputs (record_shapes=True, or kinetoscope run)"
    )


def test_where_nothing_is_found_the_largest_parts_are_named():
    said = no_problem(trace().account())
    assert said.startswith("No problem found: a step takes 5.0 times its floor; the largest parts are ")
    assert "aten::mul at m.py:7 (40.0 %)" in said
    assert no_problem(TraceBuilder().build().account()) == "No problem found."


def test_programs_and_people_get_the_same_parts():
    report = examine(trace())
    stated = as_dict(report)["account"]
    assert stated["step_ns"] == 10 * MS
    assert sum(stated["entries_ns"].values()) == pytest.approx(10 * MS, abs=10)
    printed = plain_lines(finding_blocks(report), 100)
    assert "A step takes 10 ms, 5.0 times its floor" in printed
    assert all(any(one["what"] in text for text in printed) for one in stated["parts"])
    assert as_dict(examine(TraceBuilder().build()))["account"] is None
