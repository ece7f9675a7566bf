"""How large a model and its data are."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from kinetoscope._errors import ArgumentError
from kinetoscope.integrations.pyg._checks import checked_model
from kinetoscope.integrations.pyg._tensor_bytes import bytes_of


def count_parameters(model: torch.nn.Module) -> int:
    """How many trainable numbers a model has.

    Args:
        model: The model; parameters that are frozen (`requires_grad=False`) do not count, shared ones count once.

    Returns:
        The number of elements of its parameters.

    Raises:
        NotAModuleError: It is no model.
        ArgumentError: A parameter has no shape yet.
    """
    counted = 0
    for name, parameter in checked_model(model, "model").named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise ArgumentError(
                f"model: the parameter {name!r} has no shape before the first forward: run the model once first."
            )
        counted += parameter.numel() if parameter.requires_grad else 0
    return counted


def get_model_size(model: torch.nn.Module) -> int:
    """How many bytes a file takes in which `torch.save` keeps the model's state.

    The bytes are counted as they come; no file is written.

    Args:
        model: The model.

    Returns:
        The bytes.

    Raises:
        NotAModuleError: It is no model.
    """
    counter = _Counter()
    torch.save(checked_model(model, "model").state_dict(), counter)
    return counter.bytes


def get_data_size(data: Any) -> int:
    """How many bytes the tensors of a graph, or of anything that holds tensors, take.

    Memory that several tensors share counts once. Sparse tensors count with their indices.

    Args:
        data: PyG's `Data`, `HeteroData` or `Batch`, a tensor, or mappings, sequences and dataclasses of such.

    Returns:
        The bytes.

    Raises:
        ArgumentError: It is nothing that could hold tensors.
    """
    if not _could_hold_tensors(data):
        raise ArgumentError(
            f"data is of type {type(data).__name__}: need a graph of PyG, a tensor, or mappings, sequences and dataclasses "
            "of tensors."
        )
    return bytes_of(tensors_in(data))


class _Counter:
    """A file that keeps of what is written only its length."""

    def __init__(self) -> None:
        """Begin empty."""
        self.bytes = 0

    def write(self, data: Any) -> int:
        """Count."""
        self.bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


def tensors_in(data: Any) -> Iterator[torch.Tensor]:
    """All tensors in it, however deep; containers that hold themselves are gone through once."""
    seen: set[int] = set()
    waiting: list[Any] = [data]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, torch.Tensor):
            yield thing
        elif id(thing) not in seen:
            seen.add(id(thing))
            waiting.extend(_parts(thing))


def _parts(thing: Any) -> Collection[Any]:
    """What a container holds; nothing of what is none."""
    if _is_sparse_of_pyg(thing):
        return [part for part in thing.csr() if part is not None]
    if isinstance(thing, Mapping):
        return thing.values()
    if isinstance(thing, Sequence) and not isinstance(thing, _NO_CONTAINERS):
        return thing
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, field.name, None) for field in dataclasses.fields(thing)]
    return list(thing.stores) if hasattr(thing, "stores") else []


def _could_hold_tensors(thing: Any) -> bool:
    """Whether it is a tensor or a container."""
    containers = torch.Tensor | Mapping | Sequence
    return (
        (isinstance(thing, containers) and not isinstance(thing, _NO_CONTAINERS))
        or (dataclasses.is_dataclass(thing) and not isinstance(thing, type))
        or hasattr(thing, "stores")
        or _is_sparse_of_pyg(thing)
    )


def _is_sparse_of_pyg(thing: Any) -> bool:
    """Whether it is the `SparseTensor` of torch_sparse, which is a class of its own and no tensor."""
    return type(thing).__name__ == "SparseTensor" and callable(getattr(thing, "csr", None))


_NO_CONTAINERS = (str, bytes, bytearray, memoryview, range)
