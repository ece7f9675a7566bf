"""Which tensors hold which memory: parameters, buffers, gradients, optimizer state, and others.

Addresses are all that a recording of allocations knows of a block. While one runs with ``profile_memory``, this watch
looks at the program's tensors three times: before it begins (every tensor that Python knows or knew, so that memory from
before has a size), when an optimizer has state that was not there at its step before, and when it ends. Nothing of
the program is kept alive by it, and no operator that it calls is recorded.
"""

from __future__ import annotations

import concurrent.futures.thread
import gc
import json
import multiprocessing.connection
import os
import selectors
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from kinetoscope._core import living_objects
from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS
from kinetoscope.model.losses import UNREAD_GRADIENTS
from kinetoscope.model.schema import StorageRole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kinetoscope.collect.recorder.library import Recorder

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

# What fits into one of the recorder's longer chunks; a row takes about 70 bytes of JSON.
_ROWS_IN_A_PART = 2000
_LONGEST_NAME = 60
# How deep lists and mappings are searched for an optimizer's tensors.
_DEPTH = 4
# The types whose tensors are looked at without asking them for anything but their storage.
PLAIN = (Tensor, Parameter)
OWNERS = (Module, Optimizer)
_WANTED = (Tensor, *OWNERS)
# The code of functions in which threads wait. A thread whose innermost Python function is one of these does not train.
RESTING = tuple(
    {
        function.__code__
        for function in (
            threading.Condition.wait,
            getattr(threading.Thread, "_wait_for_tstate_lock", None),
            concurrent.futures.thread._worker,
            *(getattr(kind, "select", None) for kind in vars(selectors).values() if isinstance(kind, type)),
            multiprocessing.connection.Connection._recv,  # type: ignore[attr-defined]
            socket.SocketIO.readinto,
            subprocess.Popen._try_wait,  # type: ignore[attr-defined]
        )
        if function is not None
    }
)
# Where torch's own functions are: a thread that waits inside one of them may be training.
TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_PLAIN = frozenset(PLAIN)
_STRIDED = torch.strided
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


class _Seen:
    """Rows of the `storages` table, with the numbers of this process in place of row numbers."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, str, int, int, int, str]] = []
        self.skipped = 0
        # Those looked at before the recording, and only until it begins: nothing of the program is kept alive.
        self.tensors: list[Tensor] | None = None
        # The addresses of their storages.
        self.storages: set[int] = set()
        self._places: dict[torch.device, tuple[str, int]] = {}

    def add(
        self,
        time_ns: int,
        role: StorageRole,
        tensor: Tensor,
        module: int = 0,
        parameter: int = 0,
        name: str = "",
    ) -> None:
        """Note where a tensor's data lies. A tensor that cannot say is counted; one without data is not."""
        try:
            for part in (tensor,) if _is_simple(tensor) else tensor_parts(tensor):
                storage = part.untyped_storage()
                # A storage with a role is more than a tensor's.
                if role is StorageRole.TENSOR and storage._cdata in self.storages:
                    continue
                if (
                    self.add_storage(time_ns, role, storage, module, parameter, name)
                    and self.tensors is not None
                ):
                    self.tensors.append(part)
        except Exception:  # noqa: BLE001  (tensors may be of any class, and answer with anything)
            self.skipped += 1

    def add_storage(
        self,
        time_ns: int,
        role: StorageRole,
        storage: UntypedStorage,
        module: int = 0,
        parameter: int = 0,
        name: str = "",
    ) -> bool:
        """Note where a storage lies; return whether it has memory."""
        size, address = storage.nbytes(), storage.data_ptr()
        if not (size and address):
            return False
        if self.tensors is not None:
            self.storages.add(storage._cdata)
        device = storage.device
        place = self._places.get(device)
        if place is None:
            kind = device.type
            place = kind, -1 if kind == "cpu" or device.index is None else device.index
            self._places[device] = place
        self.rows.append((time_ns, role, address, size, *place, module, parameter, name[:_LONGEST_NAME]))
        return True

    def taken(self) -> list[str]:
        """The rows since the last call as JSON texts, none longer than the recorder takes; a value that all rows share is written once."""
        texts: list[str] = []
        names = (
            "time_ns",
            "role",
            "address",
            "bytes",
            "device",
            "device_index",
            "module",
            "parameter",
            "name",
        )
        rows, self.rows = self.rows, []
        for first in range(0, len(rows), _ROWS_IN_A_PART):
            part = list(zip(*rows[first : first + _ROWS_IN_A_PART], strict=True))
            columns = {
                name: values[0] if name != "address" and len(set(values)) == 1 else values
                for name, values in zip(names, part, strict=True)
            }
            texts.append(json.dumps(columns, separators=(",", ":")))
        return texts


