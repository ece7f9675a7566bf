"""The trace files of a run: names with variables such as `{run_name}/rank{rank}.{batch}.json`, folders, uploads, and deletion of old files."""

from __future__ import annotations

import inspect
import os
import string
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from kinetoscope._errors import (
    ArgumentError,
    FolderNotEmptyError,
    MissingDependencyError,
    StateError,
    checked_whole,
)
from kinetoscope.collect import _KinetoProfile, own_rank, rank_count, warn_user
from kinetoscope.formats.suffixes import WHOLE_TRACE
from kinetoscope.trace import Trace

__all__ = ["Timestamp", "TraceFiles"]

_NO_TIME = timedelta(0)


@dataclass(frozen=True)
class Timestamp:
    """A point of a training run, for loops without Composer; Composer's own timestamps work as well.

    A timestamp never changes: each method returns a new one.

    Attributes:
        epoch: Epochs that are over.
        batch: Batches that are over, in all epochs.
        batch_in_epoch: Batches of this epoch that are over.
        sample: Samples that were trained on, in all epochs.
        sample_in_epoch: Samples of this epoch.
        token: Tokens that were trained on, in all epochs.
        token_in_epoch: Tokens of this epoch.
        total_wct: Wall-clock time of the whole run.
        epoch_wct: Wall-clock time of this epoch.
        batch_wct: Wall-clock time of the last batch.
    """

    epoch: int = 0
    batch: int = 0
    batch_in_epoch: int = 0
    sample: int = 0
    sample_in_epoch: int = 0
    token: int = 0
    token_in_epoch: int = 0
    total_wct: timedelta = _NO_TIME
    epoch_wct: timedelta = _NO_TIME
    batch_wct: timedelta = _NO_TIME

    def to_next_batch(self, samples: int = 0, tokens: int = 0, duration: timedelta = _NO_TIME) -> Timestamp:
        """Return the timestamp after one more batch.

        Args:
            samples: Samples in the batch.
            tokens: Tokens in the batch.
            duration: How long it took.
        """
        return replace(
            self,
            batch=self.batch + 1,
            batch_in_epoch=self.batch_in_epoch + 1,
            sample=self.sample + samples,
            sample_in_epoch=self.sample_in_epoch + samples,
            token=self.token + tokens,
            token_in_epoch=self.token_in_epoch + tokens,
            total_wct=self.total_wct + duration,
            epoch_wct=self.epoch_wct + duration,
            batch_wct=duration,
        )

    def to_next_epoch(self) -> Timestamp:
        """Return the timestamp at the start of the next epoch."""
        return replace(
            self,
            epoch=self.epoch + 1,
            batch_in_epoch=0,
            sample_in_epoch=0,
            token_in_epoch=0,
            epoch_wct=_NO_TIME,
            batch_wct=_NO_TIME,
        )


def values_of(timestamp: Any) -> dict[str, int | float]:
    """The counts of a timestamp, ours or Composer's, as whole numbers, and its durations in seconds."""
    values = {name: getattr(timestamp, name, default) for name, default in vars(Timestamp()).items()}
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else int(value)
        for name, value in values.items()
    }


@dataclass(frozen=True)
class Ranks:
    """The rank of this process in a job.

    Attributes:
        rank: Its number in the job.
        local_rank: Its number on its machine.
        world_size: How many processes the job has.
        local_world_size: How many of them are on its machine.
        node_rank: The number of its machine.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_rank: int = 0

    @classmethod
    def of_this_process(cls) -> Ranks:
        """Read it from the process group or, before there is one, from the launcher's environment variables."""
        return cls(
            rank=own_rank() or 0,
            local_rank=_from_environment("LOCAL_RANK", 0),
            world_size=rank_count(),
            local_world_size=_from_environment("LOCAL_WORLD_SIZE", 1),
            # torchrun says GROUP_RANK, Composer's launcher NODE_RANK.
            node_rank=_from_environment("NODE_RANK", _from_environment("GROUP_RANK", 0)),
        )

    def other(self, rank: int) -> Ranks:
        """That of another process, if all machines have equally many processes with consecutive numbers."""
        if rank == self.rank or self.local_world_size < 2:
            return replace(self, rank=rank)
        node_rank, local_rank = divmod(rank, self.local_world_size)
        return replace(self, rank=rank, local_rank=local_rank, node_rank=node_rank)


FOLDER_VARIABLES = ("run_name", *vars(Ranks()))
FILE_VARIABLES = (*FOLDER_VARIABLES, *values_of(Timestamp()))


