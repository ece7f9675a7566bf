"""The notes that followed processes leave in the folder of a run: one small JSON file each, whole or not there at all.

Run by path in Pythons that cannot record (see `child_start`), so it needs the standard library only.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUFFIX = ".json"


def claim(folder: str, name: str, facts: dict[str, Any]) -> str | None:
    """Leave a note under a name that nobody else has.

    Args:
        folder: The folder of the run.
        name: The name asked for; a process that has become another program finds its old one taken.
        facts: What the note says.

    Returns:
        The name, perhaps with a number after it; None where the folder is gone, because the run is over.
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
    """Let a note say something else; nothing happens where the run is over."""
    place = os.path.join(folder, name + SUFFIX)
    fresh = f"{place}.{os.getpid()}"
    try:
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as text:
            json.dump(facts, text, default=str)
        if os.path.exists(place):
            os.replace(fresh, place)
        else:
            os.unlink(fresh)
    except OSError:
        return


def mark_terminated(folder: str, process: int) -> None:
    """Note that a process is about to be ended by the one that started it; nothing happens where the run is over."""
    ticks = began(process)
    if ticks:
        try:
            os.close(os.open(_mark(folder, process, ticks), os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            return


def was_terminated(folder: str, process: int, ticks: int) -> bool:
    """Whether the process that began at those ticks was ended by the one that started it."""
    return os.path.exists(_mark(folder, process, ticks))


def _mark(folder: str, process: int, ticks: int) -> str:
    """The file that says so: a number alone may be used again."""
    return os.path.join(folder, f"{process}.{ticks}.terminated")


def read_all(folder: str) -> dict[str, dict[str, Any]]:
    """All notes of a folder by their names; one that was not written whole says nothing."""
    notes = {}
    for entry in sorted(os.listdir(folder)):
        if not entry.endswith(SUFFIX):
            continue
        try:
            with open(os.path.join(folder, entry), encoding="utf-8") as text:
                told = json.load(text)
        except (OSError, ValueError):
            told = {}
        notes[entry.removesuffix(SUFFIX)] = told if isinstance(told, dict) else {}
    return notes


def began(process: int) -> int:
    """When a process began, in the kernel's ticks: with its number, what tells it from later ones. 0: there is none.

    A process that has ended and was not yet waited for counts as none.
    """
    state, ticks, _ = _status(process)
    return 0 if state in ("", "Z", "X") else ticks


def ancestors(process: int) -> list[int]:
    """The processes that a process descends from, its parent first, as far as the system knows them now."""
    found: list[int] = []
    while len(found) < 64:
        _, _, process = _status(process)
        if process <= 0:
            break
        found.append(process)
    return found


def _status(process: int) -> tuple[str, int, int]:
    """The state of a process, when it began, and its parent; nothing and zeros without such a process."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            # Its name may have blanks and brackets in it.
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[19]), int(fields[1])
    except (OSError, IndexError, ValueError):
        return "", 0, 0
