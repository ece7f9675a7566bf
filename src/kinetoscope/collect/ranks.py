"""The ranks of a job beside the communication of the job itself: the store that they share, and their summaries, gathered by rank 0."""

from __future__ import annotations

import math
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed

from kinetoscope._errors import ArgumentError
from kinetoscope.collect.session.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetoscope.summaries.job import Job
    from kinetoscope.trace import Trace

_PREFIX = "kinetoscope"
_ATTEMPT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
# Shorter waits poll without a pause.
_AT_ONCE_S, _LONGEST_PAUSE_S = 2e-3, 0.05
_MOST_NAMED = 20


class JobStore:
    """The store that the job was started with, over a connection of our own, on which nothing of the job waits.

    It never goes through NCCL or gloo: whatever fails here, the communication of the job is not affected.

    Attributes:
        connections: How many were made.
    """

    def __init__(self, purpose: str) -> None:
        """Nothing is connected yet; `purpose` begins the names of the keys."""
        self._purpose = purpose
        self._store: Any = None
        self._address: tuple[object, ...] = ()
        self.connections = 0

    def connect(self, timeout_s: float) -> Any:
        """The store, with one connection from the first call on: if it is gone later, that fails immediately."""
        store = torch.distributed.distributed_c10d._get_default_store()
        while isinstance(store, torch.distributed.PrefixStore):
            store = store.underlying_store
        # The launcher's store is there for all attempts of a job; a forked child must not speak on its parent's connection.
        attempt = "/".join(os.environ.get(name, "") for name in _ATTEMPT)
        address = (
            os.getpid(), attempt, type(store), *(getattr(store, name, None) for name in ("host", "port", "path")),
        )  # fmt: skip
        if self._store is None or self._address != address:
            prefix = f"{_PREFIX}/{self._purpose}/{attempt}"
            self._store = torch.distributed.PrefixStore(prefix, _own_connection(store, timeout_s))
            self._address = address
            self.connections += 1
        return self._store

    def forget(self) -> None:
        """Connect again the next time."""
        self._store = None


def in_company() -> bool:
    """Whether this process is one of several ranks."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return False
    return int(distributed.get_world_size()) > 1


def wait_for_key(
    store: Any,
    key: str,
    until_ns: int,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    check: Callable[[], None] | None = None,
) -> bool:
    """Wait for a key; return whether it was set in time.

    Unlike the store's own `wait`, polling can be interrupted and prints nothing to stderr. `check` is called before each pause, and
    may raise.
    """
    began_ns = clock_ns()
    while not store.check([key]):
        now_ns = clock_ns()
        if now_ns >= until_ns:
            return False
        waited_s = (now_ns - began_ns) / 1e9
        if waited_s > _AT_ONCE_S:
            if check is not None:
                check()
            # In proportion, so that many ranks that wait long do not keep the store busy.
            time.sleep(min(waited_s / 20, _LONGEST_PAUSE_S))
    return True


def gather_summaries(
    trace: Trace,
    output: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    timeout_s: float = 60.0,
) -> Job | None:
    """Gather the summaries of all ranks at rank 0, which writes them to a folder.

    Every rank calls it, and equally often. Each reduces its own trace and sends the summary, at most a megabyte, through the store of
    the job, over a separate connection. Only rank 0 waits for the others, and no longer than `timeout_s`: it warns which ranks are
    missing and continues with those that came. If the store fails, that is a warning.

    Args:
        trace: The trace of this rank.
        output: The folder, which rank 0 makes if needed.
        source: Where the whole trace of this rank is saved, for links from summaries to traces.
        timeout_s: How many seconds rank 0 waits for the other ranks; 0 takes what is there.

    Returns:
        The job of the summaries that came, on rank 0 and in a process without a process group; None on other ranks.

    Raises:
        ArgumentError: `timeout_s` is no number of seconds.
        OSError: Rank 0 cannot write a file.
    """
    given: Any = timeout_s
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not number or not math.isfinite(given) or given < 0:
        raise ArgumentError(
            f"timeout_s={timeout_s!r} is not valid: need a number of seconds, 0 to take what is there."
        )
    from kinetoscope.storage.atomic_write import open_atomically
    from kinetoscope.summaries.job import Job
    from kinetoscope.summaries.summary import file_name, file_of, summary_of

    own = file_of(summary_of(trace, "" if source is None else os.path.abspath(source)))
    rank = torch.distributed.get_rank() if in_company() else 0
    gathered = {rank: own}
    if in_company():
        try:
            gathered |= _exchanged(rank, own, timeout_s)
        except Exception as error:  # noqa: BLE001  (whatever the job's store fails at is none of the job's business)
            _STORE.forget()
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            warn_user(f"the summaries of the ranks were not gathered: {reason.rstrip('.')}.")
    if rank != 0:
        return None
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for one, summary in sorted(gathered.items()):
        paths.append(folder / file_name(one))
        with open_atomically(paths[-1]) as file:
            file.write(summary)
    return Job.open(*paths)


_STORE = JobStore("summaries")


def _exchanged(rank: int, own: bytes, timeout_s: float) -> dict[int, bytes]:
    """Send the summary of this rank or, on rank 0, receive those of the others."""
    store = _STORE.connect(max(timeout_s, 1.0))
    # Each rank counts its own calls; equal numbers belong together.
    number = store.add(f"times/{rank}", 1)
    if rank != 0:
        store.set(f"{number}/{rank}", own)
        return {}
    until_ns = time.monotonic_ns() + int(timeout_s * 1e9)
    found, missing = {}, []
    for other in range(1, torch.distributed.get_world_size()):
        key = f"{number}/{other}"
        if wait_for_key(store, key, until_ns):
            found[other] = store.get(key)
            store.delete_key(key)
        else:
            missing.append(other)
    if missing:
        named = ", ".join(map(str, missing[:_MOST_NAMED]))
        more = f" and {len(missing) - _MOST_NAMED:,} more" if len(missing) > _MOST_NAMED else ""
        warn_user(
            f"no summary arrived within {timeout_s:g} s from {'rank' if len(missing) == 1 else 'ranks'} {named}{more}: "
            f"{len(found) + 1:,} of {torch.distributed.get_world_size():,} were gathered."
        )
    return found


def _own_connection(store: Any, timeout_s: float) -> Any:
    """A store over its own connection, with a time limit."""
    distributed, timeout = torch.distributed, timedelta(seconds=timeout_s)
    if isinstance(store, distributed.TCPStore):
        # A clone would try for as long as the job itself, half an hour, where the store is gone.
        return distributed.TCPStore(
            store.host, store.port, is_master=False, timeout=timeout, wait_for_workers=False
        )
    own = store.clone()
    own.set_timeout(timeout)
    return own
