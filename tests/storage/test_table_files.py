"""All tables as a folder, whose files other tools read and which can be opened again."""

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from kinetoscope import ArgumentError, FormatError
from kinetoscope.storage.table_files import SHOWN, STORED_FILE
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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda stored: stored.unlink(), "a folder, but not a trace: .*no stored.ktrace"),
        (lambda stored: stored.write_bytes(b""), "stored.ktrace"),
        (lambda stored: stored.write_bytes(stored.read_bytes()[:-40]), "stored.ktrace: .*damaged"),
    ],
)
def test_a_damaged_folder_is_a_format_error(tmp_path, damage, message):
    hostile_trace().save(tmp_path / "x.tables")
    damage(tmp_path / "x.tables" / STORED_FILE)
    with pytest.raises(FormatError, match=message):
        open_trace(tmp_path / "x.tables")


def test_pages_have_checksums_for_other_readers(tmp_path):
    hostile_trace().save(tmp_path / "x.tables")
    file = tmp_path / "x.tables" / "spans.parquet"
    part = pq.ParquetFile(file).metadata.row_group(0).column(0)
    first = part.data_page_offset if part.dictionary_page_offset is None else part.dictionary_page_offset
    content = bytearray(file.read_bytes())
    content[first + part.total_compressed_size - 1] ^= 255
    file.write_bytes(content)
    with pytest.raises(OSError, match=r"(?i)crc|checksum"):
        pq.read_table(file, page_checksum_verification=True)