class TensorReader(Protocol):
    """Reads many plain tensors at once, and leaves the others to its caller.

    The recorder has one in native code; `PythonReader` does the same in a process without the recorder. A session has one of its
    own, and all of them may remember the same storages that they met, and nothing that keeps them alive.
    """

    def another(self) -> TensorReader:
        """A reader for another session, which remembers the same storages."""
        ...

    def meet(self, things: list[Any], /) -> list[Any]:
        """Remember the storages of the plain tensors among some objects; return other tensors, modules and optimizers."""
        ...

    def frozen(self) -> list[Any]:
        """The tensors, modules and optimizers that `gc.freeze()` hid from the collector."""
        ...

    def forget(self) -> None:
        """Remember no storage any more."""
        ...

    def met(self) -> int:
        """How many storages are remembered."""
        ...

    def begin(self, time_ns: int, first: bool, /) -> None:
        """Begin to look at some moment; the first look of a recording forgets the rows of one that failed, and has frees recorded."""
        ...

    def own(self, parameters: list[Any], /) -> None:
        """For the rest of this look, read the gradients of these parameters, which the calling thread trains, whatever others do."""
        ...

    def gradient(self, parameter: Any, /) -> Any:
        """The gradient of a tensor of any class; None without one, or where another thread may be replacing it."""
        ...

    def unread(self) -> int:
        """How many parameters' gradients could not be read at any look of the recording."""
        ...

    def modules(self, modules: list[Module], /) -> list[Module]:
        """Note what modules hold; return those that hold anything that is not plain."""
        ...

    def parameters(self, parameters: list[Any], /) -> list[Any]:
        """Note an optimizer's parameters, without those of the modules of this look; return those that are not plain."""
        ...

    def state(self, state: dict[Any, Any], /) -> list[Any]:
        """Note an optimizer's state; return the keys of what is not plain."""
        ...

    def rest(self, also_seen: set[int], /) -> None:
        """Note the storages that were met and still live, without those noted in this look or at the addresses of others."""
        ...

    def take(self) -> list[str]:
        """The rows since the last call as JSON texts, each a part of the table `storages`."""
        ...


def native_reader(recorder: Recorder) -> TensorReader:
    """A reader of the recorder's, which has the frees of the memory that it meets recorded."""
    made: TensorReader = recorder.tensor_reader_class()(
        PLAIN, OWNERS, sys._current_frames, RESTING, TORCH_FOLDER
    )
    return made


