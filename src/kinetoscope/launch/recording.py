"""The recording of one program: begins when torch is there, ends in files."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import KinetoscopeError
from kinetoscope.display.terminal import complain
from kinetoscope.launch.options import Wanted
from kinetoscope.launch.torch_import import TorchImport

if TYPE_CHECKING:
    from kinetoscope.collect import profile
    from kinetoscope.launch.overhead import Overhead
    from kinetoscope.launch.program import Program
    from kinetoscope.trace import Trace


@dataclass(frozen=True)
class Finished:
    """What a recording led to.

    Attributes:
        trace: The trace.
        program: What ran.
        ended: How it ended, in words.
        wanted: What was asked for.
        files: The files written, the trace first.
        overhead: What recording cost, or None where that was not measured.
        engine: The engine that recorded.
        notes: What else there is to say.
        here: Whether this process recorded it; what is known of this process then belongs to the run.
    """

    trace: Trace
    program: Program
    ended: str
    wanted: Wanted
    files: tuple[Path, ...]
    engine: str
    overhead: Overhead | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)
    here: bool = True


class ProgramRecording:
    """Records a program from its import of torch to its end, or some of its steps."""

    def __init__(
        self,
        program: Program,
        wanted: Wanted,
        on_torch: Callable[[], None] = lambda: None,
        on_start: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            program: What will be run.
            wanted: What to record of it.
            on_torch: Called when torch was imported.
            on_start: Called with the engine's name when recording has begun.
        """
        self._program = program
        self._wanted = wanted
        self._on_torch = on_torch
        self._on_start = on_start
        self._torch_import = TorchImport(self._torch_is_there)
        self._session: profile | None = None
        self._started_s = 0.0
        self._optimizer: int | None = None
        self._hears_of_steps = False
        self.steps_done = 0
        self.notes: list[str] = []
        self.state = "waiting for torch"

    @property
    def seconds(self) -> float:
        """For how long the recording has been running."""
        return time.monotonic() - self._started_s if self.state == "recording" else 0.0

    @property
    def engine(self) -> str:
        """The name of the engine that records."""
        engine = self._session._engine if self._session is not None else None
        return engine.name if engine is not None else self._wanted.engine

    def begin(self) -> None:
        """Record from the moment at which the program has imported torch."""
        self._torch_import.wait()

    def finish(self, ended: str) -> Finished | None:
        """Close the recording and write the files.

        Args:
            ended: How the program ended, in words.

        Returns:
            What was recorded, or None where nothing was; `why_nothing` tells why.
        """
        trace = self.end(ended)
        return None if trace is None else self.write(trace, ended)

    def end(self, ended: str) -> Trace | None:
        """Close the recording, and return what was recorded; None where nothing was."""
        self.leave_alone()
        if self._session is None:
            return None
        self._stop()
        if self.state != "stopped":
            return None
        self._session.add_metadata_json("program", self.description(ended))
        from kinetoscope.launch.launch import without_launcher

        return without_launcher(self._session.trace)

    def write(self, trace: Trace, ended: str) -> Finished:
        """Write the files of a trace, in which there may be more than this recording's own."""
        wanted = self._wanted
        files = [wanted.trace_path, *([wanted.chrome_path] if wanted.chrome else [])]
        for path in files:
            trace.save(path)
        wanted.live_path.unlink(missing_ok=True)
        engine = str(trace.info.get("engine", self.engine))
        return Finished(trace, self._program, ended, wanted, tuple(files), engine, notes=tuple(self.notes))

    def leave_alone(self) -> None:
        """Wait for nothing more: neither for torch nor for a step. In a fork the recording is the parent's."""
        self._torch_import.give_up()
        self._forget_optimizers()

    def why_nothing(self) -> str:
        """Say why nothing was recorded."""
        if self.state == "waiting for torch":
            return "the program never imported torch"
        first = self._wanted.steps[0] if self._wanted.steps else 0
        return f"the program's optimizer made {self.steps_done:,} steps, and recording was to begin after {first:,}"

    # ------------------------------------------------------------------------------------------------------ start

    def _torch_is_there(self) -> None:
        """Start, or wait for the step at which to start."""
        self._on_torch()
        self.state = "waiting for its step"
        if self._wanted.steps is not None:
            from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS

            OPTIMIZER_STEPS.after(self._after_step)
            self._hears_of_steps = True
        if self._wanted.steps is None or self._wanted.steps[0] == 0:
            self._start()

    def _start(self) -> None:
        """Start the session; where it cannot be started the program ends here, before it has cost anything."""
        # Not truncated in place: another process may still have the old one mapped.
        self._wanted.live_path.unlink(missing_ok=True)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                session = self._wanted.session(self._wanted.live_path)
                session.preset_metadata_json("program", self.description(None))
                session.start()
        except (KinetoscopeError, OSError) as error:
            self._cannot_start(error)
            return
        self.notes += [str(warning.message) for warning in caught]
        self._session = session
        self._started_s = time.monotonic()
        self.state = "recording"
        self._on_start(self.engine)

    def _cannot_start(self, error: Exception) -> None:
        """End the program, before it has cost anything."""
        complain(str(error))
        sys.exit(1)

    def _stop(self) -> None:
        """Stop the session."""
        if self.state == "recording" and self._session is not None:
            self._session.stop()
            self.state = "stopped"

    # ------------------------------------------------------------------------------------------------------ steps

    def _after_step(self, optimizer: object, _args: object, _kwargs: object) -> None:
        """Count the steps of the first optimizer that steps, and start and stop at the chosen ones."""
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if id(optimizer) != self._optimizer or self._wanted.steps is None:
            return
        self.steps_done += 1
        first, end = self._wanted.steps
        if self.steps_done == first:
            self._start()
        if self.steps_done == end:
            self._stop()
            self._forget_optimizers()

    def _forget_optimizers(self) -> None:
        """Hear of no more steps."""
        if self._hears_of_steps:
            from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS

            OPTIMIZER_STEPS.forget(self._after_step)
            self._hears_of_steps = False

    def description(self, ended: str | None) -> str:
        """Describe the program in the trace's metadata."""
        facts: dict[str, Any] = {
            "command": self._program.command_line,
            "folder": os.getcwd(),
            "python": sys.version.split()[0],
        }
        if self._wanted.steps is not None:
            facts["first_step"] = self._wanted.steps[0]
        if ended is not None:
            facts["ended"] = ended
        return json.dumps(facts)
