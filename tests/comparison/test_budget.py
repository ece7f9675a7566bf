"""Budgets: what is held, what breaks, and how that is written for people and for services that build."""

import json
import xml.etree.ElementTree as Xml

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import ArgumentError, FormatError
from kinetoscope.comparison.budget import BROKEN, CANNOT_TELL, HELD, WON, check, read_budget, updated_budget
from kinetoscope.comparison.measures import COUNTS, run_of
from kinetoscope.comparison.verdict import PLACED, places_of, stored_places
from kinetoscope.trace.opening import compare
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def program(operators=2, *, steps=12, step_ms=10.0, seed=0, rare=0, allocate=4096, losses=()):
    """Steps of a layer with some operators and one allocation each; every step number `rare` has one more operator."""
    random = np.random.default_rng(seed)
    builder = TraceBuilder()
    layer = builder.module("Linear", name="fc", parent=builder.module("Net"))
    stack = builder.stack(("/code/train.py", 3, "main"), ("/code/net.py", 7, "Net.forward"))
    begin = MS
    for number in range(steps):
        total = round(step_ms * MS * random.normal(1, 0.002))
        builder.step(number, begin, total)
        many = operators + (rare > 0 and number == rare)
        for place in range(many):
            builder.span("aten::mm", begin + 1000 + 20_000 * place, 15_000, module=layer, stack=stack)
        builder.allocate(begin + 2000, 0x10 * (number + 1), allocate)
        builder.free(begin + 9000, 0x10 * (number + 1))
        begin += total
    builder.know("profile_memory", 1).know("torch_version", "2.13.0")
    for what in losses:
        builder.lose(what)
    return builder.build()


def outcome_of(text, *traces, strict=False):
    budget = read_budget(text)
    runs = [run_of(trace, "run", None, budget.scopes) for trace in traces]
    return check(
        budget, runs, strict=strict, where=lambda limit: places_of(traces[0], limit.count, limit.scope)
    )


@pytest.mark.parametrize(
    ("allowed", "strict", "verdict", "code"),
    [
        (2, False, HELD, 0),
        (1, False, BROKEN, 1),
        (3, False, HELD, 0),
        (3, True, BROKEN, 1),
        (2, True, HELD, 0),
    ],
)
def test_a_count_is_held_exactly(allowed, strict, verdict, code):
    outcome = outcome_of(f"[counts]\noperators = {allowed}\n", program(), strict=strict)
    assert (outcome.verdict, outcome.exit_code) == (verdict, code)
    assert outcome.checked[0].measured == 2


def test_what_is_broken_names_the_operator_module_and_line():
    outcome = outcome_of("[counts]\noperators = 1\n", program())
    (checked,) = outcome.checked
    assert checked.message == "operators: 2 operators a step, 1 allowed, 1 too many"
    assert (checked.where[0].name, checked.where[0].module) == ("aten::mm", "fc")
    assert checked.where[0].line.endswith("net.py:7 in Net.forward")
    assert outcome.annotations() == [f"::error file=/code/net.py,line=7::{checked.message}"]


def test_a_step_that_has_more_than_the_others_breaks_the_budget():
    assert outcome_of("[counts]\noperators = 2\n", program(rare=9)).verdict == BROKEN


def test_all_recordings_are_looked_at():
    assert outcome_of("[counts]\noperators = 2\n", program(), program(3)).verdict == BROKEN


def test_better_than_the_budget_is_told():
    (checked,) = outcome_of("[counts]\noperators = 5\n", program()).checked
    assert checked.verdict == WON
    assert checked.message.endswith("3 fewer; lower the budget with --update")


def test_a_margin_allows_a_percentage_in_both_directions():
    text = "[counts]\nallocated_bytes = 4000\n[margins]\nallocated_bytes = {}\n"
    verdicts = [outcome_of(text.format(margin), program()).checked[0].verdict for margin in (2.4, 2.3)]
    assert verdicts == [HELD, BROKEN]
    lower = outcome_of(text.format(3).replace("4000", "4200"), program(), strict=True)
    assert lower.verdict == HELD


def test_modules_and_operators_have_budgets_of_their_own():
    text = '[modules."fc"]\noperators = 2\nallocations = 0\n[operators."aten::mm"]\noperators = 1\n'
    outcome = outcome_of(text, program())
    assert {one.name: one.verdict for one in outcome.checked} == {
        "modules.fc.operators": HELD,
        "modules.fc.allocations": BROKEN,
        "operators.aten::mm.operators": BROKEN,
    }
    assert outcome.checked[2].where[0].name == "aten::mm"


