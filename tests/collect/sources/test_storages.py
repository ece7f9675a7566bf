"""Which tensors hold which memory: what a recording of real programs says of them, and that nothing of it is felt."""

import contextlib
import gc
import json
import os
import sys
import threading
import weakref
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="what is recorded are torch programs")

import torch
from torch import nn

import kinetoscope
from kinetoscope._runtime import live_objects
from kinetoscope.collect.engines import kineto as kineto_module
from kinetoscope.collect.recorder.library import load_recorder
from kinetoscope.collect.sources import storages as storages_module
from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS
from kinetoscope.collect.sources.storages import Living, StorageWatch, native_reader
from kinetoscope.model.schema import StorageRole
from kinetoscope.storage.recording import add_storages
from kinetoscope.tables.memory.categories import CATEGORY_NAMES, MemoryCategory, judged_blocks
from kinetoscope.tables.memory.peak import peak
from kinetoscope.trace import Trace
from tests.support import tensor_reader, warm_python
from tests.support.recorded import CPU, profile
from tests.support.tensor_reader import TensorReader


@pytest.fixture(autouse=True)
def one_thread(monkeypatch, request):
    """Hides the second thread of pytest-xdist's workers, which only waits for messages, from the reader in Python."""
    if "another_thread" not in request.fixturenames:
        monkeypatch.setattr(tensor_reader, "is_only_thread", lambda: True)


@pytest.fixture
def another_thread():
    """Runs a function in a thread that has begun, until the test has ended."""
    go_on = threading.Lock()
    began = threading.Event()
    go_on.acquire()

    def run():
        began.set()
        go_on.acquire()

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    yield thread
    go_on.release()
    thread.join()


@pytest.fixture(autouse=True)
def nothing_of_other_tests():
    """Hides what the tests before it left from Python's collector, and so from the look at what was there before."""
    gc.collect()
    gc.freeze()


def watch(modules=()):
    return StorageWatch(Living(TensorReader()), lambda tensors: None, lambda: list(modules))


READERS = pytest.mark.parametrize(
    "make_reader", [TensorReader, lambda: native_reader(load_recorder())], ids=["python", "native"]
)


def rows_in(texts):
    """What parts of the table `storages` say, or their JSON texts, as a set of rows."""
    parts = [json.loads(text) if isinstance(text, str) else text for text in texts]
    tables = {}
    strings, lost = add_storages(tables, parts, [""], 0)
    assert not any(lost.values())
    if "storages" not in tables:
        return set()
    columns = {name: values.tolist() for name, values in tables["storages"].items() if name != "module"}
    columns["name"] = [strings[name] for name in columns["name"]]
    return set(zip(*(columns[name] for name in sorted(columns)), strict=True))


def addresses_met(reader):
    """The addresses of the living storages that a reader met."""
    reader.begin(1, True)
    reader.rest(set())
    # Columns in order of their names: the address comes first.
    return {row[0] for row in rows_in(reader.take())}


def bytes_by_category(trace, *, recorded=False):
    """The bytes of all blocks of a trace, or of those allocated in it, by category.

    Models and optimizers of other tests may live on in this process, and belong to what was there before.
    """
    judged = judged_blocks(trace)
    counted = (judged.blocks.allocation >= 0) | (not recorded)
    return {
        name: int(judged.blocks.bytes[counted & (judged.category == place)].sum())
        for place, name in enumerate(CATEGORY_NAMES)
    }


def test_roles_of_a_model_that_lives_before_and_after():
    model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(4, 10)
    with profile(profile_memory=True) as prof:
        model(x).sum().backward()
        optimizer.step()
    storages, paths = prof.trace.columns("storages"), prof.trace.column("modules", "path")
    found = {
        (StorageRole(role).name, paths[module] if module >= 0 else None, prof.trace.strings[name], int(size))
        for role, module, name, size in zip(
            *(storages[column].tolist() for column in ("role", "module", "name", "bytes")), strict=True
        )
    }
    assert {
        ("PARAMETER", "0", "weight", 400),
        ("PARAMETER", "1", "bias", 40),
        ("BUFFER", "1", "running_mean", 40),
        ("GRADIENT", "0", "weight", 400),
        ("OPTIMIZER_STATE", "0", "momentum_buffer", 400),
        ("TENSOR", None, "", 160),
    } <= found
    times, named = storages["time_ns"], storages["module"] >= 0
    assert (times[(storages["role"] == StorageRole.OPTIMIZER_STATE) & named] > 0).all()
    assert (times[storages["role"] == StorageRole.TENSOR] < 0).all()


