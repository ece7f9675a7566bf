"""What the recorder's native reader of tensors does, in Python: to compare it with."""

from __future__ import annotations

import json
import sys
from typing import Any

from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module

from kinetoscope._forks import FORKS
from kinetoscope.collect.sources.storages import (
    _PLAIN,
    OWNERS,
    _identity,
    _is_simple,
    _StorageRows,
)
from kinetoscope.model.schema import StorageRole


def is_only_thread() -> bool:
    return len(sys._current_frames()) == 1


class TensorReader:
    """Scans plain tensors, and returns other ones to its caller, which scans them one by one.

    Each session has a reader of its own. The readers of a process share the set of known storages, which does not keep them alive.
    The recorder has a native reader with these methods, which this one, in plain Python, is compared with: it knows storages, and
    returns everything else to its caller.
    """

    def __init__(self, memory: dict[int, StorageWeakRef] | None = None) -> None:
        """Start without known storages, or share those of another reader."""
        # Weak references to storages, by address, which is not reused while there is one. Not to tensors: torch cannot swap the
        # contents of tensors that have weak references.
        self._memory: dict[int, StorageWeakRef] = {} if memory is None else memory
        self._seen = _StorageRows()
        self._time_ns = 0
        self._own: set[int] = set()
        self._unread: set[int] = set()

    def another(self) -> TensorReader:
        """Create a reader for another session, which shares the known storages."""
        return TensorReader(self._memory)

    def meet(self, things: list[Any], /) -> list[Any]:
        """Add the storages of plain tensors in a list to the known ones; return other tensors, modules and optimizers."""
        # By type(): isinstance() reads __class__, which may run code of the object.
        wanted = {kind for kind in set(map(type, things)) if kind in _PLAIN or issubclass(kind, OWNERS)}
        left = []
        for thing in things:
            kind = type(thing)
            if kind in wanted and not (kind in _PLAIN and self._remember(thing)):
                left.append(thing)
        return left

    def frozen(self) -> list[Any]:
        """List the tensors, modules and optimizers that `gc.freeze()` has removed from the garbage collector's lists: here none, only native code can list them."""
        return []

    def forget(self) -> None:
        """Forget all storages, so that each is new when it is seen again."""
        self._memory.clear()

    def met(self) -> int:
        """How many storages were seen since they were last forgotten."""
        return len(self._memory)

    def begin(self, time_ns: int, first: bool, /) -> None:
        """Start a scan; the first one of a recording drops rows of an earlier one that failed, and lets frees be recorded."""
        self._time_ns = time_ns
        self._own.clear()
        if first:
            self._seen.rows.clear()
            self._unread.clear()

    def own(self, parameters: list[Any], /) -> None:
        """Declare that the calling thread trains these parameters: their gradients can be read in this scan."""
        self._own.update(map(_identity, parameters))

    def gradient(self, parameter: Any, /) -> Any:
        """Read the gradient of a tensor of any class; None without one, or if another thread may be replacing it.

        Here also None unless this is the only thread, because Python may switch threads at any time, and in a process that was forked beside working threads.
        """
        number = _identity(parameter)
        try:
            if not parameter.is_leaf:
                return None
            if number not in self._own and (FORKS.beside_work or not is_only_thread()):
                if parameter.requires_grad:
                    self._unread.add(number)
                return None
            self._unread.discard(number)
            return parameter.grad
        except Exception:  # noqa: BLE001  (tensors may be of any class)
            return None

    def unread(self) -> int:
        """Number of parameters whose gradients could not be read in any scan of the recording."""
        return len(self._unread)

    def modules(self, modules: list[Module], /) -> list[Module]:
        """Add rows for the parameters and buffers of modules; return the modules that have others than plain tensors: here all."""
        return modules

    def parameters(self, parameters: list[Any], /) -> list[Any]:
        """Add rows for an optimizer's parameters that no module of this scan has; return those that are not plain: here all."""
        return parameters

    def state(self, state: dict[Any, Any], /) -> list[Any]:
        """Add rows for an optimizer's state; return the keys of values that are not plain: here all."""
        return list(state)

    def rest(self, also_seen: set[int], /) -> None:
        """Add rows for known storages that are alive, except those of this scan, and those whose objects are in `also_seen`."""
        for number, reference in self._memory.copy().items():
            if number in also_seen:
                continue
            storage = UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                self._memory.pop(number, None)
            else:
                self._seen.add_storage(self._time_ns, StorageRole.TENSOR, storage)

    def take(self) -> list[str]:
        """Return the rows since the last call as JSON texts, each a part of the table `storages`."""
        return [json.dumps(part) for part in self._seen.taken()]

    def _remember(self, tensor: Tensor) -> bool:
        """Add a plain tensor's storage to the known ones; return False if it has none that can be referenced."""
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
