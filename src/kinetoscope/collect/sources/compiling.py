"""Record the compilations of torch.compile: durations of phases, reasons of recompilations, and graph breaks.

torch collects metrics of every compilation, and passes them to one of its own functions at the end. While a session is open, that
function is wrapped to copy them. We never import torch.compile ourselves: until the program does, an import hook waits for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kinetoscope._after_import import AfterImport
from kinetoscope.collect.process.machine import monotonic_of_realtime_ns
from kinetoscope.collect.recorder.library import ready_recorder
from kinetoscope.collect.recorder.stream import STREAM
from kinetoscope.collect.request.options import AppendRows, Source
from kinetoscope.collect.sources.shared_hooks import SharedHooks
from kinetoscope.model.compile_facts import RECOMPILE_LIMIT, TABLE, Compilation, CompileFacts, GraphBreak
from kinetoscope.storage.appended_rows import LOSSES, KeptRows

_MODULE = "torch._dynamo.utils"
_FRAMES = "torch._dynamo.convert_frame"
_CACHE = "torch._C._dynamo.eval_frame"
# The deque of recent metrics, read directly because torch's collector would record a call of its getter.
_KEPT = "_compilation_metrics"
# The function that torch calls with the metrics of each compilation, at its end, on the thread that compiled.
_REPORT = "add_compilation_metrics_to_chromium"
# torch's reason of a graph break if a branch depends on the value of a tensor.
_JUMP = "generic_jump"
_JUMP_REASON = "Data-dependent branching: a condition needs the value of a tensor"
_LONGEST_TEXT = 4_000


class CompileHooks(SharedHooks):
    """Collects the metrics of compilations while sessions are open, and restores torch's function afterwards.

    Attributes:
        compilations: The compilations that were collected so far.
        failure: Why metrics could not be read; empty if they could.
    """

    def __init__(self) -> None:
        super().__init__()
        self._import = AfterImport(_MODULE, self._wrap)
        self._forget_compilations()

    def _forget_compilations(self) -> None:
        self.compilations: list[Compilation] = []
        # By id(), because torch clears its own list when the program resets the compiler.
        self._breaks: dict[int, tuple[Any, GraphBreak | None]] = {}
        self.failure = ""
        self._recording = 0
        # The writer of the native recording, which all sessions share unless they keep their rows in memory.
        self._shared: FactsWriter | None = None

    def forget_sessions(self) -> None:
        """In a forked child: the parent's sessions do not record this process."""
        super().forget_sessions()
        self._forget_compilations()

    def _install(self, first: bool) -> None:
        if first:
            # Graph breaks that torch still lists were converted by an earlier session.
            listed = {id(reason) for reason in _reasons()}
            earlier = {key: entry for key, entry in self._breaks.items() if key in listed}
            self.compilations, self._breaks, self.failure = [], earlier, ""
            self._shared = None
            self._import.wait()

    def _restore(self) -> None:
        self._import.give_up()
        super()._restore()

    def breaks(self) -> list[GraphBreak]:
        """Return all graph breaks of the process, including those from before the session."""
        self._collect_breaks()
        return [graph_break for _, graph_break in list(self._breaks.values()) if graph_break is not None]

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Turn an exception into a loss: if private attributes of torch cannot be read, only functions are unknown."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (whatever it is, the job goes on)
            self.failure = self.failure or f"{type(error).__name__}: {error}"

    @property
    def missing(self) -> str:
        """A message if this release of torch does not have the hooked function, else empty."""
        module = sys.modules.get(_MODULE)
        return "" if module is None or hasattr(module, _REPORT) else f"this torch has no {_MODULE}.{_REPORT}"

    def writer(self, append: AppendRows) -> FactsWriter:
        """Return the writer of a recording: one for all sessions that share the native recording, which gets facts at once.

        Rows in memory would not survive if the process were killed, so they are written only at the end.
        """
        with self._lock:
            recorder = ready_recorder()
            if isinstance(append, KeptRows) or recorder is None:
                return FactsWriter(append)
            if self._shared is None or self._recording != STREAM.recordings:
                self._recording, self._shared = STREAM.recordings, FactsWriter(recorder.append)
            self.write(self._shared)
            return self._shared

    def write(self, writer: FactsWriter, *, ends: bool = False) -> None:
        """Write the facts that a recording does not have yet and, at its end, which functions are compiled."""
        with self.noting_failure(), self._lock:
            writer.write(self.compilations, self.breaks(), ends=ends)

    def _wrap(self) -> None:
        module = sys.modules[_MODULE]
        theirs = getattr(module, _REPORT, None)
        if theirs is None or self._replaced or not self._sessions:
            return

        def report(metrics: Any, *rest: Any, **keywords: Any) -> Any:
            answer = theirs(metrics, *rest, **keywords)
            self._note(metrics)
            return answer

        report.__wrapped__ = theirs  # type: ignore[attr-defined]
        self._replaced.put(module, _REPORT, report)

    def _note(self, metrics: Any) -> None:
        with self.noting_failure():
            self.compilations.append(_compilation(metrics))
            self._collect_breaks()
        if self._shared is not None:
            self.write(self._shared)

    def _collect_breaks(self) -> None:
        for reason in _reasons():
            if id(reason) not in self._breaks:
                self._breaks[id(reason)] = reason, _graph_break(reason)