def test_what_an_optimizer_holds_is_in_the_file_while_the_program_runs(tmp_path):
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    path = tmp_path / "live.recording"
    with profile(profile_memory=True, path=path):
        model(torch.ones(4, 10)).sum().backward()
        optimizer.step()
        # As if the process were killed here.
        live = Trace.from_recording(path)
    storages = live.columns("storages")
    state = storages["role"] == StorageRole.OPTIMIZER_STATE
    names = {live.strings[name] for name in storages["name"][state].tolist()}
    assert "momentum_buffer" in names
    assert set(storages["bytes"][state].tolist()) >= {400, 40}


def test_memory_from_before_that_is_freed_while_recording_counts_until_then():
    kept, gone = torch.ones(1000), torch.ones(2000)
    with profile(profile_memory=True) as prof:
        torch.ones(3000)
        del gone
        torch.ones(10)
    judged = judged_blocks(prof.trace)
    before = judged.blocks.start_ns < 0
    ended = {
        int(size): end < np.iinfo(np.int64).max
        for size, end in zip(judged.blocks.bytes[before], judged.blocks.end_ns[before], strict=True)
    }
    assert ended[8000]
    assert not ended[4000]
    assert kept.numel() == 1000


def test_a_model_that_dies_before_the_end_is_known_by_its_optimizer():
    def train():
        model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.BatchNorm1d(10, affine=False))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(4, 10)).sum().backward()
        optimizer.step()

    with profile(profile_memory=True) as prof:
        train()
    found = bytes_by_category(prof.trace, recorded=True)
    assert found["parameter"] == 400 + 40 + 40 + 8
    assert found["optimizer state"] == 400 + 400 + 4
    assert found["gradient"] == 400


def test_nothing_of_the_program_is_kept_alive_and_no_hook_stays():
    watching = watch()
    watching.start()
    assert len(OPTIMIZER_STEPS) == 2
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    gone = [weakref.ref(thing) for thing in (model, optimizer, model.weight)]
    del model, optimizer
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]
    watching.stop()
    assert len(OPTIMIZER_STEPS) == 0


def test_a_session_that_fails_to_start_leaves_no_hook(tmp_path):
    with pytest.raises(kinetoscope.RecorderError):
        profile(profile_memory=True, path=tmp_path / "no folder" / "a.recording").start()
    assert len(OPTIMIZER_STEPS) == 0


def test_only_recordings_of_memory_watch():
    with profile():
        assert len(OPTIMIZER_STEPS) == 0


def rows_of(*tensors):
    """What a watch notes of parameters with these tensors as their data."""
    model = nn.Module()
    for place, tensor in enumerate(tensors):
        model.register_buffer(f"b{place}", tensor)
    watching = watch([model])
    watching.stop()
    watching._scan_module(0, model)
    return watching._seen


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: torch.ones(10), 1),
        (lambda: torch.ones(10)[2:5], 1),
        (lambda: torch.empty(0), 0),
        (lambda: torch.ones(10, device="meta"), 0),
        (lambda: torch.eye(3).to_sparse(), 2),
        (lambda: torch.eye(3).to_sparse_csr(), 3),
        (lambda: torch.eye(3).to_sparse_csc(), 3),
        (lambda: torch.quantize_per_tensor(torch.ones(10), 0.1, 0, torch.qint8), 1),
        (lambda: torch.from_numpy(np.ones(5)), 1),
    ],
    ids=["plain", "view", "empty", "meta", "coo", "csr", "csc", "quantized", "numpy"],
)
@pytest.mark.filterwarnings("ignore:Sparse CS", "ignore:.*quantize_per_tensor")
def test_tensors_of_every_layout(make, parts):
    seen = rows_of(make())
    assert len(seen.rows) == parts
    assert all(row[3] >= 10 for row in seen.rows)
    assert seen.skipped == 0


