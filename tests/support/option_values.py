"""For each option of a recording a value that is not its default."""

from pathlib import Path

from kinetoscope import ProfilerActivity
from kinetoscope.collect import SystemCounters
from kinetoscope.collect.request.options import OPTIONS, SWITCHES


class Observer:
    """An observer that does nothing."""

    def start(self):
        pass

    def stop(self):
        pass

    def cleanup(self):
        pass


def _config():
    from torch._C._profiler import _ExperimentalConfig

    return _ExperimentalConfig(verbose=True)


# Calls, because some of them must be made anew for each recording.
OTHER_VALUES = {name: lambda name=name: not OPTIONS[name].default for name in SWITCHES} | {
    "activities": lambda: (ProfilerActivity.CPU,),
    "experimental_config": _config,
    "execution_trace_observer": Observer,
    "custom_trace_id_callback": lambda: lambda: "the id of a test",
    "post_processing_timeout_s": lambda: 2.5,
    "engine": lambda: "kineto",
    "path": lambda: Path("/runs/live.recording"),
    "summary": lambda: Path("/runs/summaries"),
    "ring_bytes": lambda: 1 << 20,
    "oom_report": lambda: False,
    "sources": lambda: (SystemCounters(),),
    "on_error": lambda: "warn",
}
