"""What a worker writes down and what its parent reads of it, without any loader."""

import copy
import multiprocessing
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.collect.sources import data_loading, loader_worker
from kinetoscope.collect.sources.data_loading import WorkerFile, remove_obsolete
from kinetoscope.collect.sources.loader_worker import (
    FAILED,
    HEADER,
    MADE,
    NO_MORE,
    ROW,
    WorkerLog,
    timed,
)
from kinetoscope.combine.loader_workers import BATCH_COLUMNS, WorkerBatches, worker_trace
from kinetoscope.model.schema import FLAG_BEGUN_BEFORE, FLAG_UNFINISHED
from tests.support.trace_builder import TraceBuilder


class Clock:
    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        self.now_ns += 10
        return self.now_ns


class Fetcher:
    """Makes a batch of what it is asked for."""

    def __init__(self, make=lambda index: index):
        self.make = make
        self.collate_fn = tuple
        self.ended = False

    def fetch(self, index):
        return self.collate_fn(self.make(index))


@pytest.fixture
def notes(tmp_path):
    return WorkerLog(str(tmp_path / "0-1.worker"), loader=3, worker=1, clock=Clock())


def read(path, begin_ns=0):
    """What a worker wrote since a moment."""
    file = WorkerFile(path, begin_ns)
    rows = file.read()
    return WorkerBatches(
        file.process, file.loader, file.worker, file.begun_ns, file.ended_ns, rows, file.lost, file.killed
    )


def test_a_batch_is_there_while_it_is_made_and_after(notes, tmp_path):
    path = tmp_path / "0-1.worker"
    seen = []
    fetcher = timed(Fetcher(lambda index: seen.append(read(path)) or index), notes)
    assert fetcher.fetch([4, 5]) == (4, 5)
    assert seen[0].rows.tolist() == [[0, 20, 0, 0, 0, 2, MADE]]
    worker = read(path)
    assert (worker.process, worker.loader, worker.worker, worker.begun_ns, worker.ended_ns) == (
        os.getpid(),
        3,
        1,
        10,
        0,
    )
    assert worker.rows.tolist() == [[0, 20, 30, 40, 50, 2, MADE]]
    notes.end()
    assert read(path).ended_ns == 60


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ValueError("no such sample"), FAILED), (StopIteration(), NO_MORE)],
    ids=["error", "end"],
)
def test_what_a_dataset_raises_comes_out_and_is_noted(notes, tmp_path, error, outcome):
    def fails(_index):
        raise error

    with pytest.raises(type(error)) as raised:
        timed(Fetcher(fails), notes).fetch([1])
    assert raised.value is error
    assert read(tmp_path / "0-1.worker").rows.tolist() == [[0, 20, 0, 0, 30, 1, outcome]]


def test_a_batch_within_a_batch_is_that_of_the_outer_one(notes, tmp_path):
    inner = timed(Fetcher(), notes)
    timed(Fetcher(inner.fetch), notes).fetch([1, 2, 3])
    assert read(tmp_path / "0-1.worker").column("samples").tolist() == [3]


def test_the_fetcher_is_still_reached_through_ours(notes):
    fetcher = Fetcher()
    ours = timed(fetcher, notes)
    ours.ended = True
    assert fetcher.ended
    assert ours.ended
    assert isinstance(ours, Fetcher)
    with pytest.raises(AttributeError, match="no_such_thing"):
        ours.no_such_thing


def test_a_worker_that_cannot_write_its_file_continues(tmp_path):
    notes = WorkerLog(str(tmp_path / "no" / "such" / "folder"), 0, 0)
    assert timed(Fetcher(), notes).fetch([1]) == (1,)
    notes.end()


