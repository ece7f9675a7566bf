import inspect
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings

import kinetoscope
from kinetoscope.analyses.finding import Signal
from kinetoscope.analyses.findings import MOST_FINDINGS, as_dict, examine, finding_blocks, for_page
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule_findings import findings_with_gains
from kinetoscope.analyses.rules import RULES
from kinetoscope.analyses.rules.ranks import late_match, straggler_rank, unbalanced_ranks, uneven_match
from kinetoscope.cli import main
from kinetoscope.collect import RecordingOptions
from kinetoscope.display.blocks import Paragraph
from kinetoscope.display.lines import plain_lines
from kinetoscope.display.sentence import plain
from kinetoscope.model.schema import SampleState, SpanKind
from kinetoscope.tables.host.units_of_work import Unit
from kinetoscope.tables.intervals import Intervals
from tests.analyses import planted_devices
from tests.analyses.planted import PLANTED
from tests.support.any_trace import any_traces
from tests.support.effort import STRESS, examples
from tests.support.trace_builder import TraceBuilder
from tests.support.undisturbed import undisturbed


def faults(trace):
    """All findings but the one on what takes most of the time where nothing else does."""
    return tuple(finding for finding in examine(trace).findings if finding.code != "dominant-line")


LEAST_SURE_PERCENT = 25.0
"""Rules begin to speak at 5 to 15 % of a step: whether a real program of little work reaches that is up to the machine."""


def codes(program, fault):
    """What is found in a program, by a clock that other programs of the machine do not slow down.

    Left out, but for the fault that is planted: what the recording costs, which on a fast processor is much of small operators; and unless tests try
    hard, what is near the limit of its rule.
    """
    with PLANTED[program].record(fault) as recorded, undisturbed(recorded) as trace:
        report = examine(trace)
    planted = program.partition(":")[0]
    assert sum(finding.gain_ns or 0 for finding in report.findings) <= report.whole_ns
    return [
        finding.code
        for finding in report.findings
        if finding.code == planted
        or (
            finding.code not in ("dominant-line", "profiler-cost")
            and (STRESS or finding.share_percent >= LEAST_SURE_PERCENT)
        )
    ]


@pytest.mark.parametrize("program", PLANTED)
def test_a_planted_fault_is_named_first(program):
    named, code = codes(program, fault=True), program.partition(":")[0]
    # How often a thread waits for the global lock depends on what else runs: tests/analyses/rules/test_cpu_cores.py has a built trace.
    assert named[:1] == [code] or code == "gil-contention", named


@pytest.mark.parametrize("program", PLANTED)
def test_the_same_program_without_the_fault_has_no_finding(program):
    assert codes(program, fault=False) == []


@settings(max_examples=examples(30), deadline=None)
@given(any_traces(max_spans=40))
def test_any_trace_has_findings_whose_shares_are_shares(trace):
    report = examine(trace)
    assert sum(one.gain_ns or 0 for one in report.findings) <= report.whole_ns
    table = trace.findings()
    for row in table.to_pylist():
        assert 0 <= row["share_percent"] <= 100
        assert row["gain_percent"] is None or 0 <= row["gain_percent"] <= 100
        assert all(0 <= span < len(trace.columns("spans")) for span in json.loads(row["spans"]))


def slow_python():
    """Eight steps with one operator each, after which nothing runs for most of the step; of the last one nobody knows what ran then."""
    builder = TraceBuilder()
    for step in range(8):
        builder.step(step, step * 10_000_000, 10_000_000)
        builder.span("aten::mm", step * 10_000_000, 2_000_000, stack=builder.stack(("train.py", 3, "train")))
    return builder


def test_where_torchs_collector_wrote_the_first_lines_of_functions_these_are_named():
    trace = slow_python().know("engine", "kineto").build()
    (finding,) = faults(trace)
    assert (str(finding.place), finding.place.line) == ("train (train.py:3)", 3)
    assert "train (train.py:3)" in plain(finding.finding)


def test_lines_that_follow_each_other_are_a_place_with_a_first_and_a_last_line():
    builder = TraceBuilder()
    for step in range(8):
        builder.step(step, step * 10_000_000, 10_000_000)
        for index in range(200):
            stack = builder.stack(("train.py", 4 + index % 3, "train"))
            builder.span("aten::add", step * 10_000_000 + index * 40_000, 10_000, stack=stack)
    row = builder.build().findings().to_pylist()[0]
    assert (row["code"], row["line"], row["last_line"]) == ("tiny-operators", 4, 6)


def test_python_between_operators_has_its_place_its_share_and_its_evidence():
    trace = slow_python().build()
    (finding,) = faults(trace)
    assert (finding.code, str(finding.place), finding.place.function) == (
        "python-bound",
        "train.py:3",
        "train",
    )
    assert finding.share_percent == pytest.approx(70.0)
    assert finding.gain_ns == 7 * 8_000_000
    names = {trace.strings[trace.column("spans", "name")[row]] for row in finding.spans}
    assert names == {"aten::mm"}


def sampled_python(states):
    """Steps of which 8 of 10 ms are no operator, with a sample in each: in one step out of two by `states`."""
    builder = slow_python()
    inside = builder.stack(("train.py", 3, "train"), ("log.py", 5, "flush"))
    for step in range(8):
        builder.sample(step * 10_000_000 + 5_000_000, inside, state=states[step % 2])
    return builder.build()


@pytest.mark.parametrize("waited", [0.0, 0.25, 0.5])
def test_python_without_a_processor_is_a_wait_in_the_finding_as_in_the_account(waited):
    builder = slow_python()
    inside = builder.stack(("train.py", 3, "train"), ("log.py", 5, "flush"))
    for moment in range(8 * 10):
        builder.sample(
            (moment + 1) * 1_000_000, inside, period_ns=1_000_000, waited_ns=round(waited * 1_000_000)
        )
    trace = builder.build()
    report = examine(trace)
    (finding,) = [one for one in report.findings if one.code == "python-bound"]
    entries = {one: time_ns for one, time_ns in report.account.kinds[0].entry_ns.items() if time_ns}
    # All but what issues the next operator, which is needed.
    assert finding.gain_ns == pytest.approx(entries["python"], rel=1e-2)
    assert entries.get("waiting", 0) == pytest.approx(waited * report.duration_ns, abs=100)
    assert sum(one.gain_ns or 0 for one in report.findings) <= report.whole_ns


