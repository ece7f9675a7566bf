"""Find out which tensors hold which memory: parameters, buffers, gradients, optimizer state, and others.

A recording of allocations contains only the addresses of blocks. So while a session records with ``profile_memory``, the
program's tensors are scanned three times: before the recording (all tensors, so that the sizes of earlier blocks are known),
whenever an optimizer has new state after a step, and at the end. Scanning keeps nothing of the program alive, and none of the
operators that it calls is recorded.
"""

from __future__ import annotations

import concurrent.futures.thread
import functools
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from kinetoscope._forks import FORKS
from kinetoscope._runtime import live_objects
from kinetoscope.collect.recorder.library import Recorder
from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS
from kinetoscope.model.losses import UNREAD_GRADIENTS
from kinetoscope.model.schema import StorageRole

# Columns of the table `storages`.
_COLUMNS = (
    "time_ns", "role", "address", "bytes", "device", "device_index", "module", "parameter", "name",
)  # fmt: skip
# So many rows fit into one of the recorder's larger chunks; a row takes about 70 bytes of JSON.
_ROWS_IN_A_PART = 2000
_LONGEST_NAME = 60
# Depth to which lists and mappings in an optimizer's state are searched for tensors.
_DEPTH = 4
# Types of plain tensors, of which only the storage is read, without running code of subclasses.
PLAIN = (Tensor, Parameter)
OWNERS = (Module, Optimizer)
_WANTED = (Tensor, *OWNERS)
# Functions in which threads wait: a thread whose innermost Python frame is in one of these is not training.
RESTING = tuple(
    {
        function.__code__
        for function in (
            threading.Condition.wait,
            getattr(threading.Thread, "_wait_for_tstate_lock", None),
            concurrent.futures.thread._worker,  # noqa: SLF001  (Python's own)
            *(getattr(kind, "select", None) for kind in vars(selectors).values() if isinstance(kind, type)),
            multiprocessing.connection.Connection._recv,  # type: ignore[attr-defined]  # noqa: SLF001  (Python's own)
            socket.SocketIO.readinto,
            subprocess.Popen._try_wait,  # type: ignore[attr-defined]  # noqa: SLF001  (Python's own)
        )
        if function is not None
    }
)
# But a thread that waits inside a function of torch may be training.
TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_PLAIN = frozenset(PLAIN)
_STRIDED = torch.strided
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001  (torch's own)


class _Holder(NamedTuple):
    """What holds a tensor, and under which name: the addresses of a module and of a parameter, 0 for none."""

    module: int = 0
    parameter: int = 0
    name: str = ""


_NOBODY = _Holder()


class _StorageRows:
    """Collects rows of the table `storages`, in which modules and parameters are identified by addresses of this process."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, str, int, int, int, str]] = []
        self.skipped = 0
        # During the scan before the recording, the tensors that were added; None later, to keep nothing alive.
        self.tensors: list[Tensor] | None = None
        # The addresses of the storage objects of these tensors.
        self.storages: set[int] = set()

    def add(self, time_ns: int, role: StorageRole, tensor: Tensor, holder: _Holder = _NOBODY) -> None:
        """Add rows for a tensor's storages. A tensor that cannot be read is counted as skipped; one without data is not."""
        try:
            for part in (tensor,) if _is_simple(tensor) else tensor_parts(tensor):
                storage = part.untyped_storage()
                # The storage has a row with a more specific role already.
                if role is StorageRole.TENSOR and storage._cdata in self.storages:  # noqa: SLF001  (torch's own)
                    continue
                if self.add_storage(time_ns, role, storage, holder) and self.tensors is not None:
                    self.tensors.append(part)
        except Exception:  # noqa: BLE001  (tensors may be of any class, and answer with anything)
            self.skipped += 1

    def add_storage(
        self, time_ns: int, role: StorageRole, storage: UntypedStorage, holder: _Holder = _NOBODY
    ) -> bool:
        """Add a row for a storage; return False if it has no memory."""
        size, address = storage.nbytes(), storage.data_ptr()
        if not (size and address):
            return False
        if self.tensors is not None:
            self.storages.add(storage._cdata)  # noqa: SLF001  (torch's own)
        kind, index = storage.device.type, storage.device.index
        location = kind, -1 if kind == "cpu" or index is None else index
        self.rows.append(
            (time_ns, int(role), address, size, *location, *holder[:2], holder.name[:_LONGEST_NAME])
        )
        return True

    def taken(self) -> list[dict[str, Any]]:
        """Return the rows since the last call as columns, in parts of limited size."""
        rows, self.rows = self.rows, []
        parts = (rows[first : first + _ROWS_IN_A_PART] for first in range(0, len(rows), _ROWS_IN_A_PART))
        return [dict(zip(_COLUMNS, map(list, zip(*part, strict=True)), strict=True)) for part in parts]


def native_reader(recorder: Recorder) -> Any:
    """Create the recorder's reader of tensors, which also lets frees of known memory be recorded; see `native/recorder/tensor_reader.cpp`."""
    return recorder.tensor_reader_class()(
        PLAIN, OWNERS, sys._current_frames, RESTING, TORCH_FOLDER, FORKS.beside_work
    )


class StorageWatch:
    """Scans the tensors of one recording; `start` is called before it begins, `stop` after it has ended."""

    def __init__(
        self,
        living: Living,
        keep_watch: Callable[[list[Tensor]], object],
        running: Callable[[], Iterable[Module]] | None = None,
        append: Callable[[list[dict[str, Any]]], object] | None = None,
    ) -> None:
        """Store the arguments; nothing is scanned before `start`.

        Args:
            living: The live objects; shared by all recordings, so that only the first one scans the whole heap.
            keep_watch: Lets frees of the memory of these tensors be recorded.
            running: Lists the live modules that the recorder has seen; by default all live modules.
            append: Appends parts of the table `storages` to the recording, so that rows from before `stop` survive if the
                process is killed.
        """
        self._living = living
        self._reader = living.reader.another()
        self._running = running or (lambda: living.look()[0])
        self._keep_watch = keep_watch
        self._append = append
        self._seen = _StorageRows()
        self._counted: dict[str, int] = {}
        # Parameters of the modules of the current scan, which need no row of their optimizer.
        self._held_parameters: set[int] = set()
        self._optimizers: dict[int, tuple[weakref.ref[Optimizer], int]] = {}
        # One scan at a time: while a thread scans the optimizer that it trains, the reader reads gradients that no other thread may
        # read, and reading modules releases the GIL for a moment.
        self._scanning = threading.RLock()
        self._process = os.getpid()

    def start(self) -> list[dict[str, Any]]:
        """Scan all live modules, optimizers and tensors, and listen to the steps of optimizers.

        Returns:
            Parts of the table `storages`, for `add_storages`.
        """
        OPTIMIZER_STEPS.before(self._before_step)
        OPTIMIZER_STEPS.after(self._after_step)
        older: list[Tensor] = []
        now_ns = time.time_ns()
        with self._scanning:
            self._seen.tensors = older
            with _unrecorded():
                modules, optimizers, tensors = self._living.look()
                for optimizer in optimizers:
                    self._remember(optimizer)
                self._scan(now_ns, modules, optimizers, first=True)
                for tensor in tensors:
                    self._seen.add(now_ns, StorageRole.TENSOR, tensor)
                self._reader.rest(self._seen.storages)
            self._seen.tensors = None
            self._seen.storages.clear()
            self._keep_watch(older)
            return self._taken()

    def stop(self) -> list[dict[str, Any]]:
        """Stop listening, and scan modules and optimizers a last time.

        Returns:
            More parts of the table.
        """
        self.cancel()
        alive = [reference() for reference, _ in list(self._optimizers.values())]
        with self._scanning, _unrecorded():
            self._scan(
                time.time_ns(), self._running(), [optimizer for optimizer in alive if optimizer is not None]
            )
            return self._taken()

    def cancel(self) -> None:
        """Stop listening to steps; a second call does nothing."""
        OPTIMIZER_STEPS.forget(self._before_step, self._after_step)

    def _taken(self) -> list[dict[str, Any]]:
        """The rows since the last call, and the numbers of tensors and gradients that could not be read so far."""
        parts: list[dict[str, Any]] = [*map(json.loads, self._reader.take()), *self._seen.taken()]
        counted = {"skipped_storages": self._seen.skipped, UNREAD_GRADIENTS: self._reader.unread()}
        if counted != self._counted and (self._counted or any(counted.values())):
            self._counted = counted
            parts.append({"counts": counted})
        return parts

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Add an optimizer before its first step, which may fail when memory runs out."""
        # torch.compile must not trace this; then it is enough that the optimizer was found by `start`.
        if torch.compiler.is_compiling() or os.getpid() != self._process:
            return
        if id(optimizer) not in self._optimizers:
            self._remember(optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Scan an optimizer and all modules once its state has grown: modules may be gone at the end of the recording."""
        # In a forked child, another thread of the parent may have been scanning.
        if torch.compiler.is_compiling() or os.getpid() != self._process:
            return
        entry = self._optimizers.get(id(optimizer))
        held = _length(optimizer)
        if entry is not None and entry[1] != held:
            self._optimizers[id(optimizer)] = (entry[0], held)
            with self._scanning:
                with _unrecorded():
                    self._scan(time.time_ns(), self._running(), [optimizer], trains=True)
                if self._append is not None:
                    self._append(self._taken())

    def _remember(self, optimizer: Optimizer) -> None:
        """Store a weak reference to an optimizer, removed when it dies, because its id() may be reused."""
        number, optimizers = id(optimizer), self._optimizers
        gone = weakref.ref(optimizer, lambda _: optimizers.pop(number, None))
        optimizers[number] = (gone, -1)

    def _scan(
        self,
        now_ns: int,
        modules: Iterable[Module],
        optimizers: Iterable[Optimizer],
        *,
        first: bool = False,
        trains: bool = False,
    ) -> None:
        """Add rows for the tensors of modules and optimizers; plain ones are read in native code. `trains`: this thread trains their parameters."""
        self._held_parameters.clear()
        self._reader.begin(now_ns, first)
        for optimizer in optimizers if trains else ():
            # Optimizers of users may raise anything; one that does so is counted as skipped below.
            with suppress(Exception):
                self._reader.own(_parameters(optimizer))
        for module in self._reader.modules(list(modules)):
            self._scan_module(now_ns, module)
        for optimizer in optimizers:
            self._scan_optimizer(now_ns, optimizer)

    def _scan_module(self, now_ns: int, module: Module) -> None:
        owner = id(module)
        for name, parameter in _held(module, "_parameters"):
            number = _identity(parameter)
            self._held_parameters.add(number)
            self._add_parameter(now_ns, parameter, _Holder(owner, number, name))
        for name, buffer in _held(module, "_buffers"):
            self._seen.add(now_ns, StorageRole.BUFFER, buffer, _Holder(owner, name=name))

    def _add_parameter(self, now_ns: int, parameter: Tensor, holder: _Holder) -> None:
        self._seen.add(now_ns, StorageRole.PARAMETER, parameter, holder)
        if isinstance(gradient := self._reader.gradient(parameter), Tensor):
            self._seen.add(now_ns, StorageRole.GRADIENT, gradient, holder)

    def _scan_optimizer(self, now_ns: int, optimizer: Optimizer) -> None:
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
            if number not in self._held_parameters:
                self._add_parameter(now_ns, parameter, _Holder(parameter=number))
        for parameter, values in states:
            number = _identity(parameter)
            flat = type(values) is dict and all(type(value) in _PLAIN for value in values.values())
            for name, tensor in list(values.items()) if flat else _tensors(values, "", _DEPTH):
                holder = _Holder(parameter=number, name=str(name))
                self._seen.add(now_ns, StorageRole.OPTIMIZER_STATE, tensor, holder)


@contextmanager
def _unrecorded() -> Iterator[None]:
    """Do not record the operators that are called to read the parts of a sparse tensor."""
    torch._C._autograd._enable_record_function(False)  # noqa: SLF001  (torch's own)
    try:
        yield
    finally:
        torch._C._autograd._enable_record_function(True)  # noqa: SLF001  (torch's own)


class Living:
    """The live modules, optimizers and tensors of the process, found through Python's garbage collector without keeping them
    alive.

    The first `look` goes through all objects, which takes a tenth of a second for some hundred thousands. Later objects are
    found by a callback: whenever the collector is about to move its young generations into the old one, it goes through the
    young objects. So a later `look` only needs the objects that are known, and the current young ones. Only one thread can look
    at a time.

    Attributes:
        reader: Knows the storages of plain tensors.
    """

    def __init__(self, reader: Any) -> None:
        """Start without known objects; `reader` is that of `native_reader`."""
        self.reader = reader
        self._looking = threading.RLock()
        self._owners: dict[int, weakref.ref[Module | Optimizer]] | None = None
        self._has_callback = False
        # Number of frozen objects at the last look.
        self._frozen = 0
        # Number of young objects that the callback may go through before it is cheaper to go through all objects again.
        self._worth = 0

    def look(self) -> tuple[list[Module], list[Optimizer], list[Tensor]]:
        """Find the live modules and optimizers, and tensors of plain classes without a storage of their own, such as sparse ones, if they
        are in a young generation.
        """
        with self._looking:
            owners = self._owners
            if owners is None or not _HAS_GENERATIONS:
                self.reader.forget()
                objects, self._worth = live_objects(_WANTED)
                self._owners = owners = {}
                self._add_callback()
                self._frozen = 0
            else:
                objects, _ = _young()
            frozen = gc.get_freeze_count()
            if frozen != self._frozen:
                objects += self.reader.frozen()
                self._frozen = frozen
            tensors = self._meet(objects, owners)
            del objects
            modules: list[Module] = []
            optimizers: list[Optimizer] = []
            # A copy, which is made at once: the callback of the collector changes the dictionary.
            for number, reference in owners.copy().items():
                owner = reference()
                if owner is None:
                    owners.pop(number, None)
                elif isinstance(owner, Module):
                    modules.append(owner)
                else:
                    optimizers.append(owner)
            return modules, optimizers, tensors

    def _meet(self, objects: list[Any], owners: dict[int, weakref.ref[Module | Optimizer]]) -> list[Tensor]:
        """Add objects to the known ones; return plain tensors without a storage, which have no weak reference."""
        tensors = []
        for thing in self.reader.meet(objects):
            if type(thing) in _PLAIN:
                tensors.append(thing)
            else:
                reference = owners.get(id(thing))
                if reference is None or reference() is not thing:
                    owners[id(thing)] = weakref.ref(thing)
        return tensors

    def _add_callback(self) -> None:
        if self._has_callback or not _HAS_GENERATIONS:
            return
        self._has_callback = True
        me, is_ending = weakref.ref(self), sys.is_finalizing

        def collects(phase: str, info: dict[str, int]) -> None:
            living = me()
            # Not at the exit of Python, when modules may be cleared already.
            if living is not None and phase == "start" and info["generation"] > 0 and not is_ending():
                living.add_young()

        gc.callbacks.append(collects)
        weakref.finalize(self, gc.callbacks.remove, collects).atexit = False

    def add_young(self) -> None:
        """Add the young objects to the known ones, before they move to the old generation."""
        owners = self._owners
        if owners is None:
            return
        objects, count = _young()
        self._worth -= count
        if self._worth < 0:
            # With so many new objects, going through all of them at the next look is cheaper.
            self._owners = None
            # torch 2.8 and older warn if a storage is freed while anything refers to its Python object.
            del objects
            self.reader.forget()
        else:
            self._meet(objects, owners)


@functools.cache
def living_in_process(recorder: Recorder) -> Living:
    """The live objects of this process, shared by all sessions, so that only the first one scans the whole heap."""
    return Living(native_reader(recorder))


# A forked child starts again, because another thread of the parent may have been in the middle of a look.
os.register_at_fork(after_in_child=living_in_process.cache_clear)


# The system call in which threads wait for locks, the GIL among them.
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "")


