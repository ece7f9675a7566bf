"""Recording: sessions, schedules, handlers, engines and sources.

Public names are imported on first use, so that importing this package does not import torch: `kinetoscope doctor` must be able to
say that torch is missing.
"""

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING

from kinetoscope._errors import MissingDependencyError, missing_torch
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.process.dynamo import keep_out

if TYPE_CHECKING:
    from kinetoscope.collect.calibration import calibrate
    from kinetoscope.collect.engines.choose import choose_engine
    from kinetoscope.collect.engines.hybrid_check import hybrid_status
    from kinetoscope.collect.engines.kineto_text import kineto_status
    from kinetoscope.collect.engines.native import native_engine_status
    from kinetoscope.collect.process.job_store import JobStore, is_distributed
    from kinetoscope.collect.process.rank import own_rank, rank_count, ranked
    from kinetoscope.collect.process.user_warnings import warn_user
    from kinetoscope.collect.ranks import gather_summaries
    from kinetoscope.collect.recorder.build import BuildError, build, compilers, why_too_old
    from kinetoscope.collect.recorder.stream import STREAM
    from kinetoscope.collect.request.activities import (
        ActivityItem,
        DeviceType,
        ProfilerAction,
        ProfilerActivity,
        checked_choices,
        kineto_available,
        record_function,
        supported_activities,
    )
    from kinetoscope.collect.request.options import (
        OPTION_NAMES,
        OPTIONS,
        AppendRows,
        Engine,
        EngineName,
        EngineStatus,
        Gathered,
        Recording,
        RecordingOptions,
        RecordingRequest,
        Source,
        checked_callable,
        checked_summary,
        checked_switch,
    )
    from kinetoscope.collect.session.base_session import _KinetoProfile
    from kinetoscope.collect.session.cycle import Cycle
    from kinetoscope.collect.session.deferred_signals import DeferredSignals
    from kinetoscope.collect.session.handlers import tensorboard_trace_handler
    from kinetoscope.collect.session.out_of_memory import is_out_of_memory, report_out_of_memory
    from kinetoscope.collect.session.profile import profile
    from kinetoscope.collect.session.schedule import (
        Schedule,
        change_at,
        record_always,
        schedule,
        scheduled_action,
    )
    from kinetoscope.collect.session.state import Move, SessionState
    from kinetoscope.collect.session.steps import steps
    from kinetoscope.collect.sources.data_loading import DataLoading
    from kinetoscope.collect.sources.execution_trace import ExecutionTraceObserver
    from kinetoscope.collect.sources.nvml import NvmlError, nvml
    from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS
    from kinetoscope.collect.sources.ranges import ITT
    from kinetoscope.collect.sources.rank_clock import align_clocks
    from kinetoscope.collect.sources.requests import Request, follow, install_request_hooks
    from kinetoscope.collect.sources.step_names import StepNames
    from kinetoscope.collect.sources.storages import tensor_parts
    from kinetoscope.collect.sources.system_counters import SystemCounters
    from kinetoscope.collect.torch_compat.install import (
        Installation,
        copied_function,
        install,
        install_and_tell,
        is_installed,
        loaded_namespaces,
        replace_in_modules,
        uninstall,
    )

__all__ = [
    "ITT",
    "OPTIMIZER_STEPS",
    "OPTIONS",
    "OPTION_NAMES",
    "STREAM",
    "ActivityItem",
    "AppendRows",
    "BuildError",
    "Cycle",
    "DataLoading",
    "DeferredSignals",
    "DeviceType",
    "Engine",
    "EngineName",
    "EngineStatus",
    "ExecutionTraceObserver",
    "Gathered",
    "Installation",
    "JobStore",
    "Move",
    "NvmlError",
    "ProfilerAction",
    "ProfilerActivity",
    "Recording",
    "RecordingOptions",
    "RecordingRequest",
    "Request",
    "Schedule",
    "SessionState",
    "Source",
    "StepNames",
    "SystemCounters",
    "_KinetoProfile",
    "align_clocks",
    "build",
    "calibrate",
    "change_at",
    "checked_callable",
    "checked_choices",
    "checked_summary",
    "checked_switch",
    "choose_engine",
    "compilers",
    "copied_function",
    "follow",
    "gather_summaries",
    "hybrid_status",
    "import_for_forks",
    "install",
    "install_and_tell",
    "install_request_hooks",
    "is_distributed",
    "is_installed",
    "is_out_of_memory",
    "kineto_available",
    "kineto_status",
    "loaded_namespaces",
    "native_engine_status",
    "nvml",
    "own_rank",
    "profile",
    "rank_count",
    "ranked",
    "record_always",
    "record_function",
    "replace_in_modules",
    "report_out_of_memory",
    "schedule",
    "scheduled_action",
    "steps",
    "supported_activities",
    "tensor_parts",
    "tensorboard_trace_handler",
    "uninstall",
    "warn_user",
    "why_too_old",
]