class Strange(torch.Tensor):
    """A tensor that answers nothing."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("strange")


def test_a_tensor_that_cannot_be_read_is_counted_as_a_loss():
    model = nn.Linear(2, 2)
    model.register_buffer("strange", torch.ones(3).as_subclass(Strange))
    with profile(profile_memory=True) as prof:
        model(torch.ones(1, 2))
    losses = {loss["code"]: loss["count"] for loss in prof.trace.losses}
    assert losses.get("skipped_storages", 0) >= 1


def test_a_lazy_module_and_fake_tensors_are_no_loss():
    from torch._subclasses.fake_tensor import FakeTensorMode

    lazy = nn.LazyLinear(3)
    with FakeTensorMode():
        fake = torch.ones(3)
    seen = rows_of(fake)
    watching = watch()
    watching._scan_module(0, lazy)
    assert (seen.rows, seen.skipped, watching._seen.rows, watching._seen.skipped) == ([], 0, [], 0)


# torch 2.8's LBFGS itself converts the loss, whose gradient it needs, to a number.
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning")
def test_an_optimizer_whose_state_is_nested():
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.LBFGS([weight], max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    watching = watch()
    watching.start()
    optimizer.step(closure)
    watching._seen.rows.clear()
    watching._scan_optimizer(0, optimizer)
    watching.cancel()
    names = {row[8] for row in watching._seen.rows if row[1] == StorageRole.OPTIMIZER_STATE}
    assert {"d", "old_dirs", "prev_flat_grad"} <= names


def test_long_metadata_comes_in_parts_that_the_recorder_takes(monkeypatch):
    monkeypatch.setattr(storages_module, "_ROWS_IN_A_PART", 10)
    model = nn.ParameterList(torch.ones(2) for _ in range(25))
    watching = watch([model])
    parts = watching.stop()
    assert [len(part["address"]) for part in parts] == [10, 10, 5]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_optimizer_step_runs_as_before():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = torch.compile(optimizer.step, backend="eager")

    def train():
        model(torch.ones(2, 4)).sum().backward()
        step()

    train()
    with profile(profile_memory=True) as prof:
        train()
        train()
    assert bytes_by_category(prof.trace)["optimizer state"] >= 80
    assert peak(prof.trace).bytes > 0


def test_the_order_of_categories_is_that_of_torch():
    from torch.profiler._memory_profiler import _CATEGORY_TO_INDEX

    theirs = {
        category.name if category else "UNKNOWN": place for category, place in _CATEGORY_TO_INDEX.items()
    }
    assert theirs == {category.name: category.value for category in MemoryCategory}


def test_torchs_own_collector_has_categories_too():
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with kinetoscope.profile(activities=CPU, engine="kineto", profile_memory=True) as prof:
        model(torch.ones(4, 10)).sum().backward()
        optimizer.step()
    assert len(OPTIMIZER_STEPS) == 0
    found = bytes_by_category(prof.trace)
    assert found["parameter"] >= 440
    assert found["optimizer state"] >= 440
    assert found["gradient"] >= 440
    assert bytes_by_category(prof.trace, recorded=True)["activation"] == 160 + 4
    assert not [key for key in prof.trace.info if key.startswith("storages")]


def test_without_the_recorder_the_categories_are_a_loss(monkeypatch):
    monkeypatch.setattr(kineto_module, "ready_recorder", lambda: None)
    with kinetoscope.profile(activities=CPU, engine="kineto", profile_memory=True) as prof:
        torch.ones(10)
    assert "storages_not_read" in [loss["code"] for loss in prof.trace.losses]
    assert 40 in judged_blocks(prof.trace).blocks.bytes


def test_torchs_own_collector_links_backward_to_the_forward_operator():
    model = nn.Linear(3, 3)
    with kinetoscope.profile(activities=CPU, engine="kineto") as prof:
        model(torch.ones(4, 3)).sum().backward()
    spans, strings = prof.trace.columns("spans"), prof.trace.strings
    linked = {
        strings[name]: strings[spans["name"][forward]]
        for name, forward in zip(spans["name"].tolist(), spans["forward"].tolist(), strict=True)
        if forward >= 0
    }
    assert linked == {"SumBackward0": "aten::sum", "AddmmBackward0": "aten::addmm", "TBackward0": "aten::t"}


class Wrapped(torch.Tensor):
    """A tensor around another, which lists more than tensors as its parts, as DTensor does."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape)
        made.inner, made.mesh = inner, "a mesh"
        return made

    def __tensor_flatten__(self):
        return ["inner", "mesh"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError


def test_a_wrapper_is_looked_into():
    seen = rows_of(Wrapped(torch.ones(10)))
    assert [row[3] for row in seen.rows] == [40]
    assert seen.skipped == 0


def bytes_from_before(session):
    """The sizes of the blocks that were there before the session's last recording began, each with whether it was freed."""
    judged = judged_blocks(session.trace)
    before = judged.blocks.start_ns < 0
    ended = judged.blocks.end_ns[before] < np.iinfo(np.int64).max
    return dict(zip(judged.blocks.bytes[before].tolist(), ended.tolist(), strict=True))


@pytest.mark.parametrize("collected", [(), (0,), (1,), (0, 1), (2,), (0, 0, 1, 2)])
def test_a_later_recording_knows_what_was_allocated_since_the_first_one(collected):
    session = profile(profile_memory=True)
    older = torch.ones(1000)
    with session:
        during = torch.ones(2000)
    session.trace
    between, gone = torch.ones(3000), torch.ones(4000)
    model = nn.Linear(70, 70, bias=False)
    for generation in collected:
        gc.collect(generation)
    view = gone[10:]
    del gone
    with session:
        del view
        torch.ones(10)
    found = bytes_from_before(session)
    assert found[16000]
    assert [found.get(4 * len(kept)) for kept in (older, during, between)] == [False, False, False]
    assert found[4 * 70 * 70] is False
    categories = judged_blocks(session.trace)
    weight = categories.blocks.bytes == 4 * 70 * 70
    assert model.weight.shape == (70, 70)
    assert categories.category[weight].tolist() == [MemoryCategory.PARAMETER]


def test_only_the_first_recording_of_a_process_scans_all_objects(monkeypatch):
    asked = []

    def noting(kinds, generation=None):
        asked.append(generation)
        return live_objects(kinds, generation)

    monkeypatch.setattr(storages_module, "live_objects", noting)
    storages_module.living_in_process.cache_clear()
    session = profile(profile_memory=True)
    for one in (session, session, profile(profile_memory=True)):
        with one:
            torch.ones(10)
        one.trace
    assert asked.count(None) == (1 if storages_module._HAS_GENERATIONS else 3)


@pytest.mark.parametrize("together", [False, True])
def test_a_later_session_knows_what_came_into_being_before_it(together):
    """Also with a session beside it, which knows what it has seen itself: they share what was met, and no rows."""
    with profile(profile_memory=True):
        torch.ones(10)
    model, old, young = nn.Linear(70, 70, bias=False), torch.ones(1000), torch.ones(3000)
    gc.collect()
    young = torch.ones(2000)
    other = profile(profile_memory=True)
    with other if together else contextlib.nullcontext():
        kept = torch.ones(4000)
        with profile(profile_memory=True) as session:
            model(torch.ones(2, 70))
            del old, young
    found = bytes_from_before(session)
    assert [found.get(size) for size in (4 * 1000, 4 * 2000)] == [True, True]
    assert [found.get(size) for size in (4 * 3000, 4 * 70 * 70)] == [None, False]
    if together:
        assert found[kept.nbytes] is False
        assert kept.nbytes not in bytes_from_before(other)
        assert bytes_from_before(other)[4 * 1000]


def test_sessions_on_many_threads_scan_one_at_a_time():
    layers = [nn.Linear(70 + number, 70, bias=False) for number in range(4)]
    begun, found = threading.Barrier(len(layers)), {}

    def work(number):
        for _ in range(5):
            begun.wait()
            with profile(profile_memory=True) as session:
                begun.wait()
            found[number] = bytes_from_before(session)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(layers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for before in found.values():
        assert [before.get(layer.weight.nbytes) for layer in layers] == [False] * len(layers)


@pytest.mark.skipif(not storages_module._HAS_GENERATIONS, reason="Python's collector is not followed here")
def test_many_new_objects_make_the_next_look_a_new_scan():
    living = Living(TensorReader())
    living.look()
    kept = nn.Linear(3, 3)
    living._worth = 10
    gc.collect(1)
    assert living._owners is None
    modules, _, _ = living.look()
    assert any(module is kept for module in modules)
    assert living._worth > 10


@pytest.mark.parametrize("when", ["before the first", "before the second"])
def test_objects_hidden_by_gc_freeze_are_found(frozen_is_seen, when):
    session = profile(profile_memory=True, record_shapes=False)
    if when == "before the second":
        with session:
            torch.ones(10)
        session.trace
    model, unused = nn.Linear(70, 70, bias=False), nn.Linear(90, 90, bias=False)
    gc.freeze()
    seen = torch.ones(1000)
    with session:
        for _ in range(2):
            model(torch.ones(2, 70))
    found = bytes_from_before(session)
    assert [found.get(kept.nbytes) for kept in (model.weight, unused.weight, seen)] == [False] * 3
    judged = judged_blocks(session.trace)
    for weight in (model.weight, unused.weight):
        mine = judged.blocks.key == weight.data_ptr()
        assert judged.category[mine].tolist() == [MemoryCategory.PARAMETER]


def test_storages_from_before_that_are_resized_in_place():
    # In a process of its own: a storage keeps the allocator that torch had when it was made, before any recording.
    done = warm_python.run("-c", """
import json, torch
from kinetoscope.tables.memory.categories import judged_blocks
from kinetoscope.tables.memory.peak import peak
from tests.support.recorded import profile

larger, empty, emptied, freed = torch.ones(1000), torch.empty(0), torch.ones(5000), torch.ones(3000)
with profile(profile_memory=True) as prof:
    larger.resize_(20_000)
    empty.untyped_storage().resize_(4 * 30_000)
    emptied.untyped_storage().resize_(0)
    del freed
blocks = judged_blocks(prof.trace).blocks
lives = blocks.end_ns == (1 << 63) - 1
live = dict(zip(blocks.key[lives].tolist(), blocks.bytes[lives].tolist()))
print(json.dumps({
    "live": [live.get(tensor.untyped_storage().data_ptr()) for tensor in (larger, empty)],
    "ended": blocks.bytes[~lives].tolist(),
    "grown": peak(prof.trace).bytes - int(blocks.bytes[blocks.start_ns < 0].sum()),
}))
""")  # fmt: skip
    found = json.loads(done.stdout)
    assert found["live"] == [80_000, 120_000]
    assert sorted(found["ended"]) == [4000, 12_000, 20_000]
    # Both blocks of a storage that grows live for a moment, but the first one is gone before the next storage grows.
    assert found["grown"] == 80_000 + 120_000 - 4000


@READERS
def test_forgetting_memory_that_was_freed_causes_no_warning(monkeypatch, make_reader):
    # Those of torch 2.8 and older come from a finalizer, in which an exception goes to this hook.
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: ignored.append(event.exc_value))
    living, kept = Living(make_reader()), [torch.ones(3) for _ in range(4)]
    living.look()
    assert living.reader.met() >= len(kept)
    kept.clear()
    living._worth = 0
    gc.collect(1)
    living.look()
    assert not ignored


@pytest.mark.skipif(not storages_module._HAS_GENERATIONS, reason="Python's collector is not followed here")
def test_nothing_is_followed_when_the_session_is_gone():
    before = len(gc.callbacks)
    living = Living(TensorReader())
    living.look()
    assert len(gc.callbacks) == before + 1
    del living
    assert len(gc.callbacks) == before


@READERS
def test_known_tensors_are_not_kept_alive_and_can_be_swapped(make_reader):
    living = Living(make_reader())
    tensor, other = torch.ones(5), torch.zeros(5)
    model, storage = nn.Linear(3, 3), tensor.untyped_storage()
    assert any(module is model for module in living.look()[0])
    torch.utils.swap_tensors(tensor, other)
    address = storage.data_ptr()
    assert address in addresses_met(living.reader)
    gone = weakref.ref(model)
    del model, other, storage
    gc.collect()
    assert gone() is None
    assert address not in addresses_met(living.reader)


def test_a_garbage_collection_during_a_listing_does_no_harm():
    known = dict.fromkeys(range(5000))
    threshold, sizes = gc.get_threshold(), []

    def meets(phase, info):
        sizes.append(len(known))
        known[object()] = None

    gc.callbacks.append(meets)
    gc.set_threshold(1)
    try:
        assert len(list(known.copy().items())) >= 5000
        gc.collect()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(meets)
    assert len(sizes) > 0


class Shouting(torch.Tensor):
    """A class of tensors that is not torch's own."""


def models():
    """Modules and optimizers whose tensors are plain, or not, each with what keeps more of them alive."""
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    tied[1].weight = tied[0].weight
    yield "tied", tied, torch.optim.Adam(tied.parameters())

    plain = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    yield "plain", plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)

    sparse = nn.Sequential(nn.Embedding(7, 3, sparse=True), nn.Linear(3, 1))
    yield "sparse gradient", sparse, torch.optim.SparseAdam([sparse[0].weight])

    strange = nn.Linear(6, 1)
    strange.register_buffer("shouting", torch.ones(9).as_subclass(Shouting))
    strange.register_buffer("nothing", torch.empty(0))
    strange.register_buffer("none", None)
    strange.register_buffer("meta", torch.empty(5, device="meta"))
    strange.register_buffer("csr", torch.eye(3).to_sparse_csr())
    strange.register_buffer("quantized", torch.quantize_per_tensor(torch.ones(11), 0.1, 0, torch.qint8))
    strange.register_buffer("view", torch.ones(40)[3:9])
    strange.register_buffer("n" * 80, torch.ones(13))
    strange.register_buffer('a "quoted" näme', torch.ones(17))
    strange.register_buffer("nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    yield "strange", strange, torch.optim.Adagrad([strange.weight])

    outside = nn.Parameter(torch.ones(23))
    yield "outside", nn.Identity(), torch.optim.AdamW([outside, *nn.Linear(2, 2).parameters()])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("name", ["tied", "plain", "sparse gradient", "strange", "outside"])
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
def test_both_readers_say_the_same(name, monkeypatch):
    model, optimizer = next((model, optimizer) for made, model, optimizer in models() if made == name)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(optimizer, torch.optim.SparseAdam):
                parameter.grad = torch.ones_like(parameter).to_sparse(1)
            else:
                parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    # The first optimizer of a process imports Dynamo, which leaves it in a cycle of garbage that either reader could meet.
    gc.collect()
    tensors = [torch.ones(31)[2:], torch.ones(2, 2).to_sparse(), torch.ones(3).as_subclass(Shouting)]
    monkeypatch.setattr(storages_module.time, "time_ns", lambda: 10**18)
    found = []
    for make_reader in (TensorReader, lambda: native_reader(load_recorder())):
        living = Living(make_reader())
        watching = StorageWatch(living, lambda tensors: None, lambda: list(model.modules()))
        started = watching.start()
        stopped = watching.stop()
        assert not [part for part in (*started, *stopped) if "counts" in part]
        found.append((rows_in(started), rows_in(stopped)))
    (first, last), (native_first, native_last) = found
    assert last == native_last
    assert len(last) >= 3
    # What the two looks themselves leave behind differs.
    addresses = {(row[0], row[5]) for row in first ^ native_first}
    mine = {tensor.data_ptr() for tensor in (tensors[0], tensors[1]._values(), *model.parameters())}
    assert not mine & {address for address, _ in addresses}
    assert {row for row in first if row[5] != StorageRole.TENSOR} == {
        row for row in native_first if row[5] != StorageRole.TENSOR
    }


def test_ordered_and_other_states_of_optimizers_are_read_alike():
    reader = native_reader(load_recorder())
    parameter, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))
    state = {
        parameter: {"step": 3, "average": torch.ones(5), "rate": 0.5, "never": None},
        other: OrderedDict(average=torch.ones(6)),
        "shared": {"list": [torch.ones(7)]},
    }
    reader.begin(1, True)
    assert [key if isinstance(key, str) else id(key) for key in reader.state(state)] == [id(other), "shared"]
    assert {row[1] for row in rows_in(reader.take())} == {20}