def test_what_was_not_recorded_cannot_be_told():
    outcome = outcome_of("[counts]\npython_calls = 10\nflops = 10\noperators = 2\n", program())
    assert outcome.verdict == CANNOT_TELL
    assert outcome.exit_code == 2
    assert "record with python_calls=True" in outcome.checked[0].message
    assert "record with record_shapes=True" in outcome.checked[1].message


def test_of_an_incomplete_trace_only_what_is_broken_is_sure():
    held, broken = (
        outcome_of(f"[counts]\noperators = {allowed}\n", program(losses=["dropped_spans"]))
        for allowed in (2, 1)
    )
    assert held.verdict == CANNOT_TELL
    assert "times and counts are lower bounds" in held.checked[0].message
    assert broken.verdict == BROKEN


def timed(*, percent=3.0, steps=40, recordings=4, step_ms=10.0):
    """A new budget of some recordings, and how to record more."""
    runs = [run_of(program(steps=steps, seed=seed, step_ms=step_ms)) for seed in range(recordings)]
    return updated_budget("", runs, times=True).replace("percent = 3.0", f"percent = {percent}")


def test_times_are_compared_with_the_stored_baseline():
    text = timed()
    verdicts = {}
    for step_ms in (10.0, 10.5, 9.5):
        traces = [program(steps=40, seed=seed + 50, step_ms=step_ms) for seed in range(4)]
        (checked,) = [one for one in outcome_of(text, *traces).checked if one.name == "step time"]
        verdicts[step_ms] = checked.verdict
    assert verdicts == {10.0: HELD, 10.5: BROKEN, 9.5: WON}


