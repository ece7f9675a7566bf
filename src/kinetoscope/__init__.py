"""Kinetoscope: a low-overhead profiler for PyTorch.

The names below are the public API. They are imported on first use, so that ``import kinetoscope`` does not import torch,
numpy or pyarrow, and reading a trace does not need torch.
"""

import importlib
import os
import sys

from kinetoscope import _forks, _import_aside  # noqa: F401  (registers what is seen before forks)
from kinetoscope._errors import *  # noqa: F403  (all of them are public)
from kinetoscope._errors import missing_torch as _missing_torch
from kinetoscope._version import __version__  # noqa: F401

# Keeps the names in it alive, see `_import_aside`.
_CODE = sys._getframe().f_code

# Where each name is. tools/generate_stubs.py writes `__init__.pyi` from this, for type checkers and editors.
_NAMES = {
    "collect": (
        "DataLoading DeviceType ExecutionTraceObserver ProfilerAction ProfilerActivity "
        "request SystemCounters _KinetoProfile align_clocks gather_summaries install kineto_available "
        "profile record_function schedule steps supported_activities tensorboard_trace_handler "
        "uninstall"
    ),
    "flight.flight": "leave_on",
    "integrations.trackers": "log_to_tracker",
    "launcher.run": "LaunchResult launch",
    "summaries.job": "Job summarize",
    "tables.costs": "OperatorCall register_flops register_peak_flops unregister_flops",
    "trace": "Trace open",
    "trace.opening": "compare merge",
    "viewer.server.report": "report",
    "viewer.server.serve": "view",
}
_HOMES = {name: f"kinetoscope.{home}" for home, names in _NAMES.items() for name in names.split()}

# Without `open`, so that `from kinetoscope import *` does not replace the built-in.
_ERRORS = {name for name in globals() if name.endswith("Error")}
__all__ = sorted({*_HOMES, *_ERRORS, "__version__"} - {"open"})  # noqa: PLE0605

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
        module = importlib.import_module(home or f"kinetoscope.{name}")
        value: object = getattr(module, _NAMES_AT_HOME.get(name, name)) if home else module
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
