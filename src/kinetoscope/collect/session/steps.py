"""`kinetoscope.steps`: profile a training loop by wrapping its data loader, without calls of `step()`."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch.utils.data import IterableDataset

from kinetoscope._errors import ArgumentError, checked_switch
from kinetoscope.collect.process.rank import ranked
from kinetoscope.collect.request.activities import ProfilerAction
from kinetoscope.collect.request.options import Source, checked_path, checked_sources
from kinetoscope.collect.session.profile import profile
from kinetoscope.collect.session.schedule import Schedule
from kinetoscope.collect.session.state import SessionState
from kinetoscope.collect.sources.data_loading import DataLoading
from kinetoscope.formats.suffixes import suffix_of

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

Item = TypeVar("Item")

DEFAULT_SCHEDULE = Schedule(wait=1, warmup=1, active=3, repeat=1)
_END: Any = object()
# The attribute of torch's `DataLoader` that stores whether its length was read.
_LENGTH_WAS_READ = "_IterableDataset_len_called"


class Steps(Generic[Item]):
    """The result of `steps`: iterate it instead of the wrapped items. Every loop over it continues the count of steps.

    Attributes:
        session: The session that records: its `trace`, `cycles`, `key_averages()` and so on.
    """

    def __init__(self, items: Iterable[Item], session: profile, save: Path | None) -> None:
        """Loop over `items` within `session`, and save each cycle's trace to `save`."""
        self._items = items
        self._save = save
        self._saved = 0
        self._within_step = False
        self._cut_short = False
        self._on_trace_ready = session.on_trace_ready
        if save is not None:
            session.on_trace_ready = self._save_trace
        self.session = session

    @property
    def trace(self) -> Trace:
        """The trace of the last finished cycle.

        Raises:
            StateError: Nothing was recorded yet; the message says what is missing.
        """
        return self.session.trace

    def __len__(self) -> int:
        """Number of steps in one loop; raises TypeError if the items have no length."""
        return len(self._items)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Item]:
        """Start the session and iterate; the session stops when the loop ends, also on `break` or an exception.

        Raises:
            StateError: This or another session is recording in this process.
        """
        if self._is_through():
            return iter(self._items)
        return self._steps()

    def _is_through(self) -> bool:
        session = self.session
        if not isinstance(session.schedule, Schedule) or session.finished_cycles.finished == 0:
            return False
        after = session.schedule.steps_until_through()
        return after is not None and session.step_num + self._within_step >= after

    def _steps(self) -> Generator[Item, None, None]:
        session, finished = self.session, False
        self._skip_cut_cycle()
        session.__enter__()
        try:
            # After the session has begun, for loaders start their workers here.
            iterator = iter(self._items)
            length, yielded = _length(self._items), 0
            # A list, because a variable would keep a batch alive while the next one is loaded.
            held = [next(iterator, _END)]
            while held[0] is not _END:
                self._within_step, yielded = True, yielded + 1
                yield held.pop()
                # The wait for a batch belongs to the step that uses it, and after the last one there is no step.
                if yielded != length:
                    self._next_step()
                held.append(next(iterator, _END))
                if yielded == length and held[0] is not _END:
                    self._next_step()
            finished = True
        finally:
            try:
                self._cut_short = session.state is SessionState.RECORDING
            finally:
                # Warn if nothing was recorded, but not in every epoch after the last cycle.
                session.leave(may_raise=finished, explain=session.finished_cycles.finished == 0)

    def _skip_cut_cycle(self) -> None:
        """Continue after the last step of an earlier loop, and after the cycle that it cut short."""
        session = self.session
        if self._cut_short and isinstance(session.schedule, Schedule):
            while session.current_action is ProfilerAction.RECORD:
                session.step()
            self._within_step = True
        if self._within_step:
            self._next_step()
        self._cut_short = False

    def _next_step(self) -> None:
        self.session.step()
        self._within_step = False

    def _save_trace(self, session: profile) -> None:
        if self._save is not None:
            path, suffix = ranked(self._save), suffix_of(self._save)
            if self._saved:
                path = path.with_name(f"{path.name[: -len(suffix)]}.{self._saved}{path.name[-len(suffix) :]}")
            self._saved += 1
            session.trace.save(path)
        if self._on_trace_ready is not None:
            self._on_trace_ready(session)


def steps(
    items: Iterable[Item],
    *,
    schedule: Callable[[int], ProfilerAction] | None = None,
    save: str | os.PathLike[str] | None = None,
    data_loading: bool = True,
    sources: Iterable[Source] = (),
    **options: Any,
) -> Steps[Item]:
    """Profile a loop: `for batch in kinetoscope.steps(loader): ...`, and each round is a step.

    A session begins with the loop and ends with it: at its end, on `break`, on `return`, and when an exception leaves it. A
    step is the wait for a batch and its processing. Another loop, such as the next epoch, continues the count of steps and
    skips the rest of a cycle that the end of the loop cut short. After the last cycle nothing is recorded, and the loop runs
    without overhead.

    Args:
        items: What to loop over: a `DataLoader`, or anything that can be looped over.
        schedule: Which steps are recorded, as for `profile`. Default: one cycle of one idle, one warm-up and three
            recorded steps.
        save: Where the trace of each cycle is saved, in the format that the suffix names, such as `run.ktrace` or
            `run.json`; cycles after the first have a number before the suffix, ranks of a distributed run their rank.
        data_loading: Record how batches are loaded, also in worker processes; see `DataLoading`.
        sources: Additional recorders, such as `SystemCounters()`.
        **options: The other arguments of `profile`.

    Returns:
        What to loop over instead of `items`. It has the `trace` after the loop, and the `session`.

    Raises:
        ArgumentError: `items` cannot be looped over, the suffix of `save` names no format, or an argument of `profile`
            has a value that cannot be used.
    """
    if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
        raise ArgumentError(f"steps: {items!r} cannot be looped over: pass a DataLoader or another iterable.")
    path = None if save is None else checked_path("save", save)
    if save is not None:
        suffix_of(save)
    loading = (DataLoading(),) if checked_switch("data_loading", data_loading) else ()
    session = profile(
        schedule=DEFAULT_SCHEDULE if schedule is None else schedule,
        sources=(*loading, *checked_sources(sources)),
        **options,
    )
    return Steps(items, session, path)


def _length(items: object) -> int | None:
    try:
        if not isinstance(getattr(items, "dataset", None), IterableDataset):
            return len(items)  # type: ignore[arg-type]
        # Once the length of a loader of an IterableDataset was read, it warns of each sample beyond that length.
        before = vars(items)[_LENGTH_WAS_READ]
        try:
            return len(items)  # type: ignore[arg-type]
        finally:
            setattr(items, _LENGTH_WAS_READ, before)
    except Exception:  # noqa: BLE001  (user code may raise anything)
        return None