class NameTemplate:
    """A name with variables in braces, checked at construction.

    Args:
        what: The name of the argument, for messages.
        text: The name, as for `str.format`; formats such as `{batch:06d}` can be used.
        variables: The variables it may have.

    Raises:
        ArgumentError: It has an unknown variable (the message lists the known ones), or invalid braces or formats.
    """

    def __init__(self, what: str, text: str, variables: tuple[str, ...]) -> None:
        self.text = text
        self.what = what
        untyped: object = text
        if not isinstance(untyped, str) or not untyped:
            raise ArgumentError(f"{what}={text!r} is not valid: need a non-empty string.")
        try:
            self.used = set(_variables(text))
            if unknown := sorted(self.used.difference(variables)):
                raise ValueError(f"unknown variable {', '.join(f'{{{name}}}' for name in unknown)}")
            self.filled_in("run", Ranks(), Timestamp())
        except (ValueError, TypeError) as error:
            raise ArgumentError(
                f"{what}={text!r}: {error}; the variables are: {', '.join(variables)}. Write {{{{ and }}}} for literal braces."
            ) from error

    def filled_in(self, run_name: str, ranks: Ranks, timestamp: Any = None) -> str:
        """The name with its variables filled in; a folder's needs no timestamp."""
        values: dict[str, Any] = {"run_name": run_name, **vars(ranks)}
        if timestamp is not None:
            values |= values_of(timestamp)
        return self.text.format(**values)


def _variables(text: str) -> Iterator[str]:
    """The variables of a name, also those inside format specifications, as in `{batch:0{rank}d}`."""
    for _, name, form, _ in string.Formatter().parse(text):
        if name is not None:
            yield name
            yield from _variables(form or "")


