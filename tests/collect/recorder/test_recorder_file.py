"""The file that a session records into: what was there before, who else uses it, and what becomes of it."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import stat
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import kinetoscope
from kinetoscope import ProfilerActivity, RecorderError, StateError
from kinetoscope.collect.recorder.library import load_recorder
from kinetoscope.storage.live_recording import LAYOUT
from tests.support import warm_python
from tests.support.recorded import named, profile
from tests.support.small_disk import tmpfs


def cosines(trace: kinetoscope.Trace) -> int:
    """How many cosines were taken."""
    return len(named(trace, "aten::cos"))


def take_cosines(count: int) -> None:
    """Take some."""
    for _ in range(count):
        torch.cos(torch.ones(1))


@pytest.mark.parametrize("kind", ["a named pipe", "a symbolic link", "a device"])
def test_a_path_that_is_not_a_regular_file_is_refused_and_unchanged(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.recording"
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a symbolic link":
        path.symlink_to(target)
    else:
        try:
            # As /dev/null is, but not that of this machine.
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("making a device takes rights that this process does not have")
    before = path.lstat()
    with pytest.raises(RecorderError, match=rf"x\.recording is {kind}; a recording needs a regular file"):
        profile(path=path).start()
    after = path.lstat()
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)
    assert target.read_bytes() == b"precious"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["target", "x.recording"]


def test_a_start_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "x.recording"
    path.write_bytes(b"precious")
    program = (
        "import resource, kinetoscope, torch, sys\n"
        "from kinetoscope.collect.engines.native import native_engine_status\n"
        "assert native_engine_status().available\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], engine='native', path=sys.argv[1]).start()\n"
        "except kinetoscope.RecorderError as error:\n"
        "    print(error)\n"
    )
    done = warm_python.run("-c", program, str(path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert os.strerror(errno.EFBIG) in done.stdout
    assert path.read_bytes() == b"precious"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.recording"]


def test_an_older_file_is_replaced_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "x.recording"
    path.write_bytes(b"older")
    with path.open("rb") as older:
        with profile(path=path) as prof:
            take_cosines(3)
        assert older.read() == b"older"
    assert cosines(kinetoscope.open(path)) == cosines(prof.trace) == 3


def test_a_trace_is_never_that_of_the_next_recording(tmp_path: Path) -> None:
    with profile(path=tmp_path / "x.recording") as first:
        take_cosines(1)
    with profile(path=tmp_path / "x.recording") as second:
        take_cosines(2)
    assert cosines(second.trace) == 2
    with pytest.raises(StateError, match="another recording replaced this one before it was read"):
        first.trace.columns("spans")


RECORD = """
import sys, torch, kinetoscope
with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], engine="native", path=sys.argv[1]):
    for _ in range(int(sys.argv[2])):
        torch.cos(torch.ones(1))
    print("recording", flush=True)
    sys.stdin.readline()
"""


def test_a_later_process_leaves_a_recording_in_progress_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.recording"
    other = warm_python.start("-c", RECORD, path, "2")
    try:
        assert other.stdout.readline() == "recording\n"
        prof = profile(path=path)
        with pytest.warns(UserWarning, match="so this recording is written to"):
            prof.start()
        take_cosines(5)
        prof.stop()
    finally:
        # The end of its input lets it stop, too.
        other.close()
    assert other.returncode == 0
    assert cosines(kinetoscope.open(path)) == 2
    own = tmp_path / f"x.p{os.getpid()}.recording"
    assert cosines(kinetoscope.open(own)) == cosines(prof.trace) == 5
    # It has ended: a file of that name is an older one now.
    with profile(path=path):
        take_cosines(7)
    assert cosines(kinetoscope.open(path)) == 7


def record_as_worker(path: Path, count: int) -> None:
    """What each of the spawned processes runs."""
    torch.set_num_threads(1)
    import warnings

    warnings.simplefilter("ignore")
    with kinetoscope.profile(activities=[ProfilerActivity.CPU], engine="native", path=path):
        take_cosines(count)


def test_spawned_workers_keep_their_recordings_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.recording"
    path.write_bytes(b"of an earlier run")
    os.utime(path, (1, 1))
    context = multiprocessing.get_context("spawn")
    # One after the other: none of them can see the one before recording.
    for count in (1, 2):
        worker = context.Process(target=record_as_worker, args=(path, count))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
    found = {entry.name: cosines(kinetoscope.open(entry)) for entry in tmp_path.iterdir()}
    assert sorted(found.values()) == [1, 2]
    assert found["x.recording"] == 1


CUT_SHORT = """
import os, sys, warnings, torch, kinetoscope
prof = kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], engine="native", path=sys.argv[1])
prof.start()
x = torch.ones(1)
for number in range(30_000):
    x = torch.neg(x)
    if number == 10_000:
        with open(sys.argv[1], "w") as file:
            file.write("somebody else's")
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    prof.stop()
print(*(str(one.message) for one in heard))
try:
    prof.trace
