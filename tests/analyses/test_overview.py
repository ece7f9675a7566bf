"""The overview: one set of numbers, whoever shows them."""

import html
import re

import numpy as np
import pytest

import kinetoscope
from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.analyses.description import contents
from kinetoscope.analyses.overview import TOP
from kinetoscope.analyses.trace_blocks import RunFacts, trace_blocks
from kinetoscope.combine.processes import merge_processes
from kinetoscope.display.lines import plain_lines
from kinetoscope.display.sentence import plain
from kinetoscope.model import units
from kinetoscope.trace.page import trace_page
from kinetoscope.viewer.server.routes import answer
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder


def training(rank=None):
    """Steps that only the optimizer marks, of which the first contains what came before them; they get shorter, and do equal work."""
    builder = TraceBuilder()
    if rank is not None:
        builder.know("process", 10 + rank).know("process_name", "train.py")
        builder.know("distributedInfo", {"rank": rank, "world_size": 2})
    square = builder.shapes([[100, 100], [100, 100]], ["float", "float"])
    stack, module = builder.stack(("/code/train.py", 7, "train")), builder.module("Net")
    for end in (9_000_000, 11_000_000, 12_000_000, 12_500_000):
        builder.span("aten::mm", end - 400_000, 3000, shapes=square, stack=stack, module=module)
        builder.annotation("Optimizer.step#SGD.step", end - 1000, 1000)
    return builder.build()


def texts(trace):
    """The summary and a notebook's page as plain text."""
    lines = plain_lines(trace_blocks(trace.overview(), RunFacts.of(trace.overview(), "x")), 200)
    page = html.unescape(re.sub("<[^>]*>", " ", trace_page(trace, details=True)))
    return "\n".join(lines), page


def test_a_summary_a_notebook_and_the_viewer_have_the_same_steps():
    trace = training()
    steps = trace.overview().steps
    rows = trace.table("steps").to_pylist()
    usual = [row["duration_ns"] for row in rows if not row["start_up"]]
    assert (steps.count, steps.start_up, steps.left_out_ns) == (4, 1, (rows[0]["duration_ns"],))
    assert (steps.min_ns, steps.mean_ns, steps.max_ns) == (min(usual), np.mean(usual), max(usual))
    of_viewer = answer(trace, "overview", {})["steps"]
    assert (of_viewer["min_ns"], of_viewer["mean_ns"]) == (steps.min_ns, steps.mean_ns)
    for text in texts(trace):
        assert f"mean {units.duration(steps.mean_ns)}" in text
        assert f"start-up and the step before these: {units.duration(sum(steps.left_out_ns))}" in text


def test_a_summary_and_the_viewer_have_the_same_rate_of_operations():
    trace = training()
    rates = [row["flops_per_s"] for row in trace.table("steps").to_pylist() if not row["start_up"]]
    assert trace.overview().work.flops_per_s == pytest.approx(np.median(rates)) == 2e9
    assert answer(trace, "overview/work", {})["flops_per_s"] == trace.overview().work.flops_per_s
    assert "8 MFLOP, 2 GFLOP/s in the median step" in texts(trace)[0]


def alternating():
    """Training for 1 ms, and after every third step 10 ms of something else."""
    builder = TraceBuilder()
    square = builder.shapes([[100, 100], [100, 100]], ["float", "float"])
    now = 0
    for number in range(12):
        evaluates = number % 4 == 3
        builder.step(number, now, 10_000_000 if evaluates else 1_000_000)
        builder.span("aten::mm", now, 30_000, shapes=square)
        if evaluates:
            builder.span("aten::bmm", now + 50_000, 30_000)
            builder.span("aten::softmax", now + 100_000, 400_000)
        now += 10_000_000 if evaluates else 1_000_000
    return builder.build()


def test_steps_of_several_kinds_are_not_one_median():
    trace = alternating()
    shown = trace.overview()
    assert [(one["count"], one["median_ns"]) for one in shown.step_kinds] == [(3, 10_000_000), (9, 1_000_000)]
    assert shown.steps.mean_ns == 39_000_000 / 12
    words = "2 kinds of steps: 3 of 10 ms with more aten::softmax, 76.9 % of the time; 9 of 1 ms, 23.1 %"
    for text in texts(trace):
        assert words in " ".join(text.split())
        assert "mean" not in text.partition("kinds of steps")[0]
    (tile,) = [one for one in answer(trace, "overview", {})["tiles"] if one["title"].startswith("Step")]
    assert (tile["title"], tile["value"]) == ("Step, main kind", [10_000_000, "ns"])
    assert (plain(tile["more"]), plain(tile["hint"])) == (
        "3 · 9 of other kinds",
        f"{words}.",
    )


def test_the_first_steps_are_no_main_kind():
    builder, now = TraceBuilder(), 0
    for number in range(8):
        lasts = 500_000_000 if number < 2 else 1_000_000
        builder.step(number, now, lasts)
        builder.span("aten::mm", now, 30_000)
        if number < 2:
            builder.span("aten::_cudnn_init_dropout_state", now + 100_000, 499_000_000)
        now += lasts
    shown = builder.build().overview()
    assert [one["count"] for one in shown.step_kinds] == [2, 6]
    assert (shown.main_kind["count"], shown.main_kind["median_ns"]) == (6, 1_000_000)