class PythonReader:
    """Remembers storages, and leaves the rest to its caller."""

    def __init__(self, memory: dict[int, StorageWeakRef] | None = None) -> None:
        """Remember what another one does, in its `memory`, or nothing yet."""
        # Not the tensors: torch refuses to swap the contents of one that has a weak reference. By the address of the storage,
        # which is not used again as long as there is such a reference.
        self._memory: dict[int, StorageWeakRef] = {} if memory is None else memory
        self._seen = _Seen()
        self._time_ns = 0
        self._own: set[int] = set()
        self._unread: set[int] = set()

    def another(self) -> PythonReader:
        """As `TensorReader.another` says."""
        return PythonReader(self._memory)

    def meet(self, things: list[Any], /) -> list[Any]:
        """As `TensorReader.meet` says."""
        # By type: `isinstance` reads __class__, which runs code of some objects.
        wanted = {kind for kind in set(map(type, things)) if kind in _PLAIN or issubclass(kind, OWNERS)}
        left = []
        for thing in things:
            kind = type(thing)
            if kind in wanted and not (kind in _PLAIN and self._remember(thing)):
                left.append(thing)
        return left

    def frozen(self) -> list[Any]:
        """None: only native code can list them."""
        return []

    def forget(self) -> None:
        """As `TensorReader.forget` says."""
        self._memory.clear()

    def met(self) -> int:
        """As `TensorReader.met` says."""
        return len(self._memory)

    def begin(self, time_ns: int, first: bool, /) -> None:
        """As `TensorReader.begin` says; no frees are recorded."""
        self._time_ns = time_ns
        self._own.clear()
        if first:
            self._seen.rows.clear()
            self._unread.clear()

    def own(self, parameters: list[Any], /) -> None:
        """As `TensorReader.own` says."""
        self._own.update(map(_identity, parameters))

    def gradient(self, parameter: Any, /) -> Any:
        """As `TensorReader.gradient` says; between two lines of Python any other thread may run, even one that waits now."""
        number = _identity(parameter)
        try:
            if not parameter.is_leaf:
                return None
            if number not in self._own and not _is_only_thread():
                if parameter.requires_grad:
                    self._unread.add(number)
                return None
            self._unread.discard(number)
            return parameter.grad
        except Exception:  # noqa: BLE001  (tensors may be of any class)
            return None

    def unread(self) -> int:
        """As `TensorReader.unread` says."""
        return len(self._unread)

    def modules(self, modules: list[Module], /) -> list[Module]:
        """All are left."""
        return modules

    def parameters(self, parameters: list[Any], /) -> list[Any]:
        """All are left."""
        return parameters

    def state(self, state: dict[Any, Any], /) -> list[Any]:
        """All is left."""
        return list(state)

    def rest(self, also_seen: set[int], /) -> None:
        """As `TensorReader.rest` says."""
        for number, reference in _listed(self._memory):
            if number in also_seen:
                continue
            storage = UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                self._memory.pop(number, None)
            else:
                self._seen.add_storage(self._time_ns, StorageRole.TENSOR, storage)

    def take(self) -> list[str]:
        """As `TensorReader.take` says."""
        return self._seen.taken()

    def _remember(self, tensor: Tensor) -> bool:
        """Know a tensor's storage; return whether it is one that can be known."""
        try:
            if not _is_simple(tensor):
                return False
            storage = tensor.untyped_storage()
            number = storage._cdata
            if number not in self._memory and storage.device.type != "meta":
                self._memory[number] = StorageWeakRef(storage)
        except Exception:  # noqa: BLE001  (as one of a device that has no storages)
            return False
        return True


