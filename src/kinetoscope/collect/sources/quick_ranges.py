"""Ranges with less overhead than `record_function`, for those that we open ourselves for every batch.

`record_function` calls two operators by name, which takes longer than loading a small batch. torch has two plain functions that
open and close the same range; if they are missing, `record_function` is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kinetoscope.collect.request.activities import record_function


def _slow_begin(name: str) -> Any:
    opened = record_function(name)
    opened.__enter__()
    return opened


def _slow_end(opened: Any) -> None:
    opened.__exit__(None, None, None)


def _chosen(bindings: Any) -> tuple[Callable[[str], Any], Callable[[Any], None]]:
    """Return torch's plain functions if it has both, else ours with `record_function`."""
    begin = getattr(bindings, "_record_function_with_args_enter", None)
    end = getattr(bindings, "_record_function_with_args_exit", None)
    return (_slow_begin, _slow_end) if begin is None or end is None else (begin, end)


# `begin_range` takes a name and returns a handle for `end_range`; ranges may be closed in any order.
begin_range, end_range = _chosen(getattr(torch._C, "_autograd", None))
