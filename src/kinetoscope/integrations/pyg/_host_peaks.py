"""The most memory that a call took on the host: of the process as the system counts it, and of torch's tensors."""

from __future__ import annotations

import math
import os
import re
import resource
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from kinetoscope.collect import ProfilerActivity, _KinetoProfile
from kinetoscope.collect.session.base_session import ACTIVE_SESSIONS
from kinetoscope.tables.memory.peak import peak

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_INTERVAL_S = 0.01


class ResidentPeak:
    """The largest resident set of the process during a block, in `bytes`.

    The system keeps the largest of the whole life of the process: where it rose, that is the answer. Where it did not,
    the set is read every 10 ms by a thread, and at both ends; resetting the system's mark instead would change what other
    tools read.
    """

    def __init__(
        self, now: Callable[[], int] | None = None, of_life: Callable[[], int] | None = None
    ) -> None:
        """Begin with nothing seen; `now` and `of_life` read the set and the system's mark, in bytes."""
        self.bytes = 0
        self._now = now or resident_bytes
        self._of_life = of_life or resident_peak_of_life
        self._mark = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kinetoscope-resident-set", daemon=True)

    def __enter__(self) -> Self:
        self._mark, self.bytes = self._of_life(), self._now()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.bytes = max(self.bytes, self._now())
        mark = self._of_life()
        if mark > self._mark:
            self.bytes = max(self.bytes, mark)

    def _watch(self) -> None:
        """Look until the end."""
        while not self._ended.wait(_INTERVAL_S):
            self.bytes = max(self.bytes, self._now())


class AllocatedPeak:
    """The most memory of the host that torch held during a block, in `bytes`, not a number where it is not known.

    Counted from a recording of all allocations, and of the tensors that were there before as far as the recording knows
    them. Where our recorder is in use already, torch's own collector records; where that is, too, nothing does.
    """

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.bytes = math.nan
        self._session: _KinetoProfile | None = None

    def __enter__(self) -> Self:
        try:
            session = _KinetoProfile(
                activities=[ProfilerActivity.CPU],
                profile_memory=True,
                engine="kineto" if ACTIVE_SESSIONS.is_taken("native") else "auto",
                oom_report=False,
            )
            session.start()
            self._session = session
        except Exception as error:  # noqa: BLE001  (the call goes on without this number, whatever stands in the way)
            _warn(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.stop()
            found = peak(session.trace) if error is None else None
            self.bytes = 0 if found is None else found.bytes
        except Exception as failure:  # noqa: BLE001  (the call has its result)
            _warn(failure)


def resident_bytes() -> int:
    """The memory that the process holds now; where the system does not tell, the most it ever held."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return resident_peak_of_life()


def resident_peak_of_life() -> int:
    """The most memory that the process ever held."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        found = None
    # Linux counts both in kibibytes.
    return 1024 * (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _warn(error: Exception) -> None:
    """Say once for each call site that the number will be missing."""
    warnings.warn(
        f"profileit('cpu') cannot tell how much memory torch allocated, max_allocated_cpu is not a number: {error}",
        stacklevel=4,
    )
