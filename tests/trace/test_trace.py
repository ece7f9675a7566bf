"""The trace itself: making one, asking it, closing it, showing it."""

import gc
import io
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from rich.console import Console

import kinetoscope
from kinetoscope import StateError
from kinetoscope.model.dictionary import table_definition
from kinetoscope.trace import Trace
from kinetoscope.trace.tables import TABLES
from tests.support.recording_builder import RecordingBuilder
from tests.support.trace_builder import TraceBuilder


def small():
    return TraceBuilder().step(0, 0, 100).span("aten::add", 10, 20).know("user", "a").build()


def test_a_recording_file_becomes_a_trace(tmp_path):
    builder = RecordingBuilder()
    builder.thread(1, os_tid=77, torch_tid=1, name="main")
    outer, inner = builder.name("outer"), builder.name("inner", "Tensor")
    builder.info("answer", "42")
    builder.span(0, 100, outer)
    builder.span(10, 30, inner)
    trace = Trace.from_recording(builder.write(tmp_path / "run.recording"))
    strings = trace.strings
    assert [strings[name] for name in trace.column("spans", "name").tolist()] == ["outer", "inner"]
    assert [strings[name] for name in trace.column("spans", "overload").tolist()] == ["", "Tensor"]
    assert trace.column("spans", "self_ns").tolist() == [80, 20]
    assert trace.info["answer"] == 42
    assert trace.info["process"] == 4242
    assert trace.info["complete"] is True
    assert trace.complete


def test_metadata_that_is_no_json_stays_text():
    builder = TraceBuilder()
    builder.info["odd"] = "{not json"
    assert builder.build().info["odd"] == "{not json"


def test_a_trace_can_be_made_from_columns():
    trace = Trace.from_columns(
        {
            "spans": {"start_ns": [0, 2], "duration_ns": [10, 3], "name": [1, 2]},
            "threads": {"name": ["main"]},
        },
        strings=["", "outer", "inner"],
        info={"process": 3},
    )
    assert trace.column("spans", "parent").tolist() == [-1, 0]
    assert trace.column("spans", "self_ns").tolist() == [7, 3]
    assert trace.info == {"complete": True, "process": 3}


def test_a_killed_process_leaves_a_trace_that_says_so():
    trace = small()
    assert trace.complete
    assert trace.losses == []
    killed = (
        TraceBuilder().span("aten::add", 0, 5, unfinished=True).killed().lose("dropped_spans", 12).build()
    )
    assert not killed.complete
    assert killed.info["complete"] is False
    assert [(loss["code"], loss["count"]) for loss in killed.losses] == [
        ("recording_not_stopped", 1),
        ("dropped_spans", 12),
        ("unfinished_spans", 1),
    ]
    assert "recording not stopped" in repr(killed)


def test_duration_reaches_to_the_stop_or_the_last_span():
    builder = TraceBuilder().span("aten::add", 5, 10)
    builder.stop_ns = 40
    assert builder.build().duration_ns == 40
    assert (
        Trace.from_columns({"spans": {"start_ns": [5], "duration_ns": [10]}}, strings=[""]).duration_ns == 15
    )
    assert Trace.from_columns({}, strings=[""]).duration_ns == 0


def test_after_close_the_trace_says_so_and_columns_stay():
    with small() as trace:
        start = trace.column("spans", "start_ns")
    assert start.tolist() == [0, 10]
    for use in (
        lambda: trace.column("spans", "start_ns"),
        lambda: trace.table("spans"),
        trace.key_averages,
        lambda: trace.save("x.ktrace"),
    ):
        with pytest.raises(StateError, match="closed"):
            use()
    trace.close()
    assert repr(trace) == "<Trace (closed)>"


def test_closing_frees_memory_without_the_garbage_collector(tmp_path):
    """Also what was read from JSON, whose columns are made on demand: a worker that reads many traces holds one at a time."""
    small().save(tmp_path / "trace.json")
    small().save(tmp_path / "trace.ktrace")
    gc.collect()
    gc.disable()
    try:
        for name in ("trace.json", "trace.ktrace"):
            trace = kinetoscope.open(tmp_path / name)
            trace.table("findings")
            held = [weakref.ref(trace.columns(table)) for table in ("spans", "threads", "steps")]
            trace.close()
            del trace
            assert [one() for one in held] == [None] * 3, name
    finally:
        gc.enable()


def test_columns_of_a_closed_trace_are_not_made_up():
    with small() as trace:
        spans, steps = trace.columns("spans"), trace.columns("steps")
        assert spans["depth"].tolist() == [0, 1]
    assert spans["depth"].tolist() == [0, 1]
    with pytest.raises(StateError, match="closed"):
        spans["module"]
    with pytest.raises(StateError, match="closed"):
        len(steps)


def test_cached_makes_a_thing_once():
    trace, made = small(), []
    assert trace.cached("thing", lambda: made.append(1) or "x") == "x"
    assert trace.cached("thing", lambda: made.append(1) or "y") == "x"
    assert made == [1]