def test_a_loop_that_waits_between_operators_does_not_run_python():
    (finding,) = faults(sampled_python((SampleState.BLOCKED, SampleState.BLOCKED)))
    assert finding.code == "python-bound"
    assert plain(finding.finding) == (
        "The loop waits in flush (log.py:5) for 80.0 % of step time (8 ms a step), such as for a file, a lock or another thread"
    )
    assert "another thread" in finding.advice


@pytest.mark.parametrize("other", [SampleState.BLOCKED, SampleState.RUNNING])
def test_a_loop_that_runs_half_of_the_time_runs_python(other):
    (finding,) = faults(sampled_python((SampleState.RUNNING, other)))
    assert plain(finding.finding).startswith("Python in flush (log.py:5) runs for 80.0 % of step time")


TORCH = "/venv/lib/python3.11/site-packages/torch/"
TRAIN = ("train.py", 9, "train")
BACKWARD = (
    TRAIN,
    (f"{TORCH}_tensor.py", 623, "Tensor.backward"),
    (f"{TORCH}autograd/__init__.py", 395, "backward"),
    (f"{TORCH}autograd/graph.py", 979, "_engine_run_backward"),
)
OPTIMIZER = (
    TRAIN,
    (f"{TORCH}optim/optimizer.py", 526, "Optimizer.profile_hook_step.<locals>.wrapper"),
    (f"{TORCH}optim/adam.py", 433, "_single_tensor_adam"),
)


def steps_with(count, fill, length_ns=10_000_000):
    """Steps that begin with a matrix product of 8 ms, in which `fill` adds more from 8 ms on."""
    builder = TraceBuilder()
    for step in range(count):
        at = step * length_ns
        builder.step(step, at, length_ns)
        builder.span("aten::mm", at, 8_000_000, stack=builder.stack(("model.py", 3, "Net.forward")))
        fill(builder, at + 8_000_000)
    return builder.build()


def reads_and_small_operators(builder, at, stack):
    for number in range(80):
        builder.span("aten::item", at + number * 20_000, 10_000, stack=stack)
        builder.span("aten::mul", at + number * 20_000 + 10_000, 5_000, stack=stack)


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        ((("/usr/lib/python3.11/json/encoder.py", 220, "JSONEncoder.iterencode"),), "python-bound"),
        ((), "tiny-operators"),
    ],
)
def test_a_line_that_calls_a_library_between_small_operators_does_not_loop_over_a_tensor(inside, code):
    """Rows that are written as text take the time of the text; a loop over values takes that of its operators and their Python."""
    each = 250_000 if inside else 12_000

    def fill(builder, at):
        line = builder.stack(TRAIN)
        for number in range(100):
            builder.span("aten::select", at + number * each, 2_000, stack=line)
            builder.sample(at + number * each + 4_000, builder.stack(TRAIN, *inside), period_ns=each)

    (finding,) = faults(steps_with(8, fill, length_ns=8_000_000 + 100 * each))
    assert (finding.code, str(finding.place)) == (code, "train.py:9")


@pytest.mark.parametrize(
    ("waits_ms", "said"),
    [
        (
            [1, 1, 1, 60] * 4,
            "The loop waits for the data loader for 53.8 % of step time (15.8 ms a batch on average)",
        ),
        ([0.1, 0.1, 0.1, 60, *[0.1] * 12], ""),
    ],
)
def test_waits_for_every_fourth_batch_count_and_one_long_wait_does_not(waits_ms, said):
    """Four slow workers deliver four batches at once; the share and the time of a batch are of the same sum."""
    builder, at = TraceBuilder(), 0
    for step, wait in enumerate(waits_ms):
        wait_ns = int(wait * 1_000_000)
        builder.step(step, at, wait_ns + 13_500_000)
        builder.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, wait_ns)
        builder.span("aten::mm", at + wait_ns, 13_500_000)
        at += wait_ns + 13_500_000
    found = [plain(one.finding) for one in faults(builder.build()) if one.code == "input-wait"]
    assert found == [said] * bool(said)


def test_what_autograd_s_engine_and_ddp_do_themselves_is_not_the_line_that_calls_backward():
    frames = [
        BACKWARD,
        (TRAIN, (f"{TORCH}nn/parallel/distributed.py", 1500, "DistributedDataParallel._pre_forward")),
    ]
    for own in frames:
        trace = steps_with(
            8, lambda builder, at, own=own: reads_and_small_operators(builder, at, builder.stack(*own))
        )
        assert faults(trace) == ()


@pytest.mark.parametrize("below", [(), (("loss.py", 20, "Loss.backward"),)])
def test_the_program_s_own_loop_is_found_also_in_its_functions_that_backward_calls(below):
    frames = (*BACKWARD, *below) if below else (TRAIN,)
    trace = steps_with(8, lambda builder, at: reads_and_small_operators(builder, at, builder.stack(*frames)))
    found = {one.code: str(one.place) for one in faults(trace)}
    assert found.get("scalar-read") == ("loss.py:20" if below else "train.py:9")


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        (BACKWARD, None),
        (OPTIMIZER, None),
        ((*BACKWARD, ("hooks.py", 4, "hook")), "python-bound"),
        ((TRAIN,), "python-bound"),
    ],
)
def test_python_that_is_autograd_s_or_the_optimizer_s_is_no_place_to_change(inside, code):
    def sampled(builder, at):
        for part in range(4):
            builder.sample(at + part * 400_000 + 100_000, builder.stack(*inside), period_ns=400_000)

    assert {one.code for one in faults(steps_with(8, sampled))} == ({code} if code else set())


def test_without_samples_the_time_after_backward_is_not_at_the_line_that_calls_it():
    def fill(builder, at):
        for number in range(2):
            builder.backward(
                "MmBackward0", at + number * 1_900_000, 50_000, sequence=-1, stack=builder.stack(*BACKWARD)
            )

    assert faults(steps_with(8, fill)) == ()


def loop_over_rows(engine_ns):
    """Steps in which one line runs 100 operators, each with a node in backward; the engine takes some time between nodes."""

    def fill(builder, at):
        line = builder.stack(("train.py", 9, "<module>"), ("train.py", 4, "loss"))
        first = at // 1_000
        for number in range(100):
            builder.span("aten::select", at + number * 10_000, 8_000, sequence=first + number, stack=line)
        for number in range(100):
            start = at + 2_000_000 + number * (10_000 + engine_ns)
            builder.backward(
                "SelectBackward0",
                start,
                10_000 - 2,
                sequence=first + 99 - number,
                stack=builder.stack(*BACKWARD),
            )

    return steps_with(8, fill, length_ns=15_000_000)


