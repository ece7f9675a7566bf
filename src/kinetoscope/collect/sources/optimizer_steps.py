"""Listeners for the steps of all optimizers, which may be added and removed during a step.

torch iterates over a dictionary of hooks at each step, and raises an error if it is changed meanwhile, for instance by a
session that starts or stops in a hook of the program. So our hooks are registered once, before the first step, and never
removed; they call the functions in a list of our own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

Listener = Callable[[Optimizer, Any, Any], None]


class OptimizerSteps:
    """Calls listeners at the steps of all optimizers of this process."""

    def __init__(self) -> None:
        """Start without listeners."""
        self._registered = False
        self._before: tuple[Listener, ...] = ()
        self._after: tuple[Listener, ...] = ()

    def __len__(self) -> int:
        """Number of listeners."""
        return len(self._before) + len(self._after)

    def listen(self) -> None:
        """Register our hooks with torch, once. Must not be called during a step of an optimizer."""
        if not self._registered:
            self._registered = True
            register_optimizer_step_pre_hook(self._before_step)
            register_optimizer_step_post_hook(self._after_step)

    def before(self, listener: Listener) -> None:
        """Call a function before each step, with the optimizer and the arguments of the step."""
        self.listen()
        self._before = (*self._before, listener)

    def after(self, listener: Listener) -> None:
        """Call a function after each step, with the optimizer and the arguments of the step."""
        self.listen()
        self._after = (*self._after, listener)

    def forget(self, *listener: Listener) -> None:
        """Remove listeners; unknown ones are ignored."""
        self._before = tuple(registered for registered in self._before if registered not in listener)
        self._after = tuple(registered for registered in self._after if registered not in listener)

    # The tuples are replaced at each change, so that a loop is not affected by listeners that add or remove others.

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for listener in self._before:
            listener(optimizer, args, kwargs)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for listener in self._after:
            listener(optimizer, args, kwargs)


OPTIMIZER_STEPS = OptimizerSteps()
