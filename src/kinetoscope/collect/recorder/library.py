"""The native recorder in Python: loads the library that fits, and calls it through ctypes.

Every call holds the GIL (``ctypes.PyDLL``); the recorder relies on that.
"""

from __future__ import annotations

import ctypes
import json
import os
import sysconfig
import threading
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import RecorderError, StateError
from kinetoscope.collect.recorder import build
from kinetoscope.storage.cache import cache_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Must match KINETOSCOPE_RECORDER_VERSION in native/recorder/recorder.h.
_FACE_VERSION = 12
# More than the system lets a path have.
_LONGEST_PATH = 1 << 13
# With a separator at its end: another package's name may start with ours.
_OWN_FOLDER = str(Path(__file__).parents[2]) + os.sep


class Recorded(IntFlag):
    """What a recording contains in addition to times and names; the bits of native/core/recording/format.h."""

    SHAPES = 1
    MEMORY = 2
    STACKS = 4
    MODULES = 8
    SAMPLES = 16
    FUNCTION_IDS = 64
    CALLS = 0x100
    MODULE_SPANS = 0x200


POSITION_NUMBERS = 21
_CALLS = int(Recorded.CALLS | Recorded.MODULE_SPANS)
# RowsFlag in native/core/recording/format.h.
_BUFFERED = 1


