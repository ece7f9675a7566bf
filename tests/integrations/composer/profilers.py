"""What several tests of profilers need: one that records nothing real, and a trace handler that notes what it is told."""

import json

import kinetoscope
from kinetoscope.integrations.composer import Profiler, cyclic_schedule
from tests.support.trace_builder import TraceBuilder

# How a session is asked for, and where `TorchProfiler`, `Profiler` and `JSONTraceHandler` put their files.
CPU = [kinetoscope.ProfilerActivity.CPU]
PLACES = {"folder": "run", "filename": "{batch}.json", "remote_file_name": None}
NO_COUNTERS = {"sys_prof_cpu": False}
TORCH = {
    "torch_prof_folder": "torch",
    "torch_prof_filename": "{batch}.json",
    "torch_prof_remote_file_name": None,
}
HANDLER = {"folder": "all", "filename": "{batch}.json", "remote_file_name": None}


def a_trace(_request):
    """What a recording that is none yields: one operator with an allocation."""
    builder = TraceBuilder().know("profile_memory", True)
    builder.span("aten::mm", 10, 20).allocate(12, 0x10, 64)
    return builder.build()


def saved(profiler):
    """How many batches were over at each of the traces that are kept."""
    return [moment.batch for moment, _ in profiler.saved_traces]


class Handler:
    """A trace handler of another kind, which notes what it is told."""

    def __init__(self, fail=False):
        self.told = []
        self._fail = fail

    def _note(self, *facts):
        self.told.append(facts)

    def init(self, state, logger):
        self._note("init")

    def close(self, state, logger):
        self._note("close")

    def process_duration_event(self, name, categories, is_start, timestamp, wall_clock_time_ns):
        self._note("duration", name, tuple(categories), is_start, timestamp.batch)

    def process_instant_event(self, name, categories, timestamp, wall_clock_time_ns):
        self._note("instant", name, tuple(categories), timestamp.batch)

    def process_counter_event(self, name, categories, wall_clock_time_ns, timestamp, values):
        self._note("counter", name, values)

    def process_chrome_json_trace_file(self, filepath):
        if self._fail:
            raise OSError("full")
        self._note("file", filepath.name, "traceEvents" in json.loads(filepath.read_text("utf-8")))


def profiler_of(engine, handlers=(), **options):
    given = {
        "schedule": cyclic_schedule(warmup=1, active=1, repeat=0),
        "engine": engine,
        **TORCH,
        **NO_COUNTERS,
    }
    return Profiler(trace_handlers=handlers, **given | options)


def two_batches(profiler):
    with profiler:
        profiler.step()
        profiler.step()
