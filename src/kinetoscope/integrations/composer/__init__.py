"""The face of Composer's `TorchProfiler` and of the profiler around it, under Composer and without it.

The names are found on first use: importing this module imports neither torch nor Composer.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.integrations.composer._callback import TorchProfiler
    from kinetoscope.integrations.composer._files import TraceFiles
    from kinetoscope.integrations.composer._marker import Marker
    from kinetoscope.integrations.composer._present import ProfilerAction
    from kinetoscope.integrations.composer._profiler import Profiler
    from kinetoscope.integrations.composer._schedule import cyclic_schedule
    from kinetoscope.integrations.composer._swap import install_composer, uninstall_composer
    from kinetoscope.integrations.composer._timestamp import Timestamp
    from kinetoscope.integrations.composer._trace_handler import JSONTraceHandler
    from kinetoscope.integrations.composer.json_trace_merger import merge_traces

__all__ = [
    "JSONTraceHandler",
    "Marker",
    "Profiler",
    "ProfilerAction",
    "Timestamp",
    "TorchProfiler",
    "TraceFiles",
    "cyclic_schedule",
    "install_composer",
    "merge_traces",
    "uninstall_composer",
]

_HOMES = {
    "JSONTraceHandler": "_trace_handler",
    "Marker": "_marker",
    "Profiler": "_profiler",
    "ProfilerAction": "_present",
    "Timestamp": "_timestamp",
    "TorchProfiler": "_callback",
    "TraceFiles": "_files",
    "cyclic_schedule": "_schedule",
    "install_composer": "_swap",
    "merge_traces": "json_trace_merger",
    "uninstall_composer": "_swap",
}


def __getattr__(name: str) -> object:
    """Find a public name in its module on first use and keep it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
