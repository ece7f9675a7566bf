"""Kinetoscope: a profiler for PyTorch that records cheaply, keeps columns, and says where the time went.

The names below are the whole public face. They are found on first use, so that ``import kinetoscope`` itself loads
neither torch nor numpy nor pyarrow, and so that reading a trace never needs torch.
"""

import importlib
from typing import TYPE_CHECKING

from kinetoscope._errors import (
    ArgumentError,
    ArgumentTypeError,
    FolderNotEmptyError,
    FormatError,
    KinetoscopeError,
    MissingDependencyError,
    RecorderError,
    StateError,
)
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
    from kinetoscope.launcher.run import LaunchResult, launch
    from kinetoscope.tables.costs import OperatorCall, register_flops, register_peak_flops, unregister_flops
    from kinetoscope.trace import Trace
    from kinetoscope.trace import open as open  # noqa: A004  (the verb is `kinetoscope.open`)
    from kinetoscope.trace.opening import merge
    from kinetoscope.viewer.report import report
    from kinetoscope.viewer.server.serve import view

# Without `open`: whoever imports all names keeps the one of Python.
__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "DataLoading",
    "DeviceType",
    "ExecutionTraceObserver",
    "FolderNotEmptyError",
    "FormatError",
    "KinetoscopeError",
    "LaunchResult",
    "MissingDependencyError",
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
    "install",
    "kineto_available",
    "launch",
    "merge",
    "profile",
    "record_function",
    "register_flops",
    "register_peak_flops",
    "report",
    "schedule",
    "steps",
    "supported_activities",
    "tensorboard_trace_handler",
    "uninstall",
    "unregister_flops",
    "view",
]

_HOMES = {
    "DataLoading": "kinetoscope.collect",
    "DeviceType": "kinetoscope.collect",
    "ExecutionTraceObserver": "kinetoscope.collect",
    "LaunchResult": "kinetoscope.launcher.run",
    "OperatorCall": "kinetoscope.tables.costs",
    "ProfilerAction": "kinetoscope.collect",
    "ProfilerActivity": "kinetoscope.collect",
    "SystemCounters": "kinetoscope.collect",
    "Trace": "kinetoscope.trace",
    "_KinetoProfile": "kinetoscope.collect",
    "align_clocks": "kinetoscope.collect",
    "install": "kinetoscope.collect",
    "kineto_available": "kinetoscope.collect",
    "launch": "kinetoscope.launcher.run",
    "merge": "kinetoscope.trace.opening",
    "open": "kinetoscope.trace",
    "profile": "kinetoscope.collect",
    "record_function": "kinetoscope.collect",
    "register_flops": "kinetoscope.tables.costs",
    "register_peak_flops": "kinetoscope.tables.costs",
    "report": "kinetoscope.viewer.report",
    "schedule": "kinetoscope.collect",
    "steps": "kinetoscope.collect",
    "supported_activities": "kinetoscope.collect",
    "tensorboard_trace_handler": "kinetoscope.collect",
    "uninstall": "kinetoscope.collect",
    "unregister_flops": "kinetoscope.tables.costs",
    "view": "kinetoscope.viewer.server.serve",
}

# Modules that are reached like the names above, without an import of their own.
_MODULES = ("itt",)

# Classes that torch.profiler has from 2.15 on; they are torch's own.
_TORCHS = ("CuspyConfig", "PerformanceMetricsConfig", "ProfilerActivityConfig")

# What IPython looks for in a module that `%load_ext` or `%unload_ext` names; no names for programs.
_EXTENSION = ("load_ipython_extension", "unload_ipython_extension")


def __getattr__(name: str) -> object:
    """Find a public name in its room on first use and keep it, so that the next look-up is an ordinary one."""
    if name in _EXTENSION:
        return getattr(importlib.import_module("kinetoscope.integrations.notebook"), name)
    home = _home_of_torchs(name) if name in _TORCHS else _HOMES.get(name)
    if home is None and name not in _MODULES:
        raise AttributeError(f"module 'kinetoscope' has no attribute {name!r}")
    try:
        value: object = (
            getattr(importlib.import_module(home), name)
            if home is not None
            else importlib.import_module(f"kinetoscope.{name}")
        )
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            f"kinetoscope.{name} records a running program and needs PyTorch, which is not installed here: "
            "install it with `pip install torch`. (Reading traces works without it.)"
        ) from error
    globals()[name] = value
    return value


def _home_of_torchs(name: str) -> str | None:
    """Where a class of torch's own stands, if the installed torch has it."""
    try:
        home = importlib.import_module("torch.profiler")
    except ModuleNotFoundError:
        return None
    return "torch.profiler" if hasattr(home, name) else None


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *_HOMES, *__all__, *_MODULES})
