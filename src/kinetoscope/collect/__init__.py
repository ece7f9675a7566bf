"""Starting and stopping a recording: sessions, schedules, handlers and the engines that record.

The public names are found on first use, so that importing this room does not import torch: `kinetoscope doctor` must
be able to say that torch is missing.
"""

import importlib
from typing import TYPE_CHECKING

from kinetoscope._errors import MissingDependencyError
from kinetoscope._import_aside import import_aside

if TYPE_CHECKING:
    from kinetoscope.collect.engines.choose import choose_engine
    from kinetoscope.collect.ranks import gather_summaries
    from kinetoscope.collect.request.activities import (
        DeviceType,
        ProfilerAction,
        ProfilerActivity,
        kineto_available,
        record_function,
        supported_activities,
    )
    from kinetoscope.collect.request.options import (
        Engine,
        EngineStatus,
        Gathered,
        Recording,
        RecordingOptions,
        RecordingRequest,
        Source,
    )
    from kinetoscope.collect.session.base_session import _KinetoProfile
    from kinetoscope.collect.session.handlers import tensorboard_trace_handler
    from kinetoscope.collect.session.profile import profile
    from kinetoscope.collect.session.schedule import schedule
    from kinetoscope.collect.session.steps import steps
    from kinetoscope.collect.sources.data_loading import DataLoading
    from kinetoscope.collect.sources.execution_trace import ExecutionTraceObserver
    from kinetoscope.collect.sources.rank_clock import align_clocks
    from kinetoscope.collect.sources.system_counters import SystemCounters
    from kinetoscope.collect.torch_compat.install import install, is_installed, uninstall

__all__ = [
    "DataLoading",
    "DeviceType",
    "Engine",
    "EngineStatus",
    "ExecutionTraceObserver",
    "Gathered",
    "ProfilerAction",
    "ProfilerActivity",
    "Recording",
    "RecordingOptions",
    "RecordingRequest",
    "Source",
    "SystemCounters",
    "_KinetoProfile",
    "align_clocks",
    "choose_engine",
    "gather_summaries",
    "install",
    "is_installed",
    "kineto_available",
    "profile",
    "record_function",
    "schedule",
    "steps",
    "supported_activities",
    "tensorboard_trace_handler",
    "uninstall",
]

_HOMES = {
    "DataLoading": "sources.data_loading",
    "DeviceType": "request.activities",
    "Engine": "request.options",
    "EngineStatus": "request.options",
    "ExecutionTraceObserver": "sources.execution_trace",
    "Gathered": "request.options",
    "ProfilerAction": "request.activities",
    "ProfilerActivity": "request.activities",
    "Recording": "request.options",
    "RecordingOptions": "request.options",
    "RecordingRequest": "request.options",
    "Source": "request.options",
    "SystemCounters": "sources.system_counters",
    "_KinetoProfile": "session.base_session",
    "align_clocks": "sources.rank_clock",
    "choose_engine": "engines.choose",
    "gather_summaries": "ranks",
    "install": "torch_compat.install",
    "is_installed": "torch_compat.install",
    "kineto_available": "request.activities",
    "profile": "session.profile",
    "record_function": "request.activities",
    "schedule": "session.schedule",
    "steps": "session.steps",
    "supported_activities": "request.activities",
    "tensorboard_trace_handler": "session.profile",
    "uninstall": "torch_compat.install",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_aside()
    if home != "request.options":
        _refuse_old_torch()
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def _refuse_old_torch() -> None:
    """Raise MissingDependencyError where the installed torch is older than any that we can record with."""
    import torch

    from kinetoscope.collect.recorder.build import why_too_old

    if problem := why_too_old(torch):
        raise MissingDependencyError(
            f"{problem}: `pip install --upgrade torch`. (Reading traces works without it.)"
        )
