"""The trace files of a run: names, folders, uploads, and how many are kept."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError, FolderNotEmptyError, MissingDependencyError, StateError
from kinetoscope.formats.suffixes import WHOLE_TRACE
from kinetoscope.integrations.composer.names import FILE_VARIABLES, FOLDER_VARIABLES, NameTemplate, Ranks

if TYPE_CHECKING:
    from kinetoscope.collect import _KinetoProfile
    from kinetoscope.trace import Trace


# Upload a file by its name: through a trainer's logger, or to a URL through fsspec.

ATTEMPTS = 3
# Before the second attempt, and before each further one.
PAUSES_S = (0.5, 2.0)
PATIENCE_S = 600.0


def is_url(name: str) -> bool:
    """Whether a name is a URL."""
    return "://" in name


def check_url(what: str, url: str) -> None:
    """Check that the protocol of a URL is supported, long before there is something to upload.

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
            f'{what}={url!r}: {error} (in addition to `pip install "kinetoscope[remote]"`)'
        ) from error
    except ValueError as error:
        raise ArgumentError(
            f"{what}={url!r}: unknown protocol {protocol}://; use s3://, gs://, file:// or another one that fsspec supports."
        ) from error


class Uploads:
    """Uploads files one after another; a failure is retried, and finally becomes a warning.

    Uploads to a URL run on a separate thread, because a store may be slow and training must not wait. The
    warnings come from `warn`, on the caller's thread.

    Args:
        overwrite: Whether existing files may be replaced. Files that this object uploaded always may.
        attempts: The number of attempts for each file.
        sleep: Waits a number of seconds.
        patience_s: Time limit of `wait` in seconds, so that a store that hangs does not keep the job from ending.
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
        """Pass a file to a trainer's logger; return whether it accepted it."""

        def send() -> None:
            logger.upload_file(remote_file_name=name, file_path=str(path), overwrite=self._may_replace(name))

        return self._tried(send, path, name)

    def to_url(self, path: Path, url: str, then: Callable[[bool], object]) -> None:
        """Queue the upload of a file to a URL; `then` is called on the uploading thread with the success."""
        if self._sender is None or self._process != os.getpid():
            # A forked process does not have its parent's thread, and does not upload its parent's files.
            self._process = os.getpid()
            self._sender = _Sender()
        self._sender.send(lambda: self._send_to_url(path, url, then))

    def wait(self) -> None:
        """Wait until all uploads have finished, failed, or taken too long; a forked process does not wait for its parent's."""
        if self._sender is None or self._process != os.getpid():
            return
        left = self._sender.wait(self._patience_s)
        if left:
            self.note(
                f"{left} uploads have not finished after {self._patience_s:g} s and are abandoned. The files stay where "
                "they are."
            )

    def close(self) -> None:
        """Wait, and warn of what failed."""
        self.wait()
        self._sender = None
        self.warn()

    def warn(self) -> None:
        """Warn of failures since the last call."""
        with self._lock:
            failures, self._failures = self._failures, []
        for failure in failures:
            warnings.warn(failure, stacklevel=2)

    def _send_to_url(self, path: Path, url: str, then: Callable[[bool], object]) -> None:
        """Upload a file; return whether it arrived."""
        then(self._tried(lambda: _put(path, url, replace=self._may_replace(url)), path, url))

    def _tried(self, send: Callable[[], None], path: Path, name: str) -> bool:
        """Upload with retries; a failure is stored for `warn`."""
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
        """Store a failure for `warn`."""
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
        """Wait until all work is done, with a time limit in seconds; return how much is left."""
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


FOLDER = "{run_name}/torch_traces"
FILENAME = "rank{rank}.{batch}.pt.trace.json"
REMOTE_FILE_NAME = "{run_name}/torch_traces/rank{rank}.{batch}.pt.trace.json"
MEMORY_SUFFIXES = (".html", ".json", ".json.gz", ".raw.json.gz")


