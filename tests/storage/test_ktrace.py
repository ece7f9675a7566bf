"""`.ktrace` files: round trips, and detection of damage."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinetoscope import FormatError, StateError, open  # noqa: A004
from kinetoscope.model.schema import STORED
from kinetoscope.trace import Trace
from tests.support.any_trace import any_traces
from tests.support.hostile import HOSTILE_NAMES, hostile_text
from tests.support.rich_trace import rich_trace
from tests.support.same_trace import assert_same
from tests.support.trace_builder import TraceBuilder


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


@given(any_traces())
def test_any_trace_survives_with_every_table(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("ktrace") / "x.ktrace"
    trace.save(path)
    with open(path) as again:
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


def long_trace(count=70_000):
    """Build a trace whose columns need different encodings, with more rows than fit in one member."""
    rng = np.random.default_rng(1)
    half = count // 2
    return Trace.from_columns(
        {
            "threads": {"os_tid": [1, 2]},
            "streams": {"number": [0]},
            "spans": {
                "thread": np.arange(count) >= half,
                "start_ns": np.concatenate(
                    [
                        np.cumsum(rng.integers(500, 5000, half)),
                        np.cumsum(rng.integers(500, 5000, count - half)),
                    ]
                )
                + (1 << 50),
                "duration_ns": rng.integers(400, 3000, count),
                "name": rng.integers(0, 60, count),
                "record_function": np.arange(count) * 3 + (1 << 40),
                "flags": np.zeros(count),
                "sequence": rng.integers(-(1 << 63), (1 << 63) - 1, count),
            },
            "allocations": {
                "time_ns": np.arange(count) * 100,
                "address": rng.integers((1 << 64) - (1 << 40), (1 << 64) - 1, count, dtype=np.uint64),
                "bytes": np.where(np.arange(count) % 2, 0, 1 << 62),
                "device_index": rng.integers(-128, 127, count),
                "device_type": rng.integers(0, 255, count),
            },
            "counters": {
                "value": np.where(np.arange(count) % 9, rng.random(count), np.nan),
                "time_ns": np.arange(count),
            },
        },
        strings=["", *map(str, range(60))],
    )


def test_every_encoding_gives_back_what_it_was_given(tmp_path):
    trace = long_trace()
    trace.save(tmp_path / "x.ktrace")
    manifest = manifest_of(tmp_path / "x.ktrace")
    spans = manifest["tables"]["spans"]["columns"]
    assert spans["flags"] == {"constant": 0}
    assert spans["record_function"]["delta"][0] == [0, 1 << 40]
    assert {"delta", "planes"} <= set(spans["start_ns"])
    assert spans["name"] == {"member": "spans.name.arrow"}
    with open(tmp_path / "x.ktrace") as again:
        for table, columns in {name: trace.columns(name).given for name in STORED}.items():
            for column in columns:
                one, other = trace.column(table, column), again.column(table, column)
                assert np.array_equal(one, other, equal_nan=column == "value"), (table, column)
                assert one.dtype == other.dtype


def test_floating_point_numbers_keep_all_their_bits(tmp_path):
    values = [0.0, -0.0, float("inf"), float("nan"), 5e-324, 1e308]
    for kept in (values, values * 500, [float("nan")] * 3, [float("-inf")] * 3, [-0.0, 0.0]):
        trace = Trace.from_columns({"counters": {"value": kept}}, strings=[""])
        trace.save(tmp_path / "x.ktrace")
        with open(tmp_path / "x.ktrace") as again:
            stored = again.column("counters", "value")
        assert stored.view(np.int64).tolist() == np.array(kept).view(np.int64).tolist()


def test_parts_are_arrow_files_that_other_tools_read(tmp_path):
    trace = long_trace()
    trace.save(tmp_path / "x.ktrace")
    with zipfile.ZipFile(tmp_path / "x.ktrace") as archive:
        assert archive.testzip() is None
        members = set(archive.namelist())
        ids = pa.ipc.open_file(archive.read("spans.record_function.arrow")).read_all()
    steps = ids.column("record_function").to_numpy().astype(np.int64)
    steps[0] = 1 << 40
    assert np.cumsum(steps).tolist() == trace.column("spans", "record_function").tolist()
    assert "spans.self_ns.arrow" not in members, "what can be computed is not stored"
    assert "spans.flags.arrow" not in members, "a constant is in the manifest"
    assert "threads.arrow" in members, "small tables are in one piece"


def test_what_is_used_is_all_that_is_looked_at(tmp_path):
    path = tmp_path / "x.ktrace"
    trace = long_trace()
    trace.save(path)
    for member in ("spans.start_ns.arrow", "strings.arrow"):
        damage(path, member)
    with open(path) as again:
        assert np.array_equal(again.column("spans", "name"), trace.column("spans", "name"))
        with pytest.raises(FormatError, match="checksum of spans.start_ns.arrow"):
            again.column("spans", "start_ns")
        with pytest.raises(FormatError, match="checksum of strings.arrow"):
            again.strings


def test_opening_reads_no_strings_and_loads_no_arrow(tmp_path):
    long_trace().save(tmp_path / "x.ktrace")
    program = (
        "import sys, kinetoscope\n"
        f"trace = kinetoscope.open({str(tmp_path / 'x.ktrace')!r})\n"
        "print('pyarrow' in sys.modules, len(trace.columns('spans')), len(trace.strings), 'pyarrow' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "70000", "61", "True"]


def test_texts_of_more_than_32_bits_are_counted_in_64(tmp_path, monkeypatch):
    monkeypatch.setattr("kinetoscope.model.arrow._MOST_OFFSET", 3)
    rich_trace().save(tmp_path / "x.ktrace")
    with zipfile.ZipFile(tmp_path / "x.ktrace") as archive:
        assert pa.ipc.open_file(archive.read("strings.arrow")).schema.field("text").type == pa.large_string()
    with open(tmp_path / "x.ktrace") as again:
        assert_same(rich_trace(), again)


def manifest_of(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("manifest.json"))


def damage(path, member):
    """Flip a bit in the middle of a member."""
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(member)
    content = bytearray(path.read_bytes())
    content[entry.header_offset + 30 + len(member) + entry.file_size // 2] ^= 1
    path.write_bytes(content)


def test_columns_are_read_only_when_they_are_used(tmp_path):
    rich_trace().save(tmp_path / "x.ktrace")
    with open(tmp_path / "x.ktrace") as trace:
        spans = trace.columns("spans")
        assert not spans._ready
        assert spans["name"].tolist() == rich_trace().column("spans", "name").tolist()
        assert set(spans._ready) == {"name"}


def test_a_closed_file_is_released(tmp_path):
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