def test_an_optimizer_waits_to_be_scanned_until_another_scan_has_ended():
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters())
    inside, scanned_meanwhile = threading.Event(), []

    def running():
        if threading.current_thread() is trainer:
            inside.set()
        else:
            trainer.start()
            # The trainer's scan would let this one read the gradients that only the trainer may read.
            scanned_meanwhile.append(inside.wait(0.3))
        return [model]

    watching = StorageWatch(Living(native_reader(load_recorder())), lambda tensors: None, running)

    def step():
        watching._after_step(optimizer, (), {})

    trainer = threading.Thread(target=step)
    optimizer.step()
    watching._remember(optimizer)
    watching.stop()
    trainer.join()
    assert inside.is_set()
    assert scanned_meanwhile == [False]


def test_native_parts_are_short_and_whole():
    reader = native_reader(load_recorder())
    kept = [torch.ones(1 + number % 3) for number in range(4500)]
    assert reader.meet(kept) == []
    reader.begin(7, True)
    reader.rest({kept[0].untyped_storage()._cdata})
    parts = reader.take()
    assert len(parts) == 3
    assert max(map(len, parts)) < 100_000
    rows = rows_in(parts)
    assert {(row[0], row[1]) for row in rows} == {(tensor.data_ptr(), tensor.nbytes) for tensor in kept[1:]}
    assert reader.take() == []


