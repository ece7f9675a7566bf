"""Runs a program under a recording: in this process (`ProgramRun`), or in a new one (`launch`)."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope import collect
from kinetoscope._errors import KinetoscopeError
from kinetoscope.collect import OPTION_NAMES, EngineName, RecordingOptions, SessionState
from kinetoscope.display.terminal import complain, echo
from kinetoscope.launcher import child_hook
from kinetoscope.launcher.children import Children
from kinetoscope.launcher.options import LaunchOptions, options_for
from kinetoscope.launcher.program import CannotRun, Program, exiting_as_python, take_name_of_python
from kinetoscope.launcher.recording import Finished, InstalledRecording, ProgramRecording
from kinetoscope.launcher.unrecorded import children_cpu_s, unrecorded_children

if TYPE_CHECKING:
    from kinetoscope.launcher.overhead import Overhead
    from kinetoscope.trace import Trace

# How long an interrupted program may take to end, before it is interrupted again.
_INTERRUPT_S = 2.0


@dataclass(frozen=True)
class LaunchResult:
    """How a launched program ended.

    Attributes:
        exit_code: Its exit code; the negative number of a signal that ended it.
        path: The trace, for `kinetoscope.open`. If the program was killed, its recording (`.recording`), which opens the
            same way; None if nothing was recorded.
    """

    exit_code: int
    path: Path | None


def launch(
    program: str | os.PathLike[str],
    *arguments: str | os.PathLike[str],
    module: bool = False,
    output: str | os.PathLike[str] | None = None,
    # Options of a recording, by tools/generate_docs.py.
    record_shapes: bool = False,
    profile_memory: bool = False,
    with_stack: bool = True,
    with_flops: bool = False,
    with_modules: bool = True,
    python_calls: bool = False,
    module_spans: bool = False,
    garbage_collection: bool = True,
    tensor_versions: bool = False,
    deep_steps: bool = True,
    samples: bool = True,
    engine: EngineName = "auto",
    ring_bytes: int | None = None,
    source: bool = True,
    # Other options.
    steps: tuple[int, int | None] | None = None,
    chrome: bool = False,
    summaries: str | os.PathLike[str] | None = None,
    install: bool = False,
    children: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> LaunchResult:
    """Profile a Python script as it is, in a process of its own, and wait for its end.

    The same as `kinetoscope run`, without the summary. The program has the standard streams of this process, and an
    interrupt of this process (Ctrl-C) interrupts it too.

    Args:
        program: The script, or with `module` the name of a module, as for `python -m`.
        *arguments: The program's own arguments.
        module: Whether `program` is a module.
        output: What the names of the files begin with, relative to `cwd`; None names them after the program.
        record_shapes: Record the shapes, dtypes and scalars of each operator's inputs.
        profile_memory: Record every allocation and free.
        with_stack: Record the Python stack of each operator.
        with_flops: Count the floating-point operations of each operator, from the shapes of its inputs.
        with_modules: Record the `nn.Module` path of each operator.
        python_calls: Record every call of a Python function.
        module_spans: Record every call of an `nn.Module` with its exact start and end, and the modules of operators.
        garbage_collection: Record collections of Python's garbage.
        tensor_versions: Record which storage each tensor of an operator has, and its version, to find work whose result
            existed already.
        deep_steps: Record some steps in full, with the shapes of inputs and the versions of tensors, from which those
            of the other steps are estimated: the first ones, then one of 64.
        samples: Read the Python stack of every thread 100 times a second.
        engine: Record with Kinetoscope's own recorder (native), torch's collector (kineto), or the best available
            (auto).
        ring_bytes: Upper limit of the recording in bytes; the oldest records are overwritten. None: no limit.
        source: Store the text of hot source lines in the trace.
        steps: Record only optimizer steps, from the first of the two numbers up to but not including the second, counted
            from 0; None for the second records up to the end.
        chrome: Also write a Chrome trace, `.json.gz`.
        summaries: Also write the summary of each rank in the trace to this folder, relative to `cwd`, for `kinetoscope ranks`.
        install: Record only what the program itself profiles: `torch.profiler` is Kinetoscope there.
        children: Record all processes that the program starts in the same trace, not only those that `multiprocessing` spawns.
        env: The program's environment variables; None for those of this process.
        cwd: The program's working directory; None for that of this process.
        log: A file for what the program prints, which then has no standard input; None: it has the streams of this process.

    Returns:
        The exit code and the path of the trace.

    Raises:
        ArgumentError: Options that cannot be combined, or an output that is not a file name or cannot be written.
        OSError: The log cannot be created.
    """
    recording = {name: value for name, value in locals().items() if name in OPTION_NAMES}
    to_run = Program(os.fspath(program), tuple(os.fspath(word) for word in arguments), module)
    folder = Path(cwd or ".").absolute()
    options = options_for(
        to_run,
        output,
        folder,
        os.environ if env is None else env,
        lambda text: warnings.warn(text, stacklevel=5),
        recording=RecordingOptions.launched(**recording),
        chrome=chrome,
        summaries=summaries,
        steps=steps,
        install=install,
        children=children,
    )
    candidates = (options.trace_path, options.live_path)
    before = [_identity(path) for path in candidates]
    words = [sys.executable, "-m", "kinetoscope.launcher", options.to_json(), *to_run.command_line]
    with ExitStack() as opened:
        streams: dict[str, Any] = {}
        if log is not None:
            printed = opened.enter_context(open(log, "wb"))
            streams = {"stdin": subprocess.DEVNULL, "stdout": printed, "stderr": subprocess.STDOUT}
        process = opened.enter_context(subprocess.Popen(words, env=env, cwd=cwd, **streams))  # noqa: S603
        try:
            process.wait()
        except KeyboardInterrupt:
            _wait_for_interrupted(process)
            raise
    written = [
        path for path, old in zip(candidates, before, strict=True) if _identity(path) not in (None, old)
    ]
    return LaunchResult(process.returncode, written[0] if written else None)


def _wait_for_interrupted(process: subprocess.Popen[bytes]) -> None:
    """Wait until an interrupted program has written its trace; a terminal interrupts all of its processes itself."""
    try:
        process.wait(_INTERRUPT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait()


def _identity(path: Path) -> tuple[int, int] | None:
    """A file's device and inode, which change when it is replaced; None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


