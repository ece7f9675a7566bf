"""Deep steps: a few steps of a recording are recorded in full, with data that would be too expensive for all of them.

They are the three after the step that contains the start of the program, one among the next 4, 8, 16 and 32, and then one of every 64, at a position
that varies. A step of nothing but small operators takes up to a third longer if it is recorded in full, so one of 64 adds at most half a percent.
Slices of time take the place of steps while the program has not ended a step yet, and when it has not for long, as in an evaluation after training.
Slices are counted once the program imports no more modules.
A step or slice of very many operators is recorded in full in its first part only: each such operator also costs time when the trace is read.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from kinetoscope._errors import KinetoscopeError
from kinetoscope._runtime import chosen_step
from kinetoscope.collect.process.user_warnings import warn_safely
from kinetoscope.collect.request.options import AppendRows, Source
from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS

FIRST_STEPS = range(1, 4)
"""All of these are deep. Step 0 contains the start of the program."""
MOST_LEVEL = 6
"""In the long run, one of 2^6 steps is deep."""
SLICE_NS = 50_000_000
LEAST_OPERATORS, MOST_SLICES = 1000, 40
"""A deep slice with fewer operators is extended, up to this many slices: what happens to the result of a long operator shows only after it."""
ENOUGH_OPERATORS, ENOUGH_IN_STEP = 4000, 30_000
"""After this many operators, the rest of a slice or a step is recorded as usual; this is noticed at the next look at it."""
LOOKS = 5
"""How often a deep slice is looked at."""
LATEST_START = 8
"""Imports restart the count of slices up to this one; later imports are part of the program's work."""
LEAST_PATIENCE_NS, PATIENCE = 250_000_000, 4
"""If no step has ended for this long, and for this many times the longest step, the program is doing something other than steps."""
_SEED = 0


def is_deep(step: int) -> bool:
    """Whether a step is deep: the same ones on all ranks of a job.

    Args:
        step: Its number, counted from 0 at the start of the recording.
    """
    if step < FIRST_STEPS.stop:
        return step in FIRST_STEPS
    level = min(step.bit_length() - 1, MOST_LEVEL)
    return chosen_step(_SEED, level, step >> level) == step