def _from_environment(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() else default


clock = time.monotonic


@dataclass
class LoopState:
    """The state of a loop, for schedules and file names.

    Attributes:
        run_name: Name of the run, for `{run_name}`.
        dataloader_len: Batches in each epoch; None if unknown.
        timestamp: Where the loop is.
    """

    run_name: str | None = None
    dataloader_len: int | None = None
    timestamp: Timestamp = field(default_factory=Timestamp)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._since_s = clock()

    def batch_is_over(self, samples: int, tokens: int) -> None:
        """Count one more batch."""
        now_s = clock()
        duration = timedelta(seconds=now_s - self._since_s)
        self._since_s = now_s
        self.timestamp = self.timestamp.to_next_batch(samples, tokens, duration)


# Seconds before the second and the third, last attempt to upload a file.
PAUSES_S = (0.5, 2.0)
# How long `close` waits: a store that hangs must not keep the job from ending.
PATIENCE_S = 600.0
# Names of threads that upload, and of those that run after them.
_UPLOAD, _AFTERWARDS = "kinetoscope-upload", "kinetoscope-upload-done"
sleep = time.sleep


def is_url(name: str) -> bool:
    """Whether a name is a URL."""
    return "://" in name


def _check_url(what: str, url: str) -> None:
    protocol = url.partition("://")[0]
    try:
        import fsspec

        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise MissingDependencyError(
            f'{what}={url!r}: {error}; install it, and `pip install "kinetoscope[remote]"`.'
        ) from error
    except ValueError as error:
        raise ArgumentError(
            f"{what}={url!r}: unknown protocol {protocol}://; use s3://, gs://, file:// or another one that fsspec supports."
        ) from error


@dataclass(eq=False)
class _Save:
    """One save: its timestamp, the path of each rank's trace, and the local files."""

    timestamp: Any
    of_ranks: list[Path]
    paths: list[Path]
    # Whether an upload failed, so that the files stay.
    failed: bool = False


class UploadQueue:
    """Uploads files one after another; a failure is retried, and finally becomes a warning.

    Uploads to a URL run on daemon threads, because a store may be slow and training must not wait. `warn` reports failures on the
    caller's thread.

    Args:
        overwrite: Whether existing files may be replaced; files that this object uploaded always may.
    """

    def __init__(self, *, overwrite: bool) -> None:
        self._overwrite = overwrite
        self._own: set[str] = set()
        self._failures: list[str] = []
        self._threads: list[threading.Thread] = []

    def send(self, path: Path, name: str, logger: Any, save: _Save) -> None:
        """Upload a file: to a URL in the background, else through a trainer's logger if there is one.

        Args:
            path: The file.
            name: A URL, or the name for the logger, from which leading slashes are dropped.
            logger: Anything with `upload_file(remote_file_name=, file_path=, overwrite=)`, or None.
            save: The save that the file belongs to, marked if the last attempt fails.
        """
        if is_url(name):
            self._in_background(lambda: self._try(_put, path, name, save), _UPLOAD)
        elif logger is not None:

            def upload(path: Path, name: str, *, overwrite: bool) -> None:
                logger.upload_file(remote_file_name=name, file_path=str(path), overwrite=overwrite)

            self._try(upload, path, name.lstrip("/"), save)

    def afterwards(self, do: Callable[[], object]) -> None:
        """Call a function once all uploads so far have ended: immediately if they have, else in the background."""
        if self._running():
            self._in_background(do, _AFTERWARDS)
        else:
            do()

    def wait(self) -> None:
        """Wait until all uploads have finished, failed, or taken too long; then warn of what failed."""
        until_s = time.monotonic() + PATIENCE_S
        for thread in self._running():
            thread.join(max(0.0, until_s - time.monotonic()))
        if left := [thread for thread in self._running() if thread.name == _UPLOAD]:
            self.note(
                f"{len(left)} uploads have not finished after {PATIENCE_S:g} s and are abandoned. The files stay where they are."
            )
        self._threads = []
        self.warn()

    def note(self, failure: str) -> None:
        """Store a failure for `warn`."""
        self._failures.append(failure)

    def warn(self) -> None:
        """Warn of failures since the last call."""
        while self._failures:
            warn_user(self._failures.pop(0))

    def _running(self) -> list[threading.Thread]:
        """The threads that have not ended; none in a forked process, which does not upload its parent's files."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return self._threads

    def _in_background(self, do: Callable[[], object], name: str) -> None:
        before = self._running()[-1:]

        def run() -> None:
            for thread in before:
                thread.join()
            do()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _try(self, send: Callable[..., object], path: Path, name: str, save: _Save) -> None:
        """Upload with retries; `warn` reports the last failure."""
        for attempt, pause_s in enumerate((*PAUSES_S, None), 1):
            try:
                send(path, name, overwrite=self._overwrite or name in self._own)
            except Exception as error:  # noqa: BLE001  (stores and loggers raise whatever they like)
                if pause_s is not None and not isinstance(error, FileExistsError):
                    sleep(pause_s)
                    continue
                times = "" if attempt == 1 else f" in {attempt} attempts"
                save.failed = True
                self.note(
                    f"the trace {path} was not uploaded as {name}{times} ({type(error).__name__}: {error}). "
                    "The file stays where it is."
                )
            else:
                self._own.add(name)
            return


def _put(path: Path, url: str, *, overwrite: bool) -> None:
    from fsspec.asyn import AsyncFileSystem
    from fsspec.core import url_to_fs

    filesystem, remote = url_to_fs(url)
    if not overwrite and filesystem.exists(remote):
        raise FileExistsError("there is a file of that name already; overwrite=True replaces it")
    if not isinstance(filesystem, AsyncFileSystem):
        # Asynchronous file systems are object stores: they need no folders, and some would make a bucket.
        filesystem.makedirs(os.path.dirname(remote) or filesystem.root_marker, exist_ok=True)
    filesystem.put_file(str(path), remote)


FOLDER = "{run_name}/torch_traces"
FILENAME = "rank{rank}.{batch}.pt.trace.json"
REMOTE_FILE_NAME = "{run_name}/torch_traces/rank{rank}.{batch}.pt.trace.json"
TRACE_SUFFIXES = tuple(suffix for suffix in WHOLE_TRACE if suffix != ".tables")
MEMORY_SUFFIXES = (".html", ".json", ".json.gz", ".raw.json.gz")


class TraceFiles:
    """Writes traces with variables in their names, uploads them, and deletes the oldest.

    This is the part of `TorchProfiler` that any loop and any trainer can use: call `start` before training begins, `save`
    for each trace, and `close` at the end.

    Args:
        folder: The local folder. Variables: run_name, rank, local_rank, world_size, local_world_size, node_rank.
        filename: Name of a trace in the folder. Variables: those of the folder, and epoch, batch, batch_in_epoch, sample,
            sample_in_epoch, token, token_in_epoch, total_wct, epoch_wct, batch_wct (seconds). Its suffix names the format, as
            for `Trace.save`: `.json`, `.ktrace`, `.speedscope.json` and so on.
        remote_file_name: Under which name each trace is uploaded; None for no upload. A URL (`s3://bucket/...`, `gs://`,
            `file://`, `memory://`) is the destination. A plain name, without leading slashes, goes to the trainer's logger; without a
            logger nothing is uploaded.
        memory_filename: Name of a memory timeline in the folder, for each trace; None for none. It ends in `.html`,
            `.json`, `.json.gz` or `.raw.json.gz`.
        memory_remote_file_name: The same as `remote_file_name`, for memory timelines.
        overwrite: Whether the folder may contain files, and remote files may be replaced.
        use_gzip: Append `.gz` to `filename` and `remote_file_name` where it is not there yet.
        num_traces_to_keep: The number of traces to keep in the folder; the oldest are deleted first, with their memory timelines, after they
            were uploaded. -1 keeps all, 0 keeps none. Files that could not be uploaded stay. Remote files are never deleted.

    Attributes:
        saved_traces: A pair for each trace that is kept, the newest last: its timestamp, and a list with the path that each
            rank gave its file, each valid on that rank's machine.
        folder: The folder of this process, once `start` was called.
        folder_template: Its name with variables.

    Raises:
        ArgumentError: A name has an unknown variable (the message lists the known ones) or a suffix that names no format, or
            a number is not valid.
        MissingDependencyError: A URL needs a package that is not installed.
    """

    def __init__(
        self,
        folder: str = FOLDER,
        filename: str = FILENAME,
        remote_file_name: str | None = REMOTE_FILE_NAME,
        *,
        memory_filename: str | None = None,
        memory_remote_file_name: str | None = None,
        overwrite: bool = False,
        use_gzip: bool = False,
        num_traces_to_keep: int = -1,
    ) -> None:
        checked_whole("num_traces_to_keep", num_traces_to_keep, -1)
        if use_gzip:
            filename, remote_file_name = _gzipped(filename), _gzipped(remote_file_name)
        self.folder_template = NameTemplate("folder", folder, FOLDER_VARIABLES)
        names = {
            "filename": filename,
            "remote_file_name": remote_file_name,
            "memory_filename": memory_filename,
            "memory_remote_file_name": memory_remote_file_name,
        }
        self._names = {
            argument: NameTemplate(argument, text, FILE_VARIABLES)
            for argument, text in names.items()
            if text is not None
        }
        for name in self._names.values():
            _check_place(name.what, name.text)
        self.num_traces_to_keep = num_traces_to_keep
        self.overwrite = overwrite
        self.folder: Path | None = None
        self.ranks = Ranks()
        self._uploads = UploadQueue(overwrite=overwrite)
        # The kept saves, and all whose files exist, which may still wait for uploads.
        self._kept: list[_Save] = []
        self._there: list[_Save] = []
        self._run_name = ""
        self._logger: Any = None

    @property
    def saved_traces(self) -> list[tuple[Any, list[Path]]]:
        """The kept traces: timestamp and the path of each rank, the newest last."""
        return [(save.timestamp, save.of_ranks) for save in self._kept]

    def start(self, run_name: str | None = None, logger: Any = None) -> Path:
        """Prepare the folder. Call this before training starts.

        Args:
            run_name: Name of the training run, for `{run_name}`.
            logger: A trainer's logger, to upload through: anything with `upload_file(remote_file_name=, file_path=,
                overwrite=)`.

        Returns:
            The folder.

        Raises:
            FolderNotEmptyError: There are files in the folder and `overwrite` is off. It is a `FileExistsError`.
            ArgumentError: A name contains `{run_name}`, and there is no run name.
            OSError: The folder cannot be created.
        """
        self._run_name, self._logger = run_name or "", logger
        used = [self.folder_template, *(name for kind, name in self._names.items() if self._has_place(kind))]
        needing = next((name.what for name in used if "run_name" in name.used), None)
        if not run_name and needing is not None:
            raise ArgumentError(
                f"{needing} contains {{run_name}}, and the run has no name: pass run_name=..., or a {needing} without it."
            )
        self.ranks = Ranks.of_this_process()
        folder = Path(self.folder_template.filled_in(self._run_name, self.ranks))
        folder.mkdir(parents=True, exist_ok=True)
        if not self.overwrite and (file := _first_file(folder)) is not None:
            raise FolderNotEmptyError(
                f"the folder for traces, {folder}, is not empty: it contains {file.relative_to(folder)}. Use another folder "
                "or run_name, move the files away, or pass overwrite=True."
            )
        self.folder = folder
        self._warn_of_strange_names()
        return folder

    def _has_place(self, what: str) -> bool:
        """Whether a file has a name and a destination: a plain upload name needs a logger."""
        name = self._names.get(what)
        return name is not None and ("remote" not in what or is_url(name.text) or self._logger is not None)

    def save(
        self,
        source: _KinetoProfile | Trace,
        timestamp: Any,
        *,
        written: Callable[[Path], object] | None = None,
    ) -> Path:
        """Write a trace and, if enabled, its memory timeline; upload them; then delete the oldest.

        Args:
            source: A trace, or a session that has recorded one.
            timestamp: Where the run is: a `Timestamp`, or Composer's.
            written: Called with the path of the trace once it is written, before anything may be deleted.

        Returns:
            The path of the trace; the file may be deleted already if none are kept.

        Raises:
            StateError: `start` was not called.
            OSError: A file cannot be written.
        """
        if self.folder is None:
            raise StateError("the folder for traces is not ready: call start() before training begins.")
        self._uploads.warn()
        # A trace has no `trace` of its own.
        trace: Trace = source.trace if hasattr(source, "trace") else source
        of_ranks = [self._path("filename", timestamp, rank) for rank in range(self.ranks.world_size)]
        path = self._path("filename", timestamp, self.ranks.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        trace.save(path)
        files = {"remote_file_name": path}
        if "memory_filename" in self._names:
            memory_path = self._path("memory_filename", timestamp, self.ranks.rank)
            if self._wrote_memory(trace, memory_path):
                files["memory_remote_file_name"] = memory_path
        save = _Save(timestamp, of_ranks, list(files.values()))
        self._kept.append(save)
        self._there.append(save)
        if written is not None:
            written(path)
        for kind, file in files.items():
            if kind in self._names:
                name = self._names[kind].filled_in(self._run_name, self.ranks, timestamp)
                self._uploads.send(file, name, self._logger, save)
        surplus = len(self._kept) - self.num_traces_to_keep
        if self.num_traces_to_keep >= 0 and surplus > 0:
            oldest, self._kept = self._kept[:surplus], self._kept[surplus:]
            # Once their uploads have ended.
            self._uploads.afterwards(lambda: self._delete(oldest))
        self._uploads.warn()
        return path

    def close(self) -> None:
        """Finish the uploads, and warn of those that failed. Safe to call more than once; traces can be saved again after it."""
        self._uploads.wait()

    def _path(self, what: str, timestamp: Any, rank: int) -> Path:
        ranks = self.ranks.other(rank)
        folder = self.folder_template.filled_in(self._run_name, ranks)
        return Path(folder, self._names[what].filled_in(self._run_name, ranks, timestamp))

    def _wrote_memory(self, trace: Trace, path: Path) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if path.name.lower().endswith(".html"):
                from kinetoscope.viewer.server.report import write_memory_page

                write_memory_page(trace, path)
            else:
                from kinetoscope.formats.memory_timeline import write_memory_timeline

                write_memory_timeline(trace, path)
        except (ArgumentError, StateError) as error:
            warn_user(f"no memory timeline {path}: {error}")
            return False
        return True

    def _delete(self, saves: list[_Save]) -> None:
        """Delete the files of some saves; those whose upload failed stay."""
        for save in saves:
            self._there.remove(save)
        # Without a number in the name, newer saves have the same file.
        in_use = {path for save in self._there for path in save.paths}
        for path in (path for save in saves if not save.failed for path in save.paths):
            if path in in_use:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self._uploads.note(f"the old trace {path} could not be deleted: {error}")

    def _warn_of_strange_names(self) -> None:
        name = self._names["filename"]
        if self.ranks.local_world_size > 1 and not (self.folder_template.used | name.used) & {
            "rank",
            "local_rank",
        }:
            warn_user(
                f"{self.ranks.local_world_size} processes of this machine write traces of the same name, "
                f"{self.folder_template.text}/{name.text}, so they overwrite each other: put {{rank}} in the filename."
            )
        if self.num_traces_to_keep == 0 and not self._has_place("remote_file_name"):
            warn_user(
                "num_traces_to_keep=0 deletes every trace once it is uploaded, and nothing is uploaded: set "
                "remote_file_name to a URL such as s3://bucket/name.json."
            )


FILE_ARGUMENTS = tuple(inspect.signature(TraceFiles).parameters)


def _check_place(what: str, text: str) -> None:
    if "remote" in what:
        if is_url(text):
            _check_url(what, text)
        return
    suffixes = MEMORY_SUFFIXES if what == "memory_filename" else TRACE_SUFFIXES
    if not text.lower().endswith(suffixes):
        hint = " (that format is not packed by gzip)" if text.endswith(".gz") else ""
        raise ArgumentError(
            f"{what}={text!r}: this suffix is not supported{hint}; use one of: {', '.join(suffixes)}."
        )


def _gzipped(name: Any) -> Any:
    return f"{name}.gz" if isinstance(name, str) and not name.endswith(".gz") else name


def _first_file(folder: Path) -> Path | None:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                return Path(root) / name
    return None