def test_a_full_disk_ends_the_file_but_not_the_worker(notes, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    fetcher = timed(Fetcher(), notes)
    monkeypatch.setattr(os, "pwrite", full)
    assert fetcher.fetch([1]) == (1,)
    monkeypatch.undo()
    assert fetcher.fetch([2]) == (2,)
    notes.end()


@pytest.fixture
def four_rows(monkeypatch):
    """Files of workers have only four rows."""
    monkeypatch.setattr(loader_worker, "ROWS", 4)
    monkeypatch.setattr(data_loading, "ROWS", 4)


@pytest.mark.usefixtures("four_rows")
def test_batches_that_were_overwritten_are_counted_where_they_lie_in_the_time(tmp_path):
    path = tmp_path / "0-1.worker"
    fetcher = timed(Fetcher(), WorkerLog(str(path), 0, 1, Clock()))
    for _ in range(7):
        fetcher.fetch([1])
    whole = read(path)
    assert whole.column("number").tolist() == [3, 4, 5, 6]
    assert whole.lost == 3
    late = read(path, begin_ns=int(whole.column("end_ns")[1]))
    assert late.column("number").tolist() == [5, 6]
    assert late.lost == 0


def test_a_recording_has_the_batches_that_were_made_since_it_began(notes, tmp_path):
    fetcher = timed(Fetcher(), notes)
    for _ in range(4):
        fetcher.fetch([1])
    # Batch n is made from 20 + 40 n to 50 + 40 n.
    path = tmp_path / "0-1.worker"
    assert read(path, 60).column("number").tolist() == [1, 2, 3]
    assert read(path, 90).column("number").tolist() == [2, 3]
    notes.end()
    ended = WorkerFile(path, 10**6)
    assert ended.read().tolist() == []
    assert not ended.is_of_recording


@pytest.mark.usefixtures("four_rows")
@given(between=st.lists(st.integers(0, 9), max_size=12), begun_before=st.integers(0, 6))
def test_each_batch_is_read_once_and_the_one_that_is_being_made_again(between, begun_before):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "0-1.worker")
        clock = Clock()
        notes = WorkerLog(str(path), 0, 1, clock)
        for _ in range(begun_before):
            notes.finish(notes.begin(1), MADE)
        file = WorkerFile(path, clock.now_ns)
        found, numbers = {}, []
        batches = 0
        for made in between:
            for _ in range(made):
                notes.finish(notes.begin(1), MADE)
            batches += made
            under_way = notes.begin(1)
            for _ in range(2):
                rows = file.read()
                numbers += rows[:, 0].tolist()
                found |= {row[0]: row for row in rows.tolist()}
            assert rows.tolist() == []
            assert found[begun_before + batches][4] == 0
            notes.finish(under_way, MADE)
            batches += 1
        found |= {row[0]: row for row in file.read().tolist()}
        made = {number for number, row in found.items() if row[4] > 0}
        # How many of those that were overwritten before the first look are the recording's is not known.
        assert len(made) + file.lost >= batches
        if max(between, default=0) <= 2:
            assert made == found.keys() == set(range(begun_before, begun_before + batches))
        assert max(map(numbers.count, numbers), default=0) <= 2


