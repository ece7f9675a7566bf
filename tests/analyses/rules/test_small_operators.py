"""Loops of small operators: all of their lines count, and loops of torch itself do not."""

import pytest

from kinetoscope.analyses.findings import examine
from kinetoscope.display.sentence import plain
from tests.support.trace_builder import TraceBuilder

MS, US = 1_000_000, 1_000


def found(lines, *, often=90, frames=()):
    """The finding about steps of 10 ms with a loop, each line of which runs an operator of 5 µs that often."""
    builder = TraceBuilder()
    stacks = [builder.stack(("train.py", line, "update"), *frames) for line in lines]
    for step in range(8):
        at = step * 10 * MS
        builder.step(step, at, 10 * MS)
        for number in range(often):
            for place, stack in enumerate(stacks):
                builder.span("aten::add", at + number * 100 * US + place * 20 * US, 5 * US, stack=stack)
    return [one for one in examine(builder.build()).findings if one.code == "tiny-operators"]


def test_all_lines_of_a_loop_are_one_place():
    (alone,), (together,) = found([7]), found([7, 8, 9])
    assert plain(together.finding).startswith("train.py:7-9 runs 270 operators a step")
    assert plain(alone.finding).startswith("train.py:7 runs 90 operators a step")
    assert together.gain_ns > 2 * alone.gain_ns


def test_a_loop_of_torch_over_parameters_is_not_the_programs():
    frames = [("/lib/python3.11/site-packages/torch/nn/utils/clip_grad.py", 30, "clip_grad_norm_")]
    assert found([7], often=90, frames=frames) == []
    assert len(found([7], often=90)) == 1


@pytest.mark.parametrize("often", [20, 30])
def test_few_operators_are_no_loop(often):
    assert found([7], often=often) == []


def layers(*, are_a_chain):
    """The finding about a line that calls 60 modules once in each step, each of which reads the result of the one before or an input of its own."""
    builder = TraceBuilder().know("record_shapes", True)
    stack = builder.stack(("train.py", 7, "forward"))
    modules = [builder.module("Embedding", name=str(number)) for number in range(60)]
    for step in range(8):
        at = step * 2 * MS
        builder.step(step, at, 2 * MS)
        for number, module in enumerate(modules):
            first = 1000 * (step + 1)
            reads = first + number if are_a_chain else 1 + number
            builder.span(
                "aten::embedding", at + number * 30 * US, 8 * US, stack=stack, module=module,
                reads=((reads, 0),), makes=((first + number + 1, 0),),
            )  # fmt: skip
    return [finding for finding in examine(builder.build()).findings if finding.code == "tiny-operators"]


def test_modules_that_do_not_need_each_others_results_are_a_loop():
    (finding,) = layers(are_a_chain=False)
    assert "in 60 modules that do not need each other's results" in plain(finding.finding)
    assert "nn.Embedding" in finding.advice
    assert layers(are_a_chain=True) == []
