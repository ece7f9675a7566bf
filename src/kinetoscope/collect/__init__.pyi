# Written by tools/generate_stubs.py.
from kinetoscope.collect.calibration import calibrate as calibrate
from kinetoscope.collect.engines.choose import choose_engine as choose_engine
from kinetoscope.collect.engines.hybrid_check import hybrid_status as hybrid_status
from kinetoscope.collect.engines.kineto_recording import kineto_status as kineto_status
from kinetoscope.collect.engines.native import native_engine_status as native_engine_status
from kinetoscope.collect.process.job_store import JobStore as JobStore
from kinetoscope.collect.process.job_store import is_distributed as is_distributed
from kinetoscope.collect.process.rank import own_rank as own_rank
from kinetoscope.collect.process.rank import rank_count as rank_count
from kinetoscope.collect.process.rank import ranked as ranked
from kinetoscope.collect.process.user_warnings import warn_safely as warn_safely
from kinetoscope.collect.process.user_warnings import warn_user as warn_user
from kinetoscope.collect.ranks import gather_summaries as gather_summaries
from kinetoscope.collect.recorder.build import BuildError as BuildError
from kinetoscope.collect.recorder.build import build as build
from kinetoscope.collect.recorder.build import compilers as compilers
from kinetoscope.collect.recorder.build import why_too_old as why_too_old
from kinetoscope.collect.recorder.stream import STREAM as STREAM
from kinetoscope.collect.request.activities import ActivityItem as ActivityItem
from kinetoscope.collect.request.activities import DeviceType as DeviceType
from kinetoscope.collect.request.activities import ProfilerAction as ProfilerAction
from kinetoscope.collect.request.activities import ProfilerActivity as ProfilerActivity
from kinetoscope.collect.request.activities import checked_choices as checked_choices
from kinetoscope.collect.request.activities import kineto_available as kineto_available
from kinetoscope.collect.request.activities import record_function as record_function
from kinetoscope.collect.request.activities import supported_activities as supported_activities
from kinetoscope.collect.request.options import OPTION_NAMES as OPTION_NAMES
from kinetoscope.collect.request.options import OPTIONS as OPTIONS
from kinetoscope.collect.request.options import Engine as Engine
from kinetoscope.collect.request.options import EngineName as EngineName
from kinetoscope.collect.request.options import EngineStatus as EngineStatus
from kinetoscope.collect.request.options import Gathered as Gathered
from kinetoscope.collect.request.options import Recording as Recording
from kinetoscope.collect.request.options import RecordingOptions as RecordingOptions
from kinetoscope.collect.request.options import RecordingRequest as RecordingRequest
from kinetoscope.collect.request.options import Source as Source
from kinetoscope.collect.request.options import checked_callable as checked_callable
from kinetoscope.collect.request.options import checked_summary as checked_summary
from kinetoscope.collect.session.base_session import _KinetoProfile as _KinetoProfile
from kinetoscope.collect.session.cycle import Cycle as Cycle
from kinetoscope.collect.session.failures import DeferredSignals as DeferredSignals
from kinetoscope.collect.session.handlers import tensorboard_trace_handler as tensorboard_trace_handler
from kinetoscope.collect.session.out_of_memory import is_out_of_memory as is_out_of_memory
from kinetoscope.collect.session.out_of_memory import report_out_of_memory as report_out_of_memory
from kinetoscope.collect.session.profile import profile as profile
from kinetoscope.collect.session.schedule import Schedule as Schedule
from kinetoscope.collect.session.schedule import record_always as record_always
from kinetoscope.collect.session.schedule import schedule as schedule
from kinetoscope.collect.session.schedule import scheduled_action as scheduled_action
from kinetoscope.collect.session.state import Move as Move
from kinetoscope.collect.session.state import SessionState as SessionState
from kinetoscope.collect.session.steps import steps as steps
from kinetoscope.collect.sources.data_loading import DataLoading as DataLoading
from kinetoscope.collect.sources.execution_trace import ExecutionTraceObserver as ExecutionTraceObserver
from kinetoscope.collect.sources.nvml import NvmlError as NvmlError
from kinetoscope.collect.sources.nvml import nvml as nvml
from kinetoscope.collect.sources.nvml import nvml_device_of_cuda as nvml_device_of_cuda
from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS as OPTIMIZER_STEPS
from kinetoscope.collect.sources.quick_ranges import begin_range as begin_range
from kinetoscope.collect.sources.quick_ranges import end_range as end_range
from kinetoscope.collect.sources.ranges import ITT as ITT
from kinetoscope.collect.sources.rank_clock import align_clocks as align_clocks
from kinetoscope.collect.sources.requests import Request as Request
from kinetoscope.collect.sources.requests import StepNames as StepNames
from kinetoscope.collect.sources.requests import follow as follow
from kinetoscope.collect.sources.requests import install_request_hooks as install_request_hooks
from kinetoscope.collect.sources.storages import tensor_parts as tensor_parts
from kinetoscope.collect.sources.system_counters import SystemCounters as SystemCounters
from kinetoscope.collect.torch_compat.install import install as install
from kinetoscope.collect.torch_compat.install import install_and_tell as install_and_tell
from kinetoscope.collect.torch_compat.install import is_installed as is_installed
from kinetoscope.collect.torch_compat.install import uninstall as uninstall

__all__ = [
    "ITT",
    "OPTIMIZER_STEPS",
    "OPTIONS",
    "OPTION_NAMES",
    "STREAM",
    "ActivityItem",
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
    "begin_range",
    "build",
    "calibrate",
    "checked_callable",
    "checked_choices",
    "checked_summary",
    "choose_engine",
    "compilers",
    "end_range",
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
    "native_engine_status",
    "nvml",
    "nvml_device_of_cuda",
    "own_rank",
    "profile",
    "rank_count",
    "ranked",
    "record_always",
    "record_function",
    "report_out_of_memory",
    "schedule",
    "scheduled_action",
    "steps",
    "supported_activities",
    "tensor_parts",
    "tensorboard_trace_handler",
    "uninstall",
    "warn_safely",
    "warn_user",
    "why_too_old",
]

def __getattr__(name: str) -> object: ...
def import_for_forks() -> None: ...
