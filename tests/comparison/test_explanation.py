"""What the difference of two runs is spent on: the parts add up to it, and a planted fault is the first one."""

import pytest
import torch
from hypothesis import given, settings

import kinetoscope
from kinetoscope.comparison.explanation import OTHER
from kinetoscope.comparison.measures import run_of
from kinetoscope.comparison.result import Margins
from kinetoscope.comparison.runs import compare_runs
from tests.analyses.planted import PLANTED, Net, Program, sgd, training
from tests.support.any_trace import any_traces
from tests.support.effort import STRESS, examples
from tests.support.strict_json import read_strictly
from tests.support.trace_builder import TraceBuilder
from tests.support.undisturbed import undisturbed

MS = 1_000_000

# What the first part of the explanation says of programs that take much longer with their fault: what, and the text of the line.
FIRST = {
    "anomaly-detection:gradients_are_checked": ("aten::", "functional.relu(layer(x))"),
    "double-precision:a_model_in_64_bits": ("double precision", "functional.gelu"),
    "dtype-conversion:types_back_and_forth": ("type conversion", "to(torch.float64)"),
    "gc-pause:garbage_is_collected_in_each_step": ("garbage collection", ""),
    "hot-line:a_result_of_which_few_rows_are_used": ("result is mostly discarded", "head(hidden)"),
    "hot-line:a_transform_of_a_prime_length": ("awkward length", "torch.fft"),
    "layout-copy:layouts_back_and_forth": ("copies to another layout", "permute"),
    "main-process-loading:loading_in_the_loop": ("waiting for data", ""),
    "output-in-step:a_checkpoint_is_saved_in_each_step": ("Python", "torch.save"),
    "output-in-step:the_model_is_copied_in_each_step": ("Python", "copy.deepcopy"),
    "python-bound:a_double_loop_in_python": ("Python", "first ^ second"),
    "recompiles:a_number_that_changes": ("compiling", ""),
    "slowing-steps:features_are_concatenated": ("aten::cat", "torch.cat"),
    "step-outlier:some_steps_evaluate": ("aten::addmm", "model.second(model.first(x))"),
    "tiny-operators:a_penalty_of_each_parameter": ("", "torch.norm(parameter)"),
    "tiny-operators:a_running_mean_by_hand": ("", "mean * 0.9"),
    "tiny-operators:rows_one_by_one": ("", "for at in range"),
}


@pytest.mark.parametrize("program", FIRST)
def test_a_planted_fault_explains_why_the_program_is_slower_than_its_twin(program):
    with (
        PLANTED[program].record(False) as one,
        PLANTED[program].record(True) as other,
        undisturbed(one) as base,
        undisturbed(other) as new,
    ):
        found = kinetoscope.compare(base, new)
    assert_adds_up(found)
    parts, (what, text) = found.explanation.parts, FIRST[program]
    # A line has its Python, its operators, and what their calls cost; of what has no line, there is one part.
    fault_parts = [part for part in parts if text in part.text] if text else parts[:1]
    assert any(what in part.what and part.change_ns > 0 for part in fault_parts), found.why
    # Which part is the largest is up to the caches and the other programs of the machine.
    if STRESS:
        assert what in parts[0].what, found.why
        assert text in parts[0].text, found.why
        # How much else writing to a disk slows down, by caches that it empties, is up to the machine.
        least_share = 0.0 if text == "torch.save" else 0.5
        assert sum(part.change_ns for part in fault_parts) > least_share * found.whole.change_ns
        assert found.whole.change_ns > 0


def a_buffer_that_is_new_in_each_step(fault):
    model, buffer = Net(), torch.zeros(16 * 2**20)

    def batch(number):
        rows = torch.zeros(len(buffer)) if fault else buffer.zero_()
        return rows[: 192 * 64].view(192, 64)

    return training(model, sgd(model), batch), 8


def test_a_buffer_that_is_new_in_each_step_adds_up_whatever_fresh_memory_costs():
    """Whether pages that Linux hands out cost more than filling used ones again is up to the machine; what is allocated is not."""
    program = Program(a_buffer_that_is_new_in_each_step, 1, {"record_shapes": True})
    with program.record(False) as base, program.record(True) as new:
        found = kinetoscope.compare(base, new)
    assert_adds_up(found)
    bytes_more = next(count.new - count.base for count in found.counts if count.name == "allocated_bytes")
    assert bytes_more == 4 * 16 * 2**20