class DeepSteps(Source):
    """The source that makes an engine record deep steps."""

    def __init__(
        self, record_deep: Callable[[bool], int], clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Prepare.

        Args:
            record_deep: A method that switches recording in full on or off, and returns how many operators were recorded in full so far; not kept alive.
            clock_ns: The clock for slices.
        """
        self._record_deep = weakref.WeakMethod(record_deep)
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._is_open = self._records_in_full = False
        self._optimizer: int | None = None
        self._step = self._stepped_ns = self._longest_ns = self._process = 0
        # When the current slices began; None while the program makes steps.
        self._began_ns: int | None = 0
        # When the current deep slice began, and how many operators had been recorded in full before it.
        self._deep_slice: tuple[int, int] | None = None
        # How many operators there had been before a step that is recorded in full.
        self._before_step: int | None = None
        self._sliced_ns = 0
        self._modules = len(sys.modules)
        self._ended = threading.Event()

    def start(self) -> None:
        """Make the first step of the recording step 0; a fork may have copied the lock while a thread held it."""
        self._process, self._lock, self._ended = os.getpid(), threading.Lock(), threading.Event()
        self._optimizer, self._began_ns = None, 0
        self._step = self._sliced_ns = self._longest_ns = 0

    def write_to(self, _append: AppendRows | None) -> None:
        """Begin, since the engine is recording now."""
        self._is_open = True
        self._began_ns = self._clock_ns()
        self._switch(True)
        OPTIMIZER_STEPS.after(self._optimizer_stepped)
        slices = threading.Thread(
            target=self._follow_slices, args=(self._ended,), name="kinetoscope deep steps", daemon=True
        )
        slices.start()

    def stop(self) -> None:
        """Stop switching the engine."""
        with self._lock:
            self._is_open = False
        self._ended.set()
        OPTIMIZER_STEPS.forget(self._optimizer_stepped)

    def begin_step(self) -> None:
        """Called when the program begins its next step; does nothing in a forked child, where a thread of the parent may hold the lock."""
        if self._process != os.getpid():
            return
        with self._lock:
            now_ns = self._clock_ns()
            if self._step:
                self._longest_ns = max(self._longest_ns, now_ns - self._stepped_ns)
            self._stepped_ns, self._began_ns, self._deep_slice = now_ns, None, None
            self._step += 1
            deep = is_deep(self._step)
            operators = self._switch(deep)
            self._before_step = operators if deep else None

    def begin_slice(self) -> float:
        """Switch to the current slice of time, unless the program makes steps; return in how many seconds to call this again."""
        with self._lock:
            now_ns = self._clock_ns()
            if self._step:
                patience_ns = max(LEAST_PATIENCE_NS, PATIENCE * self._longest_ns)
                idle_ns = now_ns - self._stepped_ns
                if idle_ns < patience_ns:
                    self._end_long_step()
                    return min(patience_ns - idle_ns, LEAST_PATIENCE_NS) / 1e9
            if self._began_ns is None:
                self._began_ns = now_ns - self._sliced_ns
            past_ns = now_ns - self._began_ns
            modules = len(sys.modules)
            if modules != self._modules and not self._step and past_ns < LATEST_START * SLICE_NS:
                self._began_ns += past_ns
                past_ns = 0
            self._modules = modules
            # Once there was a step, slices are counted from now on.
            self._sliced_ns = past_ns if self._step else 0
            now = past_ns // SLICE_NS
            deep = _is_deep_slice(now)
            if self._deep_slice is None:
                operators = self._switch(deep)
                self._deep_slice = (now_ns, operators) if deep else None
            elif self._goes_on(*self._deep_slice, now_ns, deep) and not deep:
                return SLICE_NS / 1e9
            elif not deep:
                self._deep_slice = None
        if deep:
            return SLICE_NS / LOOKS / 1e9
        end = now + 1
        while not _is_deep_slice(end):
            end += 1
        return (end * SLICE_NS - past_ns) / 1e9

    def _goes_on(self, began_ns: int, operators_before: int, now_ns: int, planned: bool) -> bool:
        """Whether deep slices that began at `began_ns` go on: planned ones until they have enough operators, others while they have too few."""
        operators = self._switch(self._records_in_full) - operators_before
        lasts = (now_ns - began_ns) // SLICE_NS
        if planned:
            goes_on = operators < ENOUGH_OPERATORS * (lasts + 1)
        else:
            goes_on = self._is_open and operators < LEAST_OPERATORS and lasts < MOST_SLICES
        self._switch(goes_on)
        return goes_on

    def _end_long_step(self) -> None:
        """Record the rest of a step as usual once it has enough operators."""
        if self._before_step is not None and self._switch(True) - self._before_step >= ENOUGH_IN_STEP:
            self._switch(False)
            self._before_step = None

    def _follow_slices(self, ended: threading.Event) -> None:
        while not ended.wait(self.begin_slice()):
            continue

    def _optimizer_stepped(self, optimizer: object, _args: Any, _kwargs: Any) -> None:
        """Count steps by the first optimizer that steps, unless the program marks its steps itself."""
        if self._optimizer is None:
            self._optimizer = -1 if self._step else id(optimizer)
        if id(optimizer) == self._optimizer:
            self.begin_step()

    def _switch(self, deep: bool) -> int:
        """Switch full recording; a failure turns it off for good. Return how many operators were recorded in full so far."""
        record_deep = self._record_deep()
        if not self._is_open or record_deep is None:
            return 0
        self._records_in_full = deep
        try:
            return record_deep(deep)
        except KinetoscopeError as error:
            self._is_open = False
            warn_safely(f"no more steps are recorded in full: {error}")
        return 0


def _is_deep_slice(number: int) -> bool:
    return number == 0 or is_deep(number)
