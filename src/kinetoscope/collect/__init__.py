"""Recording: sessions, schedules, handlers, engines and sources.

Public names are imported on first use, so that importing this package does not import torch: `kinetoscope doctor` can then report
that torch is missing.
"""

import importlib
from contextlib import suppress

from kinetoscope._errors import MissingDependencyError, missing_torch
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.process.dynamo import keep_out

# Where each name is. tools/generate_stubs.py writes `__init__.pyi` from this, for type checkers and editors.
_NAMES = {
    "calibration": "calibrate",
    "engines.choose": "choose_engine",
    "engines.hybrid_check": "hybrid_status",
    "engines.kineto_recording": "kineto_status",
    "engines.native": "native_engine_status",
    "process.job_store": "JobStore is_distributed",
    "process.rank": "own_rank rank_count ranked",
    "process.user_warnings": "warn_safely warn_user",
    "ranks": "gather_summaries",
    "recorder.build": "BuildError build compilers why_too_old",
    "recorder.stream": "STREAM",
    "request.activities": (
        "ActivityItem DeviceType ProfilerAction ProfilerActivity checked_choices kineto_available "
        "record_function supported_activities"
    ),
    "request.options": (
        "Engine EngineName EngineStatus Gathered OPTIONS OPTION_NAMES Recording "
        "RecordingOptions RecordingRequest Source checked_callable checked_summary"
    ),
    "session.base_session": "_KinetoProfile",
    "session.cycle": "Cycle",
    "session.failures": "DeferredSignals",
    "session.handlers": "tensorboard_trace_handler",
    "session.out_of_memory": "is_out_of_memory report_out_of_memory",
    "session.profile": "profile",
    "session.schedule": "Schedule record_always schedule scheduled_action",
    "session.state": "Move SessionState",
    "session.steps": "steps",
    "sources.data_loading": "DataLoading",
    "sources.execution_trace": "ExecutionTraceObserver",
    "sources.nvml": "NvmlError nvml nvml_device_of_cuda",
    "sources.optimizer_steps": "OPTIMIZER_STEPS",
    "sources.quick_ranges": "begin_range end_range",
    "sources.ranges": "ITT",
    "sources.rank_clock": "align_clocks",
    "sources.requests": "Request StepNames follow install_request_hooks",
    "sources.storages": "tensor_parts",
    "sources.system_counters": "SystemCounters",
    "torch_compat.install": "install install_and_tell is_installed uninstall",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted({*_HOMES, "import_for_forks"})  # noqa: PLE0605

# Needed by the commands and the launcher even if torch is missing or too old.
_WITH_ANY_TORCH = (
    "engines.native",
    "process.rank",
    "process.user_warnings",
    "recorder.build",
    "request.options",
    "session.state",
    "sources.optimizer_steps",
    "sources.requests",
)
# Modules that a forked child of a recorded process needs to record itself.
_NEEDED_IN_FORKS = (
    "engines.kineto",
    "engines.native",
    "process.rank",
    "session.profile",
    "sources.optimizer_steps",
    "sources.storages",
)


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_aside()
    if home not in _WITH_ANY_TORCH:
        _need_torch(name)
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def import_for_forks() -> None:
    """Import what a forked child needs to record itself, because an import in the child could deadlock on the parent's import locks."""
    for name in _NEEDED_IN_FORKS:
        with suppress(ImportError):
            importlib.import_module(f"{__name__}.{name}")


def _need_torch(name: str) -> None:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise missing_torch(name) from error

    from kinetoscope.collect.recorder.build import why_too_old

    if problem := why_too_old(torch):
        raise MissingDependencyError(
            f"{problem}: `pip install --upgrade torch`. (Reading traces works without it.)"
        )


keep_out()
