"""What a block of memory is for: the rules, as one pure function over columns.

The rules are listed in the order in which they are asked; the first that fits decides. `BlockFacts` says what is known
of each block, and `kinetoscope.tables.memory.facts` finds it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.model.schema import Phase, StorageRole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]


class MemoryCategory(IntEnum):
    """What a block is for. The numbers are the places in which torch's memory timelines list the categories."""

    PARAMETER = 0
    OPTIMIZER_STATE = 1
    INPUT = 2
    TEMPORARY = 3
    ACTIVATION = 4
    GRADIENT = 5
    AUTOGRAD_DETAIL = 6
    UNKNOWN = 7


CATEGORY_NAMES: tuple[str, ...] = tuple(
    category.name.lower().replace("_", " ") for category in MemoryCategory
)
NO_ROLE = 255


@dataclass(frozen=True)
class BlockFacts:
    """What the rules look at, one entry a block.

    Attributes:
        role: The `StorageRole` of a tensor seen in it, `NO_ROLE` without.
        phase: The `Phase` in which it was allocated.
        recorded: Whether its allocation was recorded; if not, nothing is known of where it came from.
        is_gradient: Whether autograd put it into a parameter's `grad`.
        gone_with_operator: Whether it was freed before the outermost operator that allocated it had ended.
        gone_with_step: Whether it was freed before the optimizer's step that allocated it had ended.
        in_module: Whether it was allocated in the forward of a module, recomputation in backward included.
        computed: Whether it was allocated in forward by an operator that backward came back to, or was computed from
            an activation.
        fed: Whether it was given to a module's operator in forward, or to one that backward came back to, or something
            that was is made of it; where nothing is known of that, whether it was there when such an operator began.
        stepped: Whether an optimizer's operator was given it.
        freed: Whether its free was seen.
    """

    role: NDArray[np.uint8]
    phase: NDArray[np.uint8]
    recorded: Flags
    is_gradient: Flags
    gone_with_operator: Flags
    gone_with_step: Flags
    in_module: Flags
    computed: Flags
    fed: Flags
    stepped: Flags
    freed: Flags


def categorise(facts: BlockFacts) -> NDArray[np.uint8]:
    """Return the `MemoryCategory` of each block.

    1. What a module holds as a parameter or buffer, or an optimizer in its groups, is a parameter.
    2. What an optimizer holds in its state is optimizer state.
    3. What became or was seen as a parameter's `grad` is a gradient.
    4. What was freed within the outermost operator (in backward: the backward function) that allocated it is temporary.
    5. What an optimizer's step allocated is optimizer state if it outlived the step, else temporary.
    6. What backward allocated is autograd detail, except where it computes a module's forward again.
    7. What was allocated in a module's forward is an activation; so is what was computed from one, and the output of
       an operator that backward came back to.
    8. Of the rest, what operators of the model and of the optimizer were both given is a parameter (its module did not
       live long enough to say so), what only the optimizer was given is its state, and what the model was given or
       was made from is input.
    9. Of what then is left, memory that was allocated and freed is temporary. Anything else is unknown.
    """
    role, phase, recorded = facts.role, facts.phase, facts.recorded
    forward = recorded & ((phase == Phase.FORWARD) | facts.in_module)
    rules: list[tuple[Flags, MemoryCategory]] = [
        ((role == StorageRole.PARAMETER) | (role == StorageRole.BUFFER), MemoryCategory.PARAMETER),
        (role == StorageRole.OPTIMIZER_STATE, MemoryCategory.OPTIMIZER_STATE),
        ((role == StorageRole.GRADIENT) | facts.is_gradient, MemoryCategory.GRADIENT),
        (recorded & facts.gone_with_operator, MemoryCategory.TEMPORARY),
        (recorded & (phase == Phase.OPTIMIZER) & facts.gone_with_step, MemoryCategory.TEMPORARY),
        (recorded & (phase == Phase.OPTIMIZER), MemoryCategory.OPTIMIZER_STATE),
        (recorded & (phase == Phase.BACKWARD) & ~facts.in_module, MemoryCategory.AUTOGRAD_DETAIL),
        (forward & (facts.in_module | facts.computed), MemoryCategory.ACTIVATION),
        (facts.stepped & facts.fed, MemoryCategory.PARAMETER),
        (facts.stepped, MemoryCategory.OPTIMIZER_STATE),
        (facts.fed, MemoryCategory.INPUT),
        (recorded & facts.freed, MemoryCategory.TEMPORARY),
    ]
    return np.select(
        [fits for fits, _ in rules], [np.uint8(category) for _, category in rules], MemoryCategory.UNKNOWN
    ).astype(np.uint8)