class StorageWatch:
    """Watches one recording; `start` before it begins, `stop` after it has ended."""

    def __init__(
        self,
        living: Living,
        keep_watch: Callable[[list[Tensor]], object],
        running: Callable[[], Iterable[Module]] | None = None,
        append: Callable[[list[dict[str, Any]]], object] | None = None,
    ) -> None:
        """Nothing is looked at before `start`.

        Args:
            living: What lives; the same for many recordings, so that only the first one has to look at everything.
            keep_watch: Has the frees of tensors' memory recorded.
            running: Tells which living modules the recorder has seen; by default all that live.
            append: Writes parts of the table `storages` into the recording in progress: what is seen there, before
                `stop`, survives a killed process.
        """
        self._living = living
        self._reader = living.reader.another()
        self._running = running or self._all_modules
        self._keep_watch = keep_watch
        self._append = append
        self._seen = _Seen()
        self._counted: dict[str, int] = {}
        # Those that the modules of one look hold; their optimizer has nothing to add.
        self._held_parameters: set[int] = set()
        self._optimizers: dict[int, tuple[weakref.ref[Optimizer], int]] = {}

    def start(self) -> list[dict[str, Any]]:
        """Look at every module, optimizer and tensor that lives, and hear of every optimizer's steps from here on.

        Returns:
            Parts of the table `storages`, for `add_storages`.
        """
        OPTIMIZER_STEPS.before(self._before_step)
        OPTIMIZER_STEPS.after(self._after_step)
        older: list[Tensor] = []
        self._seen.tensors = older
        now_ns = time.time_ns()
        with self._living.look() as living, _unrecorded():
            for optimizer in living.optimizers:
                self._remember(optimizer)
            self._look_around(now_ns, living.modules, living.optimizers, first=True)
            for tensor in living.tensors:
                self._seen.add(now_ns, StorageRole.TENSOR, tensor)
            self._reader.rest(self._seen.storages)
        self._seen.tensors = None
        self._seen.storages.clear()
        self._keep_watch(older)
        return self._taken()

    def stop(self) -> list[dict[str, Any]]:
        """Look a last time.

        Returns:
            More parts of the table.
        """
        self.cancel()
        known = [reference() for reference, _ in list(self._optimizers.values())]
        with _unrecorded():
            self._look_around(
                time.time_ns(), self._running(), [optimizer for optimizer in known if optimizer is not None]
            )
        return self._taken()

    def cancel(self) -> None:
        """Hear of no more steps; a second call does nothing."""
        OPTIMIZER_STEPS.forget(self._before_step, self._after_step)

    def _taken(self) -> list[dict[str, Any]]:
        """The rows since the last call, and how many tensors could not be looked at so far."""
        parts: list[dict[str, Any]] = [
            json.loads(text) for text in (*self._reader.take(), *self._seen.taken())
        ]
        counted = {"skipped_storages": self._seen.skipped, UNREAD_GRADIENTS: self._reader.unread()}
        if counted != self._counted and (self._counted or any(counted.values())):
            self._counted = counted
            parts.append({"counts": counted})
        return parts

    def _all_modules(self) -> list[Module]:
        """Every module that lives."""
        with self._living.look() as living:
            return list(living.modules)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Note an optimizer before its first step, which may fail when memory runs out."""
        # What torch.compile traces must not depend on us; it is enough to have met the optimizer at the start.
        if torch.compiler.is_compiling():
            return
        if id(optimizer) not in self._optimizers:
            self._remember(optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Look around where an optimizer's state has grown: after its first step, as a rule.

        The model may not live as long as the recording, so this is the moment to see its buffers, too.
        """
        if torch.compiler.is_compiling():
            return
        known = self._optimizers.get(id(optimizer))
        held = _length(optimizer)
        if known is not None and known[1] != held:
            self._optimizers[id(optimizer)] = (known[0], held)
            with _unrecorded():
                self._look_around(time.time_ns(), self._running(), [optimizer], own=True)
            if self._append is not None:
                self._append(self._taken())

    def _remember(self, optimizer: Optimizer) -> None:
        """Know an optimizer without holding it; its end makes room for another at the same address."""
        number, optimizers = id(optimizer), self._optimizers
        gone = weakref.ref(optimizer, lambda _: optimizers.pop(number, None))
        optimizers[number] = (gone, -1)

    def _look_around(
        self,
        now_ns: int,
        modules: Iterable[Module],
        optimizers: Iterable[Optimizer],
        *,
        first: bool = False,
        own: bool = False,
    ) -> None:
        """Note what some modules and optimizers hold: plain tensors many at once, the others one by one.

        With `own`, this thread trains what these optimizers update.
        """
        self._held_parameters.clear()
        self._reader.begin(now_ns, first)
        for optimizer in optimizers if own else ():
            # An optimizer of any class, in its own step: one that cannot say what it updates is counted below.
            with suppress(Exception):
                self._reader.own(_parameters(optimizer))
        for module in self._reader.modules(list(modules)):
            self._look_at_module(now_ns, module)
        for optimizer in optimizers:
            self._look_at_optimizer(now_ns, optimizer)

    def _look_at_module(self, now_ns: int, module: Module) -> None:
        """Note a module's own parameters, their gradients, and its buffers."""
        owner = id(module)
        for name, parameter in _held(module, "_parameters"):
            number = _identity(parameter)
            self._held_parameters.add(number)
            self._seen.add(now_ns, StorageRole.PARAMETER, parameter, owner, number, name)
            if (gradient := self._gradient(parameter)) is not None:
                self._seen.add(now_ns, StorageRole.GRADIENT, gradient, owner, number, name)
        for name, buffer in _held(module, "_buffers"):
            self._seen.add(now_ns, StorageRole.BUFFER, buffer, module=owner, name=name)

    def _gradient(self, parameter: Tensor) -> Tensor | None:
        """The gradient of a parameter, if it has one that may be read now."""
        gradient = self._reader.gradient(parameter)
        return gradient if isinstance(gradient, Tensor) else None

    def _look_at_optimizer(self, now_ns: int, optimizer: Optimizer) -> None:
        """Note an optimizer's parameters, their gradients, and its state."""
        try:
            parameters = _parameters(optimizer)
            state = optimizer.state
            left = self._reader.state(state) if type(state) in (dict, defaultdict) else list(state)
            states = [(parameter, state[parameter]) for parameter in left]
        except Exception:  # noqa: BLE001  (an optimizer of any class)
            self._seen.skipped += 1
            return
        for parameter in self._reader.parameters(parameters):
            number = _identity(parameter)
            if number in self._held_parameters:
                continue
            self._seen.add(now_ns, StorageRole.PARAMETER, parameter, parameter=number)
            if (gradient := self._gradient(parameter)) is not None:
                self._seen.add(now_ns, StorageRole.GRADIENT, gradient, parameter=number)
        add, role = self._seen.add, StorageRole.OPTIMIZER_STATE
        for parameter, values in states:
            number = _identity(parameter)
            flat = type(values) is dict and all(type(value) in _PLAIN for value in values.values())
            for name, tensor in list(values.items()) if flat else _tensors(values, "", _DEPTH):
                add(now_ns, role, tensor, 0, number, str(name))