class RunObserver:
    """Callbacks during a run, which do nothing by default.

    Attributes:
        measures_overhead: Whether to measure the cost of recording at the end, for `finished`.
    """

    measures_overhead = False

    def started(self, engine: str) -> None:
        """Recording has begun, with the engine of this name."""

    def stopped(self) -> None:
        """The program has ended, but is still recorded."""

    def recorded(self) -> None:
        """Recording has ended, or never began; the trace is not read yet."""

    def finished(self, finished: Finished) -> None:
        """The files are written."""


class ProgramRun:
    """One run of a program in this process, from its first line to the exit code."""

    def __init__(self, program: Program, options: LaunchOptions, observer: RunObserver | None = None) -> None:
        self._program = program
        self._options = options
        self._observer = observer or RunObserver()
        # Children are recorded by the native engine, from their start; with --install the program chooses when to record.
        follows = not options.install and options.recording.engine != "kineto"
        self._children = Children(options) if follows else None
        recording = InstalledRecording if options.install else ProgramRecording
        self._recording = recording(program, options, self._torch_imported, self._observer.started)
        self._children_before_s = children_cpu_s()
        self._children_s = 0.0
        self._ended = "exit code 0"
        self._process = os.getpid()
        self._trace: Trace | None = None
        self._overhead: Overhead | None = None
        self._failure: Exception | None = None
        self._is_closed = self._is_finished = False
        self._process_peak_bytes = 0

    def execute(self) -> None:
        """Run the program, and exit as it does."""
        if (outer := sys.modules.get(child_hook.NAME)) is not None:
            # This process is a child of an outer run with --children, and is recorded here only.
            outer.give_up()
        if self._children is not None:
            self._children.begin(self._before_os_exit)
        atexit.register(self._finish)
        if self._options.children and (util := sys.modules.get("multiprocessing.util")) is not None:
            # Exit handlers run last in, first out: `multiprocessing` has to end its processes before they are merged.
            atexit.unregister(util._exit_function)  # noqa: SLF001  (Python's own)
            atexit.register(util._exit_function)  # noqa: SLF001  (Python's own)
        os.register_at_fork(after_in_child=self._after_fork)
        # Before recording begins, because the progress line ends at the first write of the process.
        take_name_of_python()
        try:
            with exiting_as_python(self._note_end):
                self._recording.begin()
                self._program.run()
        finally:
            if self._children is not None and self._children.count and os.getpid() == self._process:
                # Libraries that write files import it, which is too late once Python exits.
                importlib.import_module("concurrent.futures.thread")

    def _note_end(self, error: BaseException) -> None:
        if isinstance(error, SystemExit):
            is_number = error.code is None or isinstance(error.code, int)
            self._ended = f"exit code {int(error.code or 0) & 0xFF if is_number else 1}"
        elif isinstance(error, KeyboardInterrupt):
            self._ended = "interrupted"
        elif isinstance(error, CannotRun):
            atexit.unregister(self._finish)
            self._recording.stop_waiting()
            if self._children is not None:
                self._children.stop_following()
                self._children.clear()
        else:
            self._ended = f"ended by {type(error).__name__}"
            self._report_out_of_memory()

    def _torch_imported(self) -> None:
        """Register the end of the recording, as soon as torch is imported.

        Exit handlers run last in, first out: this one runs after those that the program registers later, but before the engine's and torch's.
        Children are merged at the very end, after `multiprocessing` has waited for its own.
        """
        # Registers the engine's exit handler.
        from kinetoscope.collect import native_engine_status  # noqa: F401

        if self._children is not None and self._options.children:
            atexit.register(self._close)
            self._children.follow_forks(self._recording)
        else:
            atexit.unregister(self._finish)
            atexit.register(self._finish)

    def _after_fork(self) -> None:
        """In a fork: the recording belongs to the parent."""
        waiting = self._recording.state is SessionState.IDLE
        self._recording.stop_waiting()
        if waiting and self._children is not None and self._options.children:
            self._children.follow_this_fork()

    def _before_os_exit(self, status: int) -> None:
        self._ended = f"exit code {status & 0xFF}"
        self._finish()

    def _finish(self) -> None:
        if os.getpid() != self._process or self._is_finished:
            return
        self._is_finished = True
        try:
            self._write()
        finally:
            self._flush_or_drop_stderr()

    def _close(self) -> None:
        if os.getpid() != self._process or self._is_closed:
            return
        self._is_closed = True
        # Before the trace is read and analyzed here.
        self._process_peak_bytes = _peak_bytes()
        self._observer.stopped()
        # Before the overhead is measured, in this process and in others.
        self._children_s = children_cpu_s() - self._children_before_s - self._recording.own_children_s
        try:
            self._recording.stop()
            self._observer.recorded()
            self._trace = self._recording.end(self._ended)
            # With --install the program chose what to record each time, so there is no single cost.
            if self._trace is not None and self._observer.measures_overhead and not self._options.install:
                from kinetoscope.launcher.overhead import measure_overhead, records_of

                self._overhead = measure_overhead(self._options, records_of(self._trace)[0])
        except (KinetoscopeError, OSError) as error:
            self._failure = error

    def _report_out_of_memory(self) -> None:
        if (
            os.getpid() != self._process
            or not self._options.recording.profile_memory
            or "torch" not in sys.modules
        ):
            return

        def trace() -> Trace:
            self._close()
            if self._trace is None:
                raise self._failure or KinetoscopeError(
                    f"nothing was recorded: {self._recording.why_nothing()}"
                )
            return self._trace

        collect.report_out_of_memory(trace, None, self._options.live_path)

    def _flush_or_drop_stderr(self) -> None:
        """Drop output that standard error rejects; otherwise Python would change the exit code when it flushes again."""
        try:
            sys.stderr.flush()
        except (AttributeError, ValueError):
            return
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    def _write(self) -> None:
        with suppress(AttributeError, ValueError, OSError):  # closed, replaced or broken by the program
            sys.stdout.flush()
        try:
            self._close()
            if self._failure is not None:
                raise self._failure
            trace = self._trace if self._children is None else self._with_children(self._children)
            if not (self._options.children or self._options.install):
                recorded_s = 0.0 if self._children is None else self._children.processor_s
                engine = str(self._options.recording.engine)
                self._recording.messages += unrecorded_children(self._children_s - recorded_s, engine)
            finished = None if trace is None else self._recording.write(trace, self._ended)
            if self._children is not None:
                self._children.clear()
            if finished is not None:
                _give_free_memory_back()
                self._observer.finished(
                    replace(finished, overhead=self._overhead, process_peak_bytes=self._process_peak_bytes)
                )
            else:
                why = "; ".join([self._recording.why_nothing(), *self._recording.messages]).rstrip(".")
                echo(f"kinetoscope: nothing was recorded: {why}.", err=True)
        except (KinetoscopeError, OSError) as error:
            complain(f"{error}{self._where_recording()}")
        except KeyboardInterrupt:
            complain(f"interrupted{self._where_recording()}")
        if self._ended == "interrupted":
            # Python exits by the signal only if the last top-level code was interrupted, and loading an extension module above may
            # have run some. The hook set before prints nothing.
            ctypes.pythonapi.PyRun_SimpleString(b"raise KeyboardInterrupt")

    def _with_children(self, children: Children) -> Trace | None:
        children.wait_for_spawned()
        children.stop_following()
        joined, messages = children.join(self._trace, os.path.basename(self._program.target))
        if joined is not None and self._trace is None:
            joined.info["program"] = json.loads(self._recording.description(self._ended))
        self._recording.messages += messages
        return joined

    def _where_recording(self) -> str:
        live = self._options.live_path
        return (
            f" (the recording is in {self._options.shown(live)}, which also opens)" if live.exists() else ""
        )


def _give_free_memory_back() -> None:
    """Return free memory to the system before the summary needs more; a container counts both."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with suppress(AttributeError):  # of glibc alone
        ctypes.pythonapi.malloc_trim(0)


def _peak_bytes() -> int:
    """Peak physical memory of this process since its last `exec`."""
    # Unlike `ru_maxrss`, this does not include the peak of the process before `exec`.
    with suppress(OSError, StopIteration), open("/proc/self/status", "rb") as lines:
        return int(next(line for line in lines if line.startswith(b"VmHWM:")).split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