COMPILE_HOOKS = CompileHooks()


class FactsWriter:
    """Writes the compilations during one recording to it, so that they survive if the process is killed."""

    def __init__(self, append: AppendRows) -> None:
        """Begin with the compilations from now on; the first part also has the functions that are compiled already."""
        self._append = append
        self._parts = self._breaks = 0
        self._compilations = len(COMPILE_HOOKS.compilations)
        self._functions: dict[str, tuple[str, str, int]] = {}

    def write(self, compilations: list[Compilation], breaks: list[GraphBreak], *, ends: bool) -> None:
        """Write what is new; does nothing once the recording has ended."""
        # Only in the first and the last part: the metrics of later compilations contain their functions.
        functions = {} if self._parts and not ends else _compiled_functions()
        given_up = [] if self._parts and not ends else _given_up(functions)
        if ends and functions == self._functions:
            functions, given_up = {}, []
        self._functions |= functions
        facts = CompileFacts(compilations[self._compilations :], breaks[self._breaks :], functions, given_up)
        if facts.compilations or facts.breaks or facts.functions or facts.given_up:
            self._parts += 1
            self._compilations, self._breaks = len(compilations), len(breaks)
            self._append(TABLE, {"facts": [facts.as_part()]})


def _reasons() -> list[Any]:
    return list(getattr(sys.modules.get(_MODULE), "graph_break_reasons", ()))


_CACHES = ("inductor_fx_local", "inductor_fx_remote", "aotautograd_local", "aotautograd_remote")


def _compilation(metrics: Any) -> Compilation:
    def number(name: str) -> int | None:
        value = getattr(metrics, name, None)
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def text(name: str) -> str:
        return str(getattr(metrics, name, None) or "")[:_LONGEST_TEXT]

    begin_us, end_us = number("start_time_us") or 0, number("end_time_us") or 0
    # torch's times of phases are inclusive.
    backward = number("backward_cumulative_compile_time_us")
    dynamo = number("dynamo_cumulative_compile_time_us")
    aot = number("aot_autograd_cumulative_compile_time_us") if backward is None else backward
    nested = [
        dynamo,
        aot,
        number("inductor_cumulative_compile_time_us"),
        number("inductor_code_gen_cumulative_compile_time_us"),
        number("triton_compile_time_us"),
    ]
    tuned = [number("compile_time_autotune_time_us"), number("runtime_triton_autotune_time_us")]
    autotune = None if tuned == [None, None] else sum(time_us or 0 for time_us in tuned)
    runtime = bool(getattr(metrics, "is_runtime", False))
    phases = ("dynamo_ns", "aot_ns", "inductor_ns", "codegen_ns", "kernel_compile_ns")
    columns: dict[str, Any] = {
        "compile_id": text("compile_id"),
        "stage": "runtime" if runtime else "frame" if backward is None else "backward",
        "function": text("co_name"),
        "file": text("co_filename"),
        "line": number("co_firstlineno") or -1,
        "duration_ns": max(end_us - begin_us, 0) * 1000,
        "autotune_ns": -1 if autotune is None else autotune * 1000,
        "guards": -1 if (guards := number("guard_count")) is None else guards,
        "operators": -1 if (operators := number("graph_op_count")) is None else operators,
        "reason": text("recompile_reason"),
        "failure": text("fail_reason"),
        **dict(zip(phases, _exclusive_ns(nested, autotune or 0), strict=True)),
    }
    for outcome, column in (("hit", "cache_hits"), ("miss", "cache_misses")):
        columns[column] = sum(number(f"{cache}_cache_{outcome}_count") or 0 for cache in _CACHES)
    broke = None
    if getattr(metrics, "fail_type", None):
        broke = (
            text("fail_reason"),
            text("fail_user_frame_filename"),
            number("fail_user_frame_lineno") or -1,
        )
    return Compilation(
        columns, begin_us * 1000 + monotonic_of_realtime_ns(), threading.get_native_id(), broke
    )


