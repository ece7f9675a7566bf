"""For each option of a recording a value that is not its default."""

from pathlib import Path

from kinetoscope import ProfilerActivity
from kinetoscope.collect import SystemCounters


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
OTHER_VALUES = {
    "activities": lambda: (ProfilerActivity.CPU,),
    "record_shapes": lambda: True,
    "profile_memory": lambda: True,
    "with_stack": lambda: True,
    "with_flops": lambda: True,
    "with_modules": lambda: True,
    "only_requested": lambda: True,
    "python_calls": lambda: True,
    "module_spans": lambda: True,
    "garbage_collection": lambda: True,
    "tensor_versions": lambda: True,
    "deep_steps": lambda: True,
    "samples": lambda: False,
    "experimental_config": _config,
    "execution_trace_observer": Observer,
    "acc_events": lambda: True,
    "custom_trace_id_callback": lambda: lambda: "the id of a test",
    "post_processing_timeout_s": lambda: 2.5,
    "engine": lambda: "kineto",
    "path": lambda: Path("/runs/live.recording"),
    "summary": lambda: Path("/runs/summaries"),
    "ring_bytes": lambda: 1 << 20,
    "oom_report": lambda: False,
    "sources": lambda: (SystemCounters(),),
    "source": lambda: False,
    "align_ranks": lambda: True,
    "on_error": lambda: "warn",
}