def test_a_failed_scan_leaves_no_rows():
    reader = native_reader(load_recorder())
    kept = torch.ones(3)
    reader.meet([kept])
    reader.begin(7, True)
    reader.rest(set())
    reader.begin(8, True)
    assert reader.take() == []
    assert kept.shape == (3,)


def a_trained_layer():
    layer = nn.Linear(3, 3)
    layer(torch.ones(2, 3)).sum().backward()
    return layer


def roles_read(reader, layer, *, own=()):
    reader.begin(1, True)
    reader.own(list(own))
    assert reader.modules([layer]) in ([], [layer])
    return [reader.gradient(parameter) is not None for parameter in layer.parameters()]


@READERS
def test_gradients_that_another_thread_may_replace_are_not_read(make_reader, another_thread):
    """`parameter.grad = None` releases the GIL while the parameter refers to a gradient that is being freed."""
    layer, reader = a_trained_layer(), make_reader()
    assert roles_read(reader, layer) == [False, False]
    assert reader.unread() == 2
    assert roles_read(reader, layer, own=[layer.weight]) == [True, False]
    assert reader.unread() == 1
    layer.weight.requires_grad_(False)
    layer.bias.requires_grad_(False)
    assert roles_read(reader, layer) == [False, False]
    assert reader.unread() == 0, "what is not trained has no gradient to miss"


