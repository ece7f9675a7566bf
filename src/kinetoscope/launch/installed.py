"""The recording of a program that profiles itself with `torch.profiler`, which is Kinetoscope while it runs."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from typing import TYPE_CHECKING

from kinetoscope._errors import KinetoscopeError
from kinetoscope.display.terminal import complain
from kinetoscope.launch.recording import ProgramRecording

if TYPE_CHECKING:
    from kinetoscope.collect.session.cycle import Cycle
    from kinetoscope.trace import Trace

# Each keeps its recording on disk, or in torch's memory, until the end.
MOST_CYCLES = 100


class InstalledRecording(ProgramRecording):
    """Keeps what the program's own sessions record, and makes one trace of it at the end."""

    _cycles: deque[Cycle]
    _ended = 0

    def end(self, ended: str) -> Trace | None:
        """Put together what the program recorded; None where it recorded nothing."""
        from kinetoscope.combine.concatenate import concatenate
        from kinetoscope.launch.launch import without_launcher

        self.leave_alone()
        if self.state != "installed" or not self._cycles:
            return None
        trace = concatenate([cycle.trace() for cycle in self._cycles])
        trace.info["program"] = json.loads(self.description(ended))
        trace = without_launcher(trace)
        if self._ended > len(self._cycles):
            self.notes.append(
                f"the program recorded {self._ended:,} times; the last {len(self._cycles)} are kept"
            )
        return trace

    def why_nothing(self) -> str:
        """Say why nothing was recorded."""
        if self.state == "waiting for torch":
            return "the program never imported torch"
        return "the program finished no recording of torch.profiler; without --install all of it is recorded"

    def _torch_is_there(self) -> None:
        """Take the place of torch.profiler before the program can look at it."""
        from kinetoscope.collect.torch_compat.install import install_and_tell

        self._on_torch()
        self._cycles = deque(maxlen=MOST_CYCLES)
        self._recording_process = os.getpid()
        try:
            install_and_tell(self._keep, self._wanted.engine)  # type: ignore[arg-type]  # click has checked it
        except KinetoscopeError as error:
            complain(str(error))
            sys.exit(1)
        self.state = "installed"

    def _keep(self, cycle: Cycle) -> None:
        """Keep what one of the program's sessions has recorded; a fork's recordings are its own."""
        if os.getpid() == self._recording_process:
            cycle.hold()
            self._cycles.append(cycle)
            self._ended += 1
