"""How many bytes tensors take, where several of them may lie in the same memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes that the elements of these tensors take together; an element that several of them have counts once.

    Of a tensor that leaves gaps (`x[:, 0]`), the elements count and not the gaps. A tensor that shows one element many
    times (`expand`) takes that one. Tensors without memory of their own (meta, fake, functional, batched ones) take none.
    """
    whole: dict[torch.device, list[tuple[int, int]]] = {}
    with_gaps: dict[torch.device, set[tuple[int, int, int]]] = {}
    # Subclasses are looked at as the plain tensors they are: what they make of a question is their own affair.
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in (part for one in tensors for part in _plain_parts(one)):
            extent = _extent(tensor)
            if extent is None:
                continue
            start, end, size = extent
            if size == end - start:
                whole.setdefault(tensor.device, []).append((start, end))
            else:
                with_gaps.setdefault(tensor.device, set()).add(extent)
    covered = {device: _joined(ranges) for device, ranges in whole.items()}
    counted = sum(end - start for ranges in covered.values() for start, end in ranges)
    for device, extents in with_gaps.items():
        for start, end, size in extents:
            if not any(first <= start and end <= last for first, last in covered.get(device, ())):
                counted += size
    return counted


def _plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with an address that a tensor is made of: itself, the parts of a sparse one, what a wrapper wraps."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        inner: list[Any] = [getattr(tensor, name, None) for name in tensor.__tensor_flatten__()[0]]
        for part in inner:
            if isinstance(part, torch.Tensor) and part is not tensor:
                yield from _plain_parts(part)
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor


def _extent(tensor: torch.Tensor) -> tuple[int, int, int] | None:
    """Where a tensor's elements begin and end, and their bytes; None for one without memory of its own."""
    try:
        storage = tensor.untyped_storage()
        # Fake tensors name a device that only their storage denies, and warn when they are asked for an address.
        if storage.device.type == "meta" or storage.data_ptr() == 0:
            return None
        if tensor.is_nested:
            return storage.data_ptr(), storage.data_ptr() + storage.nbytes(), storage.nbytes()
        if tensor.numel() == 0:
            return None
        width = tensor.element_size()
        start = storage.data_ptr() + tensor.storage_offset() * width
        # A dimension of stride 0 shows the same elements again.
        shown = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    except (RuntimeError, NotImplementedError, ValueError):
        # Functional, batched and not yet materialised tensors have no storage: torch refuses to tell.
        return None
    last = sum((size - 1) * stride for size, stride in shown)
    elements = math.prod(size for size, _ in shown)
    end = start + (last + 1) * width
    return start, end, min(elements * width, end - start)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same memory as ranges that do not touch."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
