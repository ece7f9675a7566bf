"""Damaged and malicious `.ktrace` files: damage is always detected, and always a `FormatError`."""

import contextlib
import gc
import json
import os
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinetoscope import FormatError, open  # noqa: A004
from kinetoscope.model.schema import STORED
from kinetoscope.storage.ktrace import read_ktrace, unpacked_bytes
from tests.support.effort import examples
from tests.support.rich_trace import rich_trace
from tests.support.trace_builder import TraceBuilder


def rewrite(path, member, content):
    """Replace one member of an archive."""
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
        ("manifest.json", None, "has no manifest.json"),
        ("manifest.json", b'{"format": "else"}', "manifest.json has another format"),
        ("manifest.json", b"[]", "manifest.json has another format"),
        ("manifest.json", b"{", "truncated or damaged"),
        (
            "manifest.json",
            b'{"format": "ktrace", "version": 99}',
            "version 99; this release reads version 2",
        ),
        (
            "manifest.json",
            b'{"format": "ktrace", "version": "2"}',
            "version '2'; this release reads version 2",
        ),
        ("manifest.json", b'{"format": "ktrace", "version": 1}', "version 1; this release reads version 2"),
        ("manifest.json", b'{"format": "ktrace", "version": 2}', "truncated or damaged"),
        ("strings.arrow", b"junk", "truncated or damaged"),
        ("strings.arrow", None, "truncated or damaged"),
        ("spans.arrow", b"ARROW1\0\0 junk", "truncated or damaged"),
        (
            "manifest.json",
            b'{"format": "ktrace", "version": 2, "info": 3, "strings": 1, "tables": {}}',
            "truncated or damaged",
        ),
        ("manifest.json", b"[" * 100_000, "truncated or damaged"),
        ("spans.arrow", None, "spans.arrow is missing"),
    ],
)
def test_a_wrong_part_is_a_format_error(tmp_path, member, content, message):
    path = tmp_path / "x.ktrace"
    rich_trace().save(path)
    rewrite(path, member, content)
    with pytest.raises(FormatError, match=message):
        use_all(open(path))


def use_all(trace):
    """Read all columns and strings."""
    len(trace.strings)
    for name, table in STORED.items():
        for column in table.column_names:
            trace.column(name, column)


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("spans", {"rows": -1}, "a negative number of rows"),
        ("spans", {"rows": 3}, "has the wrong length"),
        ("strings", {"rows": 3}, "row numbers out of range"),
        (
            "spans",
            {"columns": {"name": {"constant": 999}, "start_ns": {"constant": 0}}},
            "has row numbers out of range",
        ),
        ("spans", {"columns": {"name": {"constant": "x"}, "start_ns": {"constant": 1 << 80}}}, "damaged"),
        ("spans", {"columns": {"start_ns": {}, "name": {"constant": {}}}}, "damaged"),
        ("spans", {"columns": {"name": {"member": "nothing.arrow"}}}, "nothing.arrow is missing"),
        ("spans", {"columns": {"name": {"member": "threads.arrow"}}}, "damaged"),
        ("spans", {"columns": {"name": {"member": "spans.arrow", "planes": 3}}}, "has 3 byte planes"),
        ("spans", {"columns": {"name": {"member": "spans.arrow", "planes": 2}}}, "damaged"),
        (
            "spans",
            {"columns": {"start_ns": {"member": "spans.arrow", "delta": [[1 << 40, 0]]}}},
            "has the row",
        ),
        (
            "spans",
            {"columns": {"start_ns": {"member": "spans.arrow", "delta": [[5, 0], [3, 0]]}}},
            "has the row 3",
        ),
        ("spans", {"columns": {"start_ns": {"member": "spans.arrow", "delta": {"a": 1}}}}, "damaged"),
        ("spans", {"rows": 1 << 40}, r"2\*\*31 rows or more"),
        (
            "spans",
            {
                "rows": (1 << 31) - 1,
                "columns": {"flags": {"constant": 0}, "start_ns": {"member": "spans.arrow"}},
            },
            "has 2147483647 rows for spans, but its columns",
        ),
        (
            "spans",
            {"rows": (1 << 31) - 1, "columns": {"start_ns": {"member": "spans.arrow"}}},
            "has 2147483647 rows for spans, but its columns",
        ),
        ("losses", {"rows": (1 << 31) - 1, "columns": {"count": {"constant": 1}}}, "no column stores any"),
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
        for column in ("flags", "name", "start_ns"):
            trace.column("spans", column)
        trace.column("losses", "count")


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
    with contextlib.suppress(FormatError):
        use_all(read_ktrace(path))