@pytest.mark.parametrize(
    ("engine_ns", "counted_percent"), [(0, 0), (5_000, 3.3), (20_000, 0)], ids=["none", "engine", "a pause"]
)
def test_a_loop_in_forward_costs_what_the_engine_takes_between_its_nodes_in_backward(
    engine_ns, counted_percent
):
    def share(between_ns):
        (one,) = [one for one in faults(loop_over_rows(between_ns)) if one.code == "tiny-operators"]
        return one.share_percent, plain(one.finding)

    (alone, _), (found, text) = share(0), share(engine_ns)
    assert found - alone == pytest.approx(counted_percent, abs=0.1)
    assert ("and the autograd engine between them" in text) == (counted_percent > 0)


def reducing(passes, *, first, sizes=(40_000, 60_000)):
    """Steps of an optimizer with several backward passes, of which those from `first` on sum gradients over the ranks."""
    builder = TraceBuilder()
    stack = builder.stack(*BACKWARD)
    for step in range(8):
        at = step * 10_000_000
        builder.step(step, at, 10_000_000)
        for number in range(passes):
            here = at + number * 2_000_000
            builder.span("aten::mm", here, 1_000_000, sequence=step * 10 + number)
            builder.backward(
                "MmBackward0", here + 1_000_000, 900_000, sequence=step * 10 + number, stack=stack
            )
            for bucket, size in enumerate(sizes if number >= first else ()):
                builder.span(
                    "c10d::allreduce_", here + 1_500_000 + bucket * 10_000, 5_000, stack=stack,
                    facts={"group": "0", "rank": 0, "size": 2, "arguments": [[size // 4, size, "Float"], None]},
                )  # fmt: skip
        builder.annotation("Optimizer.step#SGD.step", at + 9_000_000, 500_000)
        builder.span("aten::_fused_sgd_", at + 9_100_000, 300_000)
    return builder.build()


def test_gradients_that_every_backward_sums_over_the_ranks_are_counted():
    (finding,) = faults(reducing(4, first=0))
    assert finding.code == "repeated-all-reduce"
    assert plain(finding.finding) == (
        "The ranks sum the same gradients 4 times for each step of the optimizer, after each backward at train.py:9: 293 KiB a step "
        "beyond a single time, 0.3 % of step time"
    )
    assert "no_sync" in finding.advice


def test_gradients_that_are_summed_once_for_each_optimizer_step_are_fine():
    assert faults(reducing(4, first=3)) == ()
    assert faults(reducing(1, first=0, sizes=(40_000, 40_000, 40_000))) == (), "buckets of one size"


def optimized(names, parameters=20, **more):
    """Steps whose optimizer calls some operators for each of its parameters."""

    def fill(builder, at):
        builder.annotation("Optimizer.step#Adam.step", at, 1_900_000)
        each = 1_900_000 // (parameters * len(names))
        for number in range(parameters * len(names)):
            builder.span(names[number % len(names)], at + number * each, each - 100)

    return faults(steps_with(8, fill))


def test_an_optimizer_gains_what_a_fused_step_would_not_cost():
    names = [
        f"aten::{name}" for name in ("add_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "addcdiv_", "item")
    ]
    (finding,) = optimized(names)
    assert (finding.code, finding.share_percent) == ("single-tensor-optimizer", pytest.approx(19.0, rel=1e-4))
    # Two of eight operators' worth of calls stay, and 200 ns of each are its recording.
    assert finding.gain_ns == pytest.approx(8 * (1_900_000 - 160 * 200) * (1 - 2 / 8), rel=1e-3)
    assert optimized(names[:2]) == (), "two operators for each parameter are hardly more than a fused step"
    assert optimized(names, parameters=5) == ()


def test_an_optimizer_that_updates_many_groups_is_told_to_have_fewer():
    names = ["aten::_foreach_lerp_", "aten::_foreach_addcdiv_"]
    (finding,) = optimized(names, parameters=20)
    assert finding.code == "many-parameter-groups"
    assert plain(finding.finding).startswith("Adam updates 20 groups of parameters one after the other")
    assert 0 < finding.gain_ns < 8 * 1_900_000
    assert optimized(names, parameters=7) == ()


MODEL, WORK, KEPT = 8_000_000, 1_000_000, 2_000_000


def steps_that_keep(count, kept_bytes, model_bytes=MODEL, every=1):
    """Steps that allocate and free what they work with, of which each `every`th keeps something to the end."""
    builder = TraceBuilder()
    stack = builder.stack(("train.py", 7, "train"))
    builder.allocate(-10, 0x1, model_bytes)
    for step in range(count):
        at = step * 1_000_000
        builder.step(step, at, 1_000_000).span("aten::mm", at + 10, 900_000)
        builder.span("aten::ones", at + 910_000, 90_000, stack=stack)
        builder.allocate(at + 20, 0x2, WORK)
        if step % every == 0:
            builder.allocate(at + 950_000, 0x1000 + step, kept_bytes)
        builder.free(at + 960_000, 0x2)
    return builder.build()


@pytest.mark.parametrize("count", [40, 90, 150, 1000])
def test_memory_that_grows_is_found_however_long_it_has_grown(count):
    (finding,) = faults(steps_that_keep(count, KEPT))
    assert finding.code == "memory-growth"
    assert (
        plain(finding.finding)
        == "Memory grows by 1.91 MiB in each step; what stays is allocated at train.py:7"
    )


@pytest.mark.parametrize(
    ("count", "kept_bytes", "found"),
    [(40, MODEL // 200, False), (1000, MODEL // 200, True), (1000, 4, False), (5, KEPT, False)],
)
def test_memory_that_grows_slowly_is_found_once_it_is_much(count, kept_bytes, found):
    assert bool(faults(steps_that_keep(count, kept_bytes))) == found


def test_what_only_some_steps_keep_is_no_growth():
    assert faults(steps_that_keep(40, KEPT, every=2)) == ()


def test_no_span_is_at_no_place_and_in_no_module():
    builder = slow_python()
    builder.span(
        "aten::relu",
        90_000_000,
        1,
        stack=builder.stack(("train.py", 9, "train")),
        module=builder.module("ReLU"),
    )
    loop = Loop(builder.build())
    last = len(loop.trace.columns("spans")) - 1
    assert (str(loop.place_of(last)), loop.module_of(last)) == ("train.py:9", "ReLU")
    assert (loop.place_of(-1), loop.module_of(-1)) == (SourceLine(), "")


def test_what_autograd_does_between_its_functions_is_not_python():
    builder = TraceBuilder()
    stack = builder.stack(("train.py", 3, "train"))
    for step in range(8):
        start = step * 10_000_000
        builder.step(step, start, 10_000_000)
        builder.span("aten::mm", start, 3_000_000, stack=stack)
        builder.span("MmBackward0", start + 3_000_000, 1_000_000, kind=SpanKind.BACKWARD, stack=stack)
        builder.span("ReluBackward0", start + 8_000_000, 2_000_000, kind=SpanKind.BACKWARD, stack=stack)
    loop = Loop(builder.build())
    assert loop.python.total_ns == 8 * 4_000_000
    assert sum(gap.time_ns for gap in loop.gaps) == 0


def test_the_line_to_change_is_the_programs_and_not_that_of_a_library_that_computes():
    library = "/venv/lib/python3.11/site-packages/numpy/lib/_function_base_impl.py"
    standard = "/usr/lib/python3.11/copy.py"
    for file in (library, standard, "numpy/lib/_function_base_impl.py"):
        builder = TraceBuilder()
        main = builder.thread()
        inside = builder.stack(("train.py", 3, "train"), (file, 99, "compute"))
        for step in range(8):
            builder.step(step, step * 10_000_000, 10_000_000)
            builder.span(
                "aten::mm", step * 10_000_000, 2_000_000, stack=builder.stack(("train.py", 2, "train"))
            )
            builder.sample(step * 10_000_000 + 5_000_000, inside, thread=main)
        (finding,) = faults(builder.build())
        assert str(finding.place) == "train.py:3"


def test_what_one_rank_does_is_no_cause_of_what_another_one_does():
    late = straggler_rank.of_job(late_match("rank 3", 3, 20.0, 8, on_host=True), 100)
    matches = [uneven_match(rank, 3e6, 1e6, 10.0, 5) for rank in (3, 4)]
    same, another = (unbalanced_ranks.of_job(match, 100) for match in matches)
    steps = Intervals.between(0, 100)
    assert [one.code for one in findings_with_gains(late + same, steps)] == ["unbalanced-ranks"]
    assert [one.code for one in findings_with_gains(late + another, steps)] == [
        "straggler-rank",
        "unbalanced-ranks",
    ]


def test_a_recording_without_steps_is_not_said_to_have_any():
    builder = TraceBuilder()
    stack = builder.stack(("train.py", 3, "train"))
    for start in range(0, 80_000_000, 10_000_000):
        builder.span("aten::mm", start, 2_000_000, stack=stack)
    report = examine(builder.build())
    assert report.unit is Unit.RECORDING
    found = plain_lines(finding_blocks(report), 100)[0]
    assert found == (
        "1. Python in train (train.py:3) runs for 77.8 % of recorded time (56 ms) without any operator"
    )


def test_a_missing_signal_is_said_and_not_guessed():
    report = examine(slow_python().build())
    lacking = {one.code: one.signal for one in report.cannot_tell}
    assert lacking == {"gc-pause": Signal.GARBAGE_COLLECTION, "memory-growth": Signal.MEMORY}
    text = " ".join(text for text in plain_lines(finding_blocks(report), 100))
    assert (
        "Cannot tell about memory-growth: record with profile_memory=True, or kinetoscope run --memory."
        in text
    )


@pytest.mark.parametrize("signal", [one for one in Signal if one is not Signal.ALL_RANKS])
def test_what_a_rule_asks_to_record_is_an_option_of_sessions_and_of_the_command(signal):
    option, flag = signal.value
    name, _, value = option.partition("=")
    assert name in inspect.signature(kinetoscope.profile).parameters
    assert name in inspect.signature(kinetoscope.launch).parameters
    assert value == "True"
    flags = {one for parameter in main.get_command(None, "run").params for one in parameter.opts}
    launched = RecordingOptions.launched()
    by_default = {
        "garbage_collection": launched.garbage_collection,
        "record_shapes": launched.deep_steps,
    }
    assert flag in flags if flag else by_default[name]
    assert option in signal.how
    assert flag in signal.how


def test_each_signal_is_one_that_a_rule_asks_for():
    assert {rule.needs for rule in RULES.values()} - {None} == set(Signal)
    missing = {one.code: one.signal for one in examine(slow_python().build()).cannot_tell}
    assert all(RULES[code].needs is signal for code, signal in missing.items())


def test_losses_make_every_number_a_lower_bound():
    trace = slow_python().lose("dropped_spans", 12).build()
    (finding,) = [one for one in faults(trace) if one.code == "incomplete-trace"]
    assert finding.finding["text"].format(12) == "Times and counts are lower bounds: 12 spans not written"


@pytest.mark.parametrize(
    "code",
    [
        "recording_not_stopped",
        "unfinished_spans",
        "processes_not_followed",
        "unwritable_names",
        "truncated_strings",
    ],
)
def test_what_is_missing_elsewhere_leaves_the_steps_as_they_are(code):
    trace = slow_python().lose(code, 2).build()
    assert "incomplete-trace" not in [one.code for one in faults(trace)]


@pytest.fixture
def path(tmp_path):
    slow_python().build().save(tmp_path / "slow.ktrace")
    return str(tmp_path / "slow.ktrace")


def test_the_command_says_what_to_change(path):
    done = CliRunner().invoke(main, ["findings", path])
    assert done.exit_code == 0
    assert "1. Python in train (train.py:3) runs for 70.0 % of step time" in " ".join(done.stdout.split())
    assert "Cannot tell about memory-growth" in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())


def test_programs_read_json_with_stable_keys(path):
    done = CliRunner().invoke(main, ["findings", path, "--json"])
    said = json.loads(done.stdout)
    assert list(said) == [
        "steps", "requests", "step_ns", "process", "sample", "findings", "account", "more", "cannot_tell",
    ]  # fmt: skip
    assert said["process"] is None
    assert said["findings"][0]["code"] == "python-bound"
    assert (said["findings"][0]["line"], said["findings"][0]["last_line"]) == (3, 3)
    assert said["step_ns"] == 10_000_000


def test_a_healthy_run_has_nothing_to_say():
    builder = TraceBuilder()
    for step in range(8):
        builder.step(step, step * 10_000, 10_000)
        builder.span("aten::mm", step * 10_000, 10_000)
    trace = builder.build()
    assert as_dict(examine(trace))["findings"] == []
    assert plain_lines(finding_blocks(examine(trace)), 100)[0].startswith("No problem found")
    assert trace.findings().num_rows == 0


def test_no_more_findings_are_shown_than_a_person_acts_on():
    assert MOST_FINDINGS == 7


def test_braces_of_a_name_are_text():
    builder = TraceBuilder()
    for step in range(8):
        builder.step(step, step * 10_000_000, 10_000_000)
        stack = builder.stack(("train.py", 3, "{lambda(int)#1}::operator()"))
        builder.span("aten::mm", step * 10_000_000, 2_000_000, stack=stack)
    trace = builder.build()
    assert (
        "Python in {lambda(int)#1}::operator() (train.py:3)"
        in plain_lines(finding_blocks(examine(trace)), 100)[0]
    )
    assert trace.findings().num_rows == 1


def test_a_device_may_wait_for_batches_that_another_thread_asks_for():
    builder = TraceBuilder()
    main, other = builder.thread("main"), builder.thread("prefetch")
    stream = builder.stream(7)
    for step in range(8):
        start = step * 10_000_000
        builder.step(step, start, 10_000_000, thread=main)
        builder.span(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, 8_000_000, thread=other
        )
        builder.kernel("gemm", start + 8_000_000, 2_000_000, stream=stream)
    assert "input-wait" not in [one.code for one in faults(builder.build())]


def test_what_samples_see_of_output_counts_with_the_line_that_asked_for_it():
    builder = TraceBuilder()
    main = builder.thread()
    saving = builder.stack(("train.py", 9, "train"), ("site-packages/torch/serialization.py", 900, "save"))
    for step in range(8):
        start = step * 100_000_000
        builder.step(step, start, 100_000_000)
        builder.span("aten::mm", start, 60_000_000, stack=builder.stack(("train.py", 3, "train")))
        for sample in range(6, 10):
            builder.sample(start + sample * 10_000_000, saving, period_ns=10_000_000, thread=main)
    (finding,) = [one for one in faults(builder.build()) if one.code == "output-in-step"]
    assert (str(finding.place), round(finding.share_percent)) == ("train.py:9", 40)


def test_a_few_samples_that_may_be_there_by_chance_are_no_output():
    builder = TraceBuilder()
    main = builder.thread()
    logging = builder.stack(("train.py", 9, "train"), ("python3.11/logging/__init__.py", 900, "info"))
    for step in range(10):
        start = step * 5_000_000
        builder.step(step, start, 5_000_000)
        builder.span("aten::mm", start, 3_000_000, stack=builder.stack(("train.py", 3, "train")))
        if step in (2, 7):
            builder.sample(start + 4_000_000, logging, period_ns=10_000_000, thread=main)
    assert "output-in-step" not in [one.code for one in faults(builder.build())]


def test_a_step_is_an_outlier_also_where_many_others_are_late():
    builder, start = TraceBuilder(), 0
    stack = builder.stack(("train.py", 3, "train"))
    for step in range(9):
        # Three steps of nine are late because the machine is busy, and one evaluates.
        calls = 200 if step == 4 else 10
        each = 2_500_000 if step in (1, 3, 5) else 1_000_000
        builder.step(step, start, calls * each)
        for call in range(calls):
            builder.span("aten::mm", start + call * each, each, stack=stack)
        start += calls * each
    (finding,) = [one for one in faults(builder.build()) if one.code == "step-outlier"]
    assert finding.finding["text"].startswith("Step 4 took")


def late_in_python(late, inside, states=(SampleState.RUNNING,)):
    """Steps of 20 ms, of which some take 200 ms more in Python, with samples in it; what all of them run is at train.py:9."""
    builder, at = TraceBuilder(), 0
    for step in range(30):
        more = 200_000_000 if step in late else 0
        builder.step(step, at, 20_000_000 + more)
        builder.span("aten::mm", at, 19_000_000, stack=builder.stack(TRAIN))
        for part in range(more // 20_000_000):
            builder.sample(
                at + 21_000_000 + part * 20_000_000, builder.stack(TRAIN, *inside), period_ns=20_000_000,
                state=states[part % len(states)],
            )  # fmt: skip
        builder.span("aten::mm", at + 19_000_000 + more, 1_000_000, stack=builder.stack(TRAIN))
        at += 20_000_000 + more
    return [one.code for one in faults(builder.build()) if one.code == "step-outlier"]


@pytest.mark.parametrize(
    ("late", "inside", "states", "found"),
    [
        ([5], (), [SampleState.RUNNING], False),
        ([5, 17], (), [SampleState.RUNNING], True),
        ([5], (), [SampleState.BLOCKED], True),
        ([5], (("report.py", 3, "report"),), [SampleState.RUNNING], True),
    ],
)
def test_a_late_step_is_the_program_s_only_with_evidence_that_a_busy_machine_does_not_make(
    late, inside, states, found
):
    """A thread that another program keeps from its processor runs Python in a line that every step runs, once."""
    assert late_in_python(late, inside, states) == ["step-outlier"] * found


def slower_and_slower(waited, calls=lambda step: 4, rows=lambda step: 64):
    """Steps whose operators of one line take longer with each; while they run, the thread waits for a processor for a part of the time."""
    builder, at = TraceBuilder(), 0
    stack = builder.stack(TRAIN)
    for step in range(24):
        many = calls(step)
        took = 1_000_000 * (10 + step)
        builder.step(step, at, many * took)
        for call in range(many):
            shapes = builder.shapes([[rows(step), 64], [64, 64]], ["float", "float"])
            builder.span("aten::mm", at + call * took, took, stack=stack, shapes=shapes)
            wait = int(waited * took)
            builder.sample(at + (call + 1) * took, stack, period_ns=took, waited_ns=wait)
        at += many * took
    return [one.code for one in faults(builder.build())]


@pytest.mark.parametrize(
    ("waited", "calls", "found"),
    [
        (0.0, lambda step: 4, ["slowing-steps"]),
        (0.05, lambda step: 4, ["slowing-steps"]),
        (0.4, lambda step: 4, ["processor-wait"]),
        (0.4, lambda step: 4 + step, ["processor-wait", "slowing-steps"]),
    ],
)
def test_on_a_busy_machine_steps_get_slower_by_what_is_counted_only(waited, calls, found):
    """Other programs that begin to work slow all operators down."""
    assert sorted(slower_and_slower(waited, calls)) == found


def test_on_a_busy_machine_steps_get_slower_by_the_sizes_of_what_they_compute():
    assert "slowing-steps" in slower_and_slower(0.4, rows=lambda step: 64 + 8 * step)


@pytest.mark.parametrize(
    ("share", "waited", "found"),
    [
        (0.1, 0.0, ["input-wait"]),
        (0.1, 0.4, ["processor-wait"]),
        (0.3, 0.4, ["input-wait", "processor-wait"]),
    ],
)
def test_on_a_busy_machine_workers_wait_for_a_processor_too(share, waited, found):
    builder = TraceBuilder()
    stack, wait = builder.stack(TRAIN), int(100_000_000 * share)
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for step in range(12):
        at = step * 100_000_000
        builder.step(step, at, 100_000_000)
        builder.annotation(name, at, wait, stack=stack)
        builder.span("aten::mm", at + wait, 100_000_000 - wait, stack=stack)
        builder.sample(at + 100_000_000, stack, period_ns=100_000_000, waited_ns=int(waited * 100_000_000))
    assert sorted(one.code for one in faults(builder.build())) == found


def minimized(evaluations, warm_up_ns=0):
    """Steps of L-BFGS, each of which evaluates the loss some times, and the first of which also fills a table."""
    builder, at = TraceBuilder(), 0
    layer, stack = builder.module("Linear"), builder.stack(TRAIN)
    for step, many in enumerate(evaluations):
        begin = at
        if step == 0 and warm_up_ns:
            builder.span("aten::linalg_svd", at, warm_up_ns, stack=stack)
            at += warm_up_ns
        took = many * 10_000_000
        builder.annotation("Optimizer.step#LBFGS.step", at, took)
        for one in range(many):
            sequence, start = 100 * step + one, at + one * 10_000_000
            builder.annotation("Optimizer.zero_grad#LBFGS.zero_grad", start + 10, 1000)
            builder.span(
                "aten::linear", start + 2000, 4_000_000, module=layer, sequence=sequence, stack=stack
            )
            builder.backward("AddmmBackward0", start + 4_100_000, 5_800_000, sequence=sequence)
        at += took
        builder.step(step, begin, at - begin)
    return [one.code for one in faults(builder.build())]


@pytest.mark.parametrize(
    ("evaluations", "warm_up_ns", "found"),
    [
        ([20, *[1] * 11], 0, []),
        ([2, 2, 20, *[2] * 9], 0, []),
        ([20, *[1] * 11], 300_000_000, ["first-step"]),
        ([1] * 12, 200_000_000, ["first-step"]),
    ],
)
def test_a_step_that_evaluates_the_loss_more_often_is_no_late_one(evaluations, warm_up_ns, found):
    """An optimizer that searches a line does so more often at first, and hardly where it has converged."""
    assert minimized(evaluations, warm_up_ns) == found


@pytest.mark.parametrize(
    ("late", "slow", "found"),
    [
        ([4, 9, 14, 19], [], False),
        ([4, 9, 14, 19], [6], False),
        ([4, 9], [], True),
        ([4, 9, 16], [], True),
        ([4, 9, 16], [13], True),
    ],
)
def test_late_steps_at_equal_distances_are_what_the_loop_is_meant_to_do(late, slow, found):
    """Reinforcement learning plays for a while after each so many updates; other steps are slow because the machine is busy."""
    builder, at = TraceBuilder(), 0
    for step in range(20):
        calls = 60 if step in late else 10
        each = 3_000_000 if step in slow else 1_000_000
        builder.step(step, at, calls * each)
        for call in range(calls):
            builder.span("aten::mm", at + call * each, each, stack=builder.stack(TRAIN))
        at += calls * each
    assert [one.code for one in faults(builder.build())] == ["step-outlier"] * found


def test_python_in_steps_at_equal_distances_is_named_as_in_others():
    """A checkpoint of every fifth step is meant to be, and still takes half of the time."""
    builder, at = TraceBuilder(), 0
    stack, saving = builder.stack(TRAIN), builder.stack(TRAIN, ("train.py", 33, "save"))
    for step in range(20):
        begin = at
        builder.span("aten::mm", at, 50_000_000, stack=stack)
        at += 50_000_000
        if step % 5 == 4:
            for _ in range(20):
                at += 10_000_000
                builder.sample(at, saving, state=SampleState.BLOCKED)
        builder.step(step, begin, at - begin)
    found = {one.code: one for one in faults(builder.build())}
    assert "no operator runs for 200 ms more at train.py:33" in plain(found["step-outlier"].finding)


@pytest.mark.parametrize(("reads", "found"), [(1, []), (30, ["scalar-read"])])
def test_without_steps_values_are_counted_for_each_pass_through_the_model(reads, found):
    """An evaluation that reads one number of each batch reads no values in a loop."""
    builder = TraceBuilder()
    layer, stack = builder.module("Linear"), builder.stack(TRAIN)
    for batch in range(40):
        at = batch * 1_000_000
        builder.span("aten::linear", at, 800_000, module=layer, stack=builder.stack(("net.py", 3, "forward")))
        for read in range(reads):
            builder.span("aten::item", at + 810_000 + read * 6000, 5000, stack=stack)
    assert [one.code for one in faults(builder.build())] == found


def validated(after, *, marked, trains=False, in_module=True):
    """Steps of a layer after some of which it also runs on other data, with or without autograd."""
    builder, at = TraceBuilder(), 0
    layer = builder.module("Linear")
    for step in range(20):
        begin = at
        for call in range(200 if step in after else 0):
            sequence = 1000 * step + call + 500 if trains else -1
            module = layer if in_module else -1
            builder.span(
                "aten::mm", at, 1_000_000, module=module, sequence=sequence, stack=builder.stack(TRAIN)
            )
            at += 1_000_000
        for call in range(10):
            sequence = 1000 * step + call
            builder.span(
                "aten::mm", at, 1_000_000, module=layer, sequence=sequence, stack=builder.stack(TRAIN)
            )
            at += 1_000_000
        builder.annotation("Optimizer.step#SGD.step", at, 100_000)
        at += 100_000
        if marked:
            builder.step(step, begin, at - begin)
    return [one.code for one in faults(builder.build()) if one.code == "step-outlier"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"marked": False}, False),
        ({"marked": True}, True),
        ({"marked": False, "trains": True}, True),
        ({"marked": False, "in_module": False}, True),
    ],
)
def test_validation_between_epochs_is_no_late_step(options, found):
    """Where the program marks no steps, what it does between two epochs lies in the step that follows."""
    assert validated([8, 13], **options) == ["step-outlier"] * found


@pytest.mark.parametrize(("late", "found"), [([5], False), ([5, 17], True)])
def test_a_single_wait_for_data_is_no_late_step_of_the_program(late, found):
    builder, at = TraceBuilder(), 0
    for step in range(30):
        more = 200_000_000 if step in late else 0
        builder.step(step, at, 20_000_000 + more)
        builder.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 10_000 + more)
        builder.span("aten::mm", at + 10_000 + more, 19_900_000)
        at += 20_000_000 + more
    # Two waits are a loader that is too slow at times, which explains the late steps.
    assert [one.code for one in faults(builder.build())] == ["input-wait"] * found


def test_the_time_of_an_optimizer_that_wraps_another_counts_once():
    builder = TraceBuilder()
    for step in range(4):
        start = step * 100_000_000
        builder.step(step, start, 100_000_000)
        builder.span("aten::mm", start, 60_000_000)
        for name in ("Sharded", "Adam"):
            builder.span(
                f"Optimizer.step#{name}.step", start + 60_000_000, 40_000_000, kind=SpanKind.USER_ANNOTATION
            )
        for one in range(40):
            name = ("aten::lerp_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_")[one % 4]
            builder.span(name, start + 60_000_000 + one * 1_000_000, 1_000_000)
    (finding,) = [one for one in faults(builder.build()) if one.code == "single-tensor-optimizer"]
    # Of 1 ms an operator, all but four times the longest fixed cost of a call grows with the size: of the three quarters that write in place 0.4 stays, and half of the rest.
    streaming, calls = 40 * (1_000_000 - 4 * 5_000), 40 * (4 * 5_000 - 200)
    assert round(finding.share_percent) == 40
    assert finding.gain_ns == pytest.approx(4 * (streaming * (1 - 0.4 * 3 / 4) + calls / 2), rel=1e-6)


def test_output_outside_of_the_steps_is_nothing():
    builder = TraceBuilder()
    main = builder.thread()
    saving = builder.stack(("site-packages/torch/serialization.py", 900, "save"))
    for step in range(8):
        builder.step(step, step * 10_000_000, 10_000_000)
        builder.span("aten::mm", step * 10_000_000, 10_000_000)
    for sample in range(1, 10):
        builder.sample(80_000_000 + sample * 10_000_000, saving, period_ns=10_000_000, thread=main)
    assert faults(builder.build()) == ()


def test_a_late_rank_without_a_device_is_not_said_to_have_one():
    traces = []
    for rank in range(2):
        builder = TraceBuilder().know("distributedInfo", {"rank": rank, "world_size": 2})
        _, gloo = builder.thread(), builder.thread("gloo")
        for step in range(10):
            at = step * 10_000
            builder.step(step, at, 10_000).span("aten::mm", at, 1_000)
            arrives = 8_000 if rank else 1_000
            builder.span("c10d::allreduce_", at + arrives, 100)
            builder.annotation("gloo:all_reduce", at + arrives + 100, 9_900 - arrives - 100, thread=gloo)
        traces.append(builder.build())
    (late,) = [one for one in faults(kinetoscope.merge(traces)) if one.code == "straggler-rank"]
    assert plain(late.finding) == (
        "The other ranks wait for rank 1 for 70.0 % of step time; it spends 7 µs more in a step on Python"
    )


def crowded(threads, ranks, without_operators=()):
    """Processes of one machine with two processors, each with so many threads for operators; some ranks run none."""
    traces = []
    for rank in range(ranks):
        builder = TraceBuilder().know("torch_threads", threads).know("cpu_count", 2).know("host", "node")
        builder.know("distributedInfo", {"rank": rank, "world_size": ranks})
        for step in range(8):
            builder.step(step, step * 10_000, 10_000)
            if rank not in without_operators:
                builder.span("aten::mm", step * 10_000, 10_000)
        traces.append(builder.build())
    return kinetoscope.merge(traces) if ranks > 1 else traces[0]


def test_findings_of_several_processes_say_whose_they_are(tmp_path):
    traces = []
    for rank, wait_ns in enumerate((0, 8_000_000)):
        builder = TraceBuilder().know("distributedInfo", {"rank": rank, "world_size": 2})
        for step in range(8):
            builder.step(step, step * 10_000_000, 2_000_000 + wait_ns)
            builder.span("aten::mm", step * 10_000_000, 2_000_000)
        traces.append(builder.build())
    trace = kinetoscope.merge(traces)
    report = examine(trace)
    assert report.process == "python, rank 1"
    said = "Several processes have steps. These are of python, rank 1, whose steps took longest."
    assert finding_blocks(report)[0] == Paragraph(said, tone="faint")
    assert as_dict(report)["process"] == "python, rank 1"
    assert for_page(report)["whose"] == said
    assert said in trace._repr_html_()
    assert examine(traces[1]).process == ""
    assert said not in traces[1]._repr_html_()


def test_a_process_without_operators_has_no_threads_for_them():
    assert "thread-oversubscription" not in [
        one.code for one in faults(crowded(2, 2, without_operators=(1,)))
    ]


@pytest.mark.parametrize(
    ("threads", "ranks", "found"), [(2, 1, False), (4, 1, True), (1, 2, False), (2, 2, True)]
)
def test_threads_of_all_processes_of_a_machine_are_counted(threads, ranks, found):
    assert ("thread-oversubscription" in [one.code for one in faults(crowded(threads, ranks))]) == found


@pytest.mark.parametrize("text", ["    gc.collect()", "    loss.backward()", ""])
def test_garbage_that_the_program_collects_itself_is_its_line_to_change(text):
    builder = TraceBuilder().know("source_lines", {"train.py": {"7": text}} if text else {})
    at = builder.stack(("train.py", 7, "train"))
    for step in range(8):
        builder.step(step, step * 10_000_000, 10_000_000)
        builder.span("aten::mm", step * 10_000_000, 6_000_000, stack=at)
        builder.span("Python GC", step * 10_000_000 + 6_000_000, 4_000_000, kind=SpanKind.PYTHON, stack=at)
    (finding,) = [one for one in faults(builder.build()) if one.code == "gc-pause"]
    calls = "gc.collect" in text
    assert plain(finding.finding) == (
        f"{'The program collects garbage itself' if calls else 'Python collects garbage'} 8 times in 8 steps"
        f"{' at train.py:7' if calls else ''}: 40.0 % of step time, at most 4 ms at once"
    )
    assert ("gc.disable" in finding.advice) == (not calls)
    assert str(finding.place) == "train.py:7"


def test_garbage_that_may_have_been_collected_is_said_to_be_unknown():
    lacking = {one.code: one.signal for one in examine(slow_python().build()).cannot_tell}
    assert lacking["gc-pause"] is Signal.GARBAGE_COLLECTION
    recorded = slow_python().know("record_python_gc_info", True).build()
    assert "gc-pause" not in [one.code for one in examine(recorded).cannot_tell]


def test_every_code_is_documented_and_planted():
    text = (Path(__file__).parents[2] / "docs" / "findings.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE))
    planted = {name.partition(":")[0] for name in (*PLANTED, *planted_devices.PLANTED)}
    # What other programs do to one, what only some processors are slow at, and what requests and ranks wait for is in the tests of the rules.
    of_requests = {"event-loop-busy", "executor-wait", "slow-requests", "communication-wait"}
    of_jobs = {"irregular-ranks", "slow-link"}
    assert documented == {*RULES, "dominant-line", "hot-line", "slow-line"} | of_jobs
    assert set(RULES) | {"hot-line"} == planted | of_requests | {
        "half-precision",
        "incomplete-trace",
        "processor-wait",
    }
    assert {code for rule in RULES.values() for code in rule.explains} <= documented


def test_loading_names_the_line_of_python_that_makes_batches():
    builder = TraceBuilder()
    line = builder.stack(("train.py", 2, "main"))
    for number in range(4):
        at = 10_000_000 * number
        builder.step(number, at, 10_000_000)
        builder.annotation(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 6_000_000, stack=line
        )
        builder.span("aten::stack", at + 5_000_000, 500_000, stack=line)
        builder.span("aten::mm", at + 6_000_000, 4_000_000, stack=builder.stack(("train.py", 3, "main")))
        builder.sample(at + 2_000_000, builder.stack(("train.py", 2, "main"), ("data.py", 7, "__getitem__")))
    (found,) = faults(builder.build())
    assert (found.code, str(found.place)) == ("main-process-loading", "data.py:7")


def test_each_function_that_takes_long_to_make_batches_is_a_finding():
    builder = TraceBuilder()
    main = ("train.py", 2, "main")
    frames = [("data.py", 7, "parse"), ("data.py", 9, "parse"), ("data.py", 20, "smooth")]
    stacks = [builder.stack(main, frame) for frame in frames]
    for number in range(4):
        at = 10_000_000 * number
        builder.step(number, at, 10_000_000)
        builder.annotation(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            at,
            6_000_000,
            stack=builder.stack(main),
        )
        for index, stack in enumerate(stacks):
            builder.span("aten::stack", at + 2_000_000 * index, 2_000_000, stack=stack)
        builder.span("aten::mm", at + 6_000_000, 4_000_000, stack=builder.stack(main))
    findings = faults(builder.build())
    assert [(finding.code, str(finding.place)) for finding in findings] == [
        ("main-process-loading", "data.py:7-9"),
        ("main-process-loading", "data.py:20"),
    ]
    assert findings[0].share_percent == pytest.approx(2 * findings[1].share_percent)
    assert sum(finding.gain_ns for finding in findings) <= 4 * 6_000_000


@pytest.mark.parametrize("recorded", [True, False])
def test_waiting_names_the_line_that_recorded_workers_spend_their_time_in(recorded):
    builder = TraceBuilder()
    main, worker = builder.thread("main"), builder.thread("worker")
    loop = ("train.py", 9, "main")
    # A forked worker has the frames of the loop that started it.
    inside = (loop, ("/venv/site-packages/torch/utils/data/_utils/worker.py", 300, "_worker_loop"))
    reading = builder.stack(
        *inside, ("data.py", 7, "__getitem__"), ("/usr/lib/python3.11/json/decoder.py", 3, "decode")
    )
    idle = builder.stack(*inside, ("/usr/lib/python3.11/multiprocessing/queues.py", 5, "get"))
    for step in range(8):
        at = 100_000_000 * step
        builder.step(step, at, 100_000_000, thread=main)
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        builder.annotation(name, at, 80_000_000, stack=builder.stack(loop), thread=main)
        builder.span("aten::mm", at + 80_000_000, 20_000_000, stack=builder.stack(loop), thread=main)
        if not recorded:
            continue
        builder.sample(at + 10_000_000, reading, thread=worker)
        builder.sample(at + 90_000_000, idle, thread=worker)
        builder.sample(at + 95_000_000, idle, thread=worker)
    (found,) = [one for one in faults(builder.build()) if one.code == "input-wait"]
    assert str(found.place) == ("data.py:7" if recorded else "train.py:9")
    assert ("--children" in found.advice) is not recorded
    in_workers = plain(found.finding).endswith("at data.py:7, where its workers spend 100 % of their work")
    assert in_workers is recorded


def test_batches_that_come_as_many_tensors_are_told_from_workers_that_are_slow():
    builder = TraceBuilder()
    loop = ("train.py", 9, "main")
    receiving = builder.stack(loop, ("/venv/torch/multiprocessing/reductions.py", 538, "rebuild_storage_fd"))
    for step in range(8):
        at = 100_000_000 * step
        builder.step(step, at, 100_000_000)
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        builder.annotation(name, at, 80_000_000, stack=builder.stack(loop))
        for moment in range(5, 80, 10):
            builder.sample(at + 1_000_000 * moment, receiving, period_ns=10_000_000)
        builder.span("aten::mm", at + 80_000_000, 20_000_000, stack=builder.stack(loop))
    (finding,) = [finding for finding in faults(builder.build()) if finding.code == "input-wait"]
    assert str(finding.place) == "train.py:9"
    assert "many tensors" in str(finding.finding)
    assert "collate" in finding.advice


def alternating(every, *, rollout_ms=30, count=40, irregular=False):
    """Steps of an optimizer of 10 ms, and a rollout that runs Python for 20 of its milliseconds in every so manieth."""
    builder, at = TraceBuilder(), 0
    train, rollout = (builder.stack(("rl.py", line, name)) for line, name in ((3, "train"), (9, "rollout")))
    for step in range(count):
        is_rollout = step == 7 if irregular else step % every == every - 1
        took = (rollout_ms if is_rollout else 10) * 1_000_000
        builder.step(step, at, took)
        if is_rollout:
            builder.span("aten::bernoulli", at, 5_000_000, stack=rollout)
            builder.span("aten::stack", at + took - 5_000_000, 5_000_000, stack=rollout)
        else:
            builder.span("aten::mm", at, 10_000_000, stack=train)
        at += took
    return builder.build()


@pytest.mark.parametrize("every", [2, 5, 10])
def test_what_every_tenth_step_does_is_found(every):
    (finding,) = faults(alternating(every))
    assert (finding.code, finding.place.function) == ("python-bound", "rollout")
    assert finding.gain_ns == 40 // every * 20_000_000


def test_what_a_single_step_does_is_no_work_of_the_loop():
    assert [one.code for one in faults(alternating(1, irregular=True))] == []
