"""The trace of all cycles of all ranks of a machine, which one of them writes at the end.

Each rank keeps its cycles in a hidden folder beside the traces, in our own format: exact, small, and still there when the
traces themselves were let go of. Nobody waits for anybody while training goes on.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.integrations.composer._files import check_suffix
from kinetoscope.integrations.composer._names import FOLDER_VARIABLES, NameTemplate, Ranks
from kinetoscope.integrations.composer._uploads import Uploads, check_url, is_url
from kinetoscope.integrations.composer.json_trace_merger import merged_by_rank
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace

_CYCLES = ".cycles"
_POLL_S = 0.1


class MergedTrace:
    """Gathers the traces of the ranks of a machine and merges them at the end of the run.

    Args:
        filename: Format of the merged trace's name in the folder of the traces.
        remote_file_name: Format of the name under which it is uploaded, None for no upload.
        overwrite: Whether remote files may be replaced.
        attempts: How often an upload is tried.
        patience_s: How many seconds the rank that merges waits for the others at the end.
        sleep: Waits so many seconds.
        clock: Tells seconds.

    Raises:
        ArgumentError: A name has an unknown variable, or the suffix names no format.
        MissingDependencyError: A URL needs a package that is not installed.
    """

    def __init__(
        self,
        filename: str,
        remote_file_name: str | None,
        *,
        overwrite: bool,
        attempts: int,
        patience_s: float,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = NameTemplate("merged_trace_filename", filename, FOLDER_VARIABLES)
        check_suffix("merged_trace_filename", filename)
        self._remote: NameTemplate | None = None
        if remote_file_name is not None:
            self._remote = NameTemplate("merged_trace_remote_file_name", remote_file_name, FOLDER_VARIABLES)
            if is_url(remote_file_name):
                check_url("merged_trace_remote_file_name", remote_file_name)
        self._uploads = Uploads(overwrite=overwrite, attempts=attempts, sleep=sleep)
        self._patience_s = patience_s
        self._sleep = sleep
        self._clock = clock
        self._folder_of: Callable[[int], Path] | None = None
        self._number = 0
        self._run_name = ""
        self._logger: Any = None
        self._ranks = Ranks()

    def start(self, folder_of: Callable[[int], Path], run_name: str | None, logger: Any) -> None:
        """Make ready for a run; what an earlier run left of this rank goes.

        Args:
            folder_of: Tells the folder of the traces of a rank.
            run_name: Name of the run.
            logger: A trainer's logger, to upload through, or None.

        Raises:
            ArgumentError: A name has `{run_name}` and the run has none.
            OSError: Old files cannot be deleted.
        """
        for name in (self._name, self._remote_if_anywhere(logger)):
            if name is not None and "run_name" in name.used and not run_name:
                raise ArgumentError(
                    f"{name.what} has {{run_name}} in it and the run has no name: give run_name=..., or a name without it."
                )
        self._run_name, self._logger = run_name or "", logger
        self._ranks = Ranks.of_this_process()
        self._folder_of, self._number = folder_of, 0
        rank, together = self._ranks.rank, self._ranks.of_this_machine()
        for old in (*self._cycles_of(rank), self._end_of(rank)):
            old.unlink(missing_ok=True)
        if rank == together[0]:
            self._path().unlink(missing_ok=True)
        several = self._ranks.world_size > len(together)
        remote = self._remote_if_anywhere(logger)
        if several and remote is not None and not remote.used & {"node_rank", "rank"}:
            warnings.warn(
                f"each machine merges the traces of its own ranks, and all upload to one name, {remote.text}: put "
                "{node_rank} into merged_trace_remote_file_name.",
                stacklevel=4,
            )

    def add(self, trace: Trace) -> None:
        """Keep the trace of a cycle of this rank.

        Raises:
            OSError: It cannot be written.
        """
        if self._folder_of is None:
            return
        self._number += 1
        place = self._place_of(self._ranks.rank)
        place.mkdir(exist_ok=True)
        trace.save(place / f"rank{self._ranks.rank}.{self._number:06d}.ktrace")

    def finish(self) -> Path | None:
        """Say that this rank is done; the first rank of a machine waits for the others, merges, and uploads.

        Returns:
            The path of the merged trace, None where another rank makes it or nothing was recorded.

        Raises:
            KinetoscopeError: The traces cannot be merged. They are still there.
            OSError: A file cannot be read or written.
        """
        if self._folder_of is None:
            return None
        together = self._ranks.of_this_machine()
        try:
            if self._ranks.rank == together[0]:
                return self._merged(together)
            end = self._end_of(self._ranks.rank)
            end.parent.mkdir(exist_ok=True)
            end.touch()
            return None
        finally:
            self._folder_of = None
            self._uploads.close()

    def _merged(self, ranks: range) -> Path | None:
        """Merge what all ranks of this machine have."""
        missing = self._awaited([rank for rank in ranks if rank != self._ranks.rank])
        named = [(str(path), open_trace(path)) for rank in ranks for path in self._cycles_of(rank)]
        path = self._path()
        if named:
            path.parent.mkdir(parents=True, exist_ok=True)
            merged_by_rank(named).save(path)
            if missing:
                warnings.warn(
                    f"the merged trace {path} may lack cycles of rank {', '.join(map(str, missing))}, which did not end within "
                    f"{self._patience_s:g} s.",
                    stacklevel=4,
                )
            self._upload(path)
        self._tidy_up(ranks, named)
        return path if named else None

    def _awaited(self, others: list[int]) -> list[int]:
        """Wait until other ranks are done, and return those that are not in time."""
        until_s = self._clock() + self._patience_s
        while True:
            missing = [rank for rank in others if not self._end_of(rank).exists()]
            if not missing or self._clock() >= until_s:
                return missing
            self._sleep(_POLL_S)

    def _upload(self, path: Path) -> None:
        """Upload the merged trace to where its name says."""
        remote = self._remote_if_anywhere(self._logger)
        if remote is None:
            return
        name = remote.filled_in(self._run_name, self._ranks)
        if is_url(name):
            self._uploads.to_url(path, name, lambda _arrived: None)
        else:
            self._uploads.through(self._logger, path, name.lstrip("/"))

    def _remote_if_anywhere(self, logger: Any) -> NameTemplate | None:
        """The remote name, None if there is no place for it: a plain one needs a logger."""
        somewhere = self._remote is not None and (logger is not None or is_url(self._remote.text))
        return self._remote if somewhere else None

    def _tidy_up(self, ranks: range, named: list[tuple[str, Trace]]) -> None:
        """Delete what was merged."""
        for name, trace in named:
            trace.close()
            Path(name).unlink(missing_ok=True)
        for rank in ranks:
            self._end_of(rank).unlink(missing_ok=True)
            place = self._place_of(rank)
            if place.exists() and not any(place.iterdir()):
                place.rmdir()

    def _path(self) -> Path:
        """Where the merged trace is written."""
        return self._place_of(self._ranks.rank).parent / self._name.filled_in(self._run_name, self._ranks)

    def _place_of(self, rank: int) -> Path:
        """The folder of the cycles of a rank."""
        if self._folder_of is None:
            raise StateError("the folder for traces is not ready: call start() before training begins.")
        return self._folder_of(rank) / _CYCLES

    def _cycles_of(self, rank: int) -> list[Path]:
        """The cycles of a rank, the oldest first."""
        return sorted(self._place_of(rank).glob(f"rank{rank}.*.ktrace"))

    def _end_of(self, rank: int) -> Path:
        """The file that says that a rank is done."""
        return self._place_of(rank) / f"rank{rank}.end"
