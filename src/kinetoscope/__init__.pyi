# Written by tools/generate_stubs.py.
from kinetoscope._errors import ArgumentError as ArgumentError
from kinetoscope._errors import ArgumentTypeError as ArgumentTypeError
from kinetoscope._errors import FolderNotEmptyError as FolderNotEmptyError
from kinetoscope._errors import FormatError as FormatError
from kinetoscope._errors import KinetoscopeError as KinetoscopeError
from kinetoscope._errors import MissingDependencyError as MissingDependencyError
from kinetoscope._errors import NotRecordedError as NotRecordedError
from kinetoscope._errors import RecorderError as RecorderError
from kinetoscope._errors import StateError as StateError
from kinetoscope._version import __version__ as __version__
from kinetoscope.collect import DataLoading as DataLoading
from kinetoscope.collect import DeviceType as DeviceType
from kinetoscope.collect import ExecutionTraceObserver as ExecutionTraceObserver
from kinetoscope.collect import ProfilerAction as ProfilerAction
from kinetoscope.collect import ProfilerActivity as ProfilerActivity
from kinetoscope.collect import Request as request
from kinetoscope.collect import SystemCounters as SystemCounters
from kinetoscope.collect import _KinetoProfile as _KinetoProfile
from kinetoscope.collect import align_clocks as align_clocks
from kinetoscope.collect import gather_summaries as gather_summaries
from kinetoscope.collect import install as install
from kinetoscope.collect import kineto_available as kineto_available
from kinetoscope.collect import profile as profile
from kinetoscope.collect import record_function as record_function
from kinetoscope.collect import schedule as schedule
from kinetoscope.collect import steps as steps
from kinetoscope.collect import supported_activities as supported_activities
from kinetoscope.collect import tensorboard_trace_handler as tensorboard_trace_handler
from kinetoscope.collect import uninstall as uninstall
from kinetoscope.flight.flight import leave_on as leave_on
from kinetoscope.integrations.trackers import log_to_tracker as log_to_tracker
from kinetoscope.launcher.run import LaunchResult as LaunchResult
from kinetoscope.launcher.run import launch as launch
from kinetoscope.summaries.job import Job as Job
from kinetoscope.summaries.job import summarize as summarize
from kinetoscope.tables.costs import OperatorCall as OperatorCall
from kinetoscope.tables.costs import register_flops as register_flops
from kinetoscope.tables.costs import register_peak_flops as register_peak_flops
from kinetoscope.tables.costs import unregister_flops as unregister_flops
from kinetoscope.trace import Trace as Trace
from kinetoscope.trace import open as open
from kinetoscope.trace.opening import compare as compare
from kinetoscope.trace.opening import merge as merge
from kinetoscope.viewer.server.report import report as report
from kinetoscope.viewer.server.serve import view as view

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "DataLoading",
    "DeviceType",
    "ExecutionTraceObserver",
    "FolderNotEmptyError",
    "FormatError",
    "Job",
    "KinetoscopeError",
    "LaunchResult",
    "MissingDependencyError",
    "NotRecordedError",
    "OperatorCall",
    "ProfilerAction",
    "ProfilerActivity",
    "RecorderError",
    "StateError",
    "SystemCounters",
    "Trace",
    "_KinetoProfile",
    "__version__",
    "align_clocks",
    "compare",
    "gather_summaries",
    "install",
    "kineto_available",
    "launch",
    "leave_on",
    "log_to_tracker",
    "merge",
    "profile",
    "record_function",
    "register_flops",
    "register_peak_flops",
    "report",
    "request",
    "schedule",
    "steps",
    "summarize",
    "supported_activities",
    "tensorboard_trace_handler",
    "uninstall",
    "unregister_flops",
    "view",
]

def __getattr__(name: str) -> object: ...
