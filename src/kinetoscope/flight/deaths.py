"""How the processes of ranks ended: the other ranks on the machine hold a pidfd of each and ask the kernel.

The kernel reports the exit status of a process to its parent. Other processes of the same user can read it from a pidfd since Linux 6.15, and on older
kernels from `/proc` until the parent has waited for the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kinetoscope.storage.atomic_write import write_atomically
from kinetoscope.storage.incident_files import read_facts
from kinetoscope.storage.system_files import text_of

SUFFIX = ".end"
"""What the name of a file ends with that says how a rank ended."""

_GET_INFO, _INFO_EXIT, _INFO = 0xC040FF0B, 1 << 3, struct.Struct("<2Q11Ii")
_KILLS = re.compile(r"^oom_kill (\d+)", re.MULTILINE)


class Death(NamedTuple):
    """How a process ended.

    Attributes:
        process: Its id.
        status: Its exit code, or the negative number of the signal that ended it.
        time_s: When that was noticed, in seconds since 1970.
        for_memory: Whether the system killed it for lack of memory.
    """

    process: int
    status: int
    time_s: float
    for_memory: bool = False

    @property
    def text(self) -> str:
        """What ended it, with a place for the step."""
        if self.status >= 0:
            return f"ended without a word {{}}, with exit code {self.status}"
        by = "the system, for lack of memory" if self.for_memory else signal.Signals(-self.status).name
        return f"was killed {{}} by {by}"


def memory_kills() -> int:
    """How many processes of the control group of this process the system has killed for lack of memory; 0 where it does not tell."""
    kills = 0
    for line in text_of(Path("/proc/self/cgroup")).splitlines():
        path = line.split(":", 2)[2]
        for file in (f"{path}/memory.events", f"memory{path}/memory.oom_control"):
            kills += sum(map(int, _KILLS.findall(text_of(Path(f"/sys/fs/cgroup/{file}")))))
    return kills


@dataclass(eq=False)
class DeathWatch:
    """Holds on to other ranks of this machine, and notes how each fails in a file of the folder of their job.

    Attributes:
        attempt: The folder of this start of the job.
        kills: Counts what the system kills for lack of memory.
    """

    attempt: Path
    kills: Callable[[], int] = memory_kills
    _kills: int = field(default=0, init=False)
    _held: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)

    def look(self, processes: Mapping[int, int]) -> None:
        """Note what has ended since the last look, then hold on to processes that are new, by their ranks."""
        kills_before, self._kills = self._kills, self.kills()
        for process, (rank, descriptor) in list(self._held.items()):
            death = death_of(process, descriptor)
            if death is not None and death.status and self.attempt.is_dir():
                for_memory = death.status == -signal.SIGKILL and self._kills > kills_before
                note = json.dumps(death._replace(for_memory=for_memory)._asdict())
                write_atomically(self.attempt / f"rank{rank}{SUFFIX}", note.encode())
            if death is not None or not Path(f"/proc/{process}").exists():
                os.close(self._held.pop(process)[1])
        for rank, process in processes.items():
            with suppress(OSError):
                if process not in self._held:
                    self._held[process] = rank, os.pidfd_open(process)

    def close(self) -> None:
        """Let go of the processes that have not ended, whose file descriptors this holds."""
        while self._held:
            os.close(self._held.popitem()[1][1])


def noted_death(path: Path, process: int | None) -> Death | None:
    """What a file says of the end of a process; None if it says nothing of this one."""
    with suppress(TypeError):
        death = Death(**read_facts(path))
        return death if process in (None, death.process) else None
    return None


def death_of(process: int, descriptor: int | None = None) -> Death | None:
    """How a process has ended, by its id or a pidfd of it; None if that is not known, as while it lives."""
    status = None
    fields = text_of(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
    if fields and fields[0] == "Z":
        status = int(fields[-1])
    elif descriptor is not None and not fields:
        info = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
        with suppress(OSError):
            fcntl.ioctl(descriptor, _GET_INFO, info)
            is_known = _INFO.unpack(info)[0] & _INFO_EXIT
            status = _INFO.unpack(info)[-1] if is_known else None
    return None if status is None else Death(process, os.waitstatus_to_exitcode(status), time.time())