@contextmanager
def _unrecorded() -> Iterator[None]:
    """Keep the operators that a sparse tensor runs to show its parts out of every recording."""
    torch._C._autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch._C._autograd._enable_record_function(True)


def _listed(known: dict[_Key, _Value]) -> list[tuple[_Key, _Value]]:
    """The items of a dictionary that `Living` changes when Python's collector runs, which it must not while they are listed."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return list(known.items())
    finally:
        if was_on:
            gc.enable()


class Living:
    """The modules, optimizers and tensors that Python's collector knows, without keeping any of them alive.

    The first look goes through all objects, which takes a tenth of a second where there are some hundred thousands. What comes
    into being later is met before it gets old: the collector is followed, and whenever it moves its young objects to the old
    ones, these are looked through. So a later look needs those that were met, and the present young ones. One look at a time.

    Attributes:
        modules: The modules of the last look.
        optimizers: Its optimizers.
        reader: Remembers the storages of plain tensors.
        tensors: Its tensors of plain classes that have no storage of their own, such as sparse ones, as long as they are young.
    """

    def __init__(self, reader: TensorReader | None = None) -> None:
        """Nothing is looked at before `look`; `reader` is by default one in Python."""
        self.reader = reader or PythonReader()
        self._looking = threading.RLock()
        self.modules: list[Module] = []
        self.optimizers: list[Optimizer] = []
        self.tensors: list[Tensor] = []
        self._owners: dict[int, weakref.ref[Module | Optimizer]] | None = None
        self._follows = False
        # How many objects were frozen at the last look.
        self._frozen = 0
        # How many objects may be looked through before it is cheaper to look at all of them anew.
        self._worth = 0

    @contextmanager
    def look(self) -> Iterator[Living]:
        """See what lives now; it is held only inside this."""
        with self._looking:
            self._look()
            try:
                yield self
            finally:
                for held in (self.modules, self.optimizers, self.tensors):
                    held.clear()

    def _look(self) -> None:
        """Find what lives now."""
        owners = self._owners
        if owners is None or not _HAS_GENERATIONS:
            self.reader.forget()
            found, self._worth = living_objects(_WANTED)
            self._owners = owners = {}
            self._follow()
            self._frozen = 0
        else:
            found, _ = _young()
        frozen = gc.get_freeze_count()
        if frozen != self._frozen:
            found += self.reader.frozen()
            self._frozen = frozen
        self.tensors = self._meet(found, owners)
        del found
        for number, reference in _listed(owners):
            owner = reference()
            if owner is None:
                owners.pop(number, None)
            elif isinstance(owner, Module):
                self.modules.append(owner)
            else:
                self.optimizers.append(owner)

    def _meet(self, found: list[Any], owners: dict[int, weakref.ref[Module | Optimizer]]) -> list[Tensor]:
        """Remember those of some objects that are wanted; return the tensors that can only be looked at now."""
        tensors = []
        for thing in self.reader.meet(found):
            if type(thing) in _PLAIN:
                tensors.append(thing)
            else:
                known = owners.get(id(thing))
                if known is None or known() is not thing:
                    owners[id(thing)] = weakref.ref(thing)
        return tensors

    def _follow(self) -> None:
        """Be called by Python's collector for as long as this lives."""
        if self._follows or not _HAS_GENERATIONS:
            return
        self._follows = True
        me, is_ending = weakref.ref(self), sys.is_finalizing

        def collects(phase: str, info: dict[str, int]) -> None:
            living = me()
            # Where Python ends, modules are gone, and nobody looks any more.
            if living is not None and phase == "start" and info["generation"] > 0 and not is_ending():
                living._gets_old()

        gc.callbacks.append(collects)
        weakref.finalize(self, gc.callbacks.remove, collects).atexit = False

    def _gets_old(self) -> None:
        """Meet the young objects, which are about to become old."""
        owners = self._owners
        if owners is None:
            return
        found, count = _young()
        self._worth -= count
        if self._worth < 0:
            # A program that creates so many objects must not pay for each of them.
            self._owners = None
            # torch 2.8 and older warn if a storage is freed while anything refers to its Python object.
            del found
            self.reader.forget()
        else:
            self._meet(found, owners)


