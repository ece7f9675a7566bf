"""Files that appear only when they are complete, and what is no regular file."""

import errno
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from kinetoscope.storage import atomic_write
from kinetoscope.storage.atomic_write import is_stream, open_atomically
from tests.support.trace_builder import TraceBuilder


@pytest.fixture
def device(tmp_path):
    """A device like /dev/null, but of the test's own: as root, a mistake would replace the machine's."""
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"this user or file system cannot have device nodes: {error}")
    return path


@pytest.fixture
def pipe(tmp_path):
    """A named pipe."""
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    return path


class Reader(threading.Thread):
    """Reads a named pipe to its end."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.content = path, b""
        # Opened here, so that the writer finds a reader.
        self.file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self.file, True)
        # Held open, or else the reader could see the end before the writer has come.
        self.held = os.open(path, os.O_WRONLY)
        self.start()

    def run(self):
        while block := os.read(self.file, 1 << 16):
            self.content += block

    def result(self):
        os.close(self.held)
        self.join(60)
        os.close(self.file)
        return self.content


def test_the_name_appears_when_all_is_written(tmp_path):
    path = tmp_path / "x"
    with open_atomically(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert [found.name for found in tmp_path.iterdir()] == ["x"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="stop"), open_atomically(path) as file:
        file.write(b"half")
        raise RuntimeError("stop")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["x"]


def test_a_folder_of_that_name_is_found_before_anything_is_written(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(IsADirectoryError) as error, open_atomically(folder):
        pytest.fail("opened")
    assert error.value.filename == str(folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_the_file_has_the_rights_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    with open_atomically(tmp_path / "x") as file:
        file.write(b"")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions_from_the_first_byte_on(tmp_path, mode):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(mode)
    with open_atomically(path) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == mode
        file.write(b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    os.chown(path, 12_345, 54_321)
    with open_atomically(path) as file:
        file.write(b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12_345, 54_321)


def test_another_group_does_not_get_what_the_old_one_was_allowed(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o664)

    def refused(*_):
        raise PermissionError(errno.EPERM, "not allowed")

    monkeypatch.setattr(os, "fchown", refused)
    old = os.stat_result([0o100664, 0, 0, 1, os.geteuid(), os.getegid() + 1, 3, 0, 0, 0])
    file = os.open(path, os.O_RDWR)
    atomic_write._take_permissions(file, old)
    os.close(file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_file_that_is_read_only_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    # As for a user without the rights of root.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError) as error, open_atomically(path):
        pytest.fail("opened")
    assert error.value.filename == str(path)
    assert path.read_bytes() == b"old"


def test_a_symbolic_link_keeps_pointing(tmp_path):
    (tmp_path / "runs").mkdir()
    target, link, chain = tmp_path / "runs" / "x", tmp_path / "link", tmp_path / "chain"
    link.symlink_to("runs/x")
    chain.symlink_to("link")
    for path, content in ((chain, b"first"), (link, b"second"), (chain, b"third")):
        with open_atomically(path) as file:
            file.write(content)
        assert (os.readlink(link), os.readlink(chain)) == ("runs/x", "link")
        assert target.read_bytes() == content
    assert [found.name for found in (tmp_path / "runs").iterdir()] == ["x"]


def test_a_link_in_a_circle_is_an_error(tmp_path):
    path = tmp_path / "circle"
    path.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"), open_atomically(path):
        pytest.fail("opened")
    assert path.is_symlink()


def test_a_name_of_the_greatest_length_can_be_written(tmp_path):
    path = tmp_path / ("ü" * 127)
    with open_atomically(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"


def test_a_device_is_written_to_and_stays_one(device):
    with open_atomically(device) as file:
        file.write(b"whole")
    assert is_stream(device)
    assert stat.S_ISCHR(device.stat().st_mode)
    assert [found.name for found in device.parent.iterdir()] == ["null"]


def test_a_link_to_a_device_stays_a_link_to_a_device(device, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(device)
    with open_atomically(link) as file:
        file.write(b"whole")
    assert link.is_symlink()
    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_device_that_is_full_is_an_error_with_its_name(tmp_path):
    path = tmp_path / "full"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        path.open("wb").close()
    except OSError as error:
        pytest.skip(f"this user or file system cannot have device nodes: {error}")
    with pytest.raises(OSError, match="No space") as error, open_atomically(path) as file:
        file.write(b"whole")
    assert error.value.filename == str(path)
    assert stat.S_ISCHR(path.stat().st_mode)


def test_a_named_pipe_gets_all_bytes_and_stays_one(pipe):
    reader = Reader(pipe)
    with open_atomically(pipe) as file:
        file.write(b"begin")
        # Some formats come back to what they have written.
        file.seek(0)
        file.write(b"B" * 300_000)
    assert reader.result() == b"B" * 300_000
    assert is_stream(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_nothing_of_a_failure_reaches_a_named_pipe(pipe):
    reader = Reader(pipe)
    with pytest.raises(RuntimeError, match="stop"), open_atomically(pipe) as file:
        file.write(b"half")
        raise RuntimeError("stop")
    assert reader.result() == b""
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_named_pipe_without_a_reader_is_an_error_and_no_endless_wait(pipe, monkeypatch):
    monkeypatch.setattr(atomic_write, "_READER_S", 0.0)
    with pytest.raises(OSError, match="nothing reads from") as error, open_atomically(pipe) as file:
        file.write(b"whole")
    assert error.value.filename == str(pipe)


def test_a_socket_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    # The name of a socket has at most 107 bytes.
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with (
            pytest.raises(OSError, match="a socket cannot be written to"),
            open_atomically(tmp_path / "socket"),
        ):
            pytest.fail("opened")
        assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)


def test_a_block_device_is_refused(tmp_path):
    path = tmp_path / "disk"
    try:
        # 259 is for what has no number of its own: nothing has this one.
        os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(259, 0xFFFFF))
    except OSError as error:
        pytest.skip(f"this user or file system cannot have device nodes: {error}")
    with pytest.raises(OSError, match="a block device cannot be written to"), open_atomically(path):
        pytest.fail("opened")
    assert stat.S_ISBLK(path.stat().st_mode)


def test_an_open_file_is_written_to_where_it_stands(tmp_path):
    path = tmp_path / "log"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(file, b"before ")
    with open_atomically(Path(f"/proc/self/fd/{file}")) as out:
        out.write(b"whole")
    os.write(file, b" after")
    os.close(file)
    assert path.read_bytes() == b"before whole after"
    assert not is_stream(path)


def test_an_unnamed_pipe_is_written_to_by_its_descriptor():
    reading, writing = os.pipe()
    with open_atomically(Path(f"/dev/fd/{writing}")) as out:
        out.write(b"whole")
    os.close(writing)
    assert os.read(reading, 100) == b"whole"
    os.close(reading)


@pytest.mark.parametrize(
    "name",
    [
        "x.ktrace", "x.json", "x.json.gz", "x.json.zst", "x.speedscope.json",
        "x.speedscope.json.gz", "x.collapsed", "x.memory.json", "x.memory.raw.json.gz", "x.parquet", "x.arrow",
    ],
)  # fmt: skip
def test_every_format_goes_through_a_pipe_as_into_a_file(tmp_path, name):
    builder = TraceBuilder().know("profile_memory", 1)
    builder.span("aten::mm", 0, 100_000, stack=builder.stack(("train.py", 12, "main")))
    builder.allocate(10, 4096, 5_000)
    trace = builder.build()
    path = tmp_path / name
    trace.save(path)
    expected = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    reader = Reader(path)
    trace.save(path)
    content = reader.result()
    assert content
    assert stat.S_ISFIFO(path.stat().st_mode)
    # A zip archive holds the time at which it was written.
    assert content == expected or name == "x.ktrace"