def others_rest() -> bool:
    """Whether no other Python thread can be running operators, judged as `native/recorder/tensor_reader.cpp` does."""
    frames = sys._current_frames()
    # Without this, the frame and its variable `frames` would be a reference cycle, which keeps alive what the callers refer to, such as a DataLoader.
    del frames[threading.get_ident()]
    return all(frame.f_code in RESTING or _waits_in_system(thread, frame) for thread, frame in frames.items())


def _waits_in_system(thread: int, frame: FrameType | None) -> bool:
    """Whether a thread, outside of functions of torch, waits in a system call for something other than a lock."""
    started = threading._active.get(thread)  # type: ignore[attr-defined]  # noqa: SLF001  (Python's own)
    try:
        with open(f"/proc/self/task/{started.native_id}/syscall") as file:
            call = file.read().split(" ", 1)[0]
    except (AttributeError, OSError):
        return False
    if not call.isdigit() or call == _FUTEX or not _FUTEX:
        return False
    while frame is not None and not frame.f_code.co_filename.startswith(TORCH_FOLDER):
        frame = frame.f_back
    return frame is None


# If other threads were working at a fork, they may have been replacing gradients, and the child's copies may refer to freed memory. Then the child
# reads gradients only of parameters that it trains itself.
FORKS.others_rest = others_rest


