"""Real loaders under a session: the same batches and random numbers, and what is known of how they were made."""

import functools
import gc
import os
import pickle
import random
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    get_worker_info,
)
from torch.utils.data import _utils as torchs
from torch.utils.data.dataloader import _DatasetKind, _MultiProcessingDataLoaderIter

import kinetoscope
from kinetoscope import DataLoading, profile, schedule
from kinetoscope.collect.sources.data_loading import HOOKS
from kinetoscope.collect.sources.loader_worker import RecordedLoop
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

CPU = [kinetoscope.ProfilerActivity.CPU]
FORK = {"num_workers": 2, "multiprocessing_context": "fork"}


class Numbers(Dataset):
    """Samples that depend on every source of random numbers there is."""

    def __init__(self, length=12):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        others = random.random(), np.random.rand()  # noqa: NPY002  (the state that torch seeds)
        return torch.tensor([index, *others, torch.rand(()).item()], dtype=torch.float64)


class Batched(Numbers):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, 10, step):
            yield torch.tensor([index, random.random(), torch.rand(()).item()], dtype=torch.float64)


class Nested(Numbers):
    """Uses a loader of its own."""

    def __getitem__(self, index):
        return torch.cat(list(DataLoader(Numbers(3), batch_size=2))).sum(0) + index


def backwards(samples):
    return torch.stack(samples[::-1])


LOADERS = {
    "none": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True),
    "fork": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True, **FORK),
    "getitems": lambda: DataLoader(Batched(), batch_size=5, drop_last=True, **FORK),
    "stream": lambda: DataLoader(Stream(), batch_size=3),
    "stream fork": lambda: DataLoader(Stream(), batch_size=3, **FORK),
    "persistent": lambda: DataLoader(Numbers(), batch_size=4, persistent_workers=True, **FORK),
    "collate": lambda: DataLoader(Numbers(), batch_size=4, collate_fn=backwards, **FORK),
    "sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(SequentialSampler(range(7)), 3, drop_last=False), **FORK
    ),
    "unbatched": lambda: DataLoader(Numbers(), batch_size=None, **FORK),
    "nested": lambda: DataLoader(Nested(4), batch_size=2, **FORK),
    "unordered": lambda: DataLoader(Numbers(), batch_size=4, in_order=False, **FORK | {"num_workers": 1}),
}


def seeded():
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    torch.manual_seed(7)


def states():
    numpys = np.random.get_state()[1].tolist()  # noqa: NPY002
    return random.getstate(), numpys, torch.get_rng_state().tolist()


def two_epochs(loader):
    return [batch.tolist() for _ in range(2) for batch in loader]


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_and_random_numbers_are_what_they_are_without_us(kind, native):  # noqa: F811
    seeded()
    expected, expected_states = two_epochs(LOADERS[kind]()), states()
    seeded()
    with profile(activities=CPU, engine=native, sources=[DataLoading()]) as prof:
        found = two_epochs(LOADERS[kind]())
    assert found == expected
    assert states() == expected_states
    trace = prof.trace
    assert trace.complete
    table = trace.table("data_loading").to_pylist()
    roles = [row["role"] for row in table]
    if kind in ("none", "stream"):
        assert roles == ["loop"]
        assert table[0]["batches"] == len(expected)
    else:
        workers = table[1:]
        # Without persistence each epoch has workers of its own.
        each = 1 if kind == "unordered" else 2
        assert roles == ["loop"] + ["worker"] * (each if kind == "persistent" else 2 * each)
        assert sum(row["batches"] for row in workers) == len(expected)
        assert {row["worker"] for row in workers} == set(range(each))
        for row in workers:
            assert row["busy_ns"] + row["idle_ns"] == row["alive_ns"]
            assert 0 < row["alive_ns"] < trace.duration_ns
    assert table[0]["wait_ns"] <= table[0]["alive_ns"]


def test_torch_is_as_before_when_the_session_is_over(native):  # noqa: F811
    def replaced():
        return (
            vars(_DatasetKind)["create_fetcher"],
            torchs.worker._worker_loop,
            _MultiProcessingDataLoaderIter.__init__,
            torchs.pin_memory.pin_memory,
        )

    before = replaced()
    with profile(activities=CPU, engine=native, sources=[DataLoading()]):
        assert all(ours is not theirs for ours, theirs in zip(replaced(), before, strict=True))
    assert replaced() == before
    first, second = DataLoading(), DataLoading()
    first.open()
    second.open()
    first.close()
    assert replaced() != before
    second.close()
    assert replaced() == before


def test_what_somebody_else_put_there_meanwhile_stays(monkeypatch):
    source = DataLoading()
    source.open()
    monkeypatch.setattr(torchs.pin_memory, "pin_memory", "somebody's")
    source.close()
    assert torchs.pin_memory.pin_memory == "somebody's"


