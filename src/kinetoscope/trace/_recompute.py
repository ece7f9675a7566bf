"""Which operators run a forward pass again, because activation checkpointing kept nothing of the first one.

The Python stack tells: below the function that calls the checkpointed one again, as far as no backward pass is started
from there (reentrant checkpointing runs the backward of its segment in the same function). DeepSpeed, Megatron and
FairScale have functions of the same name for this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace._columns import Columns

# The functions that call the checkpointed one again. The first stands in other libraries too; the function around the
# second is called differently in each few releases of torch, so only its end and its file tell it.
_REENTRANT, _NON_REENTRANT = "CheckpointFunction.backward", ".<locals>.recompute_fn"
_CHECKPOINT, _AUTOGRAD, _RANDOM = "torch/utils/checkpoint.py", "torch/autograd/__init__.py", "torch/random.py"
# What such a function runs beside it: backward, the state of random generators, and the keeping of what was computed.
_OTHERS = {
    "backward": _AUTOGRAD,
    "grad": _AUTOGRAD,
    "detach_variable": _CHECKPOINT,
    "set_device_states": _CHECKPOINT,
    "_recomputation_hook.__init__.<locals>.pack_hook": _CHECKPOINT,
    "_checkpoint_hook.__init__.<locals>.pack_hook": _CHECKPOINT,
    "_checkpoint_hook.__init__.<locals>.unpack_hook": _CHECKPOINT,
    "fork_rng": _RANDOM,
    "get_rng_state": _RANDOM,
    "set_rng_state": _RANDOM,
}


def recomputing_stacks(stacks: Columns, frames: Columns, strings: list[str]) -> NDArray[np.bool_] | None:
    """Mark the stacks below a function that runs a forward pass again; None without any."""
    functions, files = frames["function"].tolist(), frames["file"].tolist()
    names = {row: strings[row] for row in set(functions)}
    entry = [
        names[function] == _REENTRANT
        or (names[function].endswith(_NON_REENTRANT) and strings[file].endswith(_CHECKPOINT))
        for function, file in zip(functions, files, strict=True)
    ]
    if not any(entry):
        return None
    other = [
        names[function] in _OTHERS and strings[file].endswith(_OTHERS[names[function]])
        for function, file in zip(functions, files, strict=True)
    ]
    # The last entry stands for the row -1; callers come first.
    marked = [False] * (len(stacks) + 1)
    for row, (parent, frame) in enumerate(
        zip(stacks["parent"].tolist(), stacks["frame"].tolist(), strict=True)
    ):
        inherited = marked[parent] if parent < row else False
        marked[row] = frame >= 0 and (entry[frame] or (inherited and not other[frame]))
    return np.array(marked, dtype=bool)
