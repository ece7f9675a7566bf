"""The summary: true to the trace, never above 40 lines, never wider than the terminal."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from kinetoscope.analyses.findings import examine
from kinetoscope.cli.summary import MOST_LINES, finished_blocks, print_summary
from kinetoscope.collect.request.options import RecordingOptions
from kinetoscope.combine.processes import merge_processes
from kinetoscope.display.lines import lines_of
from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.launcher.overhead import Overhead, RecordCost
from kinetoscope.launcher.program import Program
from kinetoscope.launcher.recording import Finished, HelperTime
from kinetoscope.model.schema import SampleState
from kinetoscope.viewer.server.routes import answer
from tests.cli.conftest import training_trace
from tests.support.trace_builder import TraceBuilder


def each(record_ns: float) -> Overhead:
    """The same cost for every record."""
    return Overhead(
        tuple(RecordCost(spacing_ns, record_ns, record_ns, record_ns) for spacing_ns in (500, 5000))
    )


def finished(folder: Path, builder: TraceBuilder, **changes) -> Finished:
    """What a run would have left."""
    options = LaunchOptions(
        prefix=folder / "run", recording=RecordingOptions(profile_memory=True), chrome=True, folder=folder
    )
    trace = builder.build()
    for path in (options.trace_path, options.chrome_path):
        trace.save(path)
    made = Finished(
        trace=trace,
        program=Program("train.py", ("--lr", "0.1")),
        ended="exit code 0",
        options=options,
        files=(options.trace_path, options.chrome_path),
        engine="native",
        overhead=each(200.0),
    )
    return replace(made, **changes)


def shown(made: Finished, width: int = 100, rows: int = 9) -> list[str]:
    """The summary as plain lines."""
    return [line.plain for line in lines_of(finished_blocks(made), width, rows, MOST_LINES)]


def large_trace(modules: int = 60, operators: int = 60, lines: int = 60) -> TraceBuilder:
    """A trace with more of everything than a summary can hold, and long names."""
    builder = TraceBuilder()
    root = builder.module("Model" * 12)
    at_ns = 0
    for number in range(max(modules, operators, lines)):
        module = builder.module("Block", name=f"layer_with_a_long_name_{number % modules}", parent=root)
        stack = builder.stack(
            ("/code/a/very/long/path/" + "x" * 80 + ".py", 1 + number % lines, "Long.function" * 9)
        )
        builder.span(
            f"aten::{'very_' * 20}{number % operators}", at_ns, 1000 + number, module=module, stack=stack
        )
        at_ns += 2000
        if number % 5 == 4:
            builder.annotation("Optimizer.step#AdamW.step", at_ns, 500)
            at_ns += 1000
    for what in (
        "dropped_spans",
        "recycled_spans",
        "truncated_strings",
        "damaged_chunks",
        "dropped_dictionary",
    ):
        builder.lose(what, 3)
    builder.know("program", {"command": ["a" * 300 + ".py", *["--option"] * 40]})
    return builder


def test_it_tells_what_the_trace_holds(tmp_path):
    text = "\n".join(shown(finished(tmp_path, training_trace())))
    assert "kinetoscope train.py --lr 0.1" in text
    assert "19.5 ms recorded, 8 operators on 1 thread, native engine, exit code 0" in text
    assert "2 steps" in text
    assert "aten::addmm" in text
    # The line of the module is under that of the script.
    assert " ".join(text.split("train.py:12  <module>")[1].split()[:6]) == "75.0 % 50.0 % 25.0 %"
    assert "net.py:34" in text
    assert "  fc  Linear" in text
    assert "(optimizer)" in text
    assert "peak 1.91 MiB on cpu of tensors" in text
    assert "lost      nothing" in text
    assert "5 records at 200 ns each" in text
    assert "run.ktrace" in text
    assert "https://ui.perfetto.dev" in text


def test_files_say_what_reads_them(tmp_path):
    made = finished(tmp_path, training_trace())
    summary = tmp_path / "all" / "rank-00003.parquet"
    summary.parent.mkdir()
    summary.write_bytes(b"")
    text = "\n".join(shown(replace(made, files=(*made.files, summary))))
    assert "kinetoscope ranks all" in text


def test_operations_are_told_with_the_share_of_time_they_are_known_for(tmp_path):
    builder = TraceBuilder()
    square = builder.shapes([[100, 100], [100, 100]], ["float", "float"])
    builder.span("aten::mm", 0, 3000, shapes=square).span("mylib::op", 4000, 200, shapes=square)
    builder.span("aten::view", 4500, 500)
    text = " ".join(shown(finished(tmp_path, builder)))
    assert "2 MFLOP, 400 GFLOP/s, counted for 94.6 % of the operators' time" in text
    builder.span("mylib::op", 5000, 1000)
    text = " ".join(" ".join(shown(finished(tmp_path, builder))).split())
    assert "FLOPs are known for only 74.5 % of the operators' time; not for mylib::op (no formula)" in text
    assert "MFLOP" not in text
    assert "FLOP" not in " ".join(shown(finished(tmp_path, TraceBuilder().span("aten::mm", 0, 10))))


def test_the_rate_of_operations_is_that_of_the_median_step(tmp_path):
    builder = TraceBuilder()
    square = builder.shapes([[100, 100], [100, 100]], ["float", "float"])
    for end in (9_000_000, 10_000_000, 11_000_000):
        builder.span("aten::mm", end - 500_000, 3000, shapes=square)
        builder.annotation("Optimizer.step#SGD.step", end - 1000, 1000)
    text = " ".join(shown(finished(tmp_path, builder)))
    # 2 MFLOP in each step of 1 ms, after 9 ms with the start-up.
    assert "6 MFLOP, 2 GFLOP/s in the median step, counted for 100 % of the operators' time" in text


@pytest.mark.parametrize("threads", [1, 2])
def test_shares_above_100_percent_are_explained(tmp_path, threads):
    builder = TraceBuilder()
    for thread in [builder.thread(f"trainer-{number}") for number in range(threads)]:
        builder.span("aten::mm", 0, 10_000, thread=thread)
    text = "\n".join(shown(finished(tmp_path, builder)))
    assert f" {threads}00 % " in next(line for line in text.splitlines() if line.startswith("aten::mm"))
    said = "several threads worked at once: shares can be, or add up to, more than 100 %"
    assert (said in text) == (threads > 1)


def test_without_modules_the_phases_are_shown_by_themselves(tmp_path):
    builder = TraceBuilder().step(0, 0, 10_000_000)
    builder.span("aten::mm", 1_000_000, 5_000_000, sequence=1)
    builder.backward("MmBackward0", 6_000_000, 3_000_000, sequence=1)
    builder.annotation("Optimizer.step#SGD.step", 9_000_000, 1_000_000)
    rows = [line.split() for line in shown(finished(tmp_path, builder)) if line.startswith("(o")]
    assert rows[0][:5] == ["(optimizer)", "1", "ms", "10.0", "%"]
    assert rows[1][:10] == ["(outside", "modules)", "8", "ms", "80.0", "%", "5", "ms", "3", "ms"]


def test_the_summary_and_the_findings_have_one_share_of_waiting_for_data(tmp_path):
    """Most waits are short and a few long: their mean is what a step waits, and no median of them."""
    builder, at = TraceBuilder(), 0
    for number in range(12):
        wait = 40_000_000 if number % 4 == 0 else 5_000_000
        builder.step(number, at, wait + 10_000_000)
        builder.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, wait)
        builder.span("aten::mm", at + wait, 9_000_000)
        at += wait + 10_000_000
    made = finished(tmp_path, builder)
    share = 100 * (3 * 40 + 9 * 5) / (3 * 50 + 9 * 15)
    (found,) = [one for one in examine(made.trace).findings if one.code == "input-wait"]
    assert found.share_percent == pytest.approx(share)
    text = " ".join(" ".join(shown(made)).split())
    assert f"waiting for data {share:.1f} %" in text
    assert (
        f"The loop waits for the data loader for {share:.1f} % of step time (13.8 ms a batch on average)"
        in text
    )
    assert f"at most {share:.1f} % to gain" in text


@pytest.mark.parametrize("state", [SampleState.RUNNING, SampleState.BLOCKED])
def test_a_line_that_waits_is_not_said_to_run_python(tmp_path, state):
    builder = TraceBuilder()
    line = builder.stack(("/code/train.py", 7, "<module>"))
    builder.step(0, 0, 10_000_000).span("aten::mm", 0, 1_000_000, stack=line)
    builder.sample(5_000_000, line, state=state)
    (times,) = [line for line in shown(finished(tmp_path, builder)) if line.startswith("train.py:7")]
    python, waiting = ("90.0 %", "–") if state is SampleState.RUNNING else ("–", "90.0 %")
    assert " ".join(times.split()).startswith(f"train.py:7 <module> 100 % 10.0 % {python} {waiting}")


def test_where_one_process_has_room_it_is_the_busiest(tmp_path):
    launcher = TraceBuilder().know("process", 1).know("process_name", "launcher").span("aten::empty", 0, 1)
    rank = TraceBuilder().know("process", 2).know("process_name", "rank").span("aten::mm", 0, 1000)
    both = merge_processes([launcher.build(), rank.build()], [0, 0])
    made = replace(finished(tmp_path, launcher), trace=both)
    for rows, names in ((1, ["rank"]), (2, ["launcher", "rank"])):
        lines = shown(made, rows=rows)
        begin = next(place for place, line in enumerate(lines) if line.startswith("processes"))
        assert [line.split()[0] for line in lines[begin + 1 : begin + 1 + rows]] == names


def test_shares_are_of_step_time_and_start_up_is_none_of_it(tmp_path):
    lines = shown(finished(tmp_path, training_trace()))
    addmm = next(line for line in lines if line.startswith("aten::addmm")).split()
    # Of the second step of 10 ms: the first one has no beginning of its own.
    assert addmm[1:5] == ["2", "ms", "20.0", "%"]
    text = "\n".join(lines)
    # 3 ms forward and 2 ms backward are operators, and the optimizer's range is none.
    assert "step time: operators 50.0 %, Python 50.0 %" in text
    assert next(line for line in lines if line.startswith("(optimizer)")).split()[1:5] == [
        "1.50",
        "ms",
        "15.0",
        "%",
    ]


def test_a_wait_for_data_is_one_share_everywhere_and_no_operator(tmp_path):
    builder = TraceBuilder()
    line = builder.stack(("/code/train.py", 7, "<module>"))
    for number in range(2):
        at = number * 10_000_000
        builder.step(number, at, 10_000_000)
        builder.annotation(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 6_000_000, stack=line
        )
        builder.annotation("DataLoader.collate", at + 1_000_000, 4_000_000, stack=line)
        builder.span("aten::stack", at + 2_000_000, 1_000_000, stack=line)
        builder.annotation("mine", at + 6_000_000, 3_000_000).span("aten::mm", at + 7_000_000, 2_000_000)
    made = finished(tmp_path, builder)
    told = shown(made)
    text = "\n".join(told)
    assert "step time: waiting for data 60.0 %, operators 20.0 %, Python 20.0 %" in text
    begin = next(place for place, line in enumerate(told) if line.startswith("operators "))
    assert [line.split()[0] for line in told[begin + 1 : begin + 3]] == ["aten::mm", "aten::stack"]
    assert told[begin + 3] == ""
    # The line that waits has the wait's share, all in the wait included.
    assert "60.0 %" in next(line for line in told if line.startswith("train.py:7"))
    rows = made.trace.table("breakdown").to_pylist()
    whole = sum(row["duration_ns"] for row in rows)
    assert sum(row["data_wait_ns"] for row in rows) / whole == 0.6


def test_overhead_is_a_share_of_the_steps_of_each_process_and_not_of_start_up(tmp_path):
    builder = TraceBuilder().know("process", 1).know("process_name", "train.py")
    for end in (1_000_000_000, 1_010_000_000, 1_020_000_000):
        builder.span("aten::mm", end - 5_000_000, 1_000_000)
        builder.annotation("Optimizer.step#SGD.step", end - 1_000_000, 1_000_000)
    costly = each(1_000_000.0)
    text = " ".join(" ".join(shown(finished(tmp_path, builder, overhead=costly))).split())
    # Two records a step of 10 ms.
    said = "overhead about 20.0 % of step time (16.0 to 24.0 %), estimated from 4 records at 1 ms each"
    assert said in text
    text = " ".join(" ".join(shown(finished(tmp_path, builder, overhead=each(1.0)))).split())
    assert "overhead <0.1 % of step time" in text
    costs = (RecordCost(at, 1_000.0, 500.0, 10_000.0) for at in (500, 5000))
    text = " ".join(" ".join(shown(finished(tmp_path, builder, overhead=Overhead(tuple(costs))))).split())
    assert "overhead <0.1 % of step time (<0.1 to 0.2 %)" in text
    helped = finished(tmp_path, builder, overhead=costly, helpers=HelperTime(20_000_000, 1_000_000_000))
    text = " ".join(" ".join(shown(helped)).split())
    assert "the recorder's own threads took 2.0 % of the process's CPU time" in text
    worker = TraceBuilder().know("process", 2).know("process_name", "DataLoader worker 0")
    worker.span("aten::tanh", 0, 100).span("aten::tanh", 3_999_900, 100)
    both = merge_processes([builder.build(), worker.build()], [0, 0])
    made = replace(finished(tmp_path, builder, overhead=costly), trace=both)
    text = " ".join(" ".join(shown(made)).split())
    assert "about 20.0 % of step time (16.0 to 24.0 %) of train.py, estimated from 4 records" in text
    assert "; about 50.0 % of the recorded time (40.0 to 60.0 %) of DataLoader worker 0" in text


def test_overhead_on_a_busy_machine_is_a_share_of_what_the_program_ran(tmp_path):
    builder = TraceBuilder()
    stack = builder.stack(("train.py", 3, "train"))
    for step in range(4):
        builder.step(step, step * 10_000_000, 10_000_000).span("aten::mm", step * 10_000_000, 1_000_000)
        builder.sample((step + 1) * 10_000_000, stack, period_ns=10_000_000, waited_ns=9_000_000)
    text = " ".join(" ".join(shown(finished(tmp_path, builder, overhead=each(100_000.0)))).split())
    assert "overhead about 10.0 % of step time in which it had a CPU core (5.0 to 15.0 %)" in text
    assert "waiting for a CPU core 90.0 %" in text


def test_the_first_step_stands_apart_when_it_holds_the_set_up(tmp_path):
    builder = TraceBuilder()
    for end_ns in (9_000_000, 10_000_000, 12_000_000):
        builder.annotation("Optimizer.step#SGD.step", end_ns - 1000, 1000)
    text = "\n".join(shown(finished(tmp_path, builder)))
    assert "3 steps · min 1 ms · mean 1.50 ms · max 2 ms" in text
    assert "start-up and the step before these: 9 ms" in text


def warmed_up(first_ns=(30_000_000, 20_000_000), *, marked=True):
    """Twelve steps of which the first ones do more: a table is filled in each."""
    builder, at = TraceBuilder(), 0
    for step in range(12):
        more = first_ns[step] if step < len(first_ns) else 0
        builder.span(
            "aten::linalg_svd", at, more, stack=builder.stack(("train.py", 3, "train"))
        ) if more else None
        builder.span("aten::mm", at + more, 1_000_000)
        if marked:
            builder.step(step, at, more + 1_000_000)
        else:
            builder.annotation("Optimizer.step#SGD.step", at + more + 900_000, 100_000)
        at += more + 1_000_000
    return builder


def test_what_the_first_steps_cost_is_one_number_in_the_summary_the_findings_and_the_page(tmp_path):
    builder = warmed_up()
    text = " ".join(" ".join(shown(finished(tmp_path, builder))).split())
    assert "warm-up: the first 2 steps took 50 ms more than as many usual ones" in text
    assert "The first 2 steps took 50 ms longer than usual (1 ms each): in the longest" in text
    (tile,) = [
        one for one in answer(builder.build(), "overview", {})["tiles"] if one["title"].startswith("Step")
    ]
    assert "Warm-up: the first 2 steps took 50 ms more than as many usual ones." in str(tile)


def test_the_first_step_is_never_the_one_that_holds_start_up(tmp_path):
    text = " ".join(" ".join(shown(finished(tmp_path, warmed_up(marked=False)))).split())
    assert "start-up and the step before these: 31 ms" in text
    assert "warm-up: the first step after start-up took 20 ms more than a usual one" in text
    assert "The first step after start-up took 21 ms, a usual one 1 ms" in text


def test_steps_that_are_all_alike_have_no_warm_up(tmp_path):
    assert "warm-up" not in "\n".join(shown(finished(tmp_path, warmed_up(()))))


def test_marked_steps_are_all_alike(tmp_path):
    builder = TraceBuilder()
    for number in range(3):
        builder.step(number, number * 5_000_000, 4_000_000)
    text = "\n".join(shown(finished(tmp_path, builder)))
    assert "3 steps · min 4 ms · mean 4 ms · max 4 ms" in text
    assert "start-up" not in text


def test_a_program_that_mostly_runs_after_its_steps_says_why_it_has_none(tmp_path):
    builder = TraceBuilder()
    for number in range(3):
        builder.annotation("Optimizer.step#SGD.step", 1_000_000 * number, 1000)
    text = "\n".join(shown(finished(tmp_path, builder.span("aten::topk", 3_000_000, 2_000_000_000))))
    assert "most of the program ran outside the steps of its optimizer" in " ".join(text.split())


def test_a_trace_without_anything_has_a_summary(tmp_path):
    lines = shown(finished(tmp_path, TraceBuilder(), overhead=None))
    assert any("0 operators" in line for line in lines)
    assert any("none: the program marked none, and no optimizer step ran" in line for line in lines)
    assert any("not measured" in line for line in lines)


def test_what_was_lost_is_told_with_the_reason(tmp_path):
    text = " ".join(shown(finished(tmp_path, training_trace().lose("recycled_spans", 1200))))
    assert "oldest spans overwritten (1,200)" in text


def test_memory_that_was_not_recorded_is_not_made_up(tmp_path):
    builder = training_trace()
    builder.allocations.clear()
    made = finished(tmp_path, builder)
    text = "\n".join(shown(replace(made, options=replace(made.options, recording=RecordingOptions()))))
    assert "memory    peak" not in text
    assert "tensors were not recorded (--memory does)" in text
    assert "no allocations were recorded" in "\n".join(shown(made))


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("rows", [1, 5, 9, 30])
def test_it_never_has_more_than_40_lines_nor_wider_ones(tmp_path, width, rows):
    made = finished(tmp_path, large_trace(), messages=("a note that says something " * 8,))
    lines = shown(made, width, rows)
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > width] == []
    # The last line is the use of the last file: nothing was cut off at the end.
    assert "perfetto" in lines[-1] or "perfetto" in lines[-2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(40, 120),
    st.integers(1, 12),
    st.booleans(),
)
def test_it_fits_whatever_the_trace_holds(tmp_path, modules, operators, lines, width, rows, killed):
    builder = large_trace(modules, operators, lines)
    if killed:
        builder.killed()
    told = shown(finished(tmp_path, builder), width, rows)
    assert len(told) <= MOST_LINES
    assert max(map(len, told)) <= width


def printed(made: Finished, *, below_heading: bool = False, **options) -> str:
    """What appears on a console."""
    stream = io.StringIO()
    console = Console(file=stream, highlight=False, **options)
    print_summary(made, console, below_heading=below_heading)
    return stream.getvalue()


def test_a_heading_that_is_printed_already_comes_only_once(tmp_path):
    made = finished(tmp_path, training_trace())
    empty, heading, rest = printed(made, width=80).split("\n", 2)
    assert empty == ""
    assert heading.startswith("━━ kinetoscope ")
    assert printed(made, below_heading=True, width=80) == rest


def test_colours_are_for_terminals_that_want_them(tmp_path, monkeypatch):
    made = finished(tmp_path, training_trace())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[36m" in printed(made, force_terminal=True, width=80)
    assert "\x1b" not in printed(made, force_terminal=False, width=80)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in printed(made, force_terminal=True, width=80)


def test_names_cannot_disturb_the_terminal(tmp_path):
    builder = training_trace().span("\x1b]0;evil\x07[red]x\r\n\ud800", 10_100_000, 800_000)
    text = printed(finished(tmp_path, builder), width=140)
    assert "\x1b" not in text
    assert "\r" not in text
    assert "[red]x" in text


def test_a_terminal_gets_as_many_lines_and_as_wide_ones_as_it_has(tmp_path):
    builder = training_trace()
    for number in range(60):
        builder.span(f"aten::operator_{number}_{'x' * 80}", 30_000_000 + number * 100_000, 90_000)
    made = finished(tmp_path, builder)
    sizes = {}
    for width, height in ((60, 24), (80, 40), (200, 31), (200, 60), (200, 200)):
        lines = printed(made, force_terminal=True, color_system=None, width=width, height=height).splitlines()
        assert max(map(cell_len, lines)) <= min(width, 140)
        sizes[width, height] = (len(lines), max(map(cell_len, lines)))
    assert sizes[60, 24][0] <= 30
    assert sizes[80, 40][0] <= 39
    assert sizes[200, 31][0] <= 30 < sizes[200, 60][0] <= 59
    assert sizes[200, 200][0] <= 70
    assert sizes[200, 60][1] > 100
    assert len(printed(made, width=80).splitlines()) <= MOST_LINES