_of_process: Living | None = None


def living_in_process(recorder: Recorder) -> Living:
    """What lives in this process: one for all sessions on the recorder, of which only the first has to look at everything."""
    global _of_process
    if _of_process is None:
        _of_process = Living(native_reader(recorder))
    return _of_process


def _look_anew() -> None:
    """In the child of a fork: another thread may have been in the middle of a look."""
    global _of_process
    _of_process = None


os.register_at_fork(after_in_child=_look_anew)


# From Python 3.14 on the collector has other generations, and none where threads run without a lock.
_HAS_GENERATIONS = sys.version_info < (3, 14) and not sysconfig.get_config_var("Py_GIL_DISABLED")


def _young() -> tuple[list[Any], int]:
    """What is wanted of the objects that have not yet survived two collections, and how many objects these are."""
    youngest, count = living_objects(_WANTED, 0)
    younger, more = living_objects(_WANTED, 1)
    return youngest + younger, count + more


def _is_simple(tensor: Tensor) -> bool:
    """Whether it has one storage of its own; on the device `meta` that has no address."""
    return type(tensor) in _PLAIN and tensor.layout is _STRIDED and not _is_wrapped(tensor)


def tensor_parts(tensor: Tensor, depth: int = _DEPTH) -> Iterator[Tensor]:
    """The tensors with storages of their own that a tensor is made of."""
    if type(tensor) not in _PLAIN and depth and hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            # A DTensor lists its mesh, too.
            if isinstance(part := getattr(tensor, name), Tensor):
                yield from tensor_parts(part, depth - 1)
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif _is_wrapped(tensor):
        # It has no memory of its own; the tensor inside it has.
        return
    elif tensor.device.type != "meta" and not _is_fake(tensor) and not _is_unmade(tensor):
        yield tensor


def _is_fake(tensor: Tensor) -> bool:
    """Whether it is a tensor that only torch's compiler computes with."""
    return type(tensor) not in _PLAIN and type(tensor).__name__ in ("FakeTensor", "FunctionalTensor")


def _is_unmade(tensor: Tensor) -> bool:
    """Whether it is the parameter of a lazy module whose first call is still to come."""
    return type(tensor) not in _PLAIN and isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)


def _held(module: Module, key: str) -> list[tuple[str, Tensor]]:
    """The tensors that a module itself registers; a scripted one keeps them elsewhere."""
    own = vars(module).get(key)
    try:
        if isinstance(own, dict):
            return [(str(name), tensor) for name, tensor in list(own.items()) if tensor is not None]
        listed = module.named_parameters if key == "_parameters" else module.named_buffers
        return list(listed(recurse=False))
    except Exception:  # noqa: BLE001  (modules may be of any class)
        return []


def _is_only_thread() -> bool:
    """Whether no other thread runs Python."""
    return len(sys._current_frames()) == 1


def _parameters(optimizer: Optimizer) -> list[Any]:
    """What an optimizer updates."""
    return [parameter for group in list(optimizer.param_groups) for parameter in group["params"]]


def _identity(parameter: object) -> int:
    """The address of torch's own tensor object, by which the recorder knows a parameter."""
    number = getattr(parameter, "_cdata", 0) if isinstance(parameter, Tensor) else 0
    return number if isinstance(number, int) else 0


def _tensors(values: Any, name: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors in an optimizer's state, each with the key it is under."""
    if isinstance(values, Tensor):
        yield name, values
    elif depth and isinstance(values, dict):
        for key, value in list(values.items()):
            yield from _tensors(value, name or str(key), depth - 1)
    elif depth and isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value, name, depth - 1)


def _length(optimizer: Optimizer) -> int:
    """How many parameters an optimizer keeps state for."""
    try:
        return len(optimizer.state)
    except Exception:  # noqa: BLE001  (an optimizer of any class)
        return -1