except kinetoscope.FormatError as error:
    print(error)
print("done")
"""


@pytest.mark.parametrize("first", ["", "import faulthandler; faulthandler.enable()"])
def test_a_recording_cut_short_by_others_does_not_end_the_job(tmp_path: Path, first: str) -> None:
    path = tmp_path / "x.recording"
    done = warm_python.run("-c", first + CUT_SHORT, str(path))
    assert done.returncode == 0, done.stderr
    assert f"another program truncated {path} during" in done.stdout
    assert "the file begins with other bytes" in done.stdout
    assert done.stdout.endswith("done\n")
    assert path.read_text() == "somebody else's"


def test_another_handler_still_gets_the_faults_of_others(tmp_path: Path) -> None:
    program = (
        "import faulthandler, mmap, torch, kinetoscope\n"
        "faulthandler.enable()\n"
        "with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], engine='native'): torch.ones(1)\n"
        "with open('short', 'w+b') as file:\n"
        "    file.truncate(8192)\n"
        "    pages = mmap.mmap(file.fileno(), 8192)\n"
        "    file.truncate(0)\n"
        "    pages[5000]\n"
    )
    done = warm_python.run("-c", program, cwd=tmp_path)
    assert done.returncode == -7
    assert "Fatal Python error: Bus error" in done.stderr


def test_a_recording_of_no_name_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders: set[Any] = set()
    for _ in range(3):
        with profile() as prof:
            (folder,) = tmp_path.iterdir()
            (file,) = folder.iterdir()
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            folders.add(folder)
            take_cosines(1)
        assert cosines(prof.trace) == 1
        assert list(tmp_path.iterdir()) == []
    assert len(folders) == 3


def losses_of(trace: kinetoscope.Trace) -> dict[str, str]:
    """Why something is missing, by what it is."""
    return {loss["what"]: loss["why"] for loss in trace.losses}


def test_ring_bytes_bound_the_file_whatever_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "x.recording"
    with profile(path=path, ring_bytes=1 << 20, record_shapes=True) as prof:
        for number in range(20_000):
            with torch.profiler.record_function(f"step {number}"):
                torch.empty(number + 1, 0)
    assert path.stat().st_size <= 1 << 20
    trace = prof.trace
    assert named(trace, "aten::empty")
    # Names take more room than the spans that have them, so that the ring is full of names first.
    assert "lookups of names, stacks or shapes that were not stored" not in losses_of(trace)
    kept = [row["name"] for row in trace.table("spans").to_pylist() if row["name"].startswith("step ")]
    assert kept == [f"step {number}" for number in range(20_000 - len(kept), 20_000)]


def test_many_threads_share_a_small_ring(tmp_path: Path) -> None:
    threads, turns = 60, 200
    with profile(path=tmp_path / "x.recording", ring_bytes=1 << 20, profile_memory=True) as prof:
        barrier = threading.Barrier(threads)

        def work() -> None:
            for _ in range(turns):
                torch.cos(torch.ones(1))
            # All of them live until the last one has recorded.
            barrier.wait()

        running = [threading.Thread(target=work) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    trace = prof.trace
    recorded = {int(trace.column("spans", "thread")[row]) for row in named(trace, "aten::cos")}
    assert len(recorded) == threads
    assert not [why for why in losses_of(trace).values() if "full disk" in why]


def test_short_threads_do_not_take_a_chunk_each(tmp_path: Path) -> None:
    path = tmp_path / "x.recording"
    threads = 400
    with profile(path=path, profile_memory=True) as prof:
        for _ in range(threads):
            thread = threading.Thread(target=take_cosines, args=(2,))
            thread.start()
            thread.join()
    assert cosines(prof.trace) == 2 * threads
    assert path.stat().st_size < 8 << 20


def test_a_changed_recording_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.recording"
    with profile(path=path) as prof:
        take_cosines(500)
    assert cosines(prof.trace) == 500
    prof.__dict__.clear()
    load_recorder().settle()
    content = bytearray(path.read_bytes())
    # In the middle of the largest chunk of spans: found by what is written there.
    assert kinetoscope.open(path).complete
    at = LAYOUT["header_bytes"]
    places = []
    while at < len(content):
        magic, kind, _, units = struct.unpack_from("<IIII", content, at)
        if magic == 0:
            break
        committed = struct.unpack_from("<Q", content, at + LAYOUT["chunk.committed"])[0]
        if kind == LAYOUT["chunk_kinds"]["spans"] and committed > 10:
            places.append(at + LAYOUT["chunk_header_bytes"] + 5 * LAYOUT["record_bytes"]["spans"])
        at += max(1, units) * LAYOUT["unit_bytes"]
    content[places[-1]] ^= 1
    path.write_bytes(content)
    assert "damaged parts of the file skipped" in losses_of(kinetoscope.open(path))
    content[places[-1]] ^= 1
    content[40] ^= 1
    path.write_bytes(content)
    assert "damaged header of the file" in losses_of(kinetoscope.open(path))


CHANGES_USER = """
import contextlib, json, os, sys, tempfile, warnings
from pathlib import Path
import torch
import kinetoscope