# From Python 3.14 on the collector has different generations, and in free-threaded builds none.
_HAS_GENERATIONS = sys.version_info < (3, 14) and not sysconfig.get_config_var("Py_GIL_DISABLED")


def _young() -> tuple[list[Any], int]:
    """The modules, optimizers and tensors in the two young generations, and the number of all objects there."""
    youngest, count = live_objects(_WANTED, 0)
    younger, more = live_objects(_WANTED, 1)
    return youngest + younger, count + more


def _is_simple(tensor: Tensor) -> bool:
    """Whether a tensor is plain and has one storage of its own, which on the device `meta` has no address."""
    return type(tensor) in _PLAIN and tensor.layout is _STRIDED and not _is_wrapped(tensor)


def tensor_parts(tensor: Tensor, depth: int = _DEPTH) -> Iterator[Tensor]:
    """Iterate over the inner tensors of a tensor that have storages of their own."""
    if type(tensor) not in _PLAIN and depth and hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            # A DTensor also lists its mesh.
            if isinstance(part := getattr(tensor, name), Tensor):
                yield from tensor_parts(part, depth - 1)
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())  # noqa: SLF001  (torch's own)
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif _is_wrapped(tensor):
        # The inner tensor has the memory.
        return
    elif tensor.device.type != "meta" and (type(tensor) in _PLAIN or not _is_empty(tensor)):
        yield tensor


