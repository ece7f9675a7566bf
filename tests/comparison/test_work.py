"""Work that certainly changed, by counts of built traces: found where times are too noisy, and nothing else is."""

from dataclasses import replace

import numpy as np
import pytest

from kinetoscope.comparison.measures import Run, run_of
from kinetoscope.comparison.result import CANNOT_TELL, FASTER, SAME, SLOWER, Margins
from kinetoscope.comparison.runs import compare_runs
from kinetoscope.model.time_spent import PARTS
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000
MODULES = 12


def recorded(seed, *, width=100, adds=0, noise=0.0, busy=0.3, steps=24, line=40, every=1, slower=0.0):
    """Steps of twelve layers that take 1 ms each, and one more where they call for it.

    Args:
        seed: Of the noise.
        width: Of the product in the layer `net.3`, whose time grows with it: 100 takes 1 ms.
        adds: How many microseconds an operator takes that the layer `net.3` has besides; 0 for none.
        noise: How much the time of each operator varies.
        busy: How much the time of a step varies by waiting that no operator sees.
        steps: How many.
        line: Of the layers' operators.
        every: Only every so many steps has the wide product.
        slower: By which part of itself the layer `net.3` takes longer.
    """
    random = np.random.default_rng(seed)
    builder = TraceBuilder()
    net = builder.module("Net")
    layers = [
        builder.module("Layer" if index != 3 else "Gate", name=str(index), parent=net)
        for index in range(MODULES)
    ]
    stacks = [
        builder.stack(
            ("/code/train.py", 9, "main"),
            ("/code/net.py", line + index, f"{'Gate' if index == 3 else 'Layer'}.forward"),
        )
        for index in range(MODULES)
    ]
    shapes = {size: builder.shapes([[100, 100], [100, size]]) for size in {100, width}}
    at_ns = MS
    for number in range(steps):
        begin_ns = at_ns
        for index, (layer, stack) in enumerate(zip(layers, stacks, strict=True)):
            size = width if index == 3 and number % every == 0 else 100
            length = round(MS * size / 100 * (1 + slower * (index == 3)) * random.normal(1, noise))
            builder.span("aten::mm", at_ns, length, module=layer, stack=stack, shapes=shapes[size])
            at_ns += length
            if adds and index == 3:
                builder.span("aten::relu", at_ns, adds * 1000, module=layer, stack=stack, shapes=shapes[100])
                at_ns += adds * 1000
        at_ns += round(MS * (1 + busy * MODULES * random.random()))
        builder.step(number, begin_ns, at_ns - begin_ns)
    return run_of(builder.build())


def several(first, **options):
    return [recorded(first + number, **options) for number in range(5)]


def first_changed(comparison, kind):
    return next((row for row in comparison.changed if row.kind == kind), None)


@pytest.mark.parametrize(
    ("change", "percent"),
    [({"width": 113}, 1.0), ({"adds": 120}, 1.0), ({"width": 105}, 0.4), ({"adds": 50}, 0.4)],
    ids=["a wider layer", "an operator more", "a slightly wider layer", "a small operator more"],
)
def test_more_work_in_a_module_is_found_with_its_line_where_a_step_is_too_noisy(change, percent):
    comparison = compare_runs(several(1, noise=0.02), several(50, noise=0.02, **change))
    assert comparison.whole.high_ns - comparison.whole.low_ns > 4 * comparison.net_of_rows_ns
    assert (comparison.verdict, comparison.exit_code) == (SLOWER, 1)
    assert 100 * comparison.net_of_rows_ns / comparison.row_step_ns == pytest.approx(percent, rel=0.25)
    module, line = (first_changed(comparison, kind) for kind in ("module", "line"))
    assert (module.name, module.verdict) == ("3", SLOWER)
    assert (line.line, line.verdict) == (43, SLOWER)
    assert "most in 3 (Gate) at net.py:43" in repr(comparison)
    turned = compare_runs(several(50, noise=0.02, **change), several(1, noise=0.02))
    assert (turned.verdict, first_changed(turned, "module").name) == (FASTER, "3")


