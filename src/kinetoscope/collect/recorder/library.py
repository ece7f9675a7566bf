"""Find and load the library of the native recorder, and call it through ctypes.

Every call holds the GIL (``ctypes.PyDLL``); the recorder relies on that.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import IntFlag
from pathlib import Path
from typing import Any

from kinetoscope._errors import RecorderError, StateError
from kinetoscope.collect.process.own_code import code_prefixes
from kinetoscope.collect.recorder import build
from kinetoscope.storage.appended_rows import RowColumns, counted_json
from kinetoscope.storage.cache import cache_directory

# Must match KINETOSCOPE_RECORDER_VERSION in native/recorder/recorder.h.
_INTERFACE_VERSION = 16
# Longer than any path that Linux allows.
_LONGEST_PATH = 1 << 13


class Recorded(IntFlag):
    """What a recording contains in addition to times and names: flags, as in native/core/recording/format.h."""

    SHAPES = 1
    MEMORY = 2
    STACKS = 4
    MODULES = 8
    SAMPLES = 16
    FUNCTION_IDS = 64
    CALLS = 0x100
    MODULE_SPANS = 0x200
    TENSOR_VERSIONS = 0x400


POSITION_NUMBERS = 21
# The places of a position that count records for which the disk had no room; RecordingPosition in native/core.
_DROPPED = (slice(2, 6), slice(18, 19))
_CALLS = int(Recorded.CALLS | Recorded.MODULE_SPANS)
# RowsFlag in native/core/recording/format.h.
_BUFFERED = 1


class StopReport(ctypes.Structure):
    """What the recorder reports when it stops.

    Attributes:
        faults: Number of operators that are missing because a callback of the recorder failed.
        unnamed_modules: Number of module instances whose names are not known yet.
        idle: 0 if a thread did not leave a callback of the recorder within the time limit.
        call_threads_lost: Number of threads whose Python calls are missing, because another profiler replaced ours.
        file_lost: Not 0 if another program truncated the file during the recording.
        dropped: Number of records that are missing because the disk had no room for them; `Stream.stop` counts them.
    """

    dropped = 0
    _fields_ = (
        ("faults", ctypes.c_uint64),
        ("unnamed_modules", ctypes.c_uint64),
        ("idle", ctypes.c_uint32),
        ("call_threads_lost", ctypes.c_uint32),
        ("file_lost", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


_TEXT, _SIZE, _INT, _UINT = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint32
_LONG, _OBJECT, _ADDRESS = ctypes.c_uint64, ctypes.py_object, ctypes.c_void_p
# The result and arguments of functions in native/recorder/recorder.h; the others have no arguments and return an int or nothing.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "kinetoscope_recorder_load": (_INT, _OBJECT, _TEXT, _SIZE),
    "kinetoscope_recorder_start": (_INT, _TEXT, _UINT, _LONG, ctypes.c_int64, _UINT, _TEXT, _SIZE),
    "kinetoscope_recorder_change": (_INT, _UINT, _UINT, _TEXT, _SIZE),
    "kinetoscope_recorder_position": (_INT, ctypes.POINTER(_LONG), _SIZE),
    "kinetoscope_recorder_operators_with_versions": (_LONG,),
    "kinetoscope_recorder_free_before": (_INT, _LONG),
    "kinetoscope_recorder_path": (_INT, _TEXT, _SIZE),
    "kinetoscope_recorder_stop": (_INT, ctypes.POINTER(StopReport)),
    "kinetoscope_recorder_resume": (_INT, _TEXT, _SIZE),
    "kinetoscope_recorder_step_switch": (_ADDRESS,),
    "kinetoscope_recorder_allow_step_switch": (_INT, _INT),
    "kinetoscope_recorder_range_marks": (_ADDRESS,),
    "kinetoscope_recorder_watch_steps": (_ADDRESS, _TEXT, _INT, _TEXT, _SIZE),
    "kinetoscope_recorder_modules": (_INT, _OBJECT),
    "kinetoscope_recorder_tensor_reader_class": (_OBJECT,),
    "kinetoscope_recorder_watch_tensors": (_SIZE, _OBJECT),
    "kinetoscope_recorder_resolve": (_SIZE, _OBJECT),
    "kinetoscope_recorder_add_info": (None, _TEXT, _TEXT),
    "kinetoscope_recorder_append": (_INT, _UINT, _TEXT, _UINT, _UINT, _TEXT, _SIZE),
    "kinetoscope_recorder_own_steps": (None, _UINT),
    "kinetoscope_recorder_prepare_calls": (_OBJECT, _TEXT),
    "kinetoscope_recorder_fast_range_class": (_OBJECT, _OBJECT),
    "kinetoscope_recorder_observed_kernel": (_OBJECT, _OBJECT, _OBJECT),
    "kinetoscope_forget_sessions_before": (_INT, _UINT),
}


def _check_recording(failed: object, verb: str = "") -> None:
    if failed:
        nothing = f": there is nothing to {verb}" if verb else ""
        raise StateError(f"the native recorder is not recording in this process{nothing}")


class _UnloadableError(RecorderError):
    """The system cannot load a library: it is damaged, or built for another machine."""


# Origins of a recorder library, for `kinetoscope doctor`.
PREBUILT = "prebuilt, from the wheel"
INSTALLED = "built when the package was installed"
CACHED = "compiled earlier, from the cache"
COMPILED = "compiled now"


class Recorder:
    """A loaded recorder library. A process loads one, and never unloads it.

    Attributes:
        path: The file of the library.
        taken: Its origin, such as `CACHED`.
    """

    # Functions of the library, without the prefix `kinetoscope_recorder_` of their names.
    hooked_threads: Callable[[], int]
    """Number of threads with a hook for Python calls; 0 while no calls are recorded. From Python 3.12 on, 1 for all threads."""
    lost_call_threads: Callable[[], int]
    """Number of threads whose Python calls are missing in this recording, because another profiler replaced our hook."""
    free_before: Callable[[int], object]
    """Let the recording reuse the space of records from before a tick, except of rows, names, and spans that ended later.

    Without effect in a ring, which overwrites old records anyway.
    """
    operators_with_versions: Callable[[], int]
    """How many operators have begun while versions of tensors were recorded, in all recordings."""
    step_switch: Callable[[], int]
    """The address of the functions that pause and resume session 0 from step to step; see native/core/recording/step_switch.h."""
    range_marks: Callable[[], int]
    """The address of the functions that open and close ranges without torch; see native/core/recording/range_marks.h."""
    unwatch_steps: Callable[[], None]
    """End `watch_steps`, and unmap the log."""
    tensor_reader_class: Callable[[], type]
    """Return the class of objects that read addresses of plain tensors' storages; see `native_reader`."""
    fast_range_class: Callable[[type], type]
    """Return a class that replaces `theirs`, torch's `record_function`, and opens ranges with less overhead while recording."""
    before_collector: Callable[[], None]
    """Call this right before torch's collector begins to call its callbacks on the calling thread.

    Then `after_collector` right after it, and `collector_stopped` when it has stopped, on the same thread. Without them, a
    range that is open across two recordings makes torch write to freed memory; see `native/recorder/collector_guard.h`.
    """
    after_collector: Callable[[], None]
    """Call this right after torch's collector has begun to call its callbacks."""
    collector_stopped: Callable[[], None]
    """Call this when torch's collector has stopped; ranges that are still open remain guarded."""
    observed_kernel: Callable[[Callable[..., Any], str], Callable[..., Any]]
    """Wrap `kernel`, so that each call of it is inside a range called `name`."""
    watch_tensors: Callable[[list[Any]], int]
    """Record when the memory of tensors from before the recording is freed; return how many were not watched yet."""
    resolve: Callable[[list[Any]], int]
    """Find the names of recorded instances in ``modules``; return how many still have no name."""
    settle: Callable[[], None]
    """Wait a short time until the checksums of earlier recordings are written."""
    close: Callable[[], object]
    """Finish and close the file."""

    def __init__(self, path: Path, taken: str = COMPILED) -> None:
        """Load the library at ``path``.

        Raises:
            RecorderError: It cannot be loaded, its interface has another version, or it does not work with this Python.
        """
        self.path, self.taken = path, taken
        try:
            library = ctypes.PyDLL(str(path))
        except OSError as error:
            raise _UnloadableError(f"{path} cannot be loaded: {error}") from error
        self._library = library
        self._message = ctypes.create_string_buffer(1024)
        self._into_message = (self._message, len(self._message))
        version = library.kinetoscope_recorder_version()
        if version != _INTERFACE_VERSION:
            raise RecorderError(
                f"{path} has version {version} of the recorder's interface, not {_INTERFACE_VERSION}"
            )
        for name, (returned, *arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = returned, arguments
        for name in Recorder.__annotations__:
            setattr(self, name, getattr(library, f"kinetoscope_recorder_{name}"))
        from torch.nn import Module

        # Kept alive, because the recorder compares the address of this code object with those of running frames.
        self._module_call: Any = Module._wrapped_call_impl.__code__  # noqa: SLF001  (torch's own)
        if library.kinetoscope_recorder_load(self._module_call, *self._into_message) != 0:
            raise RecorderError(f"{path}: {self._text}")
        # Whether the current recording contains calls, also while it is paused.
        self._has_calls = False
        # The profile function for threads that start while calls are recorded; None from Python 3.12 on, which needs none.
        self._thread_hook: Any = library.kinetoscope_recorder_prepare_calls(
            b"".join(os.fsencode(f"{code.value}{prefix}\0") for prefix, code in code_prefixes().items())
            + b"\0"
        )
        os.register_at_fork(after_in_child=self._reset_calls_in_child)

    @property
    def _text(self) -> str:
        return self._message.value.decode(errors="replace")

    @property
    def is_recording(self) -> bool:
        """Whether a recording is open in this process."""
        return bool(self._library.kinetoscope_recorder_is_recording())

    def start(
        self,
        path: Path,
        flags: Recorded,
        ring_bytes: int | None,
        *,
        keep_since_ns: int = 0,
        samples_per_second: int = 0,
    ) -> str:
        """Start a recording into a new file at ``path``, or next to it if another process is recording there; see `recording_path`.

        Args:
            path: The file; an existing one is replaced when the recording has started.
            flags: What to record.
            ring_bytes: Upper limit of the file; None means no limit.
            keep_since_ns: An existing file of another process that was modified at or after this time, in nanoseconds since
                1970, is not replaced; 0 means that any file may be.
            samples_per_second: How often the Python stack of every thread is sampled; 0 means never.

        Returns:
            Which requested Python calls cannot be recorded, and why; empty if all can.

        Raises:
            StateError: The recorder is already recording.
            RecorderError: The file cannot be created; the message says why. An existing file is unchanged.
        """
        if self.is_recording:
            raise StateError("the native recorder is recording already; stop that recording first")
        bits = int(flags)
        self._has_calls = bool(bits & _CALLS)
        # Before the start, so that the calls of this method are not recorded.
        self._hook_new_threads(self._has_calls)
        failed = self._library.kinetoscope_recorder_start(
            os.fsencode(path), bits, ring_bytes or 0, keep_since_ns, samples_per_second, *self._into_message
        )
        message = self._text
        if failed:
            self._hook_new_threads(False)
            raise RecorderError(f"cannot record: {message}")
        return message

    def change(self, flags: Recorded, samples_per_second: int) -> str:
        """Change what is recorded from now on, into the same file.

        The spans of calls that are running at this moment begin now if calls are switched on, and end now if they are switched off.

        Args:
            flags: What to record.
            samples_per_second: How often the Python stack of every thread is sampled; ignored without `Recorded.SAMPLES`.

        Returns:
            Which requested Python calls cannot be recorded, and why; empty if all can.

        Raises:
            StateError: Nothing is being recorded in this process.
            RecorderError: The change failed; the recorder continues as before.
        """
        _check_recording(not self.is_recording, "change")
        rate = samples_per_second if Recorded.SAMPLES in flags else 0
        self._has_calls = bool(int(flags) & _CALLS)
        self._hook_new_threads(self._has_calls)
        failed = self._library.kinetoscope_recorder_change(int(flags), rate, *self._into_message)
        message = self._text
        if failed:
            raise RecorderError(f"cannot record: {message}")
        return message

    def forget_sessions_before(self, number: int) -> None:
        """Let the recorder drop the metadata of sessions with lower numbers in the current recording."""
        self._library.kinetoscope_forget_sessions_before(number)

    def position(self) -> list[int]:
        """The current position in the recording: its tick and its counters of losses (RecordingPosition in native/core).

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        numbers = (ctypes.c_uint64 * POSITION_NUMBERS)()
        _check_recording(self._library.kinetoscope_recorder_position(numbers, len(numbers)))
        return list(numbers)

    def dropped(self, since: Sequence[int] = ()) -> int:
        """Number of records for which the disk had no room, in all or since an earlier position."""
        now = self.position()
        before = since or [0] * len(now)
        return sum(sum(now[part]) - sum(before[part]) for part in _DROPPED)

    def recording_path(self) -> Path | None:
        """Return the path of the current recording, or None."""
        path = ctypes.create_string_buffer(_LONGEST_PATH)
        if self._library.kinetoscope_recorder_path(path, len(path)) != 0:
            return None
        return Path(os.fsdecode(path.value))

    def stop(self) -> StopReport:
        """Stop recording; metadata, rows and names can still be added until `close`.

        Raises:
            StateError: Nothing is being recorded in this process, which may be a forked child.
        """
        stopped = StopReport()
        _check_recording(self._library.kinetoscope_recorder_stop(ctypes.byref(stopped)))
        self._hook_new_threads(False)
        return stopped

    def _reset_calls_in_child(self) -> None:
        self._library.kinetoscope_recorder_forget_calls()
        self._hook_new_threads(False)

    def _hook_new_threads(self, hooked: bool) -> None:
        """Record the calls of threads that start from now on, or no longer; a hook of others stays."""
        before, after = (None, self._thread_hook) if hooked else (self._thread_hook, None)
        if self._thread_hook is not None and threading.getprofile() is before:
            threading.setprofile(after)

    def pause(self) -> None:
        """Pause: spans that start from now on are not recorded. Open spans still get their end; open calls end now.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        _check_recording(self._library.kinetoscope_recorder_pause(), "pause")
        self._hook_new_threads(False)

    def resume(self) -> str:
        """End a pause.

        Returns:
            Which requested Python calls cannot be recorded from now on, and why; empty if all can.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        self._hook_new_threads(self._has_calls)
        failed = self._library.kinetoscope_recorder_resume(*self._into_message)
        if failed:
            self._hook_new_threads(False)
        _check_recording(failed, "resume")
        return self._text

    def allow_step_switch(self, allowed: bool) -> bool:
        """Allow or forbid calls of the `step_switch` functions, which need session 0 to be the only one; return whether recording is paused."""
        return bool(self._library.kinetoscope_recorder_allow_step_switch(int(allowed)))

    def watch_steps(self, path: Path, signal: int, size_bytes: int) -> memoryview:
        """Create a log of the program's steps, and watch it without the GIL; see native/recorder/step_watch.h.

        Args:
            path: The file of the log, which must not be there yet.
            signal: An eventfd that becomes readable when a step hangs, or memory runs short.
            size_bytes: The size of the log.

        Returns:
            The memory of the log, which must not be used after `unwatch_steps`.

        Raises:
            RecorderError: Nothing is being recorded, or the file cannot be created.
        """
        address = self._library.kinetoscope_recorder_watch_steps(
            os.fsencode(path), signal, *self._into_message
        )
        if not address:
            raise RecorderError(f"steps cannot be watched: {self._text}")
        return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B")

    def modules(self) -> list[tuple[int, Any]]:
        """List the live modules that were recorded, each with its id, which is its row in the table `modules` plus 1.

        Returns:
            Pairs of id and instance; empty once the recording is closed.
        """
        living: list[tuple[int, Any]] = []
        self._library.kinetoscope_recorder_modules(living)
        return living

    def add_info(self, info: Mapping[str, str]) -> None:
        """Write metadata to the recording, as JSON texts by key."""
        for key, text in info.items():
            self._library.kinetoscope_recorder_add_info(
                key.encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass")
            )

    def append(self, table: str, columns: RowColumns, *, session: int = 0, buffered: bool = False) -> bool:
        """Append rows to a table in the recording, where they survive if the process is killed.

        Rows for which there is no space are counted as a loss.

        Args:
            table: The name of the table.
            columns: The JSON values of each column by its name, in lists of the same length, which may be empty to create an
                empty table; or the JSON text of one row.
            session: The number of the session that the rows belong to.
            buffered: Whether the caller buffers rows for up to a second, which are lost if the process is killed.

        Returns:
            False if nothing is being recorded in this process.
        """
        rows, text = counted_json(columns)
        encoded, flags = text.encode(), _BUFFERED if buffered else 0
        failed = self._library.kinetoscope_recorder_append(
            session, table.encode(), rows, flags, encoded, len(encoded)
        )
        return not failed

    def own_steps(self, session: int | None) -> None:
        """Assign step marks that this thread opens from now on to a session, by its number in the recording, or to none."""
        self._library.kinetoscope_recorder_own_steps(0 if session is None else session + 1)


_loaded: Recorder | None = None
_loading = threading.Lock()


def load_recorder(progress: Callable[[str], None] = lambda line: None) -> Recorder:
    """Return the recorder of this process; the first call loads it, from the wheel or the cache, or compiles it.

    Args:
        progress: Called with one line before compiling, which takes some seconds.

    Returns:
        The recorder, loaded once per process.

    Raises:
        RecorderError: No library matches this torch and Python, and it cannot be compiled; the message says why.
    """
    global _loaded
    with _loading:
        if _loaded is None:
            _loaded = _recorder_for_here(progress)
        return _loaded


def loaded_recorder() -> Recorder | None:
    """Return the recorder of this process if it is loaded already, else None."""
    return _loaded


def replace_recorder(
    refused: Recorder, progress: Callable[[str], None] = lambda line: None
) -> Recorder | None:
    """Replace a recorder from the wheel that failed its self-test by one compiled for the installed torch.

    Args:
        refused: The recorder that failed.
        progress: Called with one line before compiling.

    Returns:
        The recorder that is used from now on; None if it was not from the wheel, or compiling failed.
    """
    global _loaded
    if refused.taken != PREBUILT:
        return None
    with _loading:
        try:
            _loaded = _recorder_for_here(progress, with_prebuilt=False)
        except RecorderError:
            return None
        return _loaded


def ready_recorder() -> Recorder | None:
    """Return the recorder of this process if it is loaded or can be loaded without compiling, else None."""
    import torch

    global _loaded
    with _loading:
        if _loaded is None:
            try:
                _loaded = _built_recorder(build.library_name(torch)) or _prebuilt_recorder(torch)
            except (build.BuildError, RecorderError, OSError):
                return None
        return _loaded


def _unloadable_mark(name: str) -> Path:
    """The file that tells other processes that a library cannot be loaded even after recompiling, so that they do not try."""
    return cache_directory() / f"{name}.unloadable"


def _prebuilt_folder() -> Path:
    return Path(__file__).parent / "prebuilt"


def _built_recorder(name: str) -> Recorder | None:
    for path, taken in ((_prebuilt_folder() / name, INSTALLED), (cache_directory() / name, CACHED)):
        if path.is_file() and build.is_complete(path):
            try:
                return Recorder(path, taken)
            except _UnloadableError:
                if _unloadable_mark(name).is_file():
                    raise
    return None


def _prebuilt_recorder(torch: Any) -> Recorder | None:
    # The wheel's recorders are compiled for the ABI of the published builds of torch.
    as_published = torch.compiled_with_cxx11_abi() and torch.distributed.is_available()
    if not as_published or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    path = _prebuilt_folder() / build.prebuilt_name(torch.__version__)
    if not path.is_file() or not build.is_complete(path):
        return None
    try:
        return Recorder(path, PREBUILT)
    except RecorderError:
        # The system's C library may be older than the wheel's; then the recorder is compiled here.
        return None


def _recorder_for_here(progress: Callable[[str], None], *, with_prebuilt: bool = True) -> Recorder:
    try:
        import torch
    except ImportError as error:
        raise RecorderError(f"torch cannot be imported: {error}") from error
    if problem := build.why_too_old(torch):
        raise RecorderError(problem)
    cache = cache_directory()
    try:
        name = build.library_name(torch)
        if (built := _built_recorder(name)) is not None:
            return built
        if with_prebuilt and (prebuilt := _prebuilt_recorder(torch)) is not None:
            return prebuilt
        if (cache / name).is_file():
            (cache / name).unlink()
        path = build.build(torch, cache, progress)
        try:
            return Recorder(path)
        except _UnloadableError:
            _unloadable_mark(name).touch()
            raise
    except (build.BuildError, OSError) as error:
        raise RecorderError(str(error)) from error


# A thread of the parent may hold the lock for long.
os.register_at_fork(after_in_child=_loading._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001  (Python's own)
