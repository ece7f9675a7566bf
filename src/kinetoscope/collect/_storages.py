"""Which tensors of the program hold which memory: parameters, buffers, gradients, the state of optimizers, and the rest.

Addresses are all that a recording of allocations knows of a block. While one runs with ``profile_memory``, this watch
looks at the program's tensors three times: before it begins (every tensor that Python knows, so that memory from
before has a size), when an optimizer has state that was not there at its step before, and when it ends. Nothing of
the program is kept alive by it, and no operator that it calls is recorded.
"""

from __future__ import annotations

import gc
import json
import time
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from kinetoscope.collect._optimizer_steps import OPTIMIZER_STEPS
from kinetoscope.trace._schema import StorageRole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# What fits into one of the recorder's longer chunks; a row takes about 70 bytes of JSON.
_ROWS_IN_A_PART = 2000
_PREFIX = "storages"
_LONGEST_NAME = 60
# How deep lists and mappings are searched for an optimizer's tensors.
_DEPTH = 4
# The types whose tensors are looked at without asking them for anything but their storage.
_PLAIN = (Tensor, Parameter)


class _Seen:
    """Rows of the `storages` table, with the numbers of this process in place of row numbers."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, str, int, int, int, str]] = []
        self.skipped = 0
        # Those looked at before the recording, and only until it begins: nothing of the program is kept alive.
        self.tensors: list[Tensor] | None = None
        self._parts = 0

    def add(
        self,
        time_ns: int,
        role: StorageRole,
        tensor: Tensor,
        *,
        module: int = 0,
        parameter: int = 0,
        name: str = "",
    ) -> None:
        """Note where a tensor's data lies. A tensor that cannot say is counted; one without data is not."""
        try:
            for part in _parts(tensor):
                storage = part.untyped_storage()
                size, address = storage.nbytes(), storage.data_ptr()
                if size and address:
                    if self.tensors is not None:
                        self.tensors.append(part)
                    device = part.device
                    index = -1 if device.index is None or device.type == "cpu" else device.index
                    at = (address, size, device.type, index)
                    self.rows.append((time_ns, role, *at, module, parameter, name[:_LONGEST_NAME]))
        except Exception:  # noqa: BLE001  (tensors may be of any class, and answer with anything)
            self.skipped += 1

    def taken(self) -> dict[str, str]:
        """The rows since the last call as JSON texts, none longer than the recorder takes."""
        info: dict[str, str] = {}
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
            columns = {name: list(values) for name, values in zip(names, part, strict=True)}
            info[f"{_PREFIX}.{self._parts}"] = json.dumps(columns, separators=(",", ":"))
            self._parts += 1
        if self.skipped:
            info[f"{_PREFIX}.skipped"] = json.dumps(self.skipped)
        return info


