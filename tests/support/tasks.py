"""What tests run on engines; a module of its own, because workers import it by name. Each item is a path in the test's folder."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from kinetoscope import FormatError


def name_of(item: str) -> str:
    """The name of the file; `wrong` is an error."""
    if Path(item).name == "wrong":
        raise FormatError(f"{item} is wrong")
    return Path(item).name


def killed_once(item: str) -> str:
    """The name of the file; the first process that sees `victim` is killed."""
    name, seen = Path(item).name, Path(item).with_name("seen")
    if name == "victim" and not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return name


def always_killed(item: str) -> str:
    """The name of the file; each process that sees `victim` is killed."""
    if Path(item).name == "victim":
        os.kill(os.getpid(), signal.SIGKILL)
    return Path(item).name


_NEIGHBOR = threading.Event()


def killed_with_neighbor(item: str) -> str:
    """The name of the file; each process that sees `victim` is killed, the first one while `neighbor` runs in another thread of it."""
    name, seen = Path(item).name, Path(item).with_name("seen")
    if name == "victim":
        if not seen.exists():
            _NEIGHBOR.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    if not seen.exists():
        seen.touch()
        _NEIGHBOR.set()
        threading.Event().wait()
    return name
