"""The folder that the traces of a trainer's run go to."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError, KinetoscopeError
from kinetoscope.collect.session.metadata import ranked
from kinetoscope.collect.session.user_warnings import warn_user
from kinetoscope.trace import open as open_trace

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

SUFFIX = ".ktrace"
OWN_NAME = "kinetoscope"


class TraceFolder:
    """Where traces are written: proven to be writable, and never over those of an earlier run unless that was asked for.

    Args:
        asked: The folder the user named, None for a new one in the trainer's.
        trainers: The trainer's own folder.
        overwrite: Whether the folder the user named may hold traces of an earlier run.
        profiler: What `info["profiler"]` says in the traces of this one, also in those that other processes wrote for it.

    Raises:
        ArgumentError: It cannot be written to, or it holds traces already.
    """

    def __init__(
        self, asked: Path | None, trainers: Path, *, overwrite: bool, profiler: str | None = None
    ) -> None:
        # Ranks share the folder; each looks for its own files only, so that all of them choose the same one.
        self._rank = ranked(Path("x" + SUFFIX)).name[1 : -len(SUFFIX)]
        self.saved: list[Path] = []
        self._overwrite = overwrite
        self.path = asked or self._new_one_in(trainers)
        if asked is not None and not overwrite and (earlier := self._of_others(asked, profiler)):
            raise ArgumentError(
                f"the folder {str(asked)!r} holds {len(earlier)} trace{'s' if len(earlier) > 1 else ''} of an earlier run "
                f"({earlier[0].name}{', ...' if len(earlier) > 1 else ''}): name another folder, or pass overwrite=True."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                # It could be made, so traces can be.
                return
        except OSError as error:
            raise ArgumentError(
                f"the folder {str(self.path)!r} for the traces cannot be written to ({error.strerror}): name another one."
            ) from error

    def save(self, trace: Trace, stem: str) -> None:
        """Write a trace; a disk that is full is a warning, and no reason to end a training."""
        path = self._name_for(stem)
        try:
            trace.save(path)
        except OSError as error:
            warn_user(f"the trace {str(path)!r} could not be written: {error}. The training goes on.")
        else:
            self.saved.append(path)

    def _name_for(self, stem: str) -> Path:
        """A file for the next trace, under a name that this run has not used yet."""
        for number in itertools.count(1):
            path = self.path / f"{stem}{'' if number == 1 else f'-{number}'}{self._rank}{SUFFIX}"
            if path not in self.saved and (self._overwrite or not path.is_file()):
                return path
        raise AssertionError("unreachable: the numbers do not end")

    def _new_one_in(self, trainers: Path) -> Path:
        """The first of `kinetoscope`, `kinetoscope-2` ... that holds no traces of this rank."""
        names = itertools.chain([OWN_NAME], (f"{OWN_NAME}-{number}" for number in itertools.count(2)))
        return next(trainers / name for name in names if not self._traces_in(trainers / name))

    def _traces_in(self, folder: Path) -> list[Path]:
        """The traces of this rank in a folder."""
        return sorted(folder.glob(f"*{self._rank}{SUFFIX}"))

    def _of_others(self, folder: Path, profiler: str | None) -> list[Path]:
        """The traces of this rank that another profiler wrote."""
        return [
            path for path in self._traces_in(folder) if profiler is None or _written_for(path) != profiler
        ]


def _written_for(path: Path) -> str | None:
    """Which profiler a trace is of, None for one that does not say or cannot be read."""
    try:
        with open_trace(path) as trace:
            return trace.info.get("profiler")
    except (KinetoscopeError, OSError):
        return None
