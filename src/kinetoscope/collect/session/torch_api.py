"""The rest of the API of torch's sessions, besides recording and reading."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.profiler

from kinetoscope._errors import StateError
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import (
    ActivityChoice,
    ProfilerActivity,
    checked_activities,
    device_among,
)
from kinetoscope.collect.request.options import checked_switch
from kinetoscope.collect.session.profiler_api import ProfilerApi
from kinetoscope.collect.session.state import SessionState

if TYPE_CHECKING:
    from kinetoscope.collect.request.options import Engine, RecordingOptions, TraceObserver
    from kinetoscope.collect.session.observer_window import ObserverWindow
    from kinetoscope.collect.session.stats import SessionStats, Stopwatch


# Methods of newer releases exist here only if the installed torch has them, too.
_THEIRS = torch.profiler._KinetoProfile


class TorchSessionApi:
    """The remaining methods and attributes of torch's session."""

    activities: set[ProfilerActivity]
    custom_trace_id_callback: Any
    _options: RecordingOptions
    _recordable: frozenset[ProfilerActivity]
    _lock: threading.RLock
    _state: SessionState
    _engine: Engine | None
    _observer: ObserverWindow
    _stopwatch: Stopwatch
    _trace_id: str | None

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[ProfilerActivity]) -> None:
        """Pause or resume the collection of some activities while recording.

        Events that begin during a pause are not recorded; the trace's `losses` and the metadata `pauses` contain its times.
        Every recording starts with all activities on. Without an active recording, this only warns.

        Args:
            enable: True resumes, False pauses.
            activities: Torch's `ProfilerActivity` values; those that are not recorded are ignored.

        Raises:
            ArgumentError: `enable` is neither True nor False, or `activities` contains something else.
            StateError: The engine cannot switch collection off.
        """
        on = checked_switch("enable", enable)
        requested = frozenset(checked_activities(activities)) & self._recordable
        with self._lock:
            if self._state is not SessionState.RECORDING or self._engine is None:
                warn_user("toggle_collection_dynamic() has no effect: this session is not recording now.")
                return
            toggle = getattr(self._engine, "toggle", None)
            if toggle is None:
                raise StateError(
                    f"the engine {self._engine.name!r} cannot switch collection off and on while it records."
                )
            if requested:
                toggle(on, requested)

    def get_trace_id(self) -> str | None:
        """The id of the cycle that is prepared, is recording, or ended last.

        Returns:
            The id, also `trace_id` in the trace's metadata; None before the first cycle.
        """
        return self._trace_id

    def set_custom_trace_id_callback(self, callback: Callable[[], str] | None) -> None:
        """Set the callback that returns the ids of later cycles.

        Args:
            callback: Called without arguments, returns a string; None for random ids.

        Raises:
            ArgumentError: It cannot be called.
        """
        self.custom_trace_id_callback = callback

    if hasattr(torch.profiler, "ProfilerActivityConfig"):

        @property
        def activity_configs(self) -> dict[ProfilerActivity, Any]:
            """torch's `ProfilerActivityConfig` of each activity that does not record its default kinds."""
            return {
                activity: torch.profiler.ProfilerActivityConfig(
                    None if choice.kinds is None else sorted(choice.kinds), list(choice.configs)
                )
                for activity, choice in self._options.activity_choices.items()
                if choice != ActivityChoice()
            }

    if hasattr(_THEIRS, "wait_for_exports"):

        def wait_for_exports(self) -> None:
            """Do nothing: every export is written when the call that asks for it returns."""

    if hasattr(_THEIRS, "take_pending_cupti_export"):

        def take_pending_cupti_export(self) -> None:
            """Return None, as torch does for all but a backend of its own that writes later."""

    if hasattr(_THEIRS, "take_pending_cuspy_export"):

        def take_pending_cuspy_export(self) -> None:
            """Return None, as torch does for all but a backend of its own that writes later."""

    @property
    def execution_trace_observer(self) -> TraceObserver | None:
        """The observer that runs with each recording, if any."""
        return self._observer.observer

    @property
    def use_device(self) -> str | None:
        """torch's name of the device among the activities, None for the CPU only."""
        return device_among(self.activities)

    @property
    def has_cudagraphs(self) -> bool:
        """Whether torch.compile captures its kernels in CUDA graphs."""
        config = sys.modules.get("torch._inductor.config")
        return config is not None and bool(config.triton.cudagraphs)

    @property
    def profiler(self) -> Any:
        """torch's attribute of this name: None before the first cycle, then an object with the last cycle's results.

        With `engine="kineto"` it is torch's own `torch.autograd.profiler.profile`. With the native engine it is an object
        with the same methods, computed from our trace; methods that need torch's collector, such as
        `kineto_results.experimental_event_tree()`, raise StateError.
        """
        if self._stopwatch.stats is None:
            return None
        theirs = getattr(self._engine, "torch_profiler", None)
        return ProfilerApi(self) if theirs is None else theirs

    def _stats(self) -> SessionStats | None:
        """The profiler overhead of the current or last cycle, with torch's attribute names; None before the first.

        Returns:
            Its fields name their units; see `kinetoscope.collect.session.stats.SessionStats`.
        """
        return self._stopwatch.stats
