"""The notes that followed processes leave in the run's folder: one small JSON file each, written atomically.

Loaded by path in Pythons that cannot import Kinetoscope (see `child_hook`): standard library only, and Python 3.7.

Most facts about a process are in its recording (see `child`). A note has the rest: why there is no recording, that it is in memory until the
process ends, facts known only after the recording, and which processes were terminated by a parent, which may have no recording itself. A note is
written at the start of its process and at each change, so a killed process loses nothing.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUFFIX = ".json"


def claim(folder: str, name: str, facts: dict[str, Any]) -> str | None:
    """Create a note under an unused name.

    Args:
        folder: The run's folder.
        name: The preferred name; a process that became another program finds its old note under it.
        facts: The contents.

    Returns:
        The name, with a number appended if needed; None if the folder is gone because the run is over.
    """
    for number in range(1, 10_000):
        free = name if number == 1 else f"{name}.{number}"
        try:
            file = os.open(os.path.join(folder, free + SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        except OSError:
            return None
        os.close(file)
        rewrite(folder, free, facts)
        return free
    return None


def rewrite(folder: str, name: str, facts: dict[str, Any]) -> None:
    """Replace a note; does nothing if the run is over."""
    path = os.path.join(folder, name + SUFFIX)
    fresh = f"{path}.{os.getpid()}"
    try:
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as text:
            json.dump(facts, text, default=str)
        if os.path.exists(path):
            os.replace(fresh, path)
        else:
            os.unlink(fresh)
    except OSError:
        return


def mark_terminated(folder: str, process: int) -> None:
    """Note that the parent of a process is about to terminate it; does nothing if the run is over."""
    ticks = start_ticks(process)
    if ticks:
        try:
            os.close(os.open(_mark(folder, process, ticks), os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            return


def was_terminated(folder: str, process: int, ticks: int) -> bool:
    """Whether a process, identified by its id and start in ticks, was terminated by its parent."""
    return os.path.exists(_mark(folder, process, ticks))


def _mark(folder: str, process: int, ticks: int) -> str:
    """The file that marks a process. It includes the start time, because process ids are reused."""
    return os.path.join(folder, f"{process}.{ticks}.terminated")


def read_all(folder: str) -> dict[str, dict[str, Any]]:
    """All notes of a folder by name; an incomplete one is empty."""
    notes = {}
    for entry in sorted(os.listdir(folder)):
        if not entry.endswith(SUFFIX):
            continue
        try:
            with open(os.path.join(folder, entry), encoding="utf-8") as text:
                facts = json.load(text)
        except (OSError, ValueError):
            facts = {}
        notes[entry[: -len(SUFFIX)]] = facts if isinstance(facts, dict) else {}
    return notes


def start_ticks(process: int) -> int:
    """When a process started, in the kernel's ticks; 0 if it does not exist or has ended.

    Together with its id this identifies a process.
    """
    state, ticks, _ = _status(process)
    return 0 if state in ("", "Z", "X") else ticks


def ancestors(process: int) -> list[int]:
    """The ids of the parent of a process, of its parent, and so on."""
    parents: list[int] = []
    while len(parents) < 64:
        _, _, process = _status(process)
        if process <= 0:
            break
        parents.append(process)
    return parents


def _status(process: int) -> tuple[str, int, int]:
    """State, start in clock ticks, and parent of a process; empty and zeros if it does not exist."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            # The name of a process may contain blanks and brackets.
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[19]), int(fields[1])
    except (OSError, IndexError, ValueError):
        return "", 0, 0
