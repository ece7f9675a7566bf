"""All tables as a folder, whose files other tools read and which can be opened again."""

import json
import shutil
import zlib

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from kinetoscope import ArgumentError, FormatError
from kinetoscope.storage.table_files import SHOWN, with_checksum
from kinetoscope.trace import open as open_trace
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.hostile import HOSTILE_NAMES
from tests.support.same_trace import assert_same
from tests.support.trace_builder import TraceBuilder


# The file system does most of the work.
@settings(max_examples=examples(15))
@given(any_traces())
def test_any_trace_survives_and_every_file_is_the_table_of_its_name(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("folder") / "x.tables"
    trace.save(path)
    with open_trace(path) as again:
        assert_same(again, trace)
        assert again.path == path
    for name in SHOWN:
        expected = trace.table(name, **({"by": "span"} if name == "kernels" else {}))
        assert pq.read_table(path / f"{name}.parquet").to_pylist() == expected.to_pylist(), name


def hostile_trace():
    builder = TraceBuilder()
    for place, name in enumerate(HOSTILE_NAMES):
        builder.span(
            name, place * 10, 5, module=builder.module(name, name=name), stack=builder.stack((name, 1, name))
        )
    builder.step(1, 0, 100).kernel("gemm", 10, 20, grid=(1, 2, 3))
    return builder.build()


def test_hostile_names_survive(tmp_path):
    hostile_trace().save(tmp_path / "x.tables")
    assert_same(open_trace(tmp_path / "x.tables"), hostile_trace())


def test_what_was_opened_can_be_saved_over_itself(tmp_path):
    hostile_trace().save(tmp_path / "x.tables")
    open_trace(tmp_path / "x.tables").save(tmp_path / "x.tables")
    assert_same(open_trace(tmp_path / "x.tables"), hostile_trace())
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tables"]


def test_duckdb_joins_the_files(tmp_path):
    import duckdb

    hostile_trace().save(tmp_path / "x.tables")
    query = f"select s.name from '{tmp_path}/x.tables/spans.parquet' s join '{tmp_path}/x.tables/steps.parquet' t on s.step = t.number"
    assert len(duckdb.sql(query).fetchall()) == 12


def test_what_is_no_folder_of_tables_is_left_alone(tmp_path):
    (tmp_path / "x.tables").mkdir()
    (tmp_path / "x.tables" / "mine.txt").write_text("keep me")
    with pytest.raises(ArgumentError, match="is not a folder of tables: remove it"):
        hostile_trace().save(tmp_path / "x.tables")
    assert (tmp_path / "x.tables" / "mine.txt").read_text() == "keep me"
    (tmp_path / "file.tables").write_text("keep me")
    with pytest.raises(ArgumentError, match="is not a folder of tables"):
        hostile_trace().save(tmp_path / "file.tables")


def test_an_error_while_writing_leaves_what_was_there(tmp_path):
    trace = hostile_trace()
    trace.save(tmp_path / "x.tables")
    trace.info["not JSON"] = object()
    with pytest.raises(TypeError):
        trace.save(tmp_path / "x.tables")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tables"]
    assert_same(open_trace(tmp_path / "x.tables"), hostile_trace())


def damaged_manifest(**changes):
    def damage(stored):
        manifest = json.loads((stored / "manifest.json").read_text())
        (stored / "manifest.json").write_text(json.dumps(with_checksum(manifest | changes)))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "a folder, but not a trace"),
        (lambda stored: (stored / "manifest.json").unlink(), "a folder, but not a trace"),
        (lambda stored: (stored / "manifest.json").write_text("{}"), r"manifest\.json has another format"),
        (lambda stored: (stored / "manifest.json").write_text("{"), "is damaged"),
        (damaged_manifest(version=9), "version 9; this release reads version 2"),
        (damaged_manifest(info=3), "is damaged"),
        (damaged_manifest(tables={"spans": {"columns": ["nonsense"]}}), "is damaged"),
        (damaged_manifest(files={"../../outside": "0"}), "a file outside of the folder, '../../outside'"),
        (damaged_manifest(tables={"spans": {"columns": ["own_module"]}}), "has row numbers out of range"),
        (lambda stored: (stored / "spans.parquet").write_bytes(b"PAR1 junk"), "is damaged"),
        (lambda stored: (stored / "strings.parquet").write_bytes(b""), "is damaged"),
        (lambda stored: (stored / "strings.parquet").unlink(), r"stored/strings\.parquet is missing"),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_damaged_folder_is_a_format_error(tmp_path, damage, message):
    hostile_trace().save(tmp_path / "x.tables")
    damage(tmp_path / "x.tables" / "stored")
    with pytest.raises(FormatError, match=message):
        open_trace(tmp_path / "x.tables")


def opened_or_refused(path):
    """Return the trace, or the error's message."""
    try:
        return open_trace(path), ""
    except FormatError as error:
        return None, str(error)


def test_any_flipped_byte_is_found_and_the_file_is_named(tmp_path):
    """Flip bytes of every stored file, and more of the manifest, which is read first."""
    path = tmp_path / "x.tables"
    hostile_trace().save(path)
    refused = 0
    for file in sorted((path / "stored").iterdir()):
        content, is_manifest = file.read_bytes(), file.suffix == ".json"
        for place in range(
            len(content) // 99, len(content), max(1, len(content) // (150 if is_manifest else 10))
        ):
            changed = bytes([content[place] ^ (1 << place % 7)])
            file.write_bytes(content[:place] + changed + content[place + 1 :])
            trace, told = opened_or_refused(path)
            if trace is None:
                assert str(path if is_manifest else file) in told
                refused += 1
            else:
                # Additional white space does not change the manifest.
                assert is_manifest
                assert json.loads(file.read_bytes()) == json.loads(content)
        file.write_bytes(content)
    assert refused > 150
    assert_same(open_trace(path), hostile_trace())


@pytest.mark.parametrize("what", [b"PAR1 junk", b"", b"PAR1" * 100])
def test_what_arrow_says_of_a_file_names_it(tmp_path, what):
    hostile_trace().save(tmp_path / "x.tables")
    stored = tmp_path / "x.tables" / "stored"
    (stored / "spans.parquet").write_bytes(what)
    manifest = json.loads((stored / "manifest.json").read_text())
    manifest["files"]["spans.parquet"] = f"{zlib.crc32(what):08x}"
    (stored / "manifest.json").write_text(json.dumps(with_checksum(manifest)))
    with pytest.raises(FormatError, match=r"stored/spans\.parquet is damaged \("):
        open_trace(tmp_path / "x.tables")


def test_pages_have_checksums_for_other_readers(tmp_path):
    hostile_trace().save(tmp_path / "x.tables")
    for file in (tmp_path / "x.tables" / "spans.parquet", tmp_path / "x.tables" / "stored" / "spans.parquet"):
        part = pq.ParquetFile(file).metadata.row_group(0).column(0)
        first = part.data_page_offset if part.dictionary_page_offset is None else part.dictionary_page_offset
        content = bytearray(file.read_bytes())
        content[first + part.total_compressed_size - 1] ^= 255
        file.write_bytes(content)
        with pytest.raises(OSError, match=r"(?i)crc|checksum"):
            pq.read_table(file, page_checksum_verification=True)
