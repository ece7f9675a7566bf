"""Listeners for the steps of every optimizer, also from within a step.

torch keeps what is to be called at each step in a dictionary and goes through it; the program ends with an error when
that is changed meanwhile, as by a session that begins or ends within somebody's own hook. So what torch calls is put
there once, before there can be a step, and stays; whom it tells is a list of our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    Listener = Callable[[Optimizer, Any, Any], None]


class OptimizerSteps:
    """Calls listeners at the steps of all optimizers of this process."""

    def __init__(self) -> None:
        """Start without listeners."""
        self._listens = False
        self._before: tuple[Listener, ...] = ()
        self._after: tuple[Listener, ...] = ()

    def __len__(self) -> int:
        """How many functions are called at a step."""
        return len(self._before) + len(self._after)

    def listen(self) -> None:
        """Register with torch; a second call does nothing. Call it while no optimizer steps."""
        if not self._listens:
            self._listens = True
            register_optimizer_step_pre_hook(self._begins)
            register_optimizer_step_post_hook(self._has_ended)

    def before(self, listener: Listener) -> None:
        """Call a function with the optimizer and the arguments of each step before it."""
        self.listen()
        self._before = (*self._before, listener)

    def after(self, listener: Listener) -> None:
        """Call a function with the optimizer and the arguments of each step after it."""
        self.listen()
        self._after = (*self._after, listener)

    def forget(self, *listener: Listener) -> None:
        """Remove listeners; unknown ones are ignored."""
        self._before = tuple(one for one in self._before if one not in listener)
        self._after = tuple(one for one in self._after if one not in listener)

    # The lists are replaced at each change, so these loops see the state at the start of the step.

    def _begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for listener in self._before:
            listener(optimizer, args, kwargs)

    def _has_ended(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for listener in self._after:
            listener(optimizer, args, kwargs)


OPTIMIZER_STEPS = OptimizerSteps()
