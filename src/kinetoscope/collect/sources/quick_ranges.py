"""Ranges with less overhead than `record_function`, for the ranges that we open for every batch.

`record_function` calls two operators by name, which takes longer than loading a small batch. These two functions of torch open and close the same
range: the first takes a name and returns a handle for the second. Ranges may be closed in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_bindings: Any = torch._C._autograd  # noqa: SLF001  (torch's own)
begin_range: Callable[..., Any] = _bindings._record_function_with_args_enter  # noqa: SLF001  (torch's own)
end_range: Callable[[Any], None] = _bindings._record_function_with_args_exit  # noqa: SLF001  (torch's own)