def crafted(path, rows, **columns):
    """Write a file whose spans have `rows` rows, these columns as members, and constants for all others."""
    names = [column.name for column in STORED["spans"].columns if not column.derived]
    entries = {name: {"constant": 0} for name in names} | {
        name: {"member": f"spans.{name}.arrow"} for name in columns
    }
    manifest = {
        "format": "ktrace", "version": 2, "info": {}, "strings": 1,
        "tables": {"spans": {"rows": rows, "columns": entries}},
    }  # fmt: skip
    members = {f"spans.{name}.arrow": {name: values} for name, values in columns.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, arrays in {**members, "strings.arrow": {"text": [""]}}.items():
            sink = pa.BufferOutputStream()
            table = pa.table(arrays)
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            with pa.ipc.new_file(sink, table.schema, options=options) as writer:
                writer.write_table(table)
            archive.writestr(member, memoryview(sink.getvalue()))
        archive.writestr("manifest.json", json.dumps(manifest))
    return path


def test_a_row_count_that_a_small_file_makes_believable_takes_no_memory(tmp_path):
    rows = (1 << 27) + 1
    path = crafted(tmp_path / "x.ktrace", rows, flags=np.zeros(rows, np.uint8))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with open(path) as trace, pytest.raises(FormatError, match=r"x\.ktrace: .*max_uncompressed_bytes"):
            trace.column("spans", "start_ns")
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("table", ["spans", "arguments", "samples"])
def test_a_row_count_that_no_column_confirms_is_refused_when_the_file_is_opened(tmp_path, table):
    path = tmp_path / "x.ktrace"
    rich_trace().save(path)
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    manifest["tables"][table]["rows"] = 10**9
    rewrite(path, "manifest.json", json.dumps(manifest).encode())
    with pytest.raises(FormatError, match=f"has 1000000000 rows for {table}, but"):
        open(path)


READ_STRINGS = """
import sys, kinetoscope
try:
    len(kinetoscope.open(sys.argv[1]).strings)
except kinetoscope.FormatError as error:
    print(error)
"""


def test_text_beyond_its_member_is_a_format_error_and_no_crash(tmp_path):
    path = tmp_path / "x.ktrace"
    rich_trace().save(path)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema({"text": pa.string()})) as writer:
        writer.write_table(pa.table({"text": ["", *["word"] * 1233]}))
    content = bytes(memoryview(sink.getvalue()))
    content = content.replace(struct.pack("<2i", 80, 84), struct.pack("<2i", 80, 1 << 30))
    rewrite(path, "strings.arrow", content)
    done = subprocess.run(
        [sys.executable, "-c", READ_STRINGS, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{path}: the .ktrace file is truncated or damaged (" in done.stdout


def test_an_archive_that_points_before_its_start_is_a_format_error(tmp_path):
    path = tmp_path / "x.ktrace"
    rich_trace().save(path)
    content = bytearray(path.read_bytes())
    # Where the list of members begins, in the last record of the archive.
    place = content.rindex(b"PK\5\6") + 16
    content[place + 2] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"x\.ktrace"):
        open(path)


def test_the_limits_of_open_hold_for_our_own_files(tmp_path):
    rows = 1 << 20
    path = crafted(tmp_path / "x.ktrace", rows, flags=np.zeros(rows, np.uint8))
    for limits in ({"max_uncompressed_bytes": 5 << 20}, {"max_memory_bytes": 5 << 20}):
        with open(path, **limits) as trace, pytest.raises(FormatError, match=next(iter(limits))):
            trace.column("spans", "start_ns")
    with open(path, max_memory_bytes=20 << 20) as trace:
        assert len(trace.column("spans", "start_ns")) == rows
        # Columns that were read before count toward the limit.
        with pytest.raises(FormatError, match="max_memory_bytes"):
            for column in ("duration_ns", "sequence"):
                trace.column("spans", column)
    with open(path, max_memory_bytes=0) as trace:
        for column in ("duration_ns", "start_ns"):
            trace.column("spans", column)


def test_text_that_unpacks_to_much_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "x.ktrace"
    rich_trace().save(path)
    sink = pa.BufferOutputStream()
    table = pa.table({"text": [""] * (1 << 20) + ["x" * (1 << 24)]})
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    rewrite(path, "strings.arrow", bytes(memoryview(sink.getvalue())))
    assert path.stat().st_size < 1 << 20
    for most in (1 << 24, 1 << 25):
        with (
            open(path, max_uncompressed_bytes=most) as trace,
            pytest.raises(FormatError, match="uncompress to more"),
        ):
            len(trace.strings)


def test_a_manifest_that_is_compressed_is_not_unpacked(tmp_path):
    path = tmp_path / "x.ktrace"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b'{"a": "' + b" " * (1 << 24) + b'"}')
    with pytest.raises(FormatError, match="compressed"):
        open(path)


@given(columns=st.lists(st.sampled_from(["int8", "int64", "text"]), min_size=1, max_size=4), rows=st.integers(0, 2000),
       batches=st.integers(1, 3), compressed=st.booleans())  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
def test_what_an_arrow_file_unpacks_to_is_known_before(columns, rows, batches, compressed):
    made = {
        f"c{place}": pa.array(["word"] * rows) if kind == "text" else np.arange(rows).astype(kind)
        for place, kind in enumerate(columns)
    }
    sink = pa.BufferOutputStream()
    table = pa.table(made)
    options = pa.ipc.IpcWriteOptions(compression="zstd" if compressed else None)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        for _ in range(batches):
            writer.write_table(table)
    found = unpacked_bytes(memoryview(sink.getvalue()))
    whole = pa.ipc.open_file(sink.getvalue()).read_all()
    # Uncompressed buffers are padded to 8 bytes.
    assert abs(found - whole.nbytes) <= 16 * len(columns) * batches


OVERWRITTEN = """
import sys, kinetoscope
from kinetoscope import open as open_trace
trace = open_trace(sys.argv[1])
rows = len(trace.columns("spans"))
content = bytearray(open(sys.argv[1], "rb").read())
with open(sys.argv[1], "r+b") as file:
    if sys.argv[2] == "cut short":
        file.truncate(0)
        file.write(b"something else")
    else:
        file.write(bytes(len(content)))
for column in ("start_ns", "duration_ns"):
    try:
        trace.column("spans", column)
    except kinetoscope.FormatError as error:
        print(error)
"""


@pytest.mark.parametrize("how", ["cut short", "written over"])
def test_a_file_that_somebody_writes_over_while_it_is_open_is_a_format_error(tmp_path, how):
    path = tmp_path / "x.ktrace"
    rich_trace().save(path)
    done = subprocess.run(
        [sys.executable, "-c", OVERWRITTEN, str(path), how], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(f"{path}: the .ktrace file is truncated or damaged (" in line for line in lines)


def test_a_file_is_closed_with_its_trace_or_without(tmp_path):
    path = tmp_path / "x.ktrace"
    rich_trace().save(path)

    def opened() -> int:
        """Return how many times this process has the file open."""
        links = Path("/proc/self/fd").iterdir()
        return sum(os.path.realpath(link) == str(path.resolve()) for link in links)

    trace = read_ktrace(path)
    kept = trace.column("spans", "start_ns")
    trace.close()
    assert len(kept)
    assert opened() == 0
    dropped = read_ktrace(path)
    assert opened() == 1
    dropped.column("spans", "start_ns")
    del dropped
    gc.collect()
    assert opened() == 0


def test_a_file_from_before_losses_had_codes(tmp_path):
    path = tmp_path / "x.ktrace"
    trace = TraceBuilder().span("aten::add", 0, 5).lose("dropped_spans", 7).killed().build()
    trace.save(path)
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    del manifest["tables"]["losses"]["columns"]["code"]
    rewrite(path, "manifest.json", json.dumps(manifest).encode())
    with open(path) as old:
        assert old.losses == [{**loss, "code": ""} for loss in trace.losses]
        assert old.table("losses").column("code").to_pylist() == ["", ""]
        assert not old.complete
        old.save(tmp_path / "again.ktrace")
    with open(tmp_path / "again.ktrace") as again:
        assert [loss["count"] for loss in again.losses] == [1, 7]