def test_workers_are_processes_on_the_clock_of_the_loop(native):  # noqa: F811
    with profile(activities=CPU, engine=native, sources=[DataLoading()]) as prof:
        for _ in DataLoader(Numbers(8), batch_size=2, **FORK):
            torch.ones(2) + 1
    trace = prof.trace
    processes = trace.table("processes").to_pylist()
    assert [row["name"] for row in processes[1:]] == [
        "DataLoader 0, worker 0",
        "DataLoader 0, worker 1",
    ] or len(processes) == 3
    assert {row["parent"] for row in processes[1:]} == {os.getpid()}
    spans = trace.to_pandas("spans")
    fetches = spans[spans["name"] == "DataLoader.fetch"].sort_values("start_ns")
    waits = spans[spans["name"].str.startswith("enumerate(DataLoader)#")]
    assert len(fetches) == 4
    # No batch can have been handed over before it was made.
    handed_over = sorted(waits["start_ns"] + waits["duration_ns"])
    made = sorted(fetches["start_ns"] + fetches["duration_ns"])
    assert all(done <= over for done, over in zip(made, handed_over, strict=False))
    (known,) = trace.info["data_loading"]["loaders"].values()
    assert known == {
        "dataset": "Numbers", "batch_size": 2, "num_workers": 2, "prefetch_factor": 2, "persistent_workers": False,
        "pin_memory": False,
    }  # fmt: skip


def test_a_recording_has_what_workers_did_in_its_time_and_all_together_have_all(native, tmp_path):  # noqa: F811
    # One batch ahead for each worker: whichever is slow, it makes one between the first and the last step of a cycle.
    loader = DataLoader(Numbers(24), batch_size=2, persistent_workers=True, prefetch_factor=1, **FORK)
    with profile(
        activities=CPU,
        engine=native,
        sources=[DataLoading(), kinetoscope.SystemCounters(gpu=False)],
        acc_events=True,
        schedule=schedule(wait=1, warmup=1, active=4, repeat=2),
    ) as prof:
        for _ in loader:
            prof.step()
    cycles = [trace.table("data_loading").to_pylist() for trace in prof.cycles]
    assert [[row["role"] for row in table] for table in cycles] == [["loop", "worker", "worker"]] * 2
    whole = prof.cycles.together()
    together = whole.table("data_loading").to_pylist()
    assert [row["role"] for row in together] == ["loop", "worker", "worker"]
    assert together[0]["batches"] == sum(table[0]["batches"] for table in cycles)
    assert together[0]["alive_ns"] == sum(table[0]["alive_ns"] for table in cycles)
    for row in together[1:]:
        assert row["alive_ns"] == together[0]["alive_ns"]
        assert 0 < row["batches"] <= 6
    assert whole.table("steps").num_rows == 8
    assert len(whole.table("counters")) == sum(len(trace.table("counters")) for trace in prof.cycles)
    assert len(prof.key_averages()) > 0
    prof.save(tmp_path / "all.ktrace", cycle="all")
    with kinetoscope.open(tmp_path / "all.ktrace") as again:
        assert again.table("data_loading").to_pylist() == together


def test_workers_from_before_the_session_are_a_loss(native):  # noqa: F811
    batches = iter(DataLoader(Numbers(), batch_size=1, **FORK))
    with profile(activities=CPU, engine=native, sources=[DataLoading()]) as prof:
        next(batches)
    (loss,) = prof.trace.losses
    assert loss["code"] == "workers_not_recorded"
    assert "start it before the loop" in loss["why"]


class Failing(Numbers):
    def __getitem__(self, index):
        if index == 3:
            raise KeyError("sample 3")
        return super().__getitem__(index)


@pytest.mark.parametrize("options", [{}, FORK], ids=["none", "fork"])
def test_the_error_of_a_dataset_is_the_programs(options, native):  # noqa: F811
    with profile(activities=CPU, engine=native, sources=[DataLoading()]) as prof:
        batches = iter(DataLoader(Failing(), batch_size=2, **options))
        with pytest.raises(KeyError, match="sample 3"):
            list(batches)
        if options:
            # Left to the garbage collector, torch waits for seconds for its workers.
            batches._shutdown_workers()
    assert prof.trace.table("data_loading").num_rows == (3 if options else 1)


def test_workers_go_when_a_loop_is_left(native):  # noqa: F811
    with profile(activities=CPU, engine=native, sources=[DataLoading()]):
        batches = iter(DataLoader(Numbers(), batch_size=1, **FORK))
        next(batches)
        workers = batches._workers
        gc.disable()
        try:
            del batches
            assert not any(worker.is_alive() for worker in workers)
        finally:
            gc.enable()


