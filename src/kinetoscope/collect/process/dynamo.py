"""Keep torch.compile out of our code, as it stays out of torch.profiler's.

TorchDynamo traces the Python functions that compiled code calls, and compiles the frames below it. Once the program has imported
Dynamo, these rules hold for every function of this package:

- Dynamo does not trace it: the graph breaks at the call, as it does at `torch.profiler.profile.step`.
- Dynamo compiles neither its frame nor the frames below, except where it calls the program.
- In compiled code `profile` and `request` are ignored, as `torch.profiler.profile` and `record_function` are.
- Our hooks of optimizers break no graph: compiled code calls them where the current graph ends.

Dynamo has no public interface for this. A release of torch that lacks one of the names below does without that rule.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from kinetoscope._after_import import AfterImport

_PACKAGE = __name__.partition(".")[0]
_FOLDER = str(Path(__file__).parents[2]) + os.sep

FILES_THAT_CALL_THE_PROGRAM = (
    "collect/session/decorated.py",
    "collect/session/steps.py",
    "collect/sources/data_loading.py",
    "collect/sources/loader_worker.py",
    "integrations/",
)
DECORATED_REQUEST = "Request.__call__.<locals>.traced"
FUNCTIONS_THAT_CALL_THE_PROGRAM = (
    DECORATED_REQUEST,
    "_follow_generator",
    "_follow_generator.<locals>.in_request",
    "_follow_items",
    "_run_in_request",
    "_wrap_steps.<locals>.run",
)
_SUSPENDS = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
OPTIMIZER_HOOKS = ("OptimizerSteps._after_step", "OptimizerSteps._before_step")

_PATHS_THAT_CALL_THE_PROGRAM = tuple(
    _FOLDER + path.replace("/", os.sep) for path in FILES_THAT_CALL_THE_PROGRAM
)
_REQUEST = f"{_PACKAGE}.collect.sources.requests.Request"
# `install` names its replacement like our class. torch's own class is here because Dynamo compares it with the replacement.
_IGNORED = {
    f"{_PACKAGE}.collect.session.profile.profile": "torch.compile ignores kinetoscope.profile in compiled code: the session does not start. "
    "Start it outside of the compiled function.",
    _REQUEST: "torch.compile ignores kinetoscope.request in compiled code: the request is not recorded. "
    "Mark it outside of the compiled function.",
    "torch.profiler.profiler.profile": "torch.compile ignores torch.profiler.profile in compiled code.",
}


def keep_out() -> None:
    """Apply the rules as soon as the program has imported Dynamo, which this does not import.

    Each session calls this again: another thread may have been importing Dynamo before.
    """
    if not _applied and _import not in sys.meta_path:
        _import.wait()


def _apply() -> None:
    _applied.append(True)
    for rule in (_do_not_trace, _do_not_compile, _represent):
        with suppress(ImportError, AttributeError):
            rule()


_applied: list[bool] = []
_import = AfterImport("torch._dynamo", _apply)


def _do_not_trace() -> None:
    from torch._dynamo import trace_rules

    trace_rules.add(_PACKAGE)


def _do_not_compile() -> None:
    """Skip our frames and the frames below them; otherwise Dynamo would compile those that belong to other packages."""
    from torch._dynamo.convert_frame import CatchErrorsWrapper
    from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

    convert = CatchErrorsWrapper.__call__

    def convert_unless_ours(self: Any, frame: Any, *rest: Any, **keywords: Any) -> Any:
        code = frame.f_code
        if not _is_ours(code) or _calls_the_program(code):
            return convert(self, frame, *rest, **keywords)
        return ConvertFrameReturn(frame_exec_strategy=FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))

    CatchErrorsWrapper.__call__ = convert_unless_ours


def _represent() -> None:
    import logging

    from torch._dynamo import config
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.source import AttrSource
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables.builder import VariableBuilder
    from torch._dynamo.variables.ctx_manager import ProfilerContextVariable
    from torch._dynamo.variables.functions import SkipFunctionVariable
    from torch._dynamo.variables.misc import DebuggingVariable
    from torch._dynamo.variables.torch import TorchCtxManagerClassVariable
    from torch._logging import warning_once

    log = logging.getLogger(__name__)

    class IgnoredClass(TorchCtxManagerClassVariable):
        def call_function(self, *_: Any) -> Any:
            warning_once(log, _IGNORED[_name(self.value)])
            return ProfilerContextVariable()

    class IgnoredObject(ProfilerContextVariable):
        def reconstruct(self, codegen: Any) -> None:
            codegen(self.source)

    class DeferredHook(DebuggingVariable):
        def call_function(self, tx: Any, args: Any, _: Any) -> Any:
            if not tx.export:
                # Not in `tx` itself, because Dynamo drops the debug locals of inlined functions.
                tx.output.root_tx.debug_locals.append((self, list(args)))
            return ConstantVariable.create(None)

    wrap = VariableBuilder._wrap  # noqa: SLF001  (torch's own)

    def wrap_unless_ours(self: Any, value: Any) -> Any:
        kind = type(value)
        if kind is FunctionType:
            wrapped = vars(value).get("__wrapped__")
            is_request = value.__code__.co_qualname == DECORATED_REQUEST and _is_ours(value.__code__)
            if is_request and type(wrapped) is FunctionType and not wrapped.__code__.co_flags & _SUSPENDS:
                self.install_guards(GuardBuilder.ID_MATCH)
                warning_once(log, _IGNORED[_REQUEST])
                return VariableBuilder(self.tx, AttrSource(self.source, "__wrapped__"))(wrapped)
        elif kind is MethodType:
            code = getattr(value.__func__, "__code__", None)
            # If Dynamo can break a graph inside an inlined function, it drops the locals of the outer functions instead.
            drops = getattr(config, "nested_graph_breaks", False)
            if code is not None and code.co_qualname in OPTIMIZER_HOOKS and _is_ours(code) and not drops:
                self.install_guards(GuardBuilder.ID_MATCH)
                return DeferredHook(value, source=self.source)
        elif kind is BuiltinFunctionType:
            if type(value.__self__).__module__.startswith(_PACKAGE):
                self.install_guards(GuardBuilder.ID_MATCH)
                return SkipFunctionVariable(_native_function, source=self.source)
        elif issubclass(kind, type):
            if _name(value) in _IGNORED:
                self.install_guards(GuardBuilder.ID_MATCH)
                return IgnoredClass(value, source=self.source)
        elif _name(kind) == _REQUEST:
            self.install_guards(GuardBuilder.TYPE_MATCH)
            warning_once(log, _IGNORED[_REQUEST])
            return IgnoredObject(source=self.source)
        return wrap(self, value)

    VariableBuilder._wrap = wrap_unless_ours  # noqa: SLF001  (torch's own)


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_FOLDER)


def _calls_the_program(code: CodeType) -> bool:
    return (
        code.co_filename.startswith(_PATHS_THAT_CALL_THE_PROGRAM)
        or code.co_qualname in FUNCTIONS_THAT_CALL_THE_PROGRAM
    )


def _native_function() -> None:
    """A placeholder for our native functions in Dynamo's messages about graph breaks."""


def _name(value: type) -> str:
    return f"{value.__module__}.{value.__qualname__}"