# The number of the system call `read`: of x86-64 and of arm64.
READ_CALLS = ("0", "63")


def waits_for(what):
    """Starts a thread that waits, and returns it with what ends its wait."""
    if what == "an event":
        wake = threading.Event()
        return threading.Thread(target=wake.wait), wake.set
    if what == "input":
        reading, writing = os.pipe()
        return threading.Thread(target=lambda: os.read(reading, 1)), lambda: os.write(writing, b"x")
    assert what == "input, inside torch"
    reading, writing = os.pipe()
    # A function that says that it is torch's, as one that runs hooks of a backward pass.
    file = f"{storages_module.TORCH_FOLDER}autograd/graph.py"
    names = {"read": lambda: os.read(reading, 1)}
    exec(compile("def engine():\n    read()\n", file, "exec"), names)
    return threading.Thread(target=names["engine"]), lambda: os.write(writing, b"x")


def calls_of(thread):
    """What the system says of a thread: which call it is in."""
    return Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0]


@pytest.mark.parametrize(
    ("what", "read"), [("an event", True), ("input", True), ("input, inside torch", False)]
)
def test_gradients_are_read_while_other_threads_wait(what, read):
    layer, reader = a_trained_layer(), native_reader(load_recorder())
    thread, wake = waits_for(what)
    thread.start()
    before = roles_read(reader, layer) if what == "input, inside torch" else None
    while what == "an event" and (
        sys._current_frames()[thread.ident].f_code is not threading.Condition.wait.__code__
    ):
        os.sched_yield()
    while what != "an event" and calls_of(thread) not in READ_CALLS:
        os.sched_yield()
    found = roles_read(reader, layer)
    wake()
    thread.join()
    assert found == [read, read]
    assert before in (None, [False, False])


