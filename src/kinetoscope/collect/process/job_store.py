"""The store that the ranks of a job share, beside the communication of the job itself."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed

if TYPE_CHECKING:
    from collections.abc import Callable


_PREFIX = "kinetoscope"


_ATTEMPT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


# Shorter waits poll without a pause.
_AT_ONCE_S, _LONGEST_PAUSE_S = 2e-3, 0.05


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