def test_the_rate_of_several_kinds_of_steps_is_that_of_their_time():
    builder = TraceBuilder()
    square = builder.shapes([[100, 100], [100, 100]], ["float", "float"])
    for number in range(12):
        many = number % 4 == 3
        builder.step(number, number * 10_000_000, 1_000_000)
        for place in range(10 if many else 1):
            builder.span("aten::mm", number * 10_000_000 + place * 50_000, 30_000, shapes=square)
    trace = builder.build()
    work = trace.overview().work
    rates = sorted(one.flops_per_s for one in work.kinds)
    assert rates == pytest.approx([2e9, 20e9])
    assert work.flops_per_s == pytest.approx((9 * 2e9 + 3 * 20e9) / 12)
    assert sorted(trace.table("step_kinds")["flops_per_s"].to_pylist()) == rates
    assert f"{units.operations(work.flops_per_s)}/s in steps" in texts(trace)[0]
    tile = answer(trace, "overview/work", {})["tile"]
    assert tile["value"][0] == work.flops_per_s
    assert [value for value, unit in tile["hint"]["values"] if unit == "FLOP/s"] == [
        one.flops_per_s for one in work.kinds
    ]


def test_steps_without_work_have_no_rate():
    builder = TraceBuilder().step(0, 100, 100)
    shapes = builder.shapes([[10, 10], [10, 10]], ["float", "float"])
    work = builder.span("aten::mm", 0, 50, shapes=shapes).build().overview().work
    assert (work.flops, work.flops_per_s or 0) == (2000, 0)


def test_processes_are_counted_once_and_the_busiest_come_first():
    trace = merge_processes([training(0), training(1)], [0, 100])
    shown = trace.overview()
    assert [(one.name, one.rank, one.operators) for one in shown.processes] == [
        ("train.py", 0, 4),
        ("train.py", 1, 4),
    ]
    assert (shown.steps.processes, shown.steps.shown_of) == (2, "train.py, rank 0")
    assert [" · ".join(shown.place_names(place)) for place in shown.places] == [
        "rank 0 · cpu",
        "rank 1 · cpu",
    ]
    assert [one.percent for one in shown.utilization] == pytest.approx([shown.busy_percent] * 2)


def test_the_busiest_worker_has_its_lines_and_their_share_of_its_time():
    worker = TraceBuilder().know("process", 20).know("process_name", "worker")
    for start_ns, duration_ns, line in ((0, 600, 3), (700, 200, 4), (950, 50, 3)):
        stack = worker.stack(
            ("/code/data.py", line, "load"), ("/lib/python3.11/site-packages/torch/functional.py", 9, "rand")
        )
        worker.span("aten::rand", start_ns, duration_ns, stack=stack)
    shown = merge_processes([training(0), worker.build()], [0, 100]).overview()
    lines = [(line["file"], line["line"], line["time_ns"]) for line in shown.lines_elsewhere]
    assert lines == [("/code/data.py", 3, 700), ("/code/data.py", 4, 300)]
    summary = plain_lines(trace_blocks(shown, RunFacts.of(shown, "x")), 100)
    (heading,) = [row for row, text in enumerate(summary) if text.startswith("source lines of worker")]
    assert [re.split(" {2,}", line)[:4] for line in summary[heading + 1 : heading + 3]] == [
        ["data.py:3", "load", "700 ns", "70.0 %"],
        ["data.py:4", "load", "300 ns", "30.0 %"],
    ]


@pytest.mark.parametrize("name", TOP)
def test_lists_of_what_took_most_are_the_viewer_s(name):
    trace = training()
    rows, total = trace.overview().top(name, most=1)
    of_viewer = answer(trace, f"top/{name}", {})
    assert rows.to_pylist() == of_viewer.table.to_pylist()[:1]
    assert total == of_viewer.total


def test_other_lists_and_times_are_refused_with_what_there_is():
    shown = training().overview()
    with pytest.raises(
        ArgumentError, match=r"top\('spans'\) is not valid: choose one of ops, modules, lines, kernels"
    ):
        shown.top("spans")
    with pytest.raises(ArgumentError, match="time='both' is not valid: use 'host' or 'device'"):
        shown.top("ops", time="both")


def test_an_empty_trace_has_an_overview():
    shown = TraceBuilder().build().overview()
    assert (shown.steps, shown.processes, shown.elsewhere, shown.peaks) == (None, [], None, [])
    assert (shown.busy_percent, shown.threads_ns, shown.work.flops) == (None, 0, None)


def test_a_closed_trace_has_none():
    trace = training()
    trace.close()
    with pytest.raises(StateError, match="closed"):
        trace.overview()


def test_collectives_are_counted_the_same_everywhere():
    with kinetoscope.open(real_trace("mi300_resnet_stack_rccl_rank0of8")) as trace:
        rows = trace.table("collectives").num_rows
        assert answer(trace, "overview", {})["collectives"] == rows > 0
        assert f"{rows} collectives" in contents(trace.overview())