def _is_empty(tensor: Tensor) -> bool:
    """Whether a tensor is fake, or a parameter of a lazy module that was not called yet."""
    return type(tensor).__name__ in ("FakeTensor", "FunctionalTensor") or isinstance(
        tensor, torch.nn.parameter.UninitializedTensorMixin
    )


def _held(module: Module, key: str) -> list[tuple[str, Tensor]]:
    stored = vars(module).get(key)
    try:
        if isinstance(stored, dict):
            return [(str(name), tensor) for name, tensor in list(stored.items()) if tensor is not None]
        listed = module.named_parameters if key == "_parameters" else module.named_buffers
        return list(listed(recurse=False))
    except Exception:  # noqa: BLE001  (modules may be of any class)
        return []


def _parameters(optimizer: Optimizer) -> list[Any]:
    return [parameter for group in list(optimizer.param_groups) for parameter in group["params"]]


def _identity(parameter: object) -> int:
    """The address of torch's C++ tensor object, by which the recorder identifies a parameter."""
    number = getattr(parameter, "_cdata", 0) if isinstance(parameter, Tensor) else 0
    return number if isinstance(number, int) else 0


def _tensors(values: Any, name: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(values, Tensor):
        yield name, values
    elif depth and isinstance(values, dict):
        for key, value in list(values.items()):
            yield from _tensors(value, name or str(key), depth - 1)
    elif depth and isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value, name, depth - 1)


def _length(optimizer: Optimizer) -> int:
    try:
        return len(optimizer.state)
    except Exception:  # noqa: BLE001  (an optimizer of any class)
        return -1
