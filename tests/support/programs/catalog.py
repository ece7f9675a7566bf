"""The list of programs: a maker builds one once, and what it returns is run many times."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

Program = Callable[[], object]
Maker = Callable[[], Program]

PROGRAMS: dict[str, Maker] = {}
"""Programs that are built and run within a second."""

SLOW_PROGRAMS: dict[str, Maker] = {}
"""Programs whose building takes seconds, because something is compiled or processes are started."""


def program(make: Maker) -> Maker:
    """Adds a maker of programs to the list under its own name."""
    return _listed(PROGRAMS, make)


def slow_program(make: Maker) -> Maker:
    """Adds a maker whose building takes seconds."""
    return _listed(SLOW_PROGRAMS, make)


def _listed(programs: dict[str, Maker], make: Maker) -> Maker:
    name = make.__name__
    if name in PROGRAMS or name in SLOW_PROGRAMS:
        raise ValueError(f"there is a program {name!r} already")

    def seeded() -> Program:
        # The same weights and data whatever ran before.
        torch.manual_seed(0)
        return make()

    programs[name] = seeded
    return make


def training_step(
    model: nn.Module,
    make_loss: Callable[[], torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    **options: object,
) -> Program:
    """One step of AdamW (or of another optimizer): zero_grad, forward, backward, step."""
    chosen = optimizer if optimizer is not None else torch.optim.AdamW(model.parameters(), **options)

    def step() -> None:
        chosen.zero_grad()
        make_loss().backward()
        chosen.step()

    return step


@contextmanager
def old_interfaces() -> Iterator[None]:
    """Lets a program use what torch has deprecated: programs that do are still out there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield
