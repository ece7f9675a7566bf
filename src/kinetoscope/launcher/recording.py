"""The recording of one program: begins when the program imports torch, and ends in files."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope import collect
from kinetoscope._after_import import AfterImport
from kinetoscope._errors import KinetoscopeError
from kinetoscope.collect import Move, SessionState
from kinetoscope.display.terminal import complain
from kinetoscope.flight.own_threads import own_threads, processor_ns
from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.launcher.unrecorded import children_cpu_s
from kinetoscope.model import units

if TYPE_CHECKING:
    from kinetoscope.launcher.overhead import Overhead
    from kinetoscope.launcher.program import Program
    from kinetoscope.trace import Trace

# Each cycle keeps its recording on disk, or in torch's memory, until the end.
MOST_CYCLES = 100


@dataclass(frozen=True)
class HelperTime:
    """The CPU time of the recorder's own threads.

    Attributes:
        helpers_ns: CPU time of these threads.
        process_ns: CPU time of the whole process.
    """

    helpers_ns: int
    process_ns: int

    def since(self, before: HelperTime) -> HelperTime:
        """The CPU time since an earlier reading."""
        return HelperTime(
            max(self.helpers_ns - before.helpers_ns, 0), max(self.process_ns - before.process_ns, 0)
        )


def helper_time() -> HelperTime | None:
    """Read the CPU time; None if the system does not report that of other threads."""
    threads = own_threads()
    helpers_ns = sum(map(processor_ns, threads))
    return HelperTime(helpers_ns, time.process_time_ns()) if helpers_ns or not threads else None


@dataclass(frozen=True)
class Finished:
    """The result of a recording.

    Attributes:
        trace: The trace.
        program: What ran.
        ended: How it ended, such as `exit code 0`.
        options: How it was recorded.
        files: The files written, the trace first.
        overhead: What recording cost; None if not measured.
        helpers: The CPU time of the recorder's own threads during the recording; None if unknown.
        engine: The engine that recorded.
        messages: Further information for the user.
        process_peak_bytes: The most physical memory that the process held until the program ended; 0 if unknown.
    """

    trace: Trace
    program: Program
    ended: str
    options: LaunchOptions
    files: tuple[Path, ...]
    engine: str
    overhead: Overhead | None = None
    helpers: HelperTime | None = None
    messages: tuple[str, ...] = field(default_factory=tuple)
    process_peak_bytes: int = 0


class ProgramRecording:
    """Records a program from its import of torch to its end, or some of its steps."""

    def __init__(
        self,
        program: Program,
        options: LaunchOptions,
        on_torch: Callable[[], None] = lambda: None,
        on_start: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            program: What will run.
            options: What to record of it.
            on_torch: Called when torch is imported.
            on_start: Called with the engine's name when recording has begun.
        """
        self._program = program
        self._options = options
        self._on_torch = on_torch
        self._on_start = on_start
        self._torch_import = AfterImport("torch", self._torch_imported)
        self._session: collect.profile | None = None
        self._before: HelperTime | None = None
        self._helpers: HelperTime | None = None
        self._optimizer: int | None = None
        self._watches_steps = False
        self.steps_done = 0
        self.messages: list[str] = []
        self.own_children_s = 0.0
        self.facts: dict[str, Any] = {}
        # The state until there is a session, which then has it.
        self._state = SessionState.IDLE

    @property
    def state(self) -> SessionState:
        """The state of the recording: idle until torch is imported, then waiting for its first step."""
        return self._state if self._session is None else self._session.state

    @property
    def engine(self) -> str:
        """The name of the engine that records."""
        engine = None if self._session is None else self._session.recording_engine
        return engine.name if engine is not None else str(self._options.recording.engine)

    def begin(self) -> None:
        """Record from the moment at which the program has imported torch."""
        self._torch_import.wait()

    def finish(self, ended: str) -> Finished | None:
        """Close the recording and write the files.

        Args:
            ended: How the program ended, such as `exit code 0`.

        Returns:
            The result, or None if nothing was recorded; `why_nothing` says why.
        """
        trace = self.end(ended)
        return None if trace is None else self.write(trace, ended)

    def end(self, ended: str) -> Trace | None:
        """Close the recording and return its trace; None if nothing was recorded."""
        self.stop()
        if self._session is None or self.state is not SessionState.ENDED:
            return None
        self._session.add_metadata_json("program", self.description(ended))
        from kinetoscope.combine.extend import extend
        from kinetoscope.launcher.own_frames import without_launcher
        from kinetoscope.model.steps import steps_counted_from

        trace = without_launcher(self._session.trace)
        steps = steps_counted_from(trace.columns("steps"), self._options.first_step)
        return trace if steps is None else extend(trace, tables={"steps": steps})

    def write(self, trace: Trace, ended: str) -> Finished:
        """Write the files of a trace, which may contain more than this recording."""
        options = self._options
        files = [options.trace_path, *([options.chrome_path] if options.chrome else [])]
        for path in files:
            trace.save(path)
        if options.summaries is not None:
            files += self._write_summaries(trace, options.summaries)
        if _is_regular_file(options.live_path):
            options.live_path.unlink(missing_ok=True)
        engine = trace.run_info.engine_name or self.engine
        return Finished(
            trace,
            self._program,
            ended,
            options,
            tuple(files),
            engine,
            helpers=self._helpers,
            messages=tuple(self.messages),
        )

    def _write_summaries(self, trace: Trace, target: Path) -> list[Path]:
        from kinetoscope.summaries.summary import save_summaries

        try:
            return save_summaries(trace, target, str(self._options.trace_path))
        except Exception as error:  # noqa: BLE001  (whatever fails, the trace matters more)
            complain(f"the summary could not be written to {target}: {type(error).__name__}: {error}")
            return []

    def stop_waiting(self) -> None:
        """Stop waiting for torch or for a step, as in a fork, where the recording is the parent's."""
        self._torch_import.give_up()
        if self._watches_steps:
            collect.OPTIMIZER_STEPS.forget(self._after_step)
            self._watches_steps = False

    def why_nothing(self) -> str:
        """Say why nothing was recorded."""
        if self.state is SessionState.IDLE:
            return "the program never imported torch"
        if self.state is SessionState.FAILED:
            return "the recording could not be started"
        steps_done, first = units.count(self.steps_done, "step"), self._options.first_step
        return f"the program's optimizer made {steps_done}, and recording was to begin after {first:,}"

    def _torch_imported(self) -> None:
        """Start, or wait for the step at which to start."""
        self._on_torch()
        self._state = self._state.after(Move.BEGIN)
        try:
            # Not possible if the installed torch is too old.
            from kinetoscope.collect import profile  # noqa: F401
        except KinetoscopeError as error:
            self._cannot_start(error)
            return
        if self._options.steps is not None:
            collect.OPTIMIZER_STEPS.after(self._after_step)
            self._watches_steps = True
        self._begin_step()

    def _start(self) -> None:
        """Start the session; if that fails, the program ends here, before it has used any resources."""
        before_s = children_cpu_s()
        try:
            # Not truncated in place: another process may have the old file mapped. The recorder refuses what is not a file.
            if _is_regular_file(self._options.live_path):
                self._options.live_path.unlink(missing_ok=True)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                session = self._options.session(self._options.live_path)
                session.preset_metadata_json("program", self.description(None))
                for key, value in self.facts.items():
                    session.preset_metadata_json(key, json.dumps(value))
                session.start()
        except (KinetoscopeError, OSError) as error:
            self._cannot_start(error)
            return
        # Starting may have compiled the recorder, or checked the machine in a process of its own.
        self.own_children_s += children_cpu_s() - before_s
        self.messages += [str(warning.message) for warning in caught]
        self._session = session
        self._before = helper_time()
        self._on_start(self.engine)

    def _cannot_start(self, error: Exception) -> None:
        """End the program if it has used no resources yet; otherwise continue without a recording."""
        self._state = self._state.after(Move.FAIL)
        if self.steps_done:
            complain(f"{error} The program goes on without a recording.")
            return
        complain(str(error))
        sys.exit(1)

    def stop(self) -> None:
        """Stop recording, or stop waiting for torch or a step; a second call does nothing."""
        self.stop_waiting()
        if self._session is not None and self.state is SessionState.RECORDING:
            now = helper_time()
            if now is not None and self._before is not None:
                self._helpers = now.since(self._before)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self._session.stop()
            self.messages += [str(warning.message) for warning in caught]

    def _after_step(self, optimizer: object, _args: object, _kwargs: object) -> None:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if id(optimizer) == self._optimizer:
            self.steps_done += 1
            self._begin_step()

    def _begin_step(self) -> None:
        move = self._options.move_at(self.steps_done)
        if move is Move.START:
            self._start()
        elif move is Move.STOP:
            self.stop()

    def description(self, ended: str | None) -> str:
        """Describe the program, as JSON for the trace's metadata."""
        facts: dict[str, Any] = {
            "command": self._program.command_line,
            "folder": _working_folder(self._options),
            "python": sys.version.split()[0],
        }
        if self._options.steps is not None:
            facts["first_step"] = self._options.first_step
        if ended is not None:
            facts["ended"] = ended
        return json.dumps(facts)


