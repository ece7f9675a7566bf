"""Kinetoscope: a low-overhead profiler for PyTorch.

The names below are the public API. They are imported on first use, so that ``import kinetoscope`` does not import torch,
numpy or pyarrow, and reading a trace does not need torch.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

from kinetoscope import _forks, _import_aside  # noqa: F401  (registers what is seen before forks)
from kinetoscope._errors import (
    ArgumentError,
    ArgumentTypeError,
    FolderNotEmptyError,
    FormatError,
    KinetoscopeError,
    MissingDependencyError,
    NotRecordedError,
    RecorderError,
    StateError,
)
from kinetoscope._errors import missing_torch as _missing_torch
from kinetoscope._version import __version__

if TYPE_CHECKING:
    from kinetoscope.collect import (
        DataLoading,
        DeviceType,
        ExecutionTraceObserver,
        ProfilerAction,
        ProfilerActivity,
        SystemCounters,
        _KinetoProfile,
        align_clocks,
        gather_summaries,
        install,
        kineto_available,
        profile,
        record_function,
        schedule,
        steps,
        supported_activities,
        tensorboard_trace_handler,
        uninstall,
    )
    from kinetoscope.collect import Request as request  # noqa: N813  (it is used like a function)
    from kinetoscope.flight.flight import leave_on
    from kinetoscope.integrations.trackers import log_to_tracker
    from kinetoscope.launcher.run import LaunchResult, launch
    from kinetoscope.summaries.job import Job, summarize
    from kinetoscope.tables.costs import OperatorCall, register_flops, register_peak_flops, unregister_flops
    from kinetoscope.trace import Trace
    from kinetoscope.trace import open as open  # noqa: A004  (the verb is `kinetoscope.open`)
    from kinetoscope.trace.opening import compare, merge
    from kinetoscope.viewer.server.report import report
    from kinetoscope.viewer.server.serve import view

# Without `open`, so that `from kinetoscope import *` does not replace the built-in.
__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "DataLoading",
    "DeviceType",
    "ExecutionTraceObserver",
    "FolderNotEmptyError",
    "FormatError",
    "Job",
    "KinetoscopeError",
    "LaunchResult",
    "MissingDependencyError",
    "NotRecordedError",
    "OperatorCall",
    "ProfilerAction",
    "ProfilerActivity",
    "RecorderError",
    "StateError",
    "SystemCounters",
    "Trace",
    "_KinetoProfile",
    "__version__",
    "align_clocks",
    "compare",
    "gather_summaries",
    "install",
    "kineto_available",
    "launch",
    "leave_on",
    "log_to_tracker",
    "merge",
    "profile",
    "record_function",
    "register_flops",
    "register_peak_flops",
    "report",
    "request",
    "schedule",
    "steps",
    "summarize",
    "supported_activities",
    "tensorboard_trace_handler",
    "uninstall",
    "unregister_flops",
    "view",
]

# Keeps the names in it alive, see `_import_aside`.
_CODE = sys._getframe().f_code

_HOMES = {
    "DataLoading": "kinetoscope.collect",
    "DeviceType": "kinetoscope.collect",
    "ExecutionTraceObserver": "kinetoscope.collect",
    "Job": "kinetoscope.summaries.job",
    "LaunchResult": "kinetoscope.launcher.run",
    "OperatorCall": "kinetoscope.tables.costs",
    "ProfilerAction": "kinetoscope.collect",
    "ProfilerActivity": "kinetoscope.collect",
    "SystemCounters": "kinetoscope.collect",
    "Trace": "kinetoscope.trace",
    "_KinetoProfile": "kinetoscope.collect",
    "align_clocks": "kinetoscope.collect",
    "compare": "kinetoscope.trace.opening",
    "gather_summaries": "kinetoscope.collect",
    "install": "kinetoscope.collect",
    "kineto_available": "kinetoscope.collect",
    "launch": "kinetoscope.launcher.run",
    "leave_on": "kinetoscope.flight.flight",
    "log_to_tracker": "kinetoscope.integrations.trackers",
    "merge": "kinetoscope.trace.opening",
    "open": "kinetoscope.trace",
    "profile": "kinetoscope.collect",
    "record_function": "kinetoscope.collect",
    "register_flops": "kinetoscope.tables.costs",
    "register_peak_flops": "kinetoscope.tables.costs",
    "report": "kinetoscope.viewer.server.report",
    "request": "kinetoscope.collect",
    "schedule": "kinetoscope.collect",
    "steps": "kinetoscope.collect",
    "summarize": "kinetoscope.summaries.job",
    "supported_activities": "kinetoscope.collect",
    "tensorboard_trace_handler": "kinetoscope.collect",
    "uninstall": "kinetoscope.collect",
    "unregister_flops": "kinetoscope.tables.costs",
    "view": "kinetoscope.viewer.server.serve",
}

# Names that are other ones at home: there is a folder `collect.request`.
_NAMES_AT_HOME = {"request": "Request"}

# A room that is not imported before something of it is used.
_PAGES = "kinetoscope.viewer."

# Submodules that are also imported on first use.
_MODULES = ("itt",)

# Classes that torch.profiler has from torch 2.15 on.
_TORCH_CLASSES = ("CuspyConfig", "PerformanceMetricsConfig", "ProfilerActivityConfig")

# Functions that IPython calls for `%load_ext` and `%unload_ext`; not part of the API.
_IPYTHON_HOOKS = ("load_ipython_extension", "unload_ipython_extension")


def __getattr__(name: str) -> object:
    """Import a public name on first use, and store it for later accesses."""
    if name in _IPYTHON_HOOKS:
        return getattr(importlib.import_module("kinetoscope.integrations.notebook"), name)
    home = _home_in_torch(name) if name in _TORCH_CLASSES else _HOMES.get(name)
    if home is None and name not in _MODULES:
        raise AttributeError(f"module 'kinetoscope' has no attribute {name!r}")
    _import_aside.import_aside(*([home] if home is not None and home.startswith(_PAGES) else []))
    try:
        value: object = (
            getattr(importlib.import_module(home), _NAMES_AT_HOME.get(name, name))
            if home is not None
            else importlib.import_module(f"kinetoscope.{name}")
        )
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise _missing_torch(name) from error
    globals()[name] = value
    return value


def _home_in_torch(name: str) -> str | None:
    """Return the module of a torch.profiler class, None if the installed torch does not have it."""
    try:
        home = importlib.import_module("torch.profiler")
    except ModuleNotFoundError:
        return None
    return "torch.profiler" if hasattr(home, name) else None


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *_HOMES, *__all__, *_MODULES})


if "KINETOSCOPE" in os.environ:
    importlib.import_module("kinetoscope.flight.environment").begin_if_asked()
