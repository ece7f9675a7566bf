"""What several tests of profilers need: arguments, and a recording that is none."""

import kinetoscope
from tests.support.trace_builder import TraceBuilder

# How a session is asked for, and where `TorchProfiler` and `JSONTraceHandler` put their files.
CPU = [kinetoscope.ProfilerActivity.CPU]
PLACES = {"folder": "run", "filename": "{batch}.json", "remote_file_name": None}
HANDLER = {"folder": "all", "filename": "{batch}.json", "remote_file_name": None}


def a_trace(_request):
    """What a recording that is none yields: one operator with an allocation."""
    builder = TraceBuilder().know("profile_memory", True)
    builder.span("aten::mm", 10, 20).allocate(12, 0x10, 64)
    return builder.build()


def saved(profiler):
    """How many batches were over at each of the traces that are kept."""
    return [moment.batch for moment, _ in profiler.saved_traces]