@pytest.mark.parametrize(
    "options",
    [{}, {"line": 44}, {"adds": 10}, {"width": 101}, {"width": 150, "every": 3}],
    ids=["the same", "on other lines", "0.1 % of an operator", "0.1 % wider", "of steps that differ"],
)
def test_the_same_work_or_too_little_or_of_steps_that_differ_is_no_change(options):
    comparison = compare_runs(several(1, every=options.get("every", 1)), several(50, **options))
    assert comparison.net_of_rows_ns is None
    assert comparison.exit_code == 2
    assert {row.work_ns for row in comparison.differences} <= {0.0} | {
        row.work_ns for row in comparison.differences if row.verdict == SLOWER
    }
    if options.keys() <= {"line"}:
        assert comparison.changed == []


def test_no_pair_of_one_program_is_accused():
    runs = [recorded(seed, noise=0.05) for seed in range(40)]
    chance = np.random.default_rng(0)
    for _ in range(40):
        drawn = [runs[index] for index in chance.permutation(40)[:10]]
        comparison = compare_runs(drawn[:5], drawn[5:])
        assert comparison.verdict in (SAME, CANNOT_TELL)
        assert not any(row.work_ns for row in comparison.differences)


def test_records_that_were_lost_or_not_made_prove_nothing():
    base, new = several(1, busy=0.0), several(50, busy=0.0)
    assert compare_runs(base, new).exit_code == 0
    lossy = [replace(new[0], losses="counts are lower bounds"), *new[1:]]
    assert compare_runs(base, lossy).exit_code == 2
    wider = several(50, width=113)
    wider[0] = replace(wider[0], losses="counts are lower bounds")
    assert compare_runs(several(1), wider).verdict == CANNOT_TELL
    nothing = [
        replace(run, step_counts=run.step_counts | {"operators": 0 * run.step_counts["operators"]})
        for run in new
    ]
    comparison = compare_runs(base, nothing)
    assert comparison.exit_code == 2
    assert comparison.losses[0].endswith("no operator was recorded in its steps")


def delayed(run: Run, seed: int) -> Run:
    """The same recording on a machine where the thread waits for a CPU core, up to ten times as long as it runs."""
    waits = np.random.default_rng(seed).uniform(0, 10, len(run.step_ns)) * run.step_ns
    parts = run.populations["part"]
    steps = np.arange(len(waits))
    waiting = replace(
        parts,
        keys=[*parts.keys, (PARTS["processor_wait"],)],
        row=np.append(parts.row, np.full(len(waits), len(parts.keys))),
        step=np.append(parts.step, steps),
        time_ns=np.append(parts.time_ns, waits),
        count=np.append(parts.count, np.zeros(len(waits))),
    )
    return replace(run, step_ns=run.step_ns + waits, populations=run.populations | {"part": waiting})


def test_waits_for_a_core_are_no_part_of_a_step():
    base, new = several(1, busy=0.0), several(50, busy=0.0, slower=0.6)
    slow = [
        [delayed(run, 7 * side + index) for index, run in enumerate(runs)]
        for side, runs in enumerate((base, new))
    ]
    comparison = compare_runs(*slow)
    assert comparison.verdict == SLOWER
    assert comparison.whole.base_ns == pytest.approx(13 * MS, rel=0.01)
    assert "without its waits for a CPU core" in comparison.to_text()


def test_edited_code_has_half_of_the_allowed_false_alarms():
    base, new = several(1, noise=0.16, busy=0.0), several(50, noise=0.16, slower=0.25, busy=0.0)
    p = next(row.p for row in compare_runs(base, new).differences if (row.kind, row.name) == ("module", "3"))
    verdicts = [
        {row.kind for row in compare_runs(base, new, Margins(edited=edited)).changed}
        for edited in (frozenset(), frozenset({"Gate", "Gate.forward"}), frozenset({"Other"}))
    ]
    assert verdicts[0] == verdicts[2]
    assert verdicts[0] < verdicts[1], p
