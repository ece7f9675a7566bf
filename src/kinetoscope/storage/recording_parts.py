"""Copies of a recording, and parts of it, as separate recordings; also while it is running.

A recording is cloned before a part is cut out, so that the part is consistent; the recording process does not wait.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kinetoscope._core as _core
from kinetoscope._errors import ArgumentError, FormatError
from kinetoscope.model.steps import MARKED
from kinetoscope.storage.live_recording import progress
from kinetoscope.storage.recording import read_recording


def clone(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a recording as it is at this moment, with all sessions that share it.

    The copy is a stopped recording. Its losses count the spans that are open, and those that a ring overwrote during the copy.

    Args:
        source: The recording, of any process, that goes on or has ended.
        target: The new file; it replaces an older one once it is complete.

    Raises:
        FormatError: The source is not a recording, or its version is not supported.
        OSError: A file cannot be read or written.
    """
    _check(source)
    with replacing(Path(target)) as unfinished:
        _core.clone_recording(str(source), unfinished)


def keep_from(path: str | os.PathLike[str], start_ns: int) -> None:
    """Remove from a copy of a recording all records that ended before a time, and all sessions but the first; marked steps keep their numbers.

    Args:
        path: The copy, which is replaced.
        start_ns: The time, in nanoseconds since the recording began.

    Raises:
        FormatError: The file is not a recording, or its version is not supported.
        OSError: It cannot be read or written.
    """
    _check(path)
    with replacing(Path(path)) as unfinished:
        _core.cut_recording(str(path), 0, unfinished, start_ns)


def cut_steps(source: str | os.PathLike[str], target: str | os.PathLike[str], first: int, end: int) -> None:
    """Cut steps of the first session out of a recording, by their numbers, which they keep.

    Args:
        source: The recording, of any process, that goes on or has ended.
        target: The new file; it replaces an older one once it is complete.
        first: The number of the first step.
        end: The number of the step after the last one. An unfinished step is included up to the end of the recording.

    Raises:
        ArgumentError: The recording has none of these steps.
        FormatError: The source is not a recording, or its version is not supported.
        OSError: A file cannot be read or written.
    """
    _check(source)
    target = Path(target)
    prefix = f".{target.name}-"
    with (
        tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as scratch,
        replacing(target) as unfinished,
    ):
        copy, part = Path(scratch, "copy"), Path(scratch, "part")
        _core.clone_recording(str(source), str(copy))
        # Nothing changes in the part of the session while its steps are read.
        _core.cut_recording(str(copy), 0, str(part))
        copy.unlink()
        steps = read_recording(part)[0].columns("steps")
        wanted = (steps["number"] >= first) & (steps["number"] < end)
        if not wanted.any():
            numbers = steps["number"]
            there = f"it has steps {numbers.min()} to {numbers.max()}" if len(numbers) else "it has no steps"
            raise ArgumentError(f"{Path(source)} has none of the steps from {first} up to {end}: {there}")
        starts_ns = steps["start_ns"][wanted]
        end_ns = int((starts_ns + steps["duration_ns"][wanted]).max())
        marked = (steps["source"][wanted] == MARKED).any()
        first_step = None if marked else int(steps["number"][wanted].min())
        _core.cut_recording(str(part), 0, unfinished, int(starts_ns.min()), end_ns, first_step)


@contextmanager
def replacing(target: Path) -> Iterator[str]:
    """Yield a temporary path next to a file, which replaces it at the end, or is removed if the block fails."""
    unfinished = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}")
    try:
        yield str(unfinished)
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _check(source: str | os.PathLike[str]) -> None:
    if progress(source) is None:
        raise FormatError(f"{Path(source)}: not a readable recording")