def test_threads_that_need_what_the_other_makes_do_not_wait_forever():
    trace = small()
    in_column, in_cached = threading.Event(), threading.Event()

    def column():
        in_column.set()
        # Not set where the other thread waits for this one, as it should.
        in_cached.wait(0.2)
        return {"self_ns": np.full(2, trace.cached("other", lambda: 3))}

    def cached():
        in_cached.set()
        return trace.column("spans", "depth")

    trace.columns("spans").source(("self_ns",), column)
    found = {}
    threads = [
        threading.Thread(target=lambda: found.update(column=trace.column("spans", "self_ns")), daemon=True),
        threading.Thread(
            target=lambda: in_column.wait(60) and found.update(cached=trace.cached("thing", cached)),
            daemon=True,
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(found) == {"column", "cached"}
    assert found["column"].tolist() == [3, 3]


def test_it_prints_well_everywhere():
    builder = TraceBuilder().step(0, 0, 2_500_000).span("aten::relu", 0, 400)
    builder.allocate(3, 0x10, 5)
    trace = builder.build()
    assert repr(trace) == "<Trace: 2 spans, 1 thread, 1 step, 1 allocation or free, 2.50 ms, complete>"
    out = io.StringIO()
    Console(file=out, width=80).print(trace)
    assert "2.50 ms" in out.getvalue()
    assert "1 allocation or free" in out.getvalue()
    html = trace._repr_html_()
    assert html.startswith('<div class="kinetoscope ')
    assert "2.50 ms recorded, 1 operator on 1 thread" in html
    assert "1 step" in html
    assert "aten::relu" in html


def test_the_page_for_notebooks_escapes_what_a_file_name_can_hold(tmp_path):
    builder = RecordingBuilder()
    builder.thread(1)
    trace = Trace.from_recording(builder.write(tmp_path / "<b>[bold]&.recording"))
    assert "&lt;b&gt;[bold]&amp;" in trace._repr_html_()
    out = io.StringIO()
    Console(file=out, width=300).print(trace)
    assert "<b>[bold]&" in out.getvalue()


def test_the_way_to_key_averages_loads_no_arrow_and_no_torch(tmp_path):
    builder = RecordingBuilder()
    builder.thread(1)
    builder.span(0, 10, builder.name("aten::add"))
    path = builder.write(tmp_path / "run.recording")
    program = (
        "import sys, kinetoscope\n"
        f"print(kinetoscope.open({str(path)!r}).key_averages().table())\n"
        "print([name for name in ('pyarrow', 'pandas', 'torch', 'rich', 'click') if name in sys.modules])\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "aten::add" in out
    assert out.splitlines()[-1] == "[]"


def test_opening_loads_nothing_of_merging_and_of_devices(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]}'
    )
    program = (
        f"import sys, kinetoscope; print(len(kinetoscope.open({str(path)!r}).columns('spans')), *sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    spans, *loaded = out.split()
    assert spans == "1"
    # Each takes milliseconds, several times as long as reading this file.
    assert not {"kinetoscope.combine.ranks", "fractions", "tempfile"} & set(loaded)
    assert not any(name.startswith("kinetoscope.tables.device.") for name in loaded)


def test_the_table_of_operators_loads_nothing_of_other_tables(tmp_path):
    path = tmp_path / "small.ktrace"
    small().save(path)
    program = (
        f"import sys, kinetoscope; print(kinetoscope.open({str(path)!r}).table('ops').num_rows, *sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    rows, *loaded = out.split()
    assert int(rows) > 0
    for name in (
        "pandas",
        "pyarrow.compute",
        "numpy.ma",
    ):
        assert name not in loaded
    assert not any(
        name.startswith(("kinetoscope.tables.device.", "kinetoscope.analyses.", "kinetoscope.ledger."))
        for name in loaded
    )
    assert not {f"kinetoscope.tables.{one}" for one in ("windows", "host.lines", "host.compiling")} & set(
        loaded
    )
    assert sum(name.partition(".")[0] == "kinetoscope" for name in loaded) <= 69


def test_every_table_exists_and_is_documented():
    trace = small()
    for name in TABLES:
        schema = table_definition(name)
        table = trace.table(name)
        assert schema.name == name
        assert tuple(table.column_names) == schema.column_names
        assert all(column.meaning.endswith(".") for column in schema.columns), name
        for column in schema.columns:
            for unit, suffix in (("ns", "_ns"), ("%", "_percent")):
                assert (column.unit == unit) == column.name.endswith(suffix), (name, column.name)
            words = column.name.removesuffix("_per_s").split("_")
            assert column.unit.startswith("byte") == ("bytes" in words), (name, column.name)
            assert column.unit.endswith("/s") == column.name.endswith("_per_s"), (name, column.name)


def test_every_table_has_the_same_types_with_and_without_rows():
    empty, full = TraceBuilder().build(), small()
    for name in TABLES:
        assert empty.table(name).schema == full.table(name).schema, name
        assert hasattr(full.table(name), "__arrow_c_stream__")


def test_columns_are_computed_in_any_order():
    reference = small()
    for first in reference.columns("spans"):
        trace = small()
        trace.column("spans", first)
        for name in reference.columns("spans"):
            assert np.array_equal(trace.column("spans", name), reference.column("spans", name)), (first, name)
