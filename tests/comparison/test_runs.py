"""Two runs: built ones of which everything is known, and real programs with something planted in one of them."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import kinetoscope
from kinetoscope import ArgumentError
from kinetoscope.comparison.measures import run_of
from kinetoscope.comparison.result import CANNOT_TELL, FASTER, FEWER, MORE, SAME, SLOWER, Margins
from kinetoscope.comparison.runs import compare_runs
from kinetoscope.model.schema import SpanKind
from tests.support.strict_json import read_strictly
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def built(seed, *, slower=0.0, steps=40, noise=0.005, line=34, every=1, speed=1.0, scale=1):
    """Steps of 10 ms: a linear layer that takes 6 ms, and one that takes 2 ms, the second `slower` by this part of a step.

    Args:
        seed: Of the noise of each step.
        slower: By how much.
        steps: How many.
        noise: How much the time of a step varies.
        line: Of the call of the second layer.
        every: Only every so many steps calls the second layer twice.
        speed: Of the machine.
        scale: How many bytes each step allocates, times 4,096.
    """
    random = np.random.default_rng(seed)
    builder = TraceBuilder()
    net = builder.module("Net")
    first, second = (builder.module("Linear", name=name, parent=net) for name in ("first", "second"))
    stacks = [
        builder.stack(("/code/train.py", 12, "main"), ("/code/net.py", at, "Net.forward"))
        for at in (33, line)
    ]
    shapes = builder.shapes([[64, 64]])
    at_ns = MS
    for number in range(steps):
        factor = random.normal(1, noise) / speed
        lengths = [6 * MS * factor, (2 + 10 * slower) * MS * factor]
        total = round(sum(lengths) + 2 * MS * factor)
        builder.step(number, at_ns, total)
        begin = at_ns + round(MS * factor)
        for module, stack, length in zip((first, second), stacks, lengths, strict=True):
            pieces = 2 if module == second and every > 1 and number % every == 0 else 1
            for piece in range(pieces):
                at = begin + piece * round(length / pieces)
                builder.span(
                    "aten::linear", at, round(length / pieces) - 1, module=module, stack=stack, shapes=shapes
                )
            begin += round(length)
        builder.allocate(at_ns + 10, 0x1000 * (number + 1), 4096 * scale)
        at_ns += total
    builder.know("profile_memory", 1)
    return builder.build()


def several(first, **options):
    """Five recordings of one program."""
    return [built(first + number, **options) for number in range(5)]


def row(comparison, kind, name, **more):
    found = [
        one
        for one in comparison.differences
        if (one.kind, one.name) == (kind, name)
        and all(getattr(one, key) == value for key, value in more.items())
    ]
    assert len(found) == 1, [(one.kind, one.name) for one in comparison.differences]
    return found[0]


def test_a_slower_module_is_found_with_its_line_and_its_share():
    found = kinetoscope.compare(several(1), several(50, slower=0.05))
    assert found.verdict == SLOWER
    assert found.whole.change_ns == pytest.approx(0.5 * MS, rel=0.1)
    module = row(found, "module", "second")
    assert (module.verdict, module.detail) == (SLOWER, "Linear")
    assert module.change_ns == pytest.approx(0.5 * MS, rel=0.1)
    assert module.share == pytest.approx(1.0, abs=0.15)
    assert row(found, "module", "first").verdict in (SAME, CANNOT_TELL)
    line = row(found, "line", "Net.forward", line=34)
    assert (line.verdict, line.file) == (SLOWER, "/code/net.py")
    assert row(found, "operator", "aten::linear", module="second").verdict == SLOWER
    assert {one.verdict for one in found.counts} == {SAME}


def test_the_other_way_round_it_is_faster():
    found = kinetoscope.compare(several(1, slower=0.05), several(50))
    assert found.verdict == FASTER
    assert row(found, "module", "second").verdict == FASTER


def test_runs_of_one_program_are_the_same():
    found = kinetoscope.compare(*([built(seed) for seed in seeds] for seeds in (range(10), range(10, 20))))
    assert found.verdict == SAME
    assert {one.verdict for one in found.differences} == {SAME}
    assert found.changed_counts == []


def test_what_is_known_too_badly_is_not_called_the_same():
    found = kinetoscope.compare(several(1, noise=0.2), several(50, noise=0.2))
    assert found.verdict == CANNOT_TELL
    assert "record more, in turn" in found.reason
    assert found.changed == []


@pytest.mark.parametrize(("base", "new"), [(1, 1), (1, 5), (5, 1)])
def test_one_recording_of_a_side_has_no_verdict_on_times_but_words(base, new):
    """One process may be slower than another one throughout, however alike its steps are."""
    found = kinetoscope.compare(several(1, noise=0.001)[:base], several(50, noise=0.001, slower=0.4)[:new])
    assert not found.confirmed
    assert found.verdict == CANNOT_TELL
    assert {one.verdict for one in found.differences} == {CANNOT_TELL}
    assert "one recording does not show how much recordings of one program differ" in found.reason
    side = {(1, 1): "each", (1, 5): "of the base", (5, 1): "of the new run"}[base, new]
    said = f"(10.0 ms -> 14.0 ms a step), one recording {side}: unconfirmed; `kinetoscope ab` confirms"
    assert found.to_text().splitlines()[3] == f"time rose by about 40 % {said}"
    assert "second (Linear)" in found.to_text()
    assert "first (Linear)" not in found.to_text()
    assert "unconfirmed" in found.to_text(0).splitlines()[-2]
    values = read_strictly(found.to_json())
    assert (values["step"]["p"], values["step"]["low_ns"], values["step"]["high_ns"]) == (None, None, None)
    assert found.table().column("p").null_count == found.table().num_rows


def test_of_one_recording_a_side_the_headline_begins_with_the_counts():
    def program(operators, step_ns):
        builder = TraceBuilder()
        for step in range(12):
            builder.step(step, step * MS, step_ns)
            for place in range(operators):
                builder.span("aten::add", step * MS + 1000 * place, 900)
        return builder.build()

    found = kinetoscope.compare(program(600, 900_000), program(18, 576_000))
    assert found.to_text().splitlines()[3] == (
        "582 fewer operators a step; time fell by about 36 % (900 µs -> 576 µs a step), one recording each: unconfirmed; "
        "`kinetoscope ab` confirms"
    )
    alike = kinetoscope.compare(program(600, 900_000), program(599, 900_000))
    assert (
        alike.to_text()
        .splitlines()[3]
        .startswith("operators a step: 1 fewer; time differed by less than the margin")
    )


def test_an_operator_that_vanished_is_a_verdict_whatever_time_does():
    def program(relu):
        builder = TraceBuilder()
        for step in range(12):
            builder.step(step, step * MS, MS)
            builder.span("aten::add", step * MS + 1000, 500_000)
            if relu:
                builder.span("aten::relu", step * MS + 600_000, 3_000)
        return builder.build()

    gone, added = (kinetoscope.compare(program(side), program(not side)) for side in (True, False))
    for found, verdict in ((gone, "gone"), (added, "added")):
        assert row(found, "operator", "aten::relu").count_verdict == verdict
        assert row(found, "operator", "aten::add").count_verdict == "same"
        (line,) = (each for each in found.to_text().splitlines() if "aten::relu" in each)
        assert line.endswith(f"  {verdict}")


def disturbed(seed, module_ns):
    """Steps of 1.5 ms and a module of `module_ns`, 20 of whose operators other programs interrupt for 1 ms each."""
    random = np.random.default_rng(seed)
    builder = TraceBuilder()
    net = builder.module("Net")
    first, second = (builder.module("Linear", name=name, parent=net) for name in ("first", "second"))
    at_ns = MS
    for number in range(30):
        lengths = 50e3 * random.normal(1, 0.01, 30) + np.where(
            random.random(30) < 0.6, random.exponential(MS, 30), 0
        )
        own = module_ns * random.normal(1, 0.01) + (random.random() < 0.3) * random.exponential(MS)
        builder.step(number, at_ns, round(lengths.sum() + own) + 1000)
        for length in lengths.tolist():
            builder.span("aten::mm", at_ns, round(length) - 1, module=first)
            at_ns += round(length)
        builder.span("aten::pow", at_ns, round(own) - 1, module=second)
        at_ns += round(own) + 1000
    return builder.build()


def test_a_module_that_got_much_slower_is_not_the_same_because_the_machine_is_busy():
    """Steps are ten times as long as undisturbed: what the module takes more is far below 1 % of that."""
    base, new = (
        [disturbed(first + number, ns) for number in range(6)] for first, ns in ((0, 50e3), (50, 86e3))
    )
    found = kinetoscope.compare(base, new)
    assert found.whole.base_ns > 10 * MS
    module = row(found, "module", "second")
    assert (module.verdict, module.count_verdict) == (SLOWER, "same")
    assert module.change_ns == pytest.approx(36e3, rel=0.2)
    assert found.row_step_ns < found.whole.base_ns / 2
    assert 60 < 100 * module.change_ns / module.base_ns < 85
    assert "compared with a step as little disturbed" in found.to_text()


def test_a_row_that_changed_much_of_itself_is_never_the_same_however_small_it_is():
    def program(seed, small_ns):
        random = np.random.default_rng(seed)
        builder = TraceBuilder()
        for step in range(20):
            builder.step(step, step * 10 * MS, 10 * MS)
            builder.span("aten::mm", step * 10 * MS, round(9 * MS * random.normal(1, 0.001)))
            builder.span("aten::pow", step * 10 * MS + 9_500_000, round(small_ns * random.normal(1, 0.01)))
        return builder.build()

    base, new = (
        [program(first + number, ns) for number in range(5)] for first, ns in ((0, 60e3), (50, 100e3))
    )
    found = kinetoscope.compare(base, new)
    assert row(found, "operator", "aten::pow").verdict == "below the margin"
    assert row(found, "operator", "aten::mm").verdict == SAME
    assert "1 changed by less than the margin" in found.to_text()
    again = kinetoscope.compare(base, [program(90 + number, 60e3) for number in range(5)])
    assert row(again, "operator", "aten::pow").verdict == SAME


def test_a_difference_below_a_margin_does_not_count():
    runs = several(1, noise=0.001), several(50, slower=0.05, noise=0.001)
    assert kinetoscope.compare(*runs, percent=4).verdict == SLOWER
    assert kinetoscope.compare(*runs, percent=10).verdict == SAME
    assert kinetoscope.compare(*runs, least_ns=MS).verdict == SAME


def test_a_slower_machine_that_both_sides_share_is_no_difference():
    """Each pair of recordings has the machine at another speed, so that 3 % of the step only show in pairs."""
    speeds = np.random.default_rng(0).uniform(0.6, 1.0, 10)
    base = [run_of(built(number, speed=each)) for number, each in enumerate(speeds)]
    new = [run_of(built(100 + number, speed=each, slower=0.03)) for number, each in enumerate(speeds)]
    for place, (one, other) in enumerate(zip(base, new, strict=True)):
        one.start_ns, other.start_ns = 10 * place + 1 + place % 2, 10 * place + 2 - place % 2
    found = compare_runs(base, new)
    assert found.in_turn
    assert found.net_of_rows_ns is None
    assert found.verdict == SLOWER
    new[0].start_ns = 1000
    apart = compare_runs(base, new)
    assert not apart.in_turn
    assert apart.whole.p > 0.1


def test_where_a_step_is_too_noisy_its_rows_may_say_what_changed():
    """The first layer is as noisy as the machine; what the second one takes more stands out against its own noise."""

    random = np.random.default_rng(0)

    def side(first, slower):
        speeds = random.uniform(0.85, 1.0, 8).tolist()
        return [
            built(first + number, slower=slower, speed=each, steps=20) for number, each in enumerate(speeds)
        ]

    found = kinetoscope.compare(side(0, 0.0), side(100, 0.03))
    assert found.whole.low_ns < 0 < found.whole.high_ns
    assert found.verdict == SLOWER
    assert found.net_of_rows_ns == pytest.approx(0.3 * MS, rel=0.3)
    assert "what changed comes to +" in found.to_text()


def test_a_line_that_moved_is_followed():
    found = kinetoscope.compare(several(1), several(50, slower=0.05, line=44))
    line = row(found, "line", "Net.forward", line=44)
    assert (line.base_line, line.verdict, line.only) == (34, SLOWER, "")
    assert "net.py:34 -> 44" in found.to_text()


def test_counts_are_exact_and_name_what_runs_more_often():
    found = kinetoscope.compare(built(1), built(2, every=1, scale=2))
    counts = {one.name: one for one in found.counts}
    assert (counts["operators"].base, counts["operators"].verdict) == (2, SAME)
    assert (counts["allocated_bytes"].base, counts["allocated_bytes"].new) == (4096, 8192)
    assert counts["allocated_bytes"].verdict == MORE
    assert counts["allocations"].verdict == SAME
    assert [one.name for one in kinetoscope.compare(built(2, scale=2), built(1)).changed_counts] == [
        "allocated_bytes",
        "peak_bytes",
    ]


def test_counts_that_differ_between_steps_are_not_called_the_same_or_more_unless_they_are():
    alternating = kinetoscope.compare(built(1, every=2), built(2, every=2))
    assert {one.name: one.verdict for one in alternating.counts}["operators"] == SAME
    rare = kinetoscope.compare(built(1), built(2, every=2, steps=41))
    assert {one.name: one.verdict for one in rare.counts}["operators"] in (SAME, CANNOT_TELL)
    both = row(rare, "module", "second")
    assert both.base_count == 1
    assert (both.new_count, both.count_verdict) == (1.5, CANNOT_TELL)


def test_steps_of_which_some_do_much_more_are_not_the_same_where_the_totals_differ():
    """Four optimizer steps for each rollout: the median is an optimizer step on both sides."""

    def program(rollout):
        builder = TraceBuilder()
        for step in range(40):
            builder.step(step, step * MS, MS)
            for place in range(rollout if step % 5 == 0 else 8):
                builder.span("aten::add", step * MS + 1000 * place, 900)
        return builder.build()

    found = kinetoscope.compare(program(400), program(20), warm_up=0)
    (operators,) = (one for one in found.counts if one.name == "operators")
    assert operators.verdict == CANNOT_TELL
    assert (operators.base, operators.new) == (8, 8)
    assert operators.usual == (86.4, 10.4)
    text = found.to_text()
    assert "the same: operators" not in text
    (line,) = (each for each in text.splitlines() if each.startswith("  operators  8"))
    assert line.split()[1:] == ["86.40", "10.40", "-76", "steps", "differ,", "means"]
    assert text.splitlines()[3].startswith("operators a step: 86.40 -> 10.40 on average, steps differ; time ")
    alike = kinetoscope.compare(program(400), program(400), warm_up=0)
    assert "the same: operators" in alike.to_text()


def test_first_steps_are_left_out_and_counted():
    found = kinetoscope.compare(built(1), built(2), warm_up=5)
    assert (found.base.left_out, found.new.left_out, found.base.steps) == (5, 5, 35)
    assert "35 steps, 5 left out as warm-up" in found.to_text()
    with pytest.raises(ArgumentError, match="40 steps left out, which leaves none of its 40"):
        kinetoscope.compare(built(1), built(2), warm_up=40)


def test_recordings_without_steps_can_still_be_counted():
    def whole(count):
        builder = TraceBuilder()
        for place in range(count):
            builder.span("aten::add", 1000 * place, 900)
        return builder.build()

    found = kinetoscope.compare(whole(3), whole(4))
    assert found.verdict == CANNOT_TELL
    assert found.reason.startswith("a recording has no steps")
    assert [(one.name, one.verdict) for one in found.changed_counts] == [("operators", MORE)]
    added = row(found, "operator", "aten::add")
    assert (added.base_count, added.new_count) == (3, 4)


def test_the_order_of_recordings_does_not_matter():
    base, new = [built(one) for one in range(3)], [built(10 + one, slower=0.05) for one in range(3)]
    runs = [[run_of(one) for one in side] for side in (base, new)]
    for place, run in enumerate([*runs[0], *runs[1]], start=1):
        run.start_ns = place
    once, again = compare_runs(runs[0], runs[1]), compare_runs(runs[0][::-1], runs[1][::-1])
    assert json.loads(once.to_json())["step"] == json.loads(again.to_json())["step"]


def test_a_comparison_is_shown_as_tables_text_html_and_json():
    found = kinetoscope.compare(several(1), several(50, slower=0.05, scale=2))
    times = found.table()
    assert times.column("kind")[0].as_py() == "step"
    assert times.num_rows == 1 + len(found.differences)
    assert found.table("counts").num_rows == len(found.counts)
    assert found.table("memory").num_rows == len(found.memory)
    with pytest.raises(ArgumentError, match="no table 'rows'"):
        found.table("rows")
    text = found.to_text()
    assert text.splitlines()[3].startswith("slower: ")
    assert text.splitlines()[3].endswith("; bytes allocated a step: 4 KiB more and 1 other count changed")
    assert repr(found) == f"<Comparison: {text.splitlines()[3]}>"
    assert "+4 KiB" in text
    assert "second (Linear)" in found._repr_html_()
    values = read_strictly(found.to_json())
    assert values["verdict"] == SLOWER
    assert values["step"]["change_ns"] == pytest.approx(found.whole.change_ns)


def test_names_from_a_program_break_neither_text_nor_html():
    def hostile(seed):
        builder = TraceBuilder()
        for step in range(12):
            builder.step(step, step * MS, MS)
            builder.span("<script>\n\x1b[31m", step * MS + 1000, 500_000 + 1000 * ((step * seed) % 7))
        return builder.build()

    found = kinetoscope.compare(hostile(1), hostile(3))
    assert "\x1b" not in found.to_text(0)
    assert "<script>" not in found.to_html(0)


def test_margins_are_checked_where_they_are_made():
    with pytest.raises(ArgumentError, match="percent"):
        Margins(percent=float("inf"))


class Planted(nn.Module):
    """A layer that does something more where it is asked to."""

    def __init__(self, extra):
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.extra = extra
        self.held = []

    def forward(self, batch):
        out = self.inner(batch)
        if self.extra == "operator":
            out = out + 0
        elif self.extra == "copy":
            out = out.clone()
        elif self.extra == "allocation":
            torch.empty(1000)
        elif self.extra == "held":
            self.held.append(torch.zeros(5000))
        elif self.extra == "read":
            out.sum().item()
        return out


def recorded(extra=""):
    """Ten steps of a real program."""
    torch.manual_seed(0)
    model = nn.Sequential(Planted(extra), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8, 16)
    with kinetoscope.profile(
        activities=[kinetoscope.ProfilerActivity.CPU],
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
    ) as prof:
        for _ in range(10):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            prof.step()
    return prof.trace


@pytest.fixture(scope="module")
def clean():
    """The program without anything planted."""
    return run_of(recorded())


@pytest.mark.parametrize(
    ("extra", "counts"),
    [
        ("operator", {"operators", "allocations", "allocated_bytes"}),
        ("copy", {"operators", "tensor_copies", "allocations", "allocated_bytes"}),
        ("allocation", {"operators", "allocations", "allocated_bytes"}),
        ("read", {"operators", "values_read"}),
        ("held", {"operators", "allocations", "allocated_bytes", "peak_bytes"}),
    ],
)
def test_something_planted_in_a_real_program_is_counted_and_placed(clean, extra, counts):
    found = compare_runs([clean], [run_of(recorded(extra))])
    changed = {one.name: one.verdict for one in found.changed_counts}
    assert counts <= set(changed)
    assert FEWER not in changed.values()
    modules = [one for one in found.differences if one.kind == "module" and one.base_count != one.new_count]
    assert [one.name for one in modules] == ["0"]
    lines = [one for one in found.differences if one.kind == "line" and one.base_count != one.new_count]
    assert {one.file for one in lines} == {__file__}
    assert "Planted.forward" in {one.name for one in lines}


def test_the_same_real_program_has_the_same_counts(clean):
    found = compare_runs([clean], [run_of(recorded())])
    assert found.changed_counts == []
    assert [one for one in found.differences if one.base_count != one.new_count] == []


def breaks_twice(batch):
    batch = batch.sin()
    print(end="")
    batch = batch.cos()
    print(end="")
    return batch.sum()


def logs():
    print(end="")


def breaks_twice_in_a_function(batch):
    batch = batch.sin()
    logs()
    batch = batch.cos()
    logs()
    return batch.sum()


def breaks_in_a_loop(batch):
    for _ in range(2):
        batch = batch.sin()
        print(end="")
    return batch.sum()


def compiled(function, sizes, **options):
    """A step for each size of the input of a compiled function; neither stacks nor Python calls are recorded."""
    torch._dynamo.reset()
    # A trace lists the graph breaks of what was compiled earlier in the process, too.
    torch._dynamo.utils.graph_break_reasons.clear()
    step = torch.compile(function, backend="eager", dynamic=False)
    with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], **options) as prof:
        for size in sizes:
            step(torch.ones(size))
            prof.step()
    return prof.trace


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace.*")
def test_recompilations_and_graph_breaks_are_those_that_torch_reports():
    trace = compiled(
        breaks_twice, [3, 3, 3, 4, 3, 3], schedule=kinetoscope.schedule(wait=0, warmup=1, active=5)
    )
    again = [row for row in trace.table("compiles").to_pylist() if row["reason"]]
    assert len(again) == 3
    counts = run_of(trace).run_counts
    assert (counts["recompiles"], counts["graph_breaks"]) == (3, 2)
    assert run_of(compiled(breaks_twice_in_a_function, [3])).run_counts["graph_breaks"] == 2
    # Torch runs this function as a whole without compiling it: no function that resumes it has a name in the trace.
    assert run_of(compiled(breaks_in_a_loop, [3])).run_counts["graph_breaks"] == 1


def test_collections_of_garbage_are_no_calls_of_functions():
    builder = TraceBuilder()
    for number in range(5):
        builder.step(number, 100 * number, 100).span("Python GC", 100 * number + 50, 10, kind=SpanKind.PYTHON)
    run = run_of(builder.build())
    assert "python_calls" not in run.step_counts
    assert run.reasons["python_calls"] == "record with python_calls=True"