class _Stopped(ctypes.Structure):
    """The struct kinetoscope_recorder_stopped."""

    _fields_ = (
        ("faults", ctypes.c_uint64),
        ("unnamed_modules", ctypes.c_uint64),
        ("idle", ctypes.c_uint32),
        ("call_threads_lost", ctypes.c_uint32),
        ("file_lost", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Stopped:
    """What the recorder reports when it stops.

    Attributes:
        faults: Operators that are missing because a callback failed.
        unnamed_modules: Module instances whose names are not known yet.
        idle: False when a thread did not leave its callback in time.
        call_threads_lost: Threads whose Python calls are missing because another profiler replaced ours.
        file_lost: Another program truncated the file during the recording.
    """

    faults: int
    unnamed_modules: int
    idle: bool
    call_threads_lost: int = 0
    file_lost: bool = False


class _UnloadableError(RecorderError):
    """The system cannot load a library, because it is for another machine or damaged."""


# Where a recorder came from.
PREBUILT = "prebuilt, from the wheel"
INSTALLED = "built when the package was installed"
CACHED = "compiled earlier, from the cache"
COMPILED = "compiled now"


class Recorder:
    """A loaded recorder library. Each process uses one; it is never unloaded.

    Attributes:
        path: The library.
        taken: Where it came from, in words.
    """

    def __init__(self, path: Path, taken: str = COMPILED) -> None:
        """Load the library at ``path``.

        Raises:
            RecorderError: It cannot be loaded, is of another version, or does not fit this Python.
        """
        self.path, self.taken = path, taken
        try:
            library = ctypes.PyDLL(str(path))
        except OSError as error:
            raise _UnloadableError(f"{path} cannot be loaded: {error}") from error
        self._library = library
        self._message = ctypes.create_string_buffer(1024)
        library.kinetoscope_recorder_version.restype = ctypes.c_uint32
        version = library.kinetoscope_recorder_version()
        if version != _FACE_VERSION:
            raise RecorderError(
                f"{path} has version {version} of the recorder's interface, not {_FACE_VERSION}"
            )
        message = (ctypes.c_char_p, ctypes.c_size_t)
        library.kinetoscope_recorder_load.argtypes = (ctypes.py_object, *message)
        library.kinetoscope_recorder_start.argtypes = (
            ctypes.c_char_p,
            ctypes.c_uint32,
            ctypes.c_uint64,
            ctypes.c_int64,
            ctypes.c_uint32,
            *message,
        )
        library.kinetoscope_recorder_change.argtypes = (ctypes.c_uint32, ctypes.c_uint32, *message)
        library.kinetoscope_recorder_resume.argtypes = message
        library.kinetoscope_recorder_hooked_threads.restype = ctypes.c_uint32
        library.kinetoscope_recorder_lost_call_threads.restype = ctypes.c_uint32
        library.kinetoscope_forget_sessions_before.argtypes = (ctypes.c_uint32,)
        library.kinetoscope_recorder_free_before.argtypes = (ctypes.c_uint64,)
        library.kinetoscope_recorder_position.argtypes = (ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t)
        library.kinetoscope_recorder_path.argtypes = message
        library.kinetoscope_recorder_freeze.argtypes = (ctypes.c_int,)
        library.kinetoscope_recorder_stop.argtypes = (ctypes.POINTER(_Stopped),)
        library.kinetoscope_recorder_modules.argtypes = (ctypes.py_object,)
        library.kinetoscope_recorder_watch_tensors.argtypes = (ctypes.py_object,)
        library.kinetoscope_recorder_watch_tensors.restype = ctypes.c_size_t
        library.kinetoscope_recorder_tensor_reader_class.restype = ctypes.py_object
        library.kinetoscope_recorder_resolve.argtypes = (ctypes.py_object,)
        library.kinetoscope_recorder_resolve.restype = ctypes.c_size_t
        library.kinetoscope_recorder_add_info.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
        library.kinetoscope_recorder_add_info.restype = None
        library.kinetoscope_recorder_append.argtypes = (
            ctypes.c_uint32,
            ctypes.c_char_p,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_char_p,
            ctypes.c_size_t,
        )
        library.kinetoscope_recorder_own_steps.argtypes = (ctypes.c_uint32,)
        library.kinetoscope_recorder_own_steps.restype = None
        library.kinetoscope_recorder_settle.restype = None
        library.kinetoscope_recorder_prepare_calls.argtypes = (ctypes.c_char_p,)
        library.kinetoscope_recorder_prepare_calls.restype = ctypes.py_object
        library.kinetoscope_recorder_forget_calls.restype = None
        library.kinetoscope_recorder_observed_kernel.argtypes = (ctypes.py_object, ctypes.py_object)
        library.kinetoscope_recorder_observed_kernel.restype = ctypes.py_object
        library.kinetoscope_recorder_fast_range_class.argtypes = (ctypes.py_object,)
        library.kinetoscope_recorder_fast_range_class.restype = ctypes.py_object

        from torch.nn import Module

        # Never freed: the recorder compares its address with the code of running frames.
        self._module_call: Any = Module._wrapped_call_impl.__code__
        if library.kinetoscope_recorder_load(self._module_call, self._message, len(self._message)) != 0:
            raise RecorderError(f"{path}: {self._message.value.decode()}")
        # The profile function of threads that start while calls are recorded, on Pythons that need one.
        # Whether the active recording has calls while it is not paused.
        self._has_calls = False
        self._thread_hook: Any = library.kinetoscope_recorder_prepare_calls(os.fsencode(_OWN_FOLDER))
        os.register_at_fork(after_in_child=self._forget_calls)

    @property
    def is_recording(self) -> bool:
        """Whether a recording is open in this process."""
        return bool(self._library.kinetoscope_recorder_is_recording())

    def start(
        self,
        path: Path,
        what: Recorded,
        ring_bytes: int | None,
        *,
        keep_since_ns: int = 0,
        samples_per_second: int = 0,
    ) -> str:
        """Start to record into a new file, at ``path`` unless another process records into it; see `recording_path`.

        Args:
            path: The file; an older one is replaced once recording has started.
            what: What is recorded.
            ring_bytes: Upper limit of the file; None means no limit.
            keep_since_ns: A file of another process that was changed at or after this time of the system's clock is not
                replaced; 0 means that any file may be replaced.
            samples_per_second: How often the Python stack of every thread is sampled; 0 means never.

        Returns:
            Which requested Python calls cannot be recorded, and why; empty if all can.

        Raises:
            StateError: A recording is in progress.
            RecorderError: The file cannot be created; the message says why. An older file at ``path`` is unchanged.
        """
        if self.is_recording:
            raise StateError("the native recorder is recording already; stop that recording first")
        bits, name = int(what), os.fsencode(path)
        self._has_calls = bool(bits & _CALLS)
        # Before the start, so that this call is not recorded.
        self._follow_new_threads()
        failed = self._library.kinetoscope_recorder_start(
            name,
            bits,
            ring_bytes or 0,
            keep_since_ns,
            samples_per_second,
            self._message,
            len(self._message),
        )
        message = self._message.value.decode(errors="replace")
        if failed:
            self._leave_new_threads_alone()
            raise RecorderError(f"cannot record: {message}")
        return message

    def change(self, what: Recorded, samples_per_second: int) -> str:
        """Record something else from now on, into the same file.

        Calls that are running when calls are switched on begin there, and those that are running when they are switched off end
        there.

        Args:
            what: What is recorded.
            samples_per_second: How often the Python stack of every thread is sampled, if samples are among it.

        Returns:
            Which requested Python calls cannot be recorded, and why; empty if all can.

        Raises:
            StateError: Nothing is being recorded in this process.
            RecorderError: The recorder could not change; what it recorded before it still records.
        """
        if not self.is_recording:
            raise StateError(
                "the native recorder is not recording in this process: there is nothing to change"
            )
        rate = samples_per_second if Recorded.SAMPLES in what else 0
        self._has_calls = bool(int(what) & _CALLS)
        self._follow_new_threads()
        failed = self._library.kinetoscope_recorder_change(int(what), rate, self._message, len(self._message))
        message = self._message.value.decode(errors="replace")
        if not self._has_calls:
            self._leave_new_threads_alone()
        if failed:
            raise RecorderError(f"cannot record: {message}")
        return message

    def hooked_threads(self) -> int:
        """On how many threads Python has the hooks for calls: 0 while no calls are recorded; from Python 3.12 on 1 for all."""
        return int(self._library.kinetoscope_recorder_hooked_threads())

    def lost_call_threads(self) -> int:
        """How many threads' Python calls are missing in the active recording because another profiler replaced ours."""
        return int(self._library.kinetoscope_recorder_lost_call_threads())

    def forget_sessions_before(self, number: int) -> None:
        """Tell the recorder that nobody needs the metadata of sessions with lower numbers in the active recording any more."""
        self._library.kinetoscope_forget_sessions_before(number)

    def position(self) -> list[int]:
        """How far the recording is: its tick, and its counters of what was lost (RecordingPosition in native/core).

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        numbers = (ctypes.c_uint64 * POSITION_NUMBERS)()
        if self._library.kinetoscope_recorder_position(numbers, len(numbers)) != 0:
            raise StateError("the native recorder is not recording in this process")
        return list(numbers)

    def free_before(self, tick: int) -> None:
        """Let the recording use the room of its records from before a tick of its position again; does nothing in a ring, which does so anyway.

        Rows and names stay, and so do calls that ended later.
        """
        self._library.kinetoscope_recorder_free_before(tick)

    def recording_path(self) -> Path | None:
        """The path of the active recording; None if there is none."""
        path = ctypes.create_string_buffer(_LONGEST_PATH)
        if self._library.kinetoscope_recorder_path(path, len(path)) != 0:
            return None
        return Path(os.fsdecode(path.value))

    def stop(self) -> Stopped:
        """Stop the recording; its dictionary stays open until `close`.

        Raises:
            StateError: Nothing is being recorded, for instance in a forked child.
        """
        stopped = _Stopped()
        if self._library.kinetoscope_recorder_stop(ctypes.byref(stopped)) != 0:
            raise StateError("the native recorder is not recording in this process")
        self._leave_new_threads_alone()
        return Stopped(
            stopped.faults,
            stopped.unnamed_modules,
            bool(stopped.idle),
            stopped.call_threads_lost,
            bool(stopped.file_lost),
        )

    def _forget_calls(self) -> None:
        """Remove the hooks of the parent's recording, in the child of a fork."""
        self._library.kinetoscope_recorder_forget_calls()
        self._leave_new_threads_alone()

    def _follow_new_threads(self) -> None:
        """Have the calls of threads that start from now on, if the recording has calls."""
        if self._has_calls and self._thread_hook is not None and threading.getprofile() is None:
            threading.setprofile(self._thread_hook)

    def _leave_new_threads_alone(self) -> None:
        if self._thread_hook is not None and threading.getprofile() is self._thread_hook:
            threading.setprofile(None)

    def pause(self) -> None:
        """Pause: spans that start from now on are not recorded; open ones still get their end, and open calls end here.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        if self._library.kinetoscope_recorder_pause() != 0:
            raise StateError(
                "the native recorder is not recording in this process: there is nothing to pause"
            )
        self._leave_new_threads_alone()

    def resume(self) -> str:
        """Record again after `pause`.

        Returns:
            Which requested Python calls cannot be recorded from now on, and why; empty if all can.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        self._follow_new_threads()
        if self._library.kinetoscope_recorder_resume(self._message, len(self._message)) != 0:
            self._leave_new_threads_alone()
            raise StateError(
                "the native recorder is not recording in this process: there is nothing to resume"
            )
        return self._message.value.decode(errors="replace")

    def freeze(self) -> None:
        """Overwrite nothing in a ring from now on, until `thaw`: what finds no room is counted as dropped.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        self._set_frozen(1)

    def thaw(self) -> None:
        """Let a ring overwrite its oldest records again, after `freeze`.

        Raises:
            StateError: Nothing is being recorded in this process.
        """
        self._set_frozen(0)

    def _set_frozen(self, frozen: int) -> None:
        if self._library.kinetoscope_recorder_freeze(frozen) != 0:
            raise StateError(
                "the native recorder is not recording in this process: there is nothing to freeze or thaw"
            )

    def modules(self) -> list[tuple[int, Any]]:
        """The live modules that were recorded, each with its id: its row in the table `modules`, plus 1.

        Returns:
            Pairs of id and instance; empty once the recording is closed.
        """
        living: list[tuple[int, Any]] = []
        self._library.kinetoscope_recorder_modules(living)
        return living

    def watch_tensors(self, tensors: Sequence[Any]) -> int:
        """Record the frees of the tensors' memory, which was allocated before the recording; returns how many are new."""
        return int(self._library.kinetoscope_recorder_watch_tensors(list(tensors)))

    def tensor_reader_class(self) -> type:
        """The class of objects that read where plain tensors lie; `native_reader` makes one."""
        found: type = self._library.kinetoscope_recorder_tensor_reader_class()
        return found

    def fast_range_class(self, theirs: type) -> type:
        """The class that opens ranges quickly while recording, instead of torch's own class `theirs`."""
        made: type = self._library.kinetoscope_recorder_fast_range_class(theirs)
        return made

    def observed_kernel(self, kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A callable that calls `kernel` inside a range called `name`."""
        made: Callable[..., Any] = self._library.kinetoscope_recorder_observed_kernel(kernel, name)
        return made

    def resolve(self, modules: Sequence[Any]) -> int:
        """Name the recorded instances among ``modules``; returns how many still have no name."""
        return int(self._library.kinetoscope_recorder_resolve(list(modules)))

    def add_info(self, info: Mapping[str, str]) -> None:
        """Write keys and their JSON texts into the recording."""
        for key, text in info.items():
            self._library.kinetoscope_recorder_add_info(
                key.encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass")
            )

    def append(
        self, table: str, columns: Mapping[str, Sequence[Any]], *, session: int = 0, buffered: bool = False
    ) -> bool:
        """Write rows of a named table into the recording, where they are from now on, also if the process is killed.

        Rows that find no room there are counted in its losses.

        Args:
            table: The name of the table.
            columns: For each column, by its name, the list of its values, as JSON has them; all equally long. Empty lists
                announce the table.
            session: The number of the session that the rows belong to.
            buffered: The caller keeps rows back for up to a second, which a killed process loses.

        Returns:
            False if nothing is being recorded in this process.
        """
        rows = len(next(iter(columns.values()), ()))
        text = json.dumps(columns, separators=(",", ":"))
        return self.append_text(table, rows, text, session=session, buffered=buffered)

    def append_text(
        self, table: str, rows: int, text: str, *, session: int = 0, buffered: bool = False
    ) -> bool:
        """Write rows whose columns are JSON already; as `append`."""
        encoded, flags = text.encode(), _BUFFERED if buffered else 0
        failed = self._library.kinetoscope_recorder_append(
            session, table.encode(), rows, flags, encoded, len(encoded)
        )
        return not failed

    def own_steps(self, session: int | None) -> None:
        """Marks of steps that this thread begins from now on belong to a session, by its number in the recording, or to none."""
        self._library.kinetoscope_recorder_own_steps(0 if session is None else session + 1)

    def settle(self) -> None:
        """Wait briefly until the files of earlier recordings have their checksums."""
        self._library.kinetoscope_recorder_settle()

    def close(self) -> None:
        """Finish and close the file."""
        self._library.kinetoscope_recorder_close()


_loaded: Recorder | None = None
_loading = threading.Lock()


def load_recorder(progress: Callable[[str], None] = lambda line: None) -> Recorder:
    """The recorder of this process: prebuilt, cached, or compiled now.

    Args:
        progress: Called with one line before compiling, which takes some seconds.

    Returns:
        The recorder, loaded once per process.

    Raises:
        RecorderError: No prebuilt one fits and none can be compiled; the message says why.
    """
    global _loaded
    with _loading:
        if _loaded is None:
            _loaded = _recorder_for_here(progress)
        return _loaded


def replace_recorder(
    refused: Recorder, progress: Callable[[str], None] = lambda line: None
) -> Recorder | None:
    """A recorder compiled for the installed torch, to replace one from the wheel that failed its self-test.

    Args:
        refused: The recorder that failed.
        progress: Called with one line before compiling.

    Returns:
        The recorder that is used from now on; None if there is no other.
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
    """The recorder of this process if it is loaded, or can be loaded without compiling; else None.

    Raises:
        RecorderError: There is one, but it cannot be loaded, not even after it was recompiled.
    """
    import torch

    global _loaded
    with _loading:
        if _loaded is None:
            try:
                _loaded = _built_recorder(build.library_name(torch)) or _prebuilt_recorder(torch)
            except (build.BuildError, OSError):
                return None
        return _loaded


def _hopeless(name: str) -> Path:
    """The file that marks a library that recompiling did not fix, so that not every process tries again."""
    return cache_directory() / f"{name}.unloadable"


def _prebuilt_folder() -> Path:
    """The folder of the package's prebuilt recorders."""
    return Path(__file__).parent / "prebuilt"


def _built_recorder(name: str) -> Recorder | None:
    """The cached recorder of this name, if it is complete and can be loaded."""
    for place, taken in ((_prebuilt_folder() / name, INSTALLED), (cache_directory() / name, CACHED)):
        if place.is_file() and build.is_whole(place):
            try:
                return Recorder(place, taken)
            except _UnloadableError:
                if _hopeless(name).is_file():
                    raise
    return None


def _prebuilt_recorder(torch: Any) -> Recorder | None:
    """The wheel's recorder for this minor release of torch, if there is one that can be loaded."""
    # The ABI of published torch builds, for which the recorders of a wheel are compiled.
    as_published = torch.compiled_with_cxx11_abi() and torch.distributed.is_available()
    if not as_published or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    place = _prebuilt_folder() / build.prebuilt_name(torch.__version__)
    if not place.is_file() or not build.is_whole(place):
        return None
    try:
        return Recorder(place, PREBUILT)
    except RecorderError:
        # The C library may be older than the wheel's: a recorder compiled here fits.
        return None


def _recorder_for_here(progress: Callable[[str], None], *, with_prebuilt: bool = True) -> Recorder:
    """The recorder built for the installed torch and Python, compiled if need be."""
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
        made = build.build(torch, cache, progress)
        try:
            return Recorder(made)
        except _UnloadableError:
            _hopeless(name).touch()
            raise
    except (build.BuildError, OSError) as error:
        raise RecorderError(str(error)) from error
