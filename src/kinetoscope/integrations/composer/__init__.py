"""API-compatible with Composer's `TorchProfiler`, with and without Composer, and a trace handler for Composer's profiler."""

from kinetoscope.integrations.composer.callback import (
    JSONTraceHandler,
    ProfilerAction,
    TorchProfiler,
    cyclic_schedule,
    install_composer,
    uninstall_composer,
)
from kinetoscope.integrations.composer.files import Timestamp, TraceFiles

__all__ = [
    "JSONTraceHandler",
    "ProfilerAction",
    "Timestamp",
    "TorchProfiler",
    "TraceFiles",
    "cyclic_schedule",
    "install_composer",
    "uninstall_composer",
]