def assert_adds_up(found):
    explanation = found.explanation
    # Steps are compared without waits for a CPU core, which are a part of the explanation.
    assert found.whole.base_ns <= max(explanation.base_ns, 1.0) * 1.000001
    assert found.whole.new_ns <= max(explanation.new_ns, 1.0) * 1.000001
    change_ns = explanation.new_ns - explanation.base_ns
    assert sum(one.change_ns for one in explanation.parts) == pytest.approx(change_ns, abs=1e-2)
    for kind in explanation.kinds:
        assert sum(one.change_ns for one in kind.parts) == pytest.approx(kind.change_ns, abs=1e-2)
    for one in explanation.parts:
        assert sum(each.change_ns for each in one.spent) == pytest.approx(one.change_ns if one.spent else 0.0)


@settings(max_examples=examples(40), deadline=None)
@given(any_traces(max_spans=30), any_traces(max_spans=30))
def test_the_parts_of_any_two_traces_add_up_to_the_difference_of_their_steps(base, new):
    runs = [run_of(one, "one", 0, with_account=True) for one in (base, new)]
    assert_adds_up(compare_runs(runs[:1], runs[1:]))


def alternating(*, evaluations=10, evaluation_ms=30, training_ms=10, line=7, steps=40, folder="/code"):
    """Training steps with a matrix product and its backward, and an evaluation, a convolution, in every so manieth step."""
    builder, at_ns = TraceBuilder(), MS
    stacks = [builder.stack((f"{folder}/train.py", at, "main")) for at in (line, line + 2)]
    for number in range(steps):
        evaluates = evaluations and number % evaluations == evaluations - 1
        name, stack, took = ("aten::mm", stacks[0], training_ms)
        if evaluates:
            name, stack, took = "aten::conv2d", stacks[1], evaluation_ms
        builder.step(number, at_ns, took * MS)
        builder.span(name, at_ns, took * MS, stack=stack)
        at_ns += took * MS
    return builder.build()


def explained(base, new):
    found = compare_runs(*([run_of(one, "one", 0, with_account=True)] for one in (base, new)))
    assert_adds_up(found)
    return found


def test_steps_are_compared_with_those_of_their_kind():
    found = explained(alternating(), alternating(evaluation_ms=50))
    assert found.why == "+2 ms: aten::conv2d at train.py:9"
    training, evaluation = found.explanation.kinds
    assert (training.base_step, training.base_share, training.change_ns) == (0, pytest.approx(0.9), 0.0)
    assert [one.what for one in training.parts] == [OTHER]
    assert (evaluation.base_step, evaluation.new_step) == (9, 9)
    assert evaluation.change_ns == pytest.approx(20 * MS)
    assert [one.sentence for one in evaluation.parts] == ["+20 ms: aten::conv2d at train.py:9"]


def test_more_steps_of_a_kind_are_no_slower_line():
    found = explained(alternating(evaluations=20), alternating(evaluations=10))
    first = found.explanation.parts[0]
    assert first.sentence == "+1 ms: steps like step 9 are 10.0 % of the steps, not 5.0 %"
    assert [one.change_ns for one in found.explanation.kinds] == pytest.approx([0.0, 0.0], abs=1e-3)


def test_evaluation_that_the_base_does_not_have_is_a_part_of_its_own():
    found = explained(alternating(evaluations=0), alternating(evaluations=10))
    assert found.explanation.parts[0].sentence == "+2 ms: steps like step 9 are 10.0 % of the steps, not 0 %"
    assert len(found.explanation.kinds) == 2
    assert read_strictly(found.to_json())["explanation"]["kinds"][1]["base_ns"] is None


def test_a_line_that_has_moved_in_a_file_of_another_folder_is_the_same():
    found = explained(
        alternating(evaluations=0), alternating(evaluations=0, line=9, training_ms=14, folder="/other")
    )
    (part,) = found.explanation.parts
    assert (part.file, part.base_line, part.line, part.change_ns) == ("/code/train.py", 7, 9, 4 * MS)
    assert part.sentence == "+4 ms: aten::mm at train.py:7 -> 9"