@given(data=st.binary(max_size=300), more=st.binary(max_size=300), damaged=st.booleans())
def test_any_bytes_are_read_or_refused(data, more, damaged):
    if damaged:
        data = HEADER.pack(loader_worker.MAGIC, 1, 2, 3, 4, 0) + data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.worker")
        file = WorkerFile(path, 0)
        for part in (data, data + more):
            path.write_bytes(part)
            rows = file.read()
            assert rows.shape[1] == len(BATCH_COLUMNS)
            assert rows.shape[0] <= max(len(part) - HEADER.size, 0) // ROW.size


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.floats(0, 1)), max_size=8),
    st.integers(0, 200),
    st.integers(1, 200),
)
def test_ranges_of_a_worker_lie_in_the_trace_nest_and_say_where_they_were_cut(batches, begin_ns, length_ns):
    rows, now_ns = [], 1
    for number, (idle_ns, busy_ns, share) in enumerate(batches):
        start_ns = now_ns + idle_ns
        now_ns = start_ns + busy_ns
        rows.append([number, start_ns, start_ns + int(busy_ns * share), now_ns, now_ns, 1, MADE])
    batches = np.array(rows, dtype=np.int64).reshape(-1, len(BATCH_COLUMNS))
    worker = WorkerBatches(77, 0, 1, 1, 0, batches, 0)
    builder = TraceBuilder()
    builder.thread()
    builder.stop_ns = length_ns
    trace = worker_trace(worker, begin_ns, builder.build())
    spans = trace.columns("spans")
    end = spans["start_ns"] + spans["duration_ns"]
    assert (spans["start_ns"] >= 0).all()
    assert (end <= length_ns).all()
    assert (spans["self_ns"] >= 0).all()
    names = [trace.strings[name] for name in spans["name"]]
    assert all(
        names[parent] == "DataLoader.fetch"
        for name, parent in zip(names, spans["parent"], strict=True)
        if name == "DataLoader.collate" and parent >= 0
    )
    fetches = np.array([name == "DataLoader.fetch" for name in names], dtype=bool)
    inside = [max(0, min(row[4], begin_ns + length_ns) - max(row[1], begin_ns)) for row in rows]
    assert spans["duration_ns"][fetches].sum() == sum(inside)
    flags = spans["flags"][fetches]
    assert ((flags & FLAG_BEGUN_BEFORE) != 0).sum() == sum(row[1] < begin_ns < row[4] for row in rows)
    assert ((flags & FLAG_UNFINISHED) != 0).sum() == sum(
        row[1] < begin_ns + length_ns < row[4] and row[4] > begin_ns for row in rows
    )


def test_a_batch_that_is_never_finished_goes_on_to_the_end():
    worker = WorkerBatches(77, 0, 1, 1, 0, np.array([[0, 20, 0, 0, 0, 1, MADE]]), 0)
    builder = TraceBuilder()
    builder.thread()
    builder.stop_ns = 100
    trace = worker_trace(worker, 0, builder.build())
    (row,) = trace.table("spans").select(["name", "start_ns", "duration_ns"]).to_pylist()
    assert row == {"name": "DataLoader.fetch", "start_ns": 20, "duration_ns": 80}


def dies_at_its_third_batch(path):
    fetcher = timed(
        Fetcher(lambda index: index if index != [2] else os.kill(os.getpid(), 9)), WorkerLog(path, 0, 1)
    )
    for number in range(3):
        fetcher.fetch([number])


def test_what_a_killed_worker_did_is_there_until_the_recording_is_over(tmp_path):
    path = tmp_path / "0-1.worker"
    worker = multiprocessing.get_context("fork").Process(target=dies_at_its_third_batch, args=(str(path),))
    worker.start()
    # Dead, but not yet asked for its exit code: its number is still taken.
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    batches = read(path)
    assert (batches.process, batches.ended_ns, batches.killed) == (worker.pid, 0, True)
    assert (batches.column("end_ns") > 0).tolist() == [True, True, False]
    worker.join()
    assert worker.exitcode == -9
    assert read(path).killed
    remove_obsolete(tmp_path)
    assert not path.exists()


def test_files_of_running_workers_are_kept(tmp_path):
    running = WorkerLog(str(tmp_path / "0-1.worker"), 0, 1)
    (tmp_path / "begun.worker").write_bytes(b"KLOA")
    remove_obsolete(tmp_path)
    assert read(tmp_path / "begun.worker").process == -1
    assert not read(tmp_path / "0-1.worker").killed
    running.end()
    remove_obsolete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["begun.worker"]
    remove_obsolete(None)


def test_a_worker_whose_id_belongs_to_a_younger_process_has_ended(tmp_path):
    # In the first nanosecond of this machine's uptime, this process was not there.
    WorkerLog(str(tmp_path / "0-1.worker"), 0, 1, clock=lambda: 1)
    assert read(tmp_path / "0-1.worker").killed
    remove_obsolete(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_fetcher_can_be_copied_and_other_objects_are_not_wrapped(notes):
    copied = copy.copy(timed(Fetcher(), notes))
    assert copied.fetch([1, 2]) == (1, 2)
    strange = object()
    assert timed(strange, notes) is strange
