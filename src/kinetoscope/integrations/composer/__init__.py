"""API-compatible with Composer's `TorchProfiler` and the profiler around it, with and without Composer.

The names are found on first use: importing this module imports neither torch nor Composer.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.integrations.composer.callback import TorchProfiler, install_composer, uninstall_composer
    from kinetoscope.integrations.composer.files import TraceFiles
    from kinetoscope.integrations.composer.json_trace_merger import merge_traces
    from kinetoscope.integrations.composer.marker import Marker
    from kinetoscope.integrations.composer.names import Timestamp
    from kinetoscope.integrations.composer.profiler import Profiler
    from kinetoscope.integrations.composer.schedule import ProfilerAction, cyclic_schedule
    from kinetoscope.integrations.composer.trace_handler import JSONTraceHandler

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
    "JSONTraceHandler": "trace_handler",
    "Marker": "marker",
    "Profiler": "profiler",
    "ProfilerAction": "schedule",
    "Timestamp": "names",
    "TorchProfiler": "callback",
    "TraceFiles": "files",
    "cyclic_schedule": "schedule",
    "install_composer": "callback",
    "merge_traces": "json_trace_merger",
    "uninstall_composer": "callback",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
