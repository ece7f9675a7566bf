"""The folder that the traces of a trainer's run go to."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError
from kinetoscope.collect._metadata import ranked
from kinetoscope.collect._warn import warn_user

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

    Raises:
        ArgumentError: It cannot be written to, or it holds traces already.
    """

    def __init__(self, asked: Path | None, trainers: Path, *, overwrite: bool) -> None:
        # Ranks share the folder; each looks for its own files only, so that all of them choose the same one.
        self._rank = ranked(Path("x" + SUFFIX)).name[1 : -len(SUFFIX)]
        self.saved: list[Path] = []
        self.path = asked or self._new_one_in(trainers)
        if asked is not None and not overwrite and (earlier := self._traces_in(asked)):
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
            if path not in self.saved:
                return path
        raise AssertionError("unreachable: the numbers do not end")

    def _new_one_in(self, trainers: Path) -> Path:
        """The first of `kinetoscope`, `kinetoscope-2` ... that holds no traces of this rank."""
        names = itertools.chain([OWN_NAME], (f"{OWN_NAME}-{number}" for number in itertools.count(2)))
        return next(trainers / name for name in names if not self._traces_in(trainers / name))

    def _traces_in(self, folder: Path) -> list[Path]:
        """The traces of this rank in a folder."""
        return sorted(folder.glob(f"*{self._rank}{SUFFIX}"))
