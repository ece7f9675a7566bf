"""Starting and stopping a recording: sessions, schedules, handlers and the engines that record.

The public names are found on first use, so that importing this room does not import torch: `kinetoscope doctor` must
be able to say that torch is missing.
"""

import importlib
from typing import TYPE_CHECKING

from kinetoscope._errors import MissingDependencyError

if TYPE_CHECKING:
    from kinetoscope.collect._activities import (
        DeviceType,
        ProfilerAction,
        ProfilerActivity,
        kineto_available,
        record_function,
        supported_activities,
    )
    from kinetoscope.collect._choose import choose_engine
    from kinetoscope.collect._data_loading import DataLoading
    from kinetoscope.collect._engine import Engine, EngineStatus, Recording, RecordingRequest
    from kinetoscope.collect._execution_trace import ExecutionTraceObserver
    from kinetoscope.collect._handlers import tensorboard_trace_handler
    from kinetoscope.collect._install import install, is_installed, uninstall
    from kinetoscope.collect._low_level import _KinetoProfile
    from kinetoscope.collect._rank_clock import align_clocks
    from kinetoscope.collect._schedule import schedule
    from kinetoscope.collect._session import profile
    from kinetoscope.collect._sources import Gathered, Source
    from kinetoscope.collect._steps import steps
    from kinetoscope.collect._system_counters import SystemCounters

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
    "RecordingRequest",
    "Source",
    "SystemCounters",
    "_KinetoProfile",
    "align_clocks",
    "choose_engine",
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
    "DataLoading": "_data_loading",
    "DeviceType": "_activities",
    "Engine": "_engine",
    "EngineStatus": "_engine",
    "ExecutionTraceObserver": "_execution_trace",
    "Gathered": "_sources",
    "ProfilerAction": "_activities",
    "ProfilerActivity": "_activities",
    "Recording": "_engine",
    "RecordingRequest": "_engine",
    "Source": "_sources",
    "SystemCounters": "_system_counters",
    "_KinetoProfile": "_low_level",
    "align_clocks": "_rank_clock",
    "choose_engine": "_choose",
    "install": "_install",
    "is_installed": "_install",
    "kineto_available": "_activities",
    "profile": "_session",
    "record_function": "_activities",
    "schedule": "_schedule",
    "steps": "_steps",
    "supported_activities": "_activities",
    "tensorboard_trace_handler": "_handlers",
    "uninstall": "_install",
}


def __getattr__(name: str) -> object:
    """Find a public name in its module on first use and keep it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _refuse_old_torch()
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def _refuse_old_torch() -> None:
    """Raise MissingDependencyError where the installed torch is older than any that we can record with."""
    import torch

    from kinetoscope.collect._build import why_too_old

    if problem := why_too_old(torch):
        raise MissingDependencyError(
            f"{problem}: `pip install --upgrade torch`. (Reading traces works without it.)"
        )
