"""The HTML of traces and event lists in notebooks."""

import html
import os
import re
import socket
import time

import pytest

from kinetoscope.combine.processes import merge_processes
from kinetoscope.model.schema import SpanKind
from kinetoscope.torch_events.event_list import EventList
from kinetoscope.trace import page as page_module
from kinetoscope.trace.page import trace_page
from tests.support.hostile import HOSTILE_NAMES
from tests.support.trace_builder import TraceBuilder


@pytest.fixture
def builder():
    made = TraceBuilder()
    model = made.module("Net")
    layer = made.module("Linear", name="fc", parent=model)
    stack = made.stack(("train.py", 3, "<module>"), ("model.py", 7, "Net.forward"))
    for step in range(4):
        start = step * 10_000
        made.step(step, start, 9_000 + step)
        made.span("aten::linear", start + 100, 5_000, module=layer, stack=stack)
        made.span("aten::addmm", start + 200, 4_000, module=layer, stack=stack)
        made.allocate(start + 300, 0x1000 + step, 2048)
    return made


def test_a_trace_shows_its_facts_its_steps_and_its_operators(builder):
    shown = builder.build()._repr_html_()
    assert ">Trace</div>" in shown
    assert "39.0 µs recorded, 8 operators on 1 thread" in shown
    assert "4 steps · min 9 µs · mean 9.00 µs · max 9.00 µs" in shown
    assert shown.count("<rect") == 4
    assert shown.index("aten::addmm") < shown.index("aten::linear")
    assert 'title="16,000 ns"' in shown
    assert ">memory</th>" in shown


def test_what_makes_the_run_slow_comes_before_the_operators():
    slow, healthy = TraceBuilder(), TraceBuilder()
    for step in range(8):
        start = step * 10_000_000
        slow.step(step, start, 10_000_000)
        slow.span("aten::mm", start, 2_000_000, stack=slow.stack(("train.py", 3, "train")))
        healthy.step(step, start, 10_000_000).span("aten::mm", start, 10_000_000)
    shown, trace = slow.build()._repr_html_(), slow.build()
    (finding,) = trace.findings().to_pylist()
    assert finding["finding"] in shown
    assert finding["advice"] in html.unescape(shown)
    assert "at most 70.0 % to gain" in shown
    assert shown.index(finding["finding"]) < shown.index(">operators</th>")
    assert "No problem found" in healthy.build()._repr_html_()


def test_the_whole_page_has_modules_lines_and_the_peak(builder):
    shown = trace_page(builder.build(), details=True, title="Recorded", file_label=lambda path: f"<{path}>")
    assert ">Recorded</div>" in shown
    assert "  fc" in shown
    assert "&lt;model.py&gt;:7" in shown
    assert "Peak memory on cpu: 8 KiB after 30.3 µs" in shown
    assert 'title="8,192 bytes"' in shown