def test_several_recordings_have_one_explanation_of_their_common_kinds():
    base = [run_of(alternating(steps=20 + 10 * one), "base", 0, with_account=True) for one in range(3)]
    new = [run_of(alternating(training_ms=12), "new", 0, with_account=True) for _ in range(3)]
    found = compare_runs(base, new)
    assert_adds_up(found)
    assert [one.change_ns for one in found.explanation.kinds] == pytest.approx([2 * MS, 0.0], abs=1e-3)


def test_what_is_shown_is_what_a_step_takes_longer_for():
    found = explained(alternating(), alternating(evaluation_ms=50))
    text = found.to_text()
    assert "What the difference of a step is spent on" in text
    assert "Kinds of steps" in text
    assert "like step 9" in text
    assert "aten::conv2d at train.py:9" in found.to_html()
    as_json = read_strictly(found.to_json())["explanation"]
    assert as_json["change_ns"] == pytest.approx(2 * MS)
    part, rest = as_json["parts"]
    assert (rest["what"], rest["spent"]) == (OTHER, [])
    spent = part["spent"][0]
    assert spent.pop("what") == "aten::conv2d"
    assert spent == pytest.approx({"base_ns": 3 * MS, "new_ns": 5 * MS, "change_ns": 2 * MS}, rel=1e-4)
    assert (part["what"], part["line"], part["base_line"], part["module"]) == ("aten::conv2d", 9, 9, None)


def filling(took_ms, *, fresh):
    """Steps that fill 64 MiB with zeros, on a machine that was calibrated."""
    builder, size = TraceBuilder(), 64 * 2**20
    for step in range(8):
        at_ns, took_ns = step * 20 * MS, took_ms * MS
        builder.step(step, at_ns, took_ns + MS)
        line = builder.stack(("train.py", 5, "train"))
        if fresh:
            builder.span("aten::zeros", at_ns, took_ns, stack=line)
            builder.allocate(at_ns + 10, at_ns + 4096, size, thread=0, device=(0, -1))
            builder.free(at_ns + took_ns + 5, at_ns + 4096)
        shapes = builder.shapes([[size // 4]], ["float"])
        builder.span("aten::zero_", at_ns + 20, took_ns - 40, shapes=shapes, stack=line)
    rates = {"call": [[1, 1000]], "stream": [[100_000_000, 2 * MS]]}
    return builder.know("attainable", rates).build()


def test_what_new_memory_takes_longer_is_fresh_memory_at_its_line():
    found = explained(filling(2, fresh=False), filling(8, fresh=True))
    assert "fresh memory" in found.explanation.parts[0].what
    assert (found.explanation.parts[0].file, found.explanation.parts[0].line) == ("train.py", 5)


def test_runs_whose_steps_are_the_same_have_nothing_to_explain():
    found = explained(alternating(), alternating())
    assert found.why == ""
    assert "Why" not in found.to_text()


def test_what_changed_little_is_one_part():
    found = explained(alternating(), alternating(training_ms=20, evaluation_ms=32))
    assert [one.what for one in found.explanation.parts] == ["aten::mm", OTHER]


def test_without_the_account_nothing_is_explained():
    runs = [run_of(alternating(), "one", 0) for _ in range(2)]
    found = compare_runs(runs[:1], runs[1:], Margins())
    assert found.explanation is None
    assert read_strictly(found.to_json())["explanation"] is None


def evaluating(steps=8, evaluates=True):
    """Steps of one layer that is trained, and run once more without autograd."""
    builder = TraceBuilder()
    layer = builder.module("Linear", name="layer")
    trains = builder.stack(("train.py", 5, "train_step"))
    validates = builder.stack(("train.py", 9, "validate"))
    for number in range(steps):
        at_ns = number * 60 * MS
        builder.span("aten::addmm", at_ns, 10 * MS, stack=trains, module=layer, sequence=number)
        builder.backward("AddmmBackward0", at_ns + 10 * MS, 10 * MS - 1, sequence=number)
        if evaluates:
            builder.span("aten::addmm", at_ns + 20 * MS, 15 * MS, stack=validates, module=layer)
        builder.step(number, at_ns, (35 if evaluates else 20) * MS)
    return builder.build()


def test_what_findings_say_can_be_left_out_is_named_so():
    found = explained(evaluating(evaluates=False), evaluating())
    assert found.why == "+15 ms: evaluation in each step at train.py:9"