@dataclass(eq=False)
class _Save:
    """The local files of one save, and the uploads that need them."""

    paths: list[Path]
    uploads_left: int = 0
    failed: bool = False
    let_go: bool = False


class TraceFiles:
    """Writes traces with variables in their names, uploads them, and deletes the oldest.

    This is the part of `TorchProfiler` that any loop and any trainer can use: call `start` before training begins, `save`
    for each trace, and `close` at the end.

    Args:
        folder: The local folder. Variables: run_name, rank, local_rank, world_size, local_world_size, node_rank.
        filename: Name of a trace in the folder. Variables: those of the folder, and epoch, batch, batch_in_epoch, sample,
            sample_in_epoch, token, token_in_epoch, total_wct, epoch_wct, batch_wct (seconds). Its suffix names the format, as
            for `Trace.save`: `.json`, `.ktrace`, `.perfetto-trace` and so on.
        remote_file_name: Under which name each trace is uploaded; None for no upload. A URL (`s3://bucket/...`, `gs://`,
            `file://`, `memory://`) says where. A plain name goes to the logger of the trainer; without one, there
            is no place for it, and nothing is uploaded. Leading slashes of a plain name are dropped.
        memory_filename: Name of a memory timeline in the folder, for each trace; None for none. It ends in `.html`,
            `.json`, `.json.gz` or `.raw.json.gz`.
        memory_remote_file_name: The same as `remote_file_name`, for memory timelines.
        overwrite: Whether the folder may contain files, and remote files may be replaced.
        use_gzip: Append `.gz` to `filename` and `remote_file_name` where it is not there yet.
        num_traces_to_keep: The number of traces to keep in the folder; the oldest are deleted first, with their memory timelines, after they
            were uploaded. -1 keeps all, 0 keeps none. What could not be uploaded stays in any case. Nothing remote is
            ever deleted.
        attempts: The number of attempts of each upload.
        sleep: Waits a number of seconds between attempts.
        patience_s: Time limit in seconds of `close` and `wait` for active uploads.

    Attributes:
        saved_traces: A pair for each trace that is kept, the newest last: its timestamp, and a list with the path that each
            rank gave its file, each valid on that rank's machine.
        folder: The folder of this process, once `start` was called.

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
        attempts: int = 3,
        sleep: Callable[[float], object] = time.sleep,
        patience_s: float = PATIENCE_S,
    ) -> None:
        number: object = num_traces_to_keep
        if isinstance(number, bool) or not isinstance(number, int) or number < -1:
            raise ArgumentError(
                f"num_traces_to_keep={num_traces_to_keep!r} is not valid: need the number of traces to keep, 0 for none, -1 for all."
            )
        if use_gzip:
            filename, remote_file_name = _gzipped(filename), _gzipped(remote_file_name)
        self._folder = NameTemplate("folder", folder, FOLDER_VARIABLES)
        self._names = {
            "filename": NameTemplate("filename", filename, FILE_VARIABLES),
            **{
                what: NameTemplate(what, text, FILE_VARIABLES)
                for what, text in (
                    ("remote_file_name", remote_file_name),
                    ("memory_filename", memory_filename),
                    ("memory_remote_file_name", memory_remote_file_name),
                )
                if text is not None
            },
        }
        check_suffix("filename", filename, use_gzip=use_gzip)
        if memory_filename is not None and not memory_filename.lower().endswith(MEMORY_SUFFIXES):
            raise ArgumentError(
                f"memory_filename={memory_filename!r}: unknown memory timeline format; use one of: "
                f"{', '.join(MEMORY_SUFFIXES)}."
            )
        for what in ("remote_file_name", "memory_remote_file_name"):
            if what in self._names and is_url(self._names[what].text):
                check_url(what, self._names[what].text)
        tries: object = attempts
        if isinstance(tries, bool) or not isinstance(tries, int) or tries < 1:
            raise ArgumentError(f"attempts={attempts!r} is not valid: need a whole number >= 1.")
        self.num_traces_to_keep = num_traces_to_keep
        self.overwrite = overwrite
        self.saved_traces: list[tuple[Any, list[Path]]] = []
        self.folder: Path | None = None
        self._uploads = Uploads(overwrite=overwrite, attempts=attempts, sleep=sleep, patience_s=patience_s)
        self._kept: list[_Save] = []
        self._lock = threading.Lock()
        self._run_name = ""
        self._ranks = Ranks()
        self._logger: Any = None

    @property
    def folder_template(self) -> str:
        """The name of the folder with its variables."""
        return self._folder.text

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
        needing = [name.what for name in (self._folder, *self._names.values()) if "run_name" in name.used]
        if not run_name and needing:
            raise ArgumentError(
                f"{needing[0]} contains {{run_name}}, and the run has no name: pass run_name=..., or a {needing[0]} "
                "without it."
            )
        self._run_name, self._logger = run_name or "", logger
        self._ranks = Ranks.of_this_process()
        folder = Path(self._folder.filled_in(self._run_name, self._ranks))
        folder.mkdir(parents=True, exist_ok=True)
        if not self.overwrite and (found := _first_file(folder)) is not None:
            raise FolderNotEmptyError(
                f"the folder for traces, {folder}, is not empty: it contains {found.relative_to(folder)}. Use another folder "
                "or run_name, move the files away, or pass overwrite=True."
            )
        self.folder = folder
        self._warn_of_strange_names()
        return folder

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
            The path of the trace, which is gone already where none are kept and nothing has to be uploaded.

        Raises:
            StateError: `start` was not called.
            OSError: A file cannot be written.
        """
        if self.folder is None:
            raise StateError("the folder for traces is not ready: call start() before training begins.")
        self._uploads.warn()
        # A trace has no `trace` of its own.
        trace: Trace = source.trace if hasattr(source, "trace") else source
        path = self._path("filename", self._ranks, timestamp)
        path.parent.mkdir(parents=True, exist_ok=True)
        trace.save(path)
        files = [("remote_file_name", path)]
        if "memory_filename" in self._names:
            memory_path = self._path("memory_filename", self._ranks, timestamp)
            if self._wrote_memory(trace, memory_path):
                files.append(("memory_remote_file_name", memory_path))
        save = _Save([written for _, written in files])
        paths = [
            path if rank == self._ranks.rank else self._path("filename", self._ranks.other(rank), timestamp)
            for rank in range(self._ranks.world_size)
        ]
        with self._lock:
            self._kept.append(save)
        self.saved_traces.append((timestamp, paths))
        if written is not None:
            written(path)
        self._upload(save, files, timestamp)
        self._let_go_of_the_oldest()
        self._uploads.warn()
        return path

    def wait(self) -> None:
        """Wait for active uploads, and warn of those that failed."""
        self._uploads.wait()
        self._uploads.warn()

    def close(self) -> None:
        """Finish the uploads. Safe to call more than once; traces can be saved again after it."""
        self._uploads.close()

    def folder_of(self, rank: int) -> Path:
        """Return the folder of a rank, once `start` was called.

        Args:
            rank: Its number in the job.
        """
        own = rank == self._ranks.rank
        return Path(self._folder.filled_in(self._run_name, self._ranks if own else self._ranks.other(rank)))

    def _path(self, what: str, ranks: Ranks, timestamp: Any) -> Path:
        """The local path of a file of some rank."""
        return self.folder_of(ranks.rank) / self._names[what].filled_in(self._run_name, ranks, timestamp)

    def _wrote_memory(self, trace: Trace, path: Path) -> bool:
        """Write a memory timeline; a failure does not lose the trace."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if path.name.lower().endswith(".html"):
                from kinetoscope.viewer.server.report import write_memory_page

                write_memory_page(trace, path)
            else:
                from kinetoscope.formats.memory_timeline import write_memory_timeline

                write_memory_timeline(trace, path)
        except (ArgumentError, StateError) as error:
            warnings.warn(f"no memory timeline {path}: {error}", stacklevel=3)
            return False
        return True

    def _upload(self, save: _Save, files: list[tuple[str, Path]], timestamp: Any) -> None:
        """Upload the files of a save to wherever their names say."""
        wanted = [
            (path, self._names[what].filled_in(self._run_name, self._ranks, timestamp))
            for what, path in files
            if what in self._names
        ]
        with_url = [(path, name) for path, name in wanted if is_url(name)]
        with self._lock:
            save.uploads_left = len(with_url)
        if self._logger is not None:
            for path, name in wanted:
                if not is_url(name) and not self._uploads.through(self._logger, path, name.lstrip("/")):
                    save.failed = True
        for path, url in with_url:
            self._uploads.to_url(path, url, lambda arrived: self._uploaded(save, arrived=arrived))

    def _uploaded(self, save: _Save, *, arrived: bool) -> None:
        """One upload is over; files that wait for it may go."""
        with self._lock:
            save.uploads_left -= 1
            save.failed |= not arrived
            self._delete_if_free(save)

    def _let_go_of_the_oldest(self) -> None:
        """Delete all but the newest `num_traces_to_keep` saves."""
        if self.num_traces_to_keep < 0:
            return
        del self.saved_traces[: max(0, len(self.saved_traces) - self.num_traces_to_keep)]
        with self._lock:
            staying = [save for save in self._kept if not save.let_go]
            for save in staying[: max(0, len(staying) - self.num_traces_to_keep)]:
                save.let_go = True
                self._delete_if_free(save)

    def _delete_if_free(self, save: _Save) -> None:
        """Delete the files of a save that was let go of, unless an upload needs them or failed."""
        if not save.let_go or save.uploads_left or save not in self._kept:
            return
        self._kept.remove(save)
        if save.failed:
            return
        # A name without a number is that of a newer save, too.
        in_use = {path for kept in self._kept for path in kept.paths}
        for path in save.paths:
            if path in in_use:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self._uploads.note(f"the old trace {path} could not be deleted: {error}")

    def _warn_of_strange_names(self) -> None:
        """Warn of settings that are valid but probably a mistake."""
        used = self._folder.used | self._names["filename"].used
        if self._ranks.local_world_size > 1 and not used & {"rank", "local_rank"}:
            warnings.warn(
                f"{self._ranks.local_world_size} processes of this machine write traces of the same name, "
                f"{self._folder.text}/{self._names['filename'].text}, so they overwrite each other: put {{rank}} in "
                "the filename.",
                stacklevel=3,
            )
        remote = self._names.get("remote_file_name")
        if self.num_traces_to_keep == 0 and (
            remote is None or (self._logger is None and not is_url(remote.text))
        ):
            warnings.warn(
                "num_traces_to_keep=0 deletes every trace once it is uploaded, and nothing is uploaded: set "
                "remote_file_name to a URL such as s3://bucket/name.json.",
                stacklevel=3,
            )


def _gzipped(name: Any) -> Any:
    """A name with `.gz` at its end, once."""
    return f"{name}.gz" if isinstance(name, str) and not name.endswith(".gz") else name


def check_suffix(what: str, filename: str, *, use_gzip: bool = False) -> None:
    """Check that the suffix of a name is a trace format.

    Raises:
        ArgumentError: It does not.
    """
    name = filename.lower()
    formats = [suffix for suffix in WHOLE_TRACE if suffix != ".tables"]
    if not name.endswith(tuple(formats)):
        hint = " (use_gzip appended .gz, and that format is not packed by gzip)" if use_gzip else ""
        raise ArgumentError(
            f"{what}={filename!r}: this suffix is not supported{hint}; use one of: {', '.join(formats)}."
        )


def _first_file(folder: Path) -> Path | None:
    """A file in a folder or below it, None if there is none; hidden ones do not count."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                return Path(place) / name
    return None
