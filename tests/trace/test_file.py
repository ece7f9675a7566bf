"""Our own file: everything survives, nothing broken gets through."""

import json
import shutil
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinetoscope import FormatError, StateError, open  # noqa: A004
from kinetoscope.trace import STORED, Trace
from kinetoscope.trace._file_reader import read_ktrace
from tests.support.hostile import HOSTILE_NAMES, hostile_text
from tests.support.trace_builder import TraceBuilder


def assert_same(left, right):
    assert left.strings == right.strings
    assert left.info == right.info
    for name, table in STORED.items():
        assert len(left.columns(name)) == len(right.columns(name)), name
        for column in table.column_names:
            one, other = left.column(name, column), right.column(name, column)
            if isinstance(one, list):
                assert one == other, (name, column)
            else:
                assert one.dtype == other.dtype, (name, column)
                assert np.array_equal(one, other), (name, column)


def rich_trace():
    builder = TraceBuilder()
    main, other = builder.thread("main"), builder.thread("wörker \udc80")
    net = builder.module("Net")
    fc = builder.module("Linear", name="fc", parent=net)
    stack = builder.stack(("a.py", 1, "main"), ("b.py", 2, "go"))
    builder.step(0, 0, 1000, thread=main)
    builder.span("aten::linear", 10, 50, module=fc, stack=stack, sequence=1, shapes=builder.shapes([[2, 3]]))
    builder.backward("LinearBackward0", 200, 50, sequence=1)
    builder.span("aten::add", 5, 500, thread=other, overload="Tensor", is_async=True)
    builder.span("torch::autograd::AccumulateGrad", 300, 5, scope=1, parameter=builder.parameter(fc))
    builder.allocate(20, 0xFFFF_FFFF_FFFF_FF00, 1 << 40)
    builder.free(30, 0xFFFF_FFFF_FFFF_FF00)
    return builder.lose("recycled_spans", 5).know("command_line", ["python", "x.py"]).build()


def test_every_column_survives(tmp_path):
    trace = rich_trace()
    trace.save(tmp_path / "run.ktrace")
    with open(tmp_path / "run.ktrace") as again:
        assert_same(trace, again)
        assert again.path == tmp_path / "run.ktrace"
        assert again.key_averages().table() == trace.key_averages().table()


def test_an_opened_file_can_be_saved_again_also_over_itself(tmp_path):
    trace, path = rich_trace(), tmp_path / "run.ktrace"
    trace.save(path)
    with open(path) as again:
        again.save(path)
        assert_same(trace, again)
    with open(path) as third:
        assert_same(trace, third)


def test_an_empty_trace_survives(tmp_path):
    trace = Trace.from_columns({}, strings=[""])
    trace.save(tmp_path / "x.ktrace")
    assert_same(trace, open(tmp_path / "x.ktrace"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 2**62),
            st.integers(0, 2**40),
            hostile_text,
            st.integers(-1, 2**62),
        ),
        max_size=12,
    )
)
def test_any_spans_survive(tmp_path, spans):
    builder = TraceBuilder()
    for name in HOSTILE_NAMES[:3]:
        builder.thread(name)
    for thread, start, duration, name, sequence in spans:
        builder.span(name, start, duration, thread=thread, sequence=sequence)
    trace = builder.build()
    trace.save(tmp_path / "x.ktrace")
    with open(tmp_path / "x.ktrace") as again:
        assert_same(trace, again)


def test_every_hostile_name_survives_everywhere(tmp_path):
    builder = TraceBuilder()
    for place, name in enumerate(HOSTILE_NAMES):
        module = builder.module(name, name=name)
        builder.span(
            name,
            place * 10,
            5,
            module=module,
            stack=builder.stack((name, place, name)),
            shapes=builder.shapes(name),
        )
        builder.thread(name)
        builder.know(name, name)
    trace = builder.build()
    trace.save(tmp_path / "x.ktrace")
    with open(tmp_path / "x.ktrace") as again:
        assert_same(trace, again)


def test_a_long_recording_takes_few_bytes_a_span(tmp_path):
    rng = np.random.default_rng(1)
    count = 100_000
    trace = Trace.from_columns(
        {
            "spans": {
                "start_ns": np.cumsum(rng.integers(500, 5000, count)),
                "duration_ns": rng.integers(400, 3000, count),
                "name": rng.integers(1, 60, count),
                "own_stack": rng.integers(0, 2000, count),
                "own_module": rng.integers(0, 50, count),
                "sequence": np.where(rng.random(count) < 0.3, np.arange(count), -1),
                "scope": rng.integers(0, 2, count),
            }
        },
        strings=["", *map(str, range(60))],
    )
    trace.save(tmp_path / "x.ktrace")
    assert (tmp_path / "x.ktrace").stat().st_size / count < 20