def _working_folder(options: LaunchOptions) -> str:
    try:
        return os.getcwd()
    except OSError:
        return str(options.folder)


def _is_regular_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


class InstalledRecording(ProgramRecording):
    """Records what a program itself profiles with `torch.profiler`, which Kinetoscope replaces."""

    _cycles: deque[collect.Cycle]
    _ended = 0

    def end(self, ended: str) -> Trace | None:
        """Concatenate what the program recorded; None if it recorded nothing."""
        from kinetoscope.combine.concatenate import concatenate
        from kinetoscope.launcher.own_frames import without_launcher

        self.stop_waiting()
        if self.state is not SessionState.WAITING or not self._cycles:
            return None
        trace = concatenate([cycle.trace() for cycle in self._cycles])
        trace.info["program"] = json.loads(self.description(ended))
        trace = without_launcher(trace)
        if self._ended > len(self._cycles):
            self.messages.append(
                f"the program recorded {self._ended:,} times; the trace has the last {len(self._cycles)}"
            )
        return trace

    def why_nothing(self) -> str:
        """Say why nothing was recorded."""
        if self.state is SessionState.IDLE:
            return super().why_nothing()
        return "the program finished no recording with torch.profiler; without --install the whole program is recorded"

    def _torch_imported(self) -> None:
        """Replace torch.profiler before the program can use it."""
        self._on_torch()
        self._cycles = deque(maxlen=MOST_CYCLES)
        self._recording_process = os.getpid()
        self._state = self._state.after(Move.BEGIN)
        try:
            collect.install_and_tell(self._add, self._options.recording.engine)  # type: ignore[arg-type]  # a name
        except KinetoscopeError as error:
            self._cannot_start(error)

    def _add(self, cycle: collect.Cycle) -> None:
        if os.getpid() == self._recording_process:
            cycle.hold()
            self._cycles.append(cycle)
            self._ended += 1
