"""Findings that come from the account: planted programs and their twins, and what other findings cover."""

from dataclasses import replace

import pytest

from kinetoscope.analyses.findings import examine, headline
from kinetoscope.analyses.hot_lines import HOT_LINE, hot_lines
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule_findings import findings_with_gains
from kinetoscope.display.sentence import plain
from kinetoscope.model.schema import SampleState
from kinetoscope.tables.intervals import Intervals
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000
RATES = {
    "call": [[1, 1000]],
    "stream": [[100_000_000, 2 * MS]],
    "fourier float32": [[10_000_000, MS]],
    "indexing": [[100_000_000, 2 * MS]],
}


def steps(fill, count=8):
    """Steps of 10 ms that begin with what `fill` adds, on a machine that was calibrated."""
    builder = TraceBuilder()
    for step in range(count):
        builder.step(step, step * 10 * MS, 10 * MS)
        fill(builder, step * 10 * MS, builder.stack(("train.py", 5, "train")))
    return builder.know("attainable", RATES).build()


def found_in(fill):
    return [one for one in examine(steps(fill)).findings if one.code == HOT_LINE.code]


def fresh_zeros(builder, at, line):
    size = 64 * 2**20
    shapes = builder.shapes([[size // 4]], ["float"])
    builder.span("aten::zeros", at, 8 * MS, stack=line)
    builder.allocate(at + 10, at + 4096, size, thread=0, device=(0, -1))
    builder.span("aten::zero_", at + 20, 8 * MS - 40, shapes=shapes, stack=line)
    builder.free(at + 8 * MS + 5, at + 4096)


def test_memory_that_is_new_each_time_is_a_finding_with_its_gain():
    (one,) = found_in(fresh_zeros)
    assert str(one.place) == "train.py:5"
    assert plain(one.finding) == (
        "train.py:5 writes into memory that is new each time, 64 MiB at once: 66.6 % of step time above what it needs (aten::zero_, once a step)"
    )
    assert one.gain_ns == pytest.approx(8 * 6.66 * MS, rel=0.01)
    assert plain(headline(one, 8 * 10 * MS)).endswith("[hot-line, about 66.6 % to gain]")
    assert "out=" in one.advice


def transform(length):
    def fill(builder, at, line):
        shapes = builder.shapes(
            [[16, length], [], [], []], ["float", "ScalarList", "Scalar", "Scalar"], ["", "[1]", "0", "True"]
        )
        builder.span("aten::_fft_r2c", at, 8 * MS, shapes=shapes, stack=line)

    return fill


def test_a_length_with_large_prime_factors_is_a_finding_with_a_better_one():
    (one,) = found_in(transform(32_749))
    assert "length 32,749, which has large prime factors" in plain(one.finding)
    assert "such as 32,768" in one.advice
    assert found_in(transform(32_768)) == []


def test_a_gradient_that_is_almost_all_zeros_is_a_finding_at_the_line_of_the_lookup():
    def fill(builder, at, line):
        shapes = builder.shapes(
            [[64, 32], [64], [], [], []], ["float", "long int", "Scalar", "Scalar", "Scalar"], ["", "", "100000", "-1", "False"]
        )  # fmt: skip
        builder.span("aten::embedding", at, MS, stack=line, sequence=at // MS + 1)
        builder.backward("EmbeddingBackward0", at + MS, 8 * MS, sequence=at // MS + 1)
        builder.span("aten::embedding_dense_backward", at + MS + 10, 7 * MS, shapes=shapes)

    (one,) = found_in(fill)
    assert "(100,000 rows)" in plain(one.finding)
    assert "sparse=True" in one.advice


def test_work_on_indices_that_is_done_again_in_a_step_is_a_finding():
    def fill(builder, at, line):
        zeros = builder.shapes(
            [[], [], [], [], []], ["ScalarList", "", "", "", "Scalar"], ["[5000]", "", "", "cpu", "False"]
        )
        ones = builder.shapes(
            [[], [], [], [], []], ["ScalarList", "", "", "", "Scalar"], ["[20000]", "", "", "cpu", "False"]
        )
        types = ["float", "Scalar", "long int", "float", "Scalar"]
        added = builder.shapes([[5000], [], [20000], [20000], []], types, ["", "0", "", "", "1"])
        for start in (at, at + 4 * MS):
            builder.span("aten::zeros", start, 10_000, shapes=zeros, stack=line)
            builder.span("aten::ones", start + 20_000, 10_000, shapes=ones, stack=line)
            builder.span("aten::index_add_", start + 40_000, 3 * MS, shapes=added, stack=line)
            # What a gradient flows through lies between.
            builder.span("aten::mm", start + 3 * MS + 50_000, 10_000, stack=line, sequence=start)
            builder.backward("MmBackward0", start + 3 * MS + 70_000, 10_000, sequence=start)

    (one,) = found_in(fill)
    assert plain(one.finding).startswith(
        "train.py:5 computes the same from constants and indices more than once in a step: 30.2 %"
    )
    assert "once a step" in one.advice


def waiting(builder, at, line):
    builder.span("aten::mm", at, MS, stack=line)
    inside = builder.stack(("train.py", 5, "train"), ("log.py", 9, "flush"))
    builder.sample(at + 5 * MS, inside, state=SampleState.BLOCKED)


def test_a_wait_that_another_finding_names_is_not_named_again():
    found = examine(steps(waiting)).findings
    assert [one.code for one in found] == ["python-bound"]


def test_without_the_other_finding_it_is():
    loop = Loop(steps(waiting))
    (line,) = hot_lines(loop)
    assert plain(line.finding).startswith("The loop waits in flush (log.py:9)")
    in_function = replace(line, code="python-bound", place=SourceLine("log.py", 7, "flush"))
    in_half = replace(in_function, gain_ns=(line.gain_ns + 1) // 2)
    in_less = replace(in_function, gain_ns=line.gain_ns // 3)
    in_other_time = replace(in_function, time=Intervals.between(0, MS))
    in_other_function = replace(line, code="python-bound", place=SourceLine("log.py", 9, "write"))
    for other, codes in (
        (in_function, ["python-bound"]),
        (in_half, ["python-bound"]),
        (in_less, ["hot-line", "python-bound"]),
        (in_other_time, ["hot-line", "python-bound"]),
        (in_other_function, ["hot-line", "python-bound"]),
    ):
        findings = findings_with_gains([line, other], loop.moments)
        assert [finding.code for finding in findings] == codes
        assert sum(finding.gain_ns for finding in findings) <= loop.whole_ns


def test_what_needs_its_time_is_no_finding():
    def fill(builder, at, line):
        shapes = builder.shapes([[25 * 2**20]], ["float"])
        builder.span("aten::fill_", at, 2 * MS, shapes=shapes, stack=line)

    assert found_in(fill) == []


def calls(program, count=8):
    """Steps of 10 ms in which a program multiplies matrices: what it calls, each with the lines of its stack, what it reads and what it makes."""
    builder = TraceBuilder()
    shapes = builder.shapes([[300, 300], [300, 300]], ["float", "float"])
    for step in range(count):
        builder.step(step, step * 10 * MS, 10 * MS)
        for at, (lines, reads, makes) in enumerate(program(step)):
            stack = builder.stack(*((file, line, file) for file, line in lines))
            builder.span(
                "aten::mm", (step * 10 + at * 2) * MS, 2 * MS, shapes=shapes, stack=stack, reads=reads, makes=makes
            )  # fmt: skip
    return [
        plain(one.finding)
        for one in examine(builder.know("attainable", RATES).build()).findings
        if one.code == HOT_LINE.code
    ]


def test_a_call_of_which_all_is_repeated_is_named_with_the_first_one():
    def forward(line, storage, fresh):
        # Each layer has a line, and none has most of the work.
        layers = [[("train.py", line), ("net.py", 3 + layer)] for layer in range(2)]
        return [
            (layers[0], ((storage, 0), (1, 0)), ((fresh, 0),)),
            (layers[1], ((fresh, 0), (2, 0)), ((fresh + 1, 0),)),
        ]

    def program(step):
        batch = 100 * (step + 1)
        return [*forward(5, batch, batch + 1), *forward(8, batch, batch + 11)]

    assert calls(program) == [
        "train.py:8 computes a result that train.py:5 computed before in the step: 40.0 % of step time above what it needs (aten::mm, 2 times a step)"
    ]


def test_a_line_that_computes_the_same_in_each_step_is_named_where_the_call_does_more():
    def program(step):
        batch = 100 * (step + 1)
        inside = [("train.py", 5), ("net.py", 3)]
        return [
            (inside, ((1, 0), (1, 0)), ((batch + 1, 0),)),
            ([("train.py", 5), ("net.py", 4)], ((batch, 0), (batch + 1, 0)), ((batch + 2, 0),)),
        ]

    assert calls(program) == [
        "net.py:3 computes the same as in the step before: what it is made of has not changed: 17.5 % of step time above what it needs (aten::mm, once a step)"
    ]


def test_a_program_that_only_repeats_itself_is_meant_to():
    def program(step):
        return [([("train.py", 5)], ((1, 0), (2, 0)), ((100 * (step + 1), 0),))] * 3

    assert calls(program) == []


def test_work_whose_tensors_have_changed_is_no_finding():
    def program(step):
        line = [("train.py", 5)]
        return [
            (line, ((1, step), (2, 0)), ((10 * step + 3, 0),)),
            (line, ((1, step), (2, 1)), ((10 * step + 4, 0),)),
        ]

    assert calls(program) == []


def test_gains_of_the_account_never_add_up_to_more_than_what_is_above_the_floor():
    def fill(builder, at, line):
        fresh_zeros(builder, at, line)
        transform(32_749)(builder, at + 8 * MS + 100_000, line)

    report = examine(steps(fill))
    (kind,) = report.account.kinds
    gains = [one.gain_ns for one in report.findings if one.code == HOT_LINE.code]
    assert gains
    assert sum(gains) <= kind.duration_ns - kind.floor_ns