def _exclusive_ns(inclusive_us: list[int | None], autotune_us: int) -> list[int]:
    """Convert inclusive to exclusive times: each phase without the next inner one, with autotuning inside code generation."""
    exclusive_ns = []
    for phase, total_us in enumerate(inclusive_us):
        inner = next((inner_us for inner_us in inclusive_us[phase + 1 :] if inner_us is not None), 0)
        # Index 3 is code generation.
        inner += autotune_us if phase == 3 else 0
        exclusive_ns.append(-1 if total_us is None else max(total_us - inner, 0) * 1000)
    return exclusive_ns


def _graph_break(reason: Any) -> GraphBreak | None:
    frames = tuple(
        (str(frame.name), str(frame.filename), int(frame.lineno or -1)) for frame in reason.user_stack
    )
    why = str(reason.reason)
    if not frames:
        return None
    return GraphBreak(_JUMP_REASON if why.startswith(_JUMP) else why[:_LONGEST_TEXT], frames)


def _id_text(compilation: Any) -> str:
    """Format a compilation's id as torch does, usually without calling torch's function, which a profiler would record."""
    frame, number = getattr(compilation, "frame_id", None), getattr(compilation, "frame_compile_id", None)
    plain = (
        frame is not None
        and number is not None
        and getattr(compilation, "compiled_autograd_id", None) is None
    )
    return f"{frame}/{number}" if plain else str(compilation)


def _compiled_functions() -> dict[str, tuple[str, str, int]]:
    frames, cache = sys.modules.get(_FRAMES), sys.modules.get(_CACHE)
    entries_of = getattr(cache, "_debug_get_cache_entry_list", None)
    functions = {}
    if frames is not None and entries_of is not None:
        for reference in list(frames.input_codes.seen):
            code = reference()
            for entry in () if code is None else entries_of(code):
                functions[_id_text(entry.compile_id)] = (code.co_name, code.co_filename, code.co_firstlineno)
    return functions


def _given_up(functions: dict[str, tuple[str, str, int]]) -> list[dict[str, Any]]:
    """Recent compilations that failed at the recompile limit; `functions` is the code in torch's cache, without what the program has reset."""
    metrics = list(getattr(sys.modules.get(_MODULE), _KEPT, ()))
    alive: dict[str, list[tuple[str, str, int]]] = {}
    for compile_id, location in functions.items():
        alive.setdefault(compile_id.partition("/")[0], []).append(location)
    failed = []
    for compilation in metrics:
        columns = _compilation(compilation).columns
        frame, _, times = columns["compile_id"].partition("/")
        # The second number of the id counts earlier compilations of the frame; after a reset, the cache has fewer.
        living = alive.get(frame, [])
        if RECOMPILE_LIMIT.search(columns["failure"]) and times.isdigit() and len(living) >= int(times) > 0:
            failed.append({**columns, **dict(zip(("function", "file", "line"), living[0], strict=True))})
    return failed


class Compiling(Source):
    """A source that every session has: records the compilations of torch.compile."""

    def __init__(self) -> None:
        """Start without a session."""
        self._append: AppendRows | None = None
        self._writer: FactsWriter | None = None

    def open(self) -> None:
        """Start collecting metrics of compilations."""
        COMPILE_HOOKS.open(self)

    def write_to(self, append: AppendRows) -> None:
        """Write the functions that are compiled already to the recording, and from now on each compilation when it ends."""
        self._append, self._writer = append, COMPILE_HOOKS.writer(append)

    def stop(self) -> None:
        """Write the compilations of the recording, and losses."""
        append, writer, self._append, self._writer = self._append, self._writer, None, None
        if append is None or writer is None:
            return
        COMPILE_HOOKS.write(writer, ends=True)
        if missing := COMPILE_HOOKS.missing:
            append(TABLE, {"facts": [CompileFacts(missing=missing).as_part()]})
        if failure := COMPILE_HOOKS.failure:
            append(LOSSES, {"code": ["compiling_unreadable"], "count": [1], "why": [failure]})

    def close(self) -> None:
        """Stop collecting, and restore torch's function."""
        COMPILE_HOOKS.close(self)