class StorageWatch:
    """Watches one recording; `start` before it begins, `stop` after it has ended."""

    def __init__(
        self, running: Callable[[], Iterable[Module]], keep_watch: Callable[[list[Tensor]], object]
    ) -> None:
        """Nothing is looked at before `start`.

        Args:
            running: Tells which living modules the recorder has seen.
            keep_watch: Has the frees of tensors' memory recorded.
        """
        self._running = running
        self._keep_watch = keep_watch
        self._seen = _Seen()
        self._optimizers: dict[int, tuple[weakref.ref[Optimizer], int]] = {}

    def start(self) -> dict[str, str]:
        """Look at every module, optimizer and tensor that lives, and hear of every optimizer's steps from here on.

        Returns:
            Metadata for the recording, each value a JSON text.
        """
        OPTIMIZER_STEPS.before(self._before_step)
        OPTIMIZER_STEPS.after(self._after_step)
        older: list[Tensor] = []
        self._seen.tensors = older
        now_ns = time.time_ns()
        modules, optimizers, tensors = living()
        with _unrecorded():
            for module in modules:
                self._look_at_module(now_ns, module)
            for optimizer in optimizers:
                self._remember(optimizer)
                self._look_at_optimizer(now_ns, optimizer)
            for tensor in tensors:
                self._seen.add(now_ns, StorageRole.TENSOR, tensor)
        self._seen.tensors = None
        self._keep_watch(older)
        return self._seen.taken()

    def stop(self) -> dict[str, str]:
        """Look a last time.

        Returns:
            More metadata for the recording, each value a JSON text.
        """
        self.cancel()
        now_ns = time.time_ns()
        with _unrecorded():
            for module in self._running():
                self._look_at_module(now_ns, module)
            for reference, _ in list(self._optimizers.values()):
                optimizer = reference()
                if optimizer is not None:
                    self._look_at_optimizer(now_ns, optimizer)
        return self._seen.taken()

    def cancel(self) -> None:
        """Hear of no more steps; a second call does nothing."""
        OPTIMIZER_STEPS.forget(self._before_step, self._after_step)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Learn of an optimizer, so that it is known also if its first step fails for want of memory."""
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
            now_ns = time.time_ns()
            with _unrecorded():
                for module in self._running():
                    self._look_at_module(now_ns, module)
                self._look_at_optimizer(now_ns, optimizer)

    def _remember(self, optimizer: Optimizer) -> None:
        """Know an optimizer without holding it; its end makes room for another at the same address."""
        number, optimizers = id(optimizer), self._optimizers
        gone = weakref.ref(optimizer, lambda _: optimizers.pop(number, None))
        optimizers[number] = (gone, -1)

    def _look_at_module(self, now_ns: int, module: Module) -> None:
        """Note a module's own parameters, their gradients, and its buffers."""
        owner = id(module)
        for name, parameter in _held(module, "_parameters"):
            at = {"module": owner, "parameter": _identity(parameter)}
            self._seen.add(now_ns, StorageRole.PARAMETER, parameter, name=name, **at)
            gradient = _gradient(parameter)
            if gradient is not None:
                self._seen.add(now_ns, StorageRole.GRADIENT, gradient, name=name, **at)
        for name, buffer in _held(module, "_buffers"):
            self._seen.add(now_ns, StorageRole.BUFFER, buffer, module=owner, name=name)

    def _look_at_optimizer(self, now_ns: int, optimizer: Optimizer) -> None:
        """Note an optimizer's parameters, their gradients, and its state."""
        try:
            groups = list(optimizer.param_groups)
            parameters = [parameter for group in groups for parameter in group["params"]]
            state = list(optimizer.state.items())
        except Exception:  # noqa: BLE001  (an optimizer of any class)
            self._seen.skipped += 1
            return
        for parameter in parameters:
            number = _identity(parameter)
            self._seen.add(now_ns, StorageRole.PARAMETER, parameter, parameter=number)
            gradient = _gradient(parameter)
            if gradient is not None:
                self._seen.add(now_ns, StorageRole.GRADIENT, gradient, parameter=number)
        for parameter, values in state:
            number = _identity(parameter)
            for name, tensor in _tensors(values, "", _DEPTH):
                self._seen.add(now_ns, StorageRole.OPTIMIZER_STATE, tensor, parameter=number, name=name)


@contextmanager
def _unrecorded() -> Iterator[None]:
    """Keep the operators that a sparse tensor runs to show its parts out of every recording."""
    torch._C._autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch._C._autograd._enable_record_function(True)


def living() -> tuple[list[Module], list[Optimizer], list[Tensor]]:
    """Every module, optimizer and plain tensor that Python's collector knows."""
    modules: list[Module] = []
    optimizers: list[Optimizer] = []
    tensors: list[Tensor] = []
    places: dict[type, list[Any] | None] = {Tensor: tensors, Parameter: tensors}
    for thing in gc.get_objects():
        # By type: `isinstance` asks objects for their __class__, and some of them answer with code of their own.
        kind = type(thing)
        if kind not in places:
            found: list[Any] | None = None
            if issubclass(kind, Module):
                found = modules
            elif issubclass(kind, Optimizer):
                found = optimizers
            places[kind] = found
        place = places[kind]
        if place is not None:
            place.append(thing)
    return modules, optimizers, tensors


def _parts(tensor: Tensor, depth: int = _DEPTH) -> Iterator[Tensor]:
    """The tensors with storages of their own that a tensor is made of."""
    if type(tensor) not in _PLAIN and depth and hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            # A DTensor lists its mesh, too.
            if isinstance(part := getattr(tensor, name), Tensor):
                yield from _parts(part, depth - 1)
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif torch._C._functorch.is_functorch_wrapped_tensor(tensor):
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


def _gradient(parameter: Tensor) -> Tensor | None:
    """The gradient of a parameter; torch warns about asking any other tensor."""
    try:
        gradient = parameter.grad if parameter.is_leaf else None
    except Exception:  # noqa: BLE001  (tensors may be of any class)
        return None
    return gradient if isinstance(gradient, Tensor) else None


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
