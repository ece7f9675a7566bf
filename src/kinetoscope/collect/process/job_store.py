"""The key-value store that the ranks of a job share, used without affecting the job's collectives."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed

from kinetoscope.collect.process.rank import in_process_group

_PREFIX = "kinetoscope"


_ATTEMPT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


# The first milliseconds of a wait poll without a pause.
_AT_ONCE_S, _LONGEST_PAUSE_S = 2e-3, 0.05


class JobStore:
    """The key-value store that the job was started with, over a separate connection.

    It does not use NCCL or gloo, so a failure does not affect the job's communication.

    Attributes:
        connections: Number of connections that were made.
    """

    def __init__(self, purpose: str) -> None:
        """Start unconnected; `purpose` is a prefix of all keys."""
        self._purpose = purpose
        self._store: Any = None
        self._address: tuple[object, ...] = ()
        self.connections = 0

    def connect(self, timeout_s: float) -> Any:
        """Return the store; the first call connects, and later ones use the same connection, which fails at once if it is lost."""
        store = torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001  (torch's own)
        while isinstance(store, torch.distributed.PrefixStore):
            store = store.underlying_store
        # Per attempt, because the launcher's store outlives them, and per process: a forked child must not share a connection.
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
        """Drop the connection; the next call of `connect` makes a new one."""
        self._store = None


def is_distributed() -> bool:
    """Whether this process is one of several ranks."""
    return in_process_group() and int(torch.distributed.get_world_size()) > 1


def wait_for_key(
    store: Any,
    key: str,
    until_ns: int,
    check: Callable[[], None] | None = None,
) -> bool:
    """Wait for a key; return False if it was not set by the time limit.

    Polls, because the store's own `wait` cannot be interrupted and prints to stderr. `check` is called before each pause, and may
    raise.
    """
    began_ns = time.monotonic_ns()
    while not store.check([key]):
        now_ns = time.monotonic_ns()
        if now_ns >= until_ns:
            return False
        waited_s = (now_ns - began_ns) / 1e9
        if waited_s > _AT_ONCE_S:
            if check is not None:
                check()
            # Pauses grow with the time waited, so that many waiting ranks do not overload the store.
            time.sleep(min(waited_s / 20, _LONGEST_PAUSE_S))
    return True


def _own_connection(store: Any, timeout_s: float) -> Any:
    distributed, timeout = torch.distributed, timedelta(seconds=timeout_s)
    if isinstance(store, distributed.TCPStore):
        # Not a clone: if the store is gone, that would try for the job's own time limit, which is half an hour by default.
        return distributed.TCPStore(
            store.host, store.port, is_master=False, timeout=timeout, wait_for_workers=False
        )
    connection = store.clone()
    connection.set_timeout(timeout)
    return connection
