"""Copying a file to where a name says: through a trainer's logger, or to a URL through fsspec."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetoscope._errors import ArgumentError, MissingDependencyError

ATTEMPTS = 3
# Before the second attempt, and before each further one.
PAUSES_S = (0.5, 2.0)
PATIENCE_S = 600.0


def is_url(name: str) -> bool:
    """Whether a name says of itself to which store it belongs."""
    return "://" in name


def check_url(what: str, url: str) -> None:
    """See that a store of this kind can be reached from here at all, long before there is something to upload.

    Raises:
        MissingDependencyError: fsspec, or the package for the store, is not installed.
        ArgumentError: There are no such stores.
    """
    protocol = url.partition("://")[0]
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError(
            f'{what}={url!r}: uploading to a URL needs fsspec: install it with `pip install "kinetoscope[remote]"`.'
        ) from error
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise MissingDependencyError(
            f'{what}={url!r}: {error} (beside `pip install "kinetoscope[remote]"`)'
        ) from error
    except ValueError as error:
        raise ArgumentError(
            f"{what}={url!r}: no store is known as {protocol}://; use s3://, gs://, file:// or another that fsspec knows."
        ) from error


class Uploads:
    """Uploads files one after the other; a failure is tried again, and then becomes a warning.

    What goes to a URL is sent from a thread of its own, since a store may be slow and training shall not wait for it. The
    warnings come from `warn`, on the caller's thread.

    Args:
        overwrite: Whether what is there already may be replaced. What this object uploaded itself always may.
        attempts: How often a file is tried.
        sleep: Waits so many seconds.
        patience_s: For how many seconds `wait` waits. A store that hangs shall not keep the job from ending.
    """

    def __init__(
        self,
        *,
        overwrite: bool,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], object] = time.sleep,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._overwrite = overwrite
        self._attempts = attempts
        self._sleep = sleep
        self._patience_s = patience_s
        self._own: set[str] = set()
        self._failures: list[str] = []
        self._sender: _Sender | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    def through(self, logger: Any, path: Path, name: str) -> bool:
        """Hand a file to a trainer's logger; return whether it took it."""

        def send() -> None:
            logger.upload_file(remote_file_name=name, file_path=str(path), overwrite=self._may_replace(name))

        return self._tried(send, path, name)

    def to_url(self, path: Path, url: str, then: Callable[[bool], object]) -> None:
        """Send a file to a URL, in time; `then` is told on the sending thread whether it arrived."""
        if self._sender is None or self._process != os.getpid():
            # A forked process has no thread of its parent's, and sends nothing of its parent's.
            self._process = os.getpid()
            self._sender = _Sender()
        self._sender.send(lambda: self._send_to_url(path, url, then))

    def wait(self) -> None:
        """Wait until everything has been sent, has failed, or takes too long; a forked process waits for nothing of its parent's."""
        if self._sender is None or self._process != os.getpid():
            return
        left = self._sender.wait(self._patience_s)
        if left:
            self.note(
                f"{left} uploads are not over after {self._patience_s:g} s; nobody waits for them any longer. The files stay where "
                "they are."
            )

    def close(self) -> None:
        """Wait, and warn of what failed."""
        self.wait()
        self._sender = None
        self.warn()

    def warn(self) -> None:
        """Warn of what has failed since the last time."""
        with self._lock:
            failures, self._failures = self._failures, []
        for failure in failures:
            warnings.warn(failure, stacklevel=2)

    def _send_to_url(self, path: Path, url: str, then: Callable[[bool], object]) -> None:
        """Send a file, and tell whether it arrived."""
        then(self._tried(lambda: _put(path, url, replace=self._may_replace(url)), path, url))

    def _tried(self, send: Callable[[], None], path: Path, name: str) -> bool:
        """Send as often as it takes, within limits; a failure is kept for `warn`."""
        for attempt in range(1, self._attempts + 1):
            try:
                send()
            except Exception as error:  # noqa: BLE001  (stores and loggers raise whatever they like)
                refused = isinstance(error, FileExistsError)
                if attempt < self._attempts and not refused:
                    self._sleep(PAUSES_S[min(attempt, len(PAUSES_S)) - 1])
                    continue
                times = "" if attempt == 1 else f" in {attempt} attempts"
                self.note(
                    f"the trace {path} was not uploaded as {name}{times} ({type(error).__name__}: {error}). "
                    "The file stays where it is."
                )
                return False
            self._own.add(name)
            return True
        return False

    def note(self, failure: str) -> None:
        """Keep a failure for `warn`."""
        with self._lock:
            self._failures.append(failure)

    def _may_replace(self, name: str) -> bool:
        """Whether a file of this name may be replaced."""
        return self._overwrite or name in self._own


class _Sender:
    """Sends one after the other on a thread, which is there while there is something to send, and does not keep the program from ending."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], object]] = deque()
        self._left = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def send(self, job: Callable[[], object]) -> None:
        """Do this when what came before is done."""
        with self._changed:
            self._jobs.append(job)
            self._left += 1
            if self._left == 1:
                self._thread = threading.Thread(target=self._run, name="kinetoscope-upload", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> int:
        """Wait until everything is done, but no longer than some seconds; return how much is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._left == 0, seconds)
            left, thread = self._left, self._thread
        if thread is not None and left == 0:
            thread.join()
        return left

    def _run(self) -> None:
        """Do what there is to do."""
        left = 1
        while left:
            with self._changed:
                job = self._jobs.popleft()
            try:
                job()
            finally:
                with self._changed:
                    self._left -= 1
                    left = self._left
                    self._changed.notify_all()


def _put(path: Path, url: str, *, replace: bool) -> None:
    """Copy a file to a URL."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.core import url_to_fs

    filesystem, remote = url_to_fs(url)
    if not replace and filesystem.exists(remote):
        raise FileExistsError("there is a file of that name already; overwrite=True replaces it")
    if not isinstance(filesystem, AsyncFileSystem):
        # The others are object stores: they need no folders, and some would make a bucket instead.
        filesystem.makedirs(filesystem._parent(remote), exist_ok=True)
    filesystem.put_file(str(path), remote)