def test_the_text_of_a_line_is_that_of_its_own_file(tmp_path, monkeypatch):
    source = tmp_path / "a_script.py"
    source.write_text("first = 1\nsecond = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    builder = TraceBuilder()
    builder.span("aten::relu", 0, 50, stack=builder.stack((str(source), 2, "known")))
    builder.span("aten::relu", 100, 50, stack=builder.stack(("a_script.py", 1, "elsewhere")))
    trace = builder.build()
    here = {"process": os.getpid(), "host": socket.gethostname(), "start_realtime_ns": time.time_ns()}
    trace.info.update(here)
    shown = trace_page(trace, details=True)
    assert ":2  second = 2<" in shown
    assert ":1  elsewhere<" in shown
    assert "first" not in shown


def test_rows_that_are_not_shown_are_told(builder):
    shown = trace_page(builder.build(), rows=1, details=True)
    assert "table(&quot;ops&quot;) has 1 more" in shown
    assert "table(&quot;modules&quot;) has 1 more" in shown


def test_what_is_missing_is_shown(builder):
    shown = builder.lose("dropped_spans", 7).build()._repr_html_()
    assert 'class="w">lost: times and counts are lower bounds. spans not written (7): ' in shown


def test_time_on_a_device_has_a_column():
    builder = TraceBuilder()
    builder.span("aten::mm", 20, 30)
    builder.runtime("cudaLaunchKernel", 30, 8, correlation=1).kernel("gemm", 60, 100, correlation=1)
    assert ">on device</th>" in builder.build()._repr_html_()


def test_a_long_trace_shows_at_once(builder, monkeypatch):
    monkeypatch.setattr(page_module, "MOST_SPANS", 11)
    trace = builder.build()
    assert "table(&quot;ops&quot;) sums them by operator" in trace_page(trace)
    assert "aten::addmm" in trace_page(trace, details=True)


def test_several_processes_are_a_tree_whose_modules_and_steps_are_told_once(builder):
    main, worker = builder.build(), builder.build()
    main.info |= {"process": 700, "rank": 0}
    worker.info |= {"process": 701, "rank": 1, "parent_process": 700}
    shown = trace_page(merge_processes([main, worker], [0, 100]), details=True)
    assert "16 operators on 2 threads of 2 processes" in shown
    # Operators run for 20 of 36.006 us of steps.
    assert re.search(r">  [^<]+ \(701, rank 1\)</td><td[^>]*>20 µs</td><td[^>]*>55.5 %</td>", shown)
    assert shown.count("  fc  Linear</td>") == 1
    assert 'title="40,000 ns"' in shown
    assert "4 steps · " in shown
    assert ", rank 0<" in shown


def test_an_empty_and_a_closed_trace_show_something():
    trace = TraceBuilder().build()
    assert "0 operators" in trace._repr_html_()
    assert trace_page(trace, details=True)
    trace.close()
    assert trace._repr_html_() == "<p>Trace (closed)</p>"


def test_a_file_is_named_where_somebody_chose_it(builder, tmp_path):
    trace = builder.build()
    trace.path = tmp_path / "run.ktrace"
    assert "run.ktrace" in trace._repr_html_()
    trace.path = tmp_path / "kinetoscope-123-ab_4" / "live.recording"
    assert "live.recording" not in trace._repr_html_()


def test_hostile_names_are_text_everywhere():
    builder = TraceBuilder()
    module = -1
    for place, name in enumerate(HOSTILE_NAMES):
        module = builder.module(name, name=name, parent=module)
        stack = builder.stack((name, 3, name))
        builder.annotation(name, 1000 * place, 500, module=module, stack=stack)
        builder.allocate(1000 * place + 10, 0x1000 + place, 64)
    trace = builder.build()
    for shown in (
        trace_page(trace, rows=99, details=True),
        trace.events()._repr_html_(),
        trace.key_averages()._repr_html_(),
    ):
        shown.encode("utf-8")
        assert "<script" not in shown
        assert "</script" not in shown
        assert "<b>" not in shown


def test_an_event_list_shows_the_columns_of_its_table(builder):
    events = builder.build().key_averages().sorted_by("self_cpu_time_total")
    shown = events._repr_html_()
    for heading in ("Name", "Self CPU %", "CPU total", "CPU Mem", "# of Calls"):
        assert f">{heading}</th>" in shown
    assert "44.44%" in shown
    assert "gradient" in shown
    assert "3 events, Self CPU time total: 36.006us" in shown
    assert EventList()._repr_html_().count("no events") == 1


def test_a_long_event_list_shows_its_beginning_in_its_order():
    builder = TraceBuilder()
    for place in range(60):
        builder.span(f"op{place:02}", place * 10, 5)
    shown = builder.build().events()._repr_html_()
    assert "60 events" in shown
    assert "the first 50 of them are shown" in shown
    assert "op49" in shown
    assert "op50" not in shown


def test_the_stack_of_an_event_is_there_when_it_is_pointed_at(builder):
    shown = builder.know("with_stack", value=True).build().events()._repr_html_()
    assert "Source Location" in shown
    assert "train.py(3)" in shown


def test_device_columns_of_an_event_list():
    builder = TraceBuilder()
    builder.runtime("cudaLaunchKernel", 30, 8, correlation=1)
    builder.on_device("gemm", 60, 100, SpanKind.KERNEL, correlation=1)
    assert "Self CUDA time total: 0.100us" in builder.build().events()._repr_html_()