_HOMES = {
    "ActivityItem": "request.activities",
    "AppendRows": "request.options",
    "BuildError": "recorder.build",
    "Cycle": "session.cycle",
    "DataLoading": "sources.data_loading",
    "DeferredSignals": "session.deferred_signals",
    "DeviceType": "request.activities",
    "Engine": "request.options",
    "EngineName": "request.options",
    "EngineStatus": "request.options",
    "ExecutionTraceObserver": "sources.execution_trace",
    "Gathered": "request.options",
    "ITT": "sources.ranges",
    "Installation": "torch_compat.install",
    "Move": "session.state",
    "NvmlError": "sources.nvml",
    "OPTIMIZER_STEPS": "sources.optimizer_steps",
    "OPTIONS": "request.options",
    "OPTION_NAMES": "request.options",
    "ProfilerAction": "request.activities",
    "ProfilerActivity": "request.activities",
    "Recording": "request.options",
    "RecordingOptions": "request.options",
    "Request": "sources.requests",
    "RecordingRequest": "request.options",
    "STREAM": "recorder.stream",
    "Schedule": "session.schedule",
    "SessionState": "session.state",
    "Source": "request.options",
    "StepNames": "sources.step_names",
    "SystemCounters": "sources.system_counters",
    "_KinetoProfile": "session.base_session",
    "align_clocks": "sources.rank_clock",
    "build": "recorder.build",
    "calibrate": "calibration",
    "change_at": "session.schedule",
    "checked_callable": "request.options",
    "checked_choices": "request.activities",
    "checked_summary": "request.options",
    "checked_switch": "request.options",
    "choose_engine": "engines.choose",
    "compilers": "recorder.build",
    "copied_function": "torch_compat.install",
    "follow": "sources.requests",
    "gather_summaries": "ranks",
    "hybrid_status": "engines.hybrid_check",
    "install": "torch_compat.install",
    "install_and_tell": "torch_compat.install",
    "install_request_hooks": "sources.requests",
    "is_installed": "torch_compat.install",
    "is_out_of_memory": "session.out_of_memory",
    "kineto_available": "request.activities",
    "kineto_status": "engines.kineto_text",
    "loaded_namespaces": "torch_compat.install",
    "native_engine_status": "engines.native",
    "nvml": "sources.nvml",
    "own_rank": "process.rank",
    "profile": "session.profile",
    "rank_count": "process.rank",
    "ranked": "process.rank",
    "record_always": "session.schedule",
    "record_function": "request.activities",
    "replace_in_modules": "torch_compat.install",
    "report_out_of_memory": "session.out_of_memory",
    "schedule": "session.schedule",
    "scheduled_action": "session.schedule",
    "steps": "session.steps",
    "supported_activities": "request.activities",
    "tensor_parts": "sources.storages",
    "tensorboard_trace_handler": "session.handlers",
    "uninstall": "torch_compat.install",
    "warn_user": "process.user_warnings",
    "why_too_old": "recorder.build",
    "JobStore": "process.job_store",
    "is_distributed": "process.job_store",
}

# Needed by the commands and the launcher even if torch is missing or too old, to say so.
_WITH_ANY_TORCH = (
    "engines.native",
    "process.rank",
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
    """Import what a forked child needs to record itself: there an import could deadlock on the parent's import locks."""
    for name in _NEEDED_IN_FORKS:
        with suppress(ImportError):
            importlib.import_module(f"{__name__}.{name}")


def _need_torch(name: str) -> None:
    """Raise MissingDependencyError if torch is missing, or too old to record with."""
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