def evaluating(seed, *, every=10, evaluation_ms=30.0, training_ms=10.0, steps=40):
    """Training steps of three operators, and an evaluation of eight others in every so manieth step."""
    random, builder, at_ns = np.random.default_rng(seed), TraceBuilder(), 1_000_000
    for number in range(steps):
        evaluates = number % every == every - 1
        name, count, took = ("aten::conv2d", 8, evaluation_ms) if evaluates else ("aten::mm", 3, training_ms)
        total = round(took * 1e6 * random.normal(1, 0.002))
        builder.step(number, at_ns, total)
        for place in range(count):
            builder.span(name, at_ns + place * (total // count), total // count - 1)
        at_ns += total
    return builder.build()


def test_times_of_steps_are_compared_with_those_of_their_kind():
    text = updated_budget("", [run_of(evaluating(seed)) for seed in range(4)], times=True)
    budget = read_budget(text)
    assert [np.unique(each).tolist() for each in budget.time.kinds] == [[3, 8]] * 4
    verdicts = {}
    for name, more in {
        "same": {},
        "more evaluation": {"every": 5},
        "slower evaluation": {"evaluation_ms": 45.0},
        "slower training": {"training_ms": 10.6},
    }.items():
        (checked,) = [
            one
            for one in outcome_of(text, *(evaluating(seed + 50, **more) for seed in range(4))).checked
            if one.name == "step time"
        ]
        verdicts[name] = checked.verdict
    assert verdicts == {
        "same": HELD, "more evaluation": HELD, "slower evaluation": BROKEN, "slower training": BROKEN,
    }  # fmt: skip
    # Written again, the kinds are those of the new recordings.
    again = updated_budget(text, [run_of(evaluating(seed, every=5)) for seed in range(2)])
    assert [int((each == 8).sum()) for each in read_budget(again).time.kinds] == [8, 8]
    alike = updated_budget(again, [run_of(program(seed=seed)) for seed in range(2)])
    assert read_budget(alike).time.kinds == []


def test_times_that_one_cannot_tell_are_not_held():
    traces = [program(steps=40, seed=seed, step_ms=step_ms) for seed, step_ms in enumerate((9, 11, 10, 12))]
    outcome = outcome_of(timed(), *traces)
    assert outcome.verdict == CANNOT_TELL
    assert "more than the margin" in outcome.checked[-1].message


def test_times_of_another_machine_are_not_compared():
    text = timed().replace('machine = "', 'machine = "other, ')
    outcome = outcome_of(text, program(steps=40, step_ms=50))
    assert outcome.checked[-1].verdict == CANNOT_TELL
    assert "another machine" in outcome.checked[-1].message


def test_a_new_budget_is_held_by_what_it_was_made_of():
    traces = [program(seed=seed) for seed in range(4)]
    text = updated_budget("", [run_of(one) for one in traces], times=True)
    outcome = outcome_of(text, *traces, strict=True)
    assert [one.name for one in outcome.checked if one.verdict != HELD] in ([], ["step time"])
    assert {one.verdict for one in outcome.checked[:-1]} == {HELD}
    assert {"operators", "allocations", "peak_bytes", "recompiles"} <= {one.name for one in outcome.checked}


@pytest.mark.parametrize("recordings", [1, 4])
def test_a_budget_is_made_without_times_and_an_unchanged_program_holds_it(recordings):
    text = updated_budget("", [run_of(program(seed=seed)) for seed in range(recordings)])
    assert read_budget(text).time is None
    assert "# Times are not checked." in text
    assert outcome_of(text, program(seed=1, step_ms=20.0)).exit_code == 0
    assert outcome_of(text, program(3)).exit_code == 1


def test_times_are_added_when_they_are_asked_for():
    runs = [run_of(program(seed=seed)) for seed in range(3)]
    text = updated_budget("", runs)
    timed = updated_budget(text, runs, times=True)
    assert read_budget(timed).time is not None
    assert timed.startswith(text.rpartition("\n# The end")[0])
    # And then stay.
    assert updated_budget(timed, runs) == timed
    with pytest.raises(ArgumentError, match="one recording does not show"):
        updated_budget("", runs[:1], times=True)


@pytest.mark.parametrize("times", [False, True])
def test_a_budget_that_is_cut_at_the_end_of_a_line_is_refused(times):
    runs = [run_of(program(seed=seed)) for seed in range(2)]
    lines = updated_budget("", runs, times=times).splitlines(keepends=True)
    read_budget("".join(lines))
    for kept in range(1, len(lines)):
        with pytest.raises(FormatError, match="is not complete: its last line"):
            read_budget("".join(lines[:kept]))
    # Line ends of another system are not missing ones, and what people add at the end counts.
    read_budget("".join(lines).replace("\n", "\r\n"))
    more = '[operators."aten::mm"]\noperators = 3\n'
    assert len(read_budget("".join(lines) + more).limits) == len(read_budget("".join(lines)).limits) + 1


def test_one_recording_is_not_compared_with_the_times_of_a_budget():
    text = updated_budget("", [run_of(program(seed=seed)) for seed in range(3)], times=True)
    slower = outcome_of(text, program(seed=9, step_ms=15.0))
    assert (slower.verdict, slower.exit_code) == (CANNOT_TELL, 2)
    assert (
        "one recording does not show how much recordings of one program differ" in slower.checked[-1].message
    )
    assert outcome_of(text, *(program(seed=seed, step_ms=15.0) for seed in range(9, 12))).verdict == BROKEN


def test_an_update_keeps_comments_order_and_what_is_limited():
    text = (
        '# ours\n[margins]\noperators = 50 # wide\n\n[modules."fc"] # the layer\noperators = 7   # was 7\n'
        "[counts]\n  operators=9\n\n[time]\npercent = 5.0\nsteps_us = [\n  [1.0, 2.0],\n  [3.0]]\nconfidence = 0.95\n"
    )
    budget = read_budget(text)
    updated = updated_budget(text, [run_of(program(steps=3), scopes=budget.scopes)])
    assert updated.splitlines()[1:9] == [
        "# ours",
        "[margins]",
        "operators = 50 # wide",
        "",
        '[modules."fc"] # the layer',
        "operators = 2   # was 7",
        "[counts]",
        "  operators=2",
    ]
    assert updated.splitlines()[-3].startswith("steps_us = [[")
    assert updated.splitlines()[-2] == "confidence = 0.95"
    again = read_budget(updated)
    assert [limit.allowed for limit in again.limits] == [2, 2]
    assert again.time is not None
    assert again.time.margins.percent == 5.0


@given(values=st.dictionaries(st.sampled_from(sorted(COUNTS)), st.integers(0, 2**53), min_size=1))
def test_every_count_can_be_written_and_read(values):
    text = "[counts]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
    assert {limit.count: limit.allowed for limit in read_budget(text).limits} == values


def test_reports_say_the_same():
    outcome = outcome_of(
        '[counts]\noperators = 1\nallocations = 9\nflops = 1\n[operators."a|b\\n"]\noperators = 0\n',
        program(),
    )
    values = json.loads(outcome.to_json())
    verdicts = [one["verdict"] for one in values["limits"]]
    assert verdicts == [BROKEN, WON, CANNOT_TELL, HELD]
    assert (values["verdict"], outcome.exit_code) == (BROKEN, 1)
    suite = Xml.fromstring(outcome.to_junit().partition("\n")[2])
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "1")
    assert [case.get("name") for case in suite if case.find("failure") is not None] == ["operators"]
    table = outcome.to_markdown().splitlines()
    assert table[0] == "### Kinetoscope: budget broken"
    assert table[4] == "| `operators` | 1 | 2 | broken |"
    assert all(line.replace("\\|", "").count("|") == 5 for line in table[2:])
    assert outcome.to_text().splitlines()[0] == "broken: operators: 2 operators a step, 1 allowed, 1 too many"
    assert outcome.to_text().splitlines()[-1] == "1 of 4 limits held: broken"


@given(name=st.text(min_size=1, max_size=20))
def test_names_of_a_program_break_no_report(name):
    text = f"[operators.{json.dumps(name)}]\noperators = 0\n".encode("utf-8", "surrogatepass").decode(
        "utf-8", "replace"
    )
    try:
        budget = read_budget(text)
    except FormatError:
        return
    outcome = check(budget, [run_of_names(budget.scopes)])
    Xml.fromstring(outcome.to_junit().partition("\n")[2])
    assert all("\n" not in line for line in outcome.annotations())
    assert len(outcome.to_markdown().splitlines()) == 5
    json.loads(outcome.to_json())


TRACE = program(steps=3)


def run_of_names(scopes):
    return run_of(TRACE, "run", None, scopes)


@pytest.mark.parametrize("count", [examples(4)])
def test_an_update_of_an_update_changes_nothing(count):
    for seed in range(count):
        runs = [run_of(program(seed=seed, steps=5))]
        once = updated_budget("", runs)
        assert updated_budget(once, runs) == once


def placed(lines, *, moved=0, text=True):
    """A program with one operator at each of some lines of a function, all of one operator and module, by number and text."""
    builder = TraceBuilder()
    layer = builder.module("Linear", name="fc")
    for step in range(4):
        builder.step(step, step * 10 * MS, 10 * MS)
        for place, number in enumerate(lines):
            stack = builder.stack(("/code/net.py", number + moved, "Net.forward"))
            begin_ns = step * 10 * MS + 1000 + 20_000 * place
            builder.span(
                "aten::relu" if number < 90 else "aten::mul", begin_ns, 15_000, module=layer, stack=stack
            )
    texts = {str(number + moved): f"x = act{number}(x)" for number in lines} if text else {}
    return builder.know("source_lines", {"/code/net.py": texts}).build()


@pytest.mark.parametrize(
    ("lines", "added", "moved"), [((3, 5, 7), 6, 0), ((3, 5, 7), 6, 12), ((3, 5, 7), 99, 0)]
)
def test_the_operators_that_were_added_are_named_and_not_the_largest(lines, added, moved):
    before = placed((*lines, *([2] * 30)))
    text = updated_budget("", [run_of(before)], places=stored_places(before))
    places = read_budget(text).places
    assert sum(places["operators"].values()) == len(lines) + 30
    now = placed((*lines, *([2] * 30), added), moved=moved)
    (found,) = places_of(now, "operators", None, places)
    assert (found.value, found.number, found.module) == ("+1", added + moved, "Linear")
    # An unchanged program has no such place, and what was removed hides nothing.
    assert [one.value for one in places_of(placed((*lines, *([2] * 30))), "operators", None, places)][:1] != [
        "+1"
    ]
    again = updated_budget(text, [run_of(now)], places=stored_places(now))
    assert read_budget(again).places == stored_places(now) != places


def test_without_the_text_of_lines_the_function_is_compared():
    before = placed((3, 5), text=False)
    (found,) = places_of(placed((3, 5, 6), text=False), "operators", None, stored_places(before))
    assert found.value == "+1"
    assert found.line.endswith("in Net.forward")


def counted_of(lines, sizes):
    """A program whose lines allocate, and launch a kernel each, beside one that does most of both."""
    builder = TraceBuilder()
    layer = builder.module("Linear", name="fc")
    for step in range(4):
        begin = step * 10 * MS
        builder.step(step, begin, 10 * MS)
        for place, (number, size) in enumerate(zip(lines, sizes, strict=True)):
            stack = builder.stack(("/code/net.py", number, "Net.forward"))
            at, address = begin + 1000 + 20_000 * place, 0x1000 * (100 * step + place + 1)
            builder.span(f"aten::op{number}", at, 15_000, module=layer, stack=stack)
            builder.runtime("cudaLaunchKernel", at + 1000, 2000, correlation=1000 * step + place + 1)
            builder.kernel("add", at + 5000, 1000, correlation=1000 * step + place + 1)
            builder.allocate(at + 4000, address, size)
            # All are held at once in the last step, where the peak is.
            builder.free(begin + 9 * MS + place, address)
    texts = {str(number): f"x = act{number}(x)" for number in lines}
    return builder.know("source_lines", {"/code/net.py": texts}).know("profile_memory", 1).build()


@pytest.mark.parametrize(
    ("count", "value"),
    [
        ("operators", "+1"),
        ("kernels", "+1"),
        ("allocations", "+1"),
        ("allocated_bytes", "+4 KiB"),
        ("peak_bytes", "+4 KiB"),
    ],
)
def test_of_every_count_the_line_that_was_added_is_named(count, value):
    before = counted_of((3, 5, *[2] * 9), (64, 64, *[1 << 20] * 9))
    now = counted_of((3, 5, *[2] * 9, 7), (64, 64, *[1 << 20] * 9, 4096))
    assert {*stored_places(before)} == {*PLACED}
    text = updated_budget("", [run_of(before)], places=stored_places(before))
    places = read_budget(text).places
    assert next(one.number for one in places_of(now, count)) == 2
    (found,) = places_of(now, count, None, places)
    assert (found.value, found.number, found.module) == (value, 7, "Linear")
    (found,) = places_of(now, count, ("modules", "Linear"), places)
    assert (found.value, found.number) == (value, 7)
    # An unchanged program has no such place: the largest are shown.
    assert not places_of(before, count, None, places)[0].value.startswith("+")
    assert updated_budget(text, [run_of(before)], places=stored_places(before)) == text


def test_a_line_that_allocates_more_at_once_is_named_by_its_bytes():
    before = counted_of((3, 5, 2), (64, 64, 1 << 20))
    now = counted_of((3, 5, 2), (64, 192, 1 << 20))
    (found,) = places_of(now, "allocated_bytes", None, stored_places(before))
    assert (found.value, found.number) == ("+128 B", 5)


def test_an_update_adds_the_places_of_counts_that_the_budget_had_none_of():
    before = counted_of((3, 5), (64, 64))
    known = stored_places(before)
    older = updated_budget("", [run_of(before)], places={"operators": known["operators"]})
    assert [*read_budget(older).places] == ["operators"]
    assert read_budget(updated_budget(older, [run_of(before)], places=known)).places == known
    # Of what a budget has no places the largest are shown.
    assert places_of(before, "kernels", None, read_budget(older).places)


@pytest.mark.parametrize(("unknown_ns", "verdict"), [(40_000, HELD), (400_000, CANNOT_TELL)])
def test_flops_of_which_too_little_is_known_are_not_compared(unknown_ns, verdict):
    def steps(unknown):
        builder = TraceBuilder()
        square = builder.shapes([[100, 100], [100, 100]], ["float", "float"])
        for number in range(4):
            begin = number * MS
            builder.step(number, begin, MS)
            builder.span("aten::mm", begin, 500_000, shapes=square)
            builder.span("mylib::op" if unknown else "aten::mm", begin + 500_000, unknown_ns, shapes=square)
        return builder.build()

    outcome = outcome_of("[counts]\nflops = 2_000_000\n", steps(True))
    assert outcome.checked[0].verdict == verdict
    if verdict == CANNOT_TELL:
        assert "FLOPs are known for only 55.6 % of the operators' time" in outcome.checked[0].message
    (row,) = [row for row in compare(steps(False), steps(True)).counts if row.name == "flops"]
    assert row.verdict == "cannot tell"
    verdicts = [row.verdict for row in compare(steps(True), steps(True)).counts if row.name == "flops"]
    assert verdicts == (["same"] if verdict == HELD else [])