def test_parts_are_arrow_files_that_other_tools_read(tmp_path):
    rich_trace().save(tmp_path / "x.ktrace")
    with zipfile.ZipFile(tmp_path / "x.ktrace") as archive:
        assert archive.testzip() is None
        spans = pa.ipc.open_file(archive.read("spans.arrow")).read_all()
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["tables"]["spans"]["columns"]["start_ns"] == "delta"
    assert (
        np.cumsum(spans.column("start_ns").to_numpy()).tolist()
        == rich_trace().column("spans", "start_ns").tolist()
    )
    assert "self_ns" not in spans.column_names, "what can be computed is not stored"


def test_columns_are_read_only_when_they_are_used(tmp_path):
    rich_trace().save(tmp_path / "x.ktrace")
    with open(tmp_path / "x.ktrace") as trace:
        spans = trace.columns("spans")
        assert not spans._ready
        assert spans["name"].tolist() == rich_trace().column("spans", "name").tolist()
        assert set(spans._ready) == {"name"}


def test_a_closed_file_is_let_go(tmp_path):
    rich_trace().save(tmp_path / "x.ktrace")
    trace = open(tmp_path / "x.ktrace")
    start = trace.column("spans", "start_ns")
    trace.close()
    assert start.tolist() == rich_trace().column("spans", "start_ns").tolist()
    with pytest.raises(StateError):
        trace.column("spans", "name")


def test_an_error_while_writing_leaves_what_was_there(tmp_path):
    trace = rich_trace()
    trace.save(tmp_path / "x.ktrace")
    before = (tmp_path / "x.ktrace").read_bytes()
    trace.info["not JSON"] = object()
    with pytest.raises(TypeError):
        trace.save(tmp_path / "x.ktrace")
    assert (tmp_path / "x.ktrace").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.ktrace"]
    with pytest.raises(FileNotFoundError):
        rich_trace().save(tmp_path / "missing" / "x.ktrace")


def rewrite(path, member, content):
    """Replaces one member of an archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[member] = content
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            if data is not None:
                archive.writestr(name, data)


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("manifest.json", None, "holds no manifest.json"),
        ("manifest.json", b'{"format": "else"}', "manifest.json is something else's"),
        ("manifest.json", b"[]", "manifest.json is something else's"),
        ("manifest.json", b"{", "cut short or damaged"),
        ("manifest.json", b'{"format": "ktrace", "version": 99}', "version 99; this release reads version 1"),
        ("manifest.json", b'{"format": "ktrace", "version": 1}', "cut short or damaged"),
        ("strings.arrow", b"junk", "cut short or damaged"),
        ("strings.arrow", None, "cut short or damaged"),
        ("spans.arrow", b"ARROW1\0\0 junk", "cut short or damaged"),
        (
            "manifest.json",
            b'{"format": "ktrace", "version": 1, "info": 3, "tables": {}}',
            "cut short or damaged",
        ),
        ("manifest.json", b"[" * 100_000, "cut short or damaged"),
        ("spans.arrow", None, "spans.arrow is missing"),
    ],
)
def test_a_wrong_part_is_a_format_error(tmp_path, member, content, message):
    path = tmp_path / "x.ktrace"
    rich_trace().save(path)
    rewrite(path, member, content)
    with pytest.raises(FormatError, match=message):
        open(path).column("spans", "start_ns")


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("spans", {"rows": -1}, "fewer than no rows"),
        ("spans", {"rows": 3}, "has the wrong length"),
        ("strings", {"rows": 3}, "refers to rows"),
        (
            "spans",
            {"columns": {"name": {"constant": 999}, "start_ns": {"constant": 0}}},
            "refers to rows that are not there",
        ),
        ("spans", {"columns": {"name": {"constant": "x"}, "start_ns": {"constant": 1 << 80}}}, "damaged"),
        ("spans", {"columns": {"start_ns": "delta", "name": {"constant": {}}}}, "damaged"),
    ],
)
def test_a_manifest_that_lies_is_a_format_error(tmp_path, table, change, message):
    path = tmp_path / "x.ktrace"
    rich_trace().save(path)
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    if table == "strings":
        manifest["tables"]["spans"]["columns"]["name"] = {"constant": len(rich_trace().strings)}
    else:
        manifest["tables"][table].update(change)
    rewrite(path, "manifest.json", json.dumps(manifest).encode())
    with pytest.raises(FormatError, match=message):
        trace = open(path)
        for column in ("name", "start_ns"):
            trace.column("spans", column)


def test_a_file_cut_anywhere_is_a_format_error(tmp_path):
    path = tmp_path / "x.ktrace"
    rich_trace().save(path)
    content = path.read_bytes()
    for length in range(9, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(FormatError):
            open(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bytes_never_do_worse_than_a_format_error(tmp_path, data):
    path = tmp_path / "x.ktrace"
    if not (tmp_path / "whole.ktrace").exists():
        rich_trace().save(tmp_path / "whole.ktrace")
    shutil.copy(tmp_path / "whole.ktrace", path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        trace = read_ktrace(path)
        for name, table in STORED.items():
            for column in table.column_names:
                trace.column(name, column)
    except FormatError:
        pass