def test_a_gradient_that_is_being_freed_by_another_thread_is_no_gradient():
    layer, reader = a_trained_layer(), native_reader(load_recorder())
    entered, go_on = threading.Event(), threading.Lock()
    go_on.acquire()

    def freed(_):
        entered.set()
        go_on.acquire()

    watched = weakref.ref(layer.weight.grad, freed)

    def clear():
        layer.weight.grad = None

    thread = threading.Thread(target=clear)
    thread.start()
    entered.wait()
    assert roles_read(reader, layer) == [False, False]
    rows = rows_in(reader.take())
    go_on.release()
    thread.join()
    assert watched() is None
    assert StorageRole.GRADIENT not in {value for row in rows for value in row}


def test_an_optimizer_whose_parameters_cannot_be_read_steps_as_before():
    optimizer = torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1)
    watching = watch()
    watching.start()
    optimizer.param_groups = [{"lr": 0.1}]
    try:
        watching._before_step(optimizer, (), {})
        watching._after_step(optimizer, (), {})
    finally:
        parts = watching.stop()
    assert parts[-1]["counts"]["skipped_storages"] >= 1


def test_a_look_at_threads_before_a_fork_keeps_no_object_of_the_caller():
    class Loader:
        pass

    def fork_for(loader):
        assert loader
        storages_module.others_rest()

    loader = Loader()
    dropped = weakref.ref(loader)
    gc.disable()
    try:
        fork_for(loader)
        del loader
        assert dropped() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("thread", "losses"), [("work", "['unread_gradients']"), ("stop.wait", "[]")])
def test_a_fork_beside_a_working_thread_reads_no_inherited_gradients(tmp_path, thread, losses):
    done = warm_python.run(
        "-c",
        f"""
import os, threading, torch, kinetoscope
from kinetoscope.collect.sources.storages import others_rest
model = torch.nn.Linear(4, 4)
model(torch.ones(1, 4)).sum().backward()
stop = threading.Event()
def work():
    while not stop.is_set():
        pass
beside = threading.Thread(target={thread})
beside.start()
while others_rest() == ({thread} is work):
    pass
child = os.fork()
if child == 0:
    with kinetoscope.profile(engine="native", profile_memory=True) as prof:
        torch.ones(3) + 1
    print([loss["code"] for loss in prof.trace.losses], flush=True)
    os._exit(0)
code = os.waitpid(child, 0)[1]
stop.set()
beside.join()
print(code)
""",
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == (f"{losses}\n0\n", "")
