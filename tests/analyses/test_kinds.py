import pytest

from kinetoscope.analyses.findings import examine
from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.rules import RULES
from kinetoscope.display.sentence import plain
from tests.analyses.planted_devices import MS, TENSOR_CORES, Gpu
from tests.support.trace_builder import TraceBuilder


def two_kinds(reads, *, every=5, count=40):
    """Steps of 10 ms with a product each; every so manieth also reads values at a line, and all others read fewer."""
    builder = TraceBuilder()
    train, score = (builder.stack(("rl.py", line, name)) for line, name in ((3, "train"), (9, "score")))
    for step in range(count):
        at, is_scored = step * 10_000_000, step % every == every - 1
        builder.step(step, at, 10_000_000)
        builder.span("aten::bernoulli" if is_scored else "aten::mm", at, 5_000_000, stack=train)
        number = reads[is_scored]
        for read in range(number):
            builder.span(
                "aten::item", at + 5_000_000 + read * 5_000_000 // number, 5_000_000 // number, stack=score
            )
    return builder.build()


def said(trace, code):
    return [plain(one.finding) for one in examine(trace).findings if one.code == code]


@pytest.mark.parametrize("every", [2, 5, 10])
def test_what_some_kinds_do_is_said_of_these_steps_and_of_all_time(every):
    trace = two_kinds((0, 50), every=every)
    (text,) = said(trace, "scalar-read")
    assert text == (
        f"In {40 // every} of 40 steps, those that run aten::bernoulli: rl.py:9 reads 50 values of tensors into Python in each step: 50.0 % of their time, "
        f"{50 / every:.1f} % of all step time"
    )
    (finding,) = [one for one in examine(trace).findings if one.code == "scalar-read"]
    assert finding.share_percent == pytest.approx(50 / every)


def test_what_all_kinds_do_is_said_of_each_step():
    assert said(two_kinds((50, 50)), "scalar-read") == [
        "rl.py:9 reads 50 values of tensors into Python in each step: 50.0 % of step time"
    ]


def test_an_average_over_kinds_is_said_to_be_one():
    builder = TraceBuilder()
    line = builder.stack(("rl.py", 3, "train"))
    for step in range(40):
        at, is_scored = step * 10_000_000, step % 2
        builder.step(step, at, 10_000_000)
        builder.span("aten::bernoulli" if is_scored else "aten::mm", at, 2_000_000, stack=line)
        took = 6_000_000 if is_scored else 2_000_000
        for start in range(2):
            builder.span(
                "aten::contiguous",
                at + 2_000_000 + start * took // 2,
                took // 2,
                stack=builder.stack(("rl.py", 9, "score")),
            )
    (text,) = said(builder.build(), "layout-copy")
    assert text.startswith("rl.py:9 copies tensors to another layout 2 times a step: 40.0 % of step time")


def test_python_in_some_kinds_of_steps_is_said_of_these():
    builder, at = TraceBuilder(), 0
    train, rollout = (builder.stack(("rl.py", line, name)) for line, name in ((3, "train"), (9, "rollout")))
    for step in range(40):
        took = 30_000_000 if step % 10 == 9 else 10_000_000
        builder.step(step, at, took)
        if step % 10 == 9:
            builder.span("aten::bernoulli", at, 5_000_000, stack=rollout)
            builder.span("aten::stack", at + 25_000_000, 5_000_000, stack=rollout)
        else:
            builder.span("aten::mm", at, took, stack=train)
        at += took
    (text,) = said(builder.build(), "python-bound")
    assert text == (
        "In 4 of 40 steps, those that run aten::bernoulli: Python in rollout (rl.py:9) runs for 66.7 % of their time, 16.7 % of all step time "
        "(20 ms a step) without any operator"
    )


def test_a_device_that_is_idle_in_some_kinds_of_steps_is_said_to_be_so_in_these():
    gpu = Gpu()
    for step in range(40):
        is_scored = step % 4 == 3
        for _ in range(10):
            gpu.launch(TENSOR_CORES, 1 * MS, "aten::bernoulli" if is_scored else "aten::mm")
        if is_scored:
            gpu.wait()
            gpu.python(30 * MS)
        gpu.wait()
        gpu.step()
    trace = gpu.builder.build()
    (finding,) = RULES["device-idle"](Loop(trace))
    text = plain(finding.finding)
    assert text.startswith("In 10 of 40 steps, those that run aten::bernoulli: cuda:0 is idle for 7")
    assert (
        f"of their time, {finding.share_percent:.1f} % of all step time, mostly because the program" in text
    )
    assert 42 < finding.share_percent < 46