def test_the_end_of_a_worker_that_is_killed_is_unknown_and_told_as_a_loss(native):  # noqa: F811
    with profile(activities=CPU, engine=native, sources=[DataLoading()]) as prof:
        batches = iter(DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork"))
        next(batches)
        # Else torch raises its error as soon as it hears of it, wherever the program is.
        torch._C._remove_worker_pids(id(batches))
        batches._worker_pids_set = False
        (worker,) = batches._workers
        worker.kill()
        worker.join()
    trace = prof.trace
    assert [loss["code"] for loss in trace.losses] == ["killed_workers"]
    (row,) = [row for row in trace.table("data_loading").to_pylist() if row["role"] == "worker"]
    assert (row["process"], row["batches"] > 0) == (worker.pid, True)
    # It is not there any more in what is recorded later.
    with profile(activities=CPU, engine=native, sources=[DataLoading()]) as later:
        list(DataLoader(Numbers(2)))
    assert [row["role"] for row in later.trace.table("data_loading").to_pylist()] == ["loop"]


def test_a_close_that_is_interrupted_is_finished_by_the_next():
    """When a worker dies, torch's handler of that signal raises wherever the program is, which may be here."""
    before = torchs.worker._worker_loop
    source = DataLoading()
    source.open()
    replaced = HOOKS._replaced._replaced
    owner, name, theirs, ours = replaced[1]
    replaced[1] = Interrupted(owner), name, theirs, ours
    with pytest.raises(RuntimeError, match="killed"):
        source.close()
    source.open()
    assert torchs.worker._worker_loop.loop is before
    source.close()
    assert torchs.worker._worker_loop is before


class Interrupted:
    """A module that can be changed at the second try only."""

    def __init__(self, module):
        vars(self).update(vars(module), _module=module, _tries=0)

    def __setattr__(self, name, value):
        tries = vars(self)["_tries"] = self._tries + 1
        if tries == 1:
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")
        setattr(self._module, name, value)


@pytest.mark.parametrize(
    "loop", [functools.partial(print), torchs.worker._worker_loop], ids=["partial", "torch's"]
)
def test_a_loop_goes_to_a_spawned_worker_as_what_it_is(loop):
    again = pickle.loads(pickle.dumps(RecordedLoop(RecordedLoop(loop, "there", int), "folder", lambda: 7)))
    assert (repr(again.loop), again._folder, again._number_of_loader()) == (repr(loop), "folder", 7)


def test_a_session_that_does_not_record_keeps_no_files_of_past_epochs(native):  # noqa: F811
    source = DataLoading()
    source.open()
    try:
        for _ in range(3):
            list(DataLoader(Numbers(2), num_workers=1, multiprocessing_context="fork"))
        assert len(list(HOOKS.folder.glob("*.worker"))) == 1
    finally:
        source.close()


def test_a_loader_with_odd_attributes_is_not_changed(native):  # noqa: F811
    class Strange(DataLoader):
        @property
        def prefetch_factor(self):
            if sys._getframe(1).f_code.co_name == "_described":
                raise KeyError("not for you")
            return 2

        @prefetch_factor.setter
        def prefetch_factor(self, value):
            pass

    with profile(activities=CPU, engine=native, sources=[DataLoading()]) as prof:
        assert len(list(Strange(Numbers(2), num_workers=1, multiprocessing_context="fork"))) == 2
    assert prof.trace.info["data_loading"]["loaders"].popitem()[1] == {}


def test_files_of_workers_are_removed_when_no_recording_can_have_a_use_for_them(native):  # noqa: F811
    def epoch():
        with profile(activities=CPU, engine=native, sources=[DataLoading()]) as prof:
            list(DataLoader(Numbers(4), batch_size=2, **FORK))
        return prof

    def files():
        return {path.name for path in HOOKS.folder.glob("*.worker")}

    epoch()
    first = files()
    epoch()
    assert not first & files()


def test_a_pinning_thread_and_its_work_are_seen(native, monkeypatch):  # noqa: F811
    """There is no device here that memory could be pinned for: the thread is torch's, what it pins says so itself."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    with profile(activities=CPU, engine=native, sources=[DataLoading()]) as prof:
        batches = list(DataLoader(Numbers(4), batch_size=2, collate_fn=Pinnable, pin_memory=True, **FORK))
    assert [batch.pinned for batch in batches] == [True, True]
    (row,) = [row for row in prof.trace.table("data_loading").to_pylist() if row["role"] == "pinning"]
    assert (row["batches"], row["pin_ns"]) == (2, row["busy_ns"])


class Pinnable:
    def __init__(self, samples):
        self.samples = samples
        self.pinned = False

    def pin_memory(self):
        self.pinned = True
        return self


def test_spawned_workers_tell_the_same(native):  # noqa: F811
    loader = DataLoader(Numbers(6), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    seeded()
    with profile(activities=CPU, engine=native, sources=[DataLoading()]) as prof:
        found = [batch.tolist() for batch in loader]
    found_states = states()
    seeded()
    # A forked worker is the same worker, and quicker to begin.
    loader = DataLoader(Numbers(6), batch_size=2, num_workers=1, multiprocessing_context="fork")
    assert found == [batch.tolist() for batch in loader]
    assert found_states == states()
    trace = prof.trace
    row = trace.table("data_loading").to_pylist()[1]
    assert (row["role"], row["worker"], row["batches"]) == ("worker", 0, 3)
    assert 0 < row["busy_ns"] <= row["alive_ns"] < trace.duration_ns
    assert trace.complete
