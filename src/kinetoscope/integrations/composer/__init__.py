"""API-compatible with Composer's `TorchProfiler` and the profiler around it, with and without Composer."""

from kinetoscope.integrations.composer.callback import TorchProfiler, install_composer, uninstall_composer
from kinetoscope.integrations.composer.files import Timestamp, TraceFiles
from kinetoscope.integrations.composer.profiler import Marker, Profiler
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
    "uninstall_composer",
]
