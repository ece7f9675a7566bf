"""Opening compressed files, archives and folders of traces."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import pytest

import kinetoscope
from kinetoscope._errors import FormatError
from tests.support.kineto_text import op
from tests.support.trace_builder import TraceBuilder


def text(name="aten::mm"):
    return json.dumps([op(name, 0, 5)]).encode()


def names(trace):
    return trace.table("spans").column("name").to_pylist()


def zipped(path, compression=zipfile.ZIP_DEFLATED, **members):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), content)
    return path


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, gzip.compress], ids=["bzip2", "xz", "gzip"])
def test_compressed_files_are_read_by_their_content(tmp_path, pack):
    path = tmp_path / "trace"
    path.write_bytes(pack(text()) + pack(b" \n"))
    with kinetoscope.open(path) as trace:
        assert names(trace) == ["aten::mm"]
        assert trace.losses == []


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress], ids=["bzip2", "xz"])
def test_damaged_compressed_files_have_a_loss(tmp_path, pack):
    path = tmp_path / "trace"
    whole = pack(text() + b" " * 100)
    path.write_bytes(pack(text())[:-10] if pack is lzma.compress else whole[:-4])
    assert "packed_cut" in [loss["code"] for loss in kinetoscope.open(path).losses]


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, gzip.compress], ids=["bzip2", "xz", "gzip"])
def test_what_unpacks_without_end_is_cut(tmp_path, pack):
    path = tmp_path / "trace"
    path.write_bytes(pack(text()[:-1] + b" " * 3_000_000))
    codes = [loss["code"] for loss in kinetoscope.open(path, max_uncompressed_bytes=1_000_000).losses]
    assert "beyond_unpacking_limit" in codes


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
@pytest.mark.parametrize("as_stream", [False, True])
def test_the_trace_of_an_archive_is_opened(tmp_path, compression, as_stream):
    path = zipped(
        tmp_path / "trace.zip", compression, a__trace_json=text(), README_md=b"{}", __MACOSX___x_json=b"{"
    )
    with kinetoscope.open(io.BytesIO(path.read_bytes()) if as_stream else path) as trace:
        assert names(trace) == ["aten::mm"]
        assert trace.path == (None if as_stream else path)


def ranks(count=2):
    for rank in range(count):
        builder = TraceBuilder().span("aten::mm", 0, 5).know("process", 10 + rank)
        yield builder.know("distributedInfo", {"rank": rank, "world_size": count}).build()


def test_traces_of_the_ranks_of_a_job_become_one(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    for rank, trace in enumerate(ranks()):
        trace.save(folder / f"rank{rank}.ktrace")
    (folder / "notes.txt").write_text("no trace")
    files = {f"a__rank{rank}_ktrace": (folder / f"rank{rank}.ktrace").read_bytes() for rank in range(2)}
    for source in (folder, zipped(tmp_path / "runs.zip", **files)):
        with kinetoscope.open(source) as trace:
            assert trace.table("processes").column("rank").to_pylist() == [0, 1]


def test_traces_that_are_not_of_one_job_are_listed(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_bytes(text(name))
    with pytest.raises(
        FormatError,
        match=r"its 2 traces are not of the ranks of one job .* open one of them: a\.json, b\.json",
    ):
        kinetoscope.open(tmp_path)
    (tmp_path / "b.json").write_bytes(b"{")
    assert names(kinetoscope.open(tmp_path)) == ["a"]


def test_archives_cannot_fill_the_memory_or_lead_anywhere(tmp_path):
    bomb = zipped(tmp_path / "bomb.zip", a_json=text()[:-1] + b" " * 5_000_000)
    with pytest.raises(FormatError, match="take 4.77 MiB unpacked: pass a larger max_uncompressed_bytes"):
        kinetoscope.open(bomb, max_uncompressed_bytes=1_000_000)
    nested = zipped(
        tmp_path / "nested.zip", inner_zip=zipped(tmp_path / "inner.zip", a_json=text()).read_bytes()
    )
    with pytest.raises(FormatError, match="an archive within an archive"):
        kinetoscope.open(nested)
    with zipfile.ZipFile(tmp_path / "paths.zip", "w") as archive:
        archive.writestr("../../outside.json", text())
        archive.writestr("/etc/passwd.txt", b"x")
    before = sorted(tmp_path.parent.iterdir())
    assert names(kinetoscope.open(tmp_path / "paths.zip")) == ["aten::mm"]
    assert sorted(tmp_path.parent.iterdir()) == before


def test_a_damaged_archive_is_an_error_of_the_format(tmp_path):
    whole = zipped(tmp_path / "a.zip", a_json=text() * 40).read_bytes()
    flags = whole.index(b"PK\x01\x02") + 8
    encrypted = whole[:flags] + b"\x01" + whole[flags + 1 :]
    for changed in (whole[:-30], whole[:40] + b"\xff" * 20 + whole[60:], encrypted):
        (tmp_path / "b.zip").write_bytes(changed)
        with pytest.raises(FormatError):
            kinetoscope.open(tmp_path / "b.zip")


def test_what_has_to_be_unpacked_or_exported_first_is_said(tmp_path):
    (tmp_path / "a.json").write_bytes(text())
    for name, mode in (("t.tar", "w"), ("t.tar.gz", "w:gz"), ("t.tar.xz", "w:xz")):
        with tarfile.open(tmp_path / name, mode) as archive:
            archive.add(tmp_path / "a.json")
        with pytest.raises(FormatError, match=rf"{name}: a tar archive: unpack it \(tar xf FILE\)"):
            kinetoscope.open(tmp_path / name)
    (tmp_path / "r.nsys-rep").write_bytes(b"\x01\x02 something")
    with pytest.raises(FormatError, match=r"run `nsys export --type sqlite .*r\.nsys-rep`"):
        kinetoscope.open(tmp_path / "r.nsys-rep")