def record(path, locked):
    session = kinetoscope.profile(engine="native", path=path)
    session.start()
    torch.cos(torch.ones(1))
    file = Path(os.path.realpath(session._engine._path))
    with locked(file):
        torch.cos(torch.ones(1))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session.stop()
        trace = session.trace
        del session
    cosines = trace.table("spans")["name"].to_pylist().count("aten::cos")
    told = [str(one.message) for one in caught]
    return {"cosines": cosines, "complete": trace.complete,
            "told": told, "file": str(file), "bytes": file.stat().st_size if file.exists() else None}

@contextlib.contextmanager
def another_user(file):
    # Only root can become another user; for others a file without rights is as closed.
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    file.chmod(0)
    try:
        yield
    finally:
        if file.exists():
            file.chmod(0o600)

path = Path(sys.argv[1]) / "a.recording"
record(None, contextlib.nullcontext)  # imports everything
before = set(os.listdir(tempfile.gettempdir()))
own, named = record(None, another_user), record(path, another_user)
left = [name for name in set(os.listdir(tempfile.gettempdir())) - before if name.startswith(f"kinetoscope-{os.getpid()}-")]
print(json.dumps([own, named, left]))
"""


def test_a_process_that_changes_its_user_meanwhile_reads_its_recording(tmp_path: Path) -> None:
    done = warm_python.run("-c", CHANGES_USER, tmp_path)
    assert done.returncode == 0, done.stderr
    own, path, left = json.loads(done.stdout)
    for found in (own, path):
        assert (found["cosines"], found["complete"]) == (2, True)
        (told,) = found["told"]
        assert "the process changed its user from" in told
        assert "it is read from a copy" in told
    # What nobody chose is empty, where it could not be removed; what the program chose is whole.
    assert own["bytes"] in (0, None)
    assert set(left) <= {Path(own["file"]).parent.name}
    assert path["file"] == str(tmp_path / "a.recording")
    assert cosines(kinetoscope.open(tmp_path / "a.recording")) == 2


def test_a_ring_has_all_of_its_space_from_the_start(tmp_path: Path) -> None:
    with profile(path=tmp_path / "x.recording", ring_bytes=4 << 20):
        status = (tmp_path / "x.recording").stat()
        assert (4 << 20) - 4096 <= status.st_size <= 4 << 20
        assert status.st_blocks * 512 >= status.st_size


def test_a_small_disk_is_used_and_what_it_cannot_hold_is_said(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=8m"):
        with profile(path=tmp_path / "disk" / "x.recording") as prof:
            take_cosines(20_000)
        assert cosines(prof.trace) == 20_000
        assert prof.trace.losses == []
        with (
            pytest.warns(UserWarning, match=r"records are missing, because the disk of .* had no room"),
            profile(path=tmp_path / "disk" / "y.recording") as more,
        ):
            take_cosines(300_000)
        assert 0 < cosines(more.trace) < 300_000
        assert not more.trace.complete
