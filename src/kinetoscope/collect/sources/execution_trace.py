"""Chakra execution traces: written by torch's own observer, and repaired when finished.

torch has one observer per process. It writes each operator's node to its file when the operator ends. The file is valid JSON
only if no name contains a quote. So when the trace is finished, the file is read once and replaced by a valid one.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed
from torch._C import _profiler as torch_observer

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.collect.process.rank import in_process_group, rank_filled_in
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.sources.quick_ranges import begin_range, end_range
from kinetoscope.storage.atomic_write import open_packed

SWITCH = "ENABLE_PYTORCH_EXECUTION_TRACE"
EXTRAS_SWITCH = "ENABLE_PYTORCH_EXECUTION_TRACE_EXTRAS"
_DESCRIPTORS = Path("/dev/fd")
GROUPS_NODE = "## process_group:init ##"


class ExecutionTraceObserver:
    """Records a Chakra execution trace: each operator with its inputs, outputs and tensors, and no times.

    Pass it to `profile(execution_trace_observer=...)`, which starts and stops it with each recording, or use it alone::

        observer = ExecutionTraceObserver().register_callback("trace.et.json")
        observer.start()
        ...
        observer.stop()
        observer.unregister_callback()

    A process can have one registered observer at a time. The file contains everything that was recorded between any `start` and
    `stop`. It is strict JSON once the observer is unregistered, at the latest when Python exits. A forked child neither writes to
    it nor finishes it.

    torch's observer can crash the process if another thread runs operators while it starts or stops: let such threads wait then.
    """

    def __init__(self) -> None:
        """Start unregistered."""
        self.extra_resources_collection = False
        self.resources_dir = ""
        self.output_file_path = ""
        self.output_file_path_observer = ""
        self._final = Path()
        # Torch's descriptors of its file, and the one that locks it.
        self._descriptors: list[int] = []
        self._lock = -1
        self._registered = False
        self._execution_trace_running = False

    def __del__(self) -> None:
        """Finish the file."""
        # Not after a failed __init__, nor while Python exits.
        if getattr(self, "_registered", False):
            _finish_quietly(self)

    @staticmethod
    def build_execution_trace_obs_from_env() -> ExecutionTraceObserver | None:
        """Return an observer, registered with a new temporary file, if the environment variable is set.

        `ENABLE_PYTORCH_EXECUTION_TRACE=1` requests it, and `ENABLE_PYTORCH_EXECUTION_TRACE_EXTRAS=1` the sources of generated
        kernels, too.

        Returns:
            The observer; None if the variable is not set or (with a warning) no file can be created.
        """
        if os.environ.get(SWITCH) != "1":
            return None
        try:
            handle, name = tempfile.mkstemp(suffix=".et.json")
            os.close(handle)
        except OSError as error:
            warn_user(
                f"no execution trace is recorded although {SWITCH}=1: its file cannot be created ({error})"
            )
            return None
        observer = ExecutionTraceObserver().register_callback(name)
        observer.set_extra_resource_collection(os.environ.get(EXTRAS_SWITCH) == "1")
        return observer

    def register_callback(self, output_file_path: str | os.PathLike[str]) -> Self:
        """Register the observer with torch; a second call does nothing.

        Args:
            output_file_path: The file, with `{rank}` replaced by the rank; it is compressed if the name ends in
                `.gz`. The folder must exist.
                Until the trace is finished, torch writes to this file or, if it will be compressed, to a hidden file next to it.

        Returns:
            The observer itself. If another observer is registered in this process, this one is not, with a warning.

        Raises:
            ArgumentError: The path is not valid or not writable.
        """
        with _LOCK:
            if self._registered:
                return self
            try:
                final = rank_filled_in(Path(output_file_path))
            except TypeError:
                raise ArgumentError(
                    f"output_file_path={output_file_path!r} is not valid: pass a path, such as 'trace.et.json'."
                ) from None
            # In a forked child, torch still has the parent's observer.
            if _inherited:
                _inherited.clear()
                torch_observer._remove_execution_trace_observer()  # noqa: SLF001  (torch's own)
            if _registered:
                warn_user(
                    "this process already has a registered ExecutionTraceObserver, so this one records nothing: call "
                    "unregister_callback() on the other one first."
                )
                return self
            # Absolute, because the program may change its working directory before the trace is finished.
            self._final = final.absolute()
            growing = _growing_path(self._final)
            lock = _locked_file(growing, final)
            if not _add_torch_observer(growing):
                os.close(lock)
                growing.unlink(missing_ok=True)
                warn_user(
                    "torch's own ExecutionTraceObserver is registered in this process, so this one records nothing: "
                    "call its unregister_callback() first."
                )
                return self
            self.output_file_path = str(final)
            self.output_file_path_observer = str(growing)
            self.resources_dir = ""
            self._descriptors, self._lock = _descriptors_of(growing), lock
            self._registered = True
            _registered.add(self)
            return self

    def unregister_callback(self) -> None:
        """Unregister the observer and finish its file: repair the JSON, and compress it if the name ends in `.gz`.

        Raises:
            OSError: The finished file cannot be written.
        """
        with _LOCK:
            if not self._registered:
                return
            self.stop()
            torch_observer._remove_execution_trace_observer()  # noqa: SLF001  (torch's own)
            self._leave()
            if self.extra_resources_collection and (folder := self.get_resources_dir(can_create=True)):
                _copy_generated_sources(Path(folder))
            _finish_file(Path(self.output_file_path_observer), self._final)

    def start(self) -> None:
        """Start to record, and write the process groups; does nothing if the observer is not registered."""
        with _LOCK:
            if not self._registered or self._execution_trace_running:
                return
            torch_observer._enable_execution_trace_observer()  # noqa: SLF001  (torch's own)
            self._execution_trace_running = True
            _record_process_groups()

    def stop(self) -> None:
        """Pause until the next `start`."""
        with _LOCK:
            if self._execution_trace_running:
                torch_observer._disable_execution_trace_observer()  # noqa: SLF001  (torch's own)
                self._execution_trace_running = False

    def cleanup(self) -> None:
        """Finish the file, as `unregister_callback` does; sessions call it when they end."""
        self.unregister_callback()

    @property
    def is_registered(self) -> bool:
        """Whether it is registered."""
        return self._registered

    def is_running(self) -> bool:
        """Whether it records now."""
        return self._execution_trace_running

    def get_output_file_path(self) -> str:
        """Return the path of the trace, finished or not.

        Raises:
            StateError: `register_callback` never succeeded.
        """
        if not self.output_file_path:
            raise StateError("the observer has no file yet: call register_callback(path) first.")
        return self.output_file_path

    def set_extra_resource_collection(self, val: bool) -> None:
        """Set whether the sources of generated kernels are copied next to the trace; to be called after `register_callback`.

        Args:
            val: True creates the folder `{stem}_resources` now; the files are copied when the trace is finished.
        """
        self.extra_resources_collection = bool(val)
        if val:
            self.get_resources_dir(can_create=True)

    def get_resources_dir(self, can_create: bool = False) -> str | None:
        """Return the folder of resources, or None if there is none or it is disabled.

        Args:
            can_create: Make it if it does not exist.
        """
        if not self.extra_resources_collection or not self.output_file_path:
            return None
        if not self.resources_dir:
            folder = self.get_resources_dir_for_et_path(self._final, create_dir=can_create)
            self.resources_dir = folder or ""
        return self.resources_dir or None

    @staticmethod
    def get_resources_dir_for_et_path(
        trace_path: str | os.PathLike[str], create_dir: bool = False
    ) -> str | None:
        """Return the folder of resources of an execution trace, or None if there is none.

        Args:
            trace_path: Where the execution trace is.
            create_dir: Make the folder if it does not exist; a failure is a warning.
        """
        file = Path(trace_path)
        folder = file.with_name(f"{os.path.splitext(file.name)[0]}_resources")
        if create_dir:
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                warn_user(f"execution trace: the folder {os.fspath(folder)!r} cannot be created ({error})")
        return str(folder) if folder.is_dir() else None

    def _leave(self) -> None:
        self._registered = self._execution_trace_running = False
        _registered.clear()
        os.close(self._lock)

    def disown(self) -> None:
        """In a forked child: redirect torch's descriptors, so that neither new nor buffered data gets into the parent's file."""
        null = os.open(os.devnull, os.O_WRONLY)
        for descriptor in self._descriptors:
            os.dup2(null, descriptor)
        os.close(null)
        if self._execution_trace_running:
            torch_observer._disable_execution_trace_observer()  # noqa: SLF001  (torch's own)
        self._leave()
        _inherited.append(True)


_LOCK = threading.RLock()
# The registered observer of this process; and, in a forked child, whether that of its parent is still torch's.
_registered: weakref.WeakSet[ExecutionTraceObserver] = weakref.WeakSet()
_inherited: list[bool] = []


def _finish_registered() -> None:
    for observer in [*_registered]:
        _finish_quietly(observer)


def _finish_quietly(observer: ExecutionTraceObserver) -> None:
    """Finish the file; failures are warnings, because a finalizer cannot raise exceptions."""
    try:
        observer.unregister_callback()
    except Exception as error:  # noqa: BLE001  (a finalizer can only warn)
        warn_user(f"the execution trace {observer.output_file_path!r} was not finished: {error}")


def _after_fork() -> None:
    for observer in [*_registered]:
        observer.disown()


def _growing_path(final: Path) -> Path:
    """The file that torch writes while it records: the final one or, if that is compressed, a hidden one next to it."""
    if final.suffix != ".gz":
        return final
    return final.with_name(f".{final.name.removesuffix('.gz').removesuffix('.json')}.{os.getpid()}.json")


def _locked_file(growing: Path, final: Path) -> int:
    """Create or truncate the file, and lock it, because torch would only log a failure. Return the descriptor that holds the lock.

    Raises:
        ArgumentError: The file cannot be written, or another process has locked it.
    """
    try:
        lock = os.open(growing, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(lock, 0)
        except BaseException:
            os.close(lock)
            raise
        return lock
    except BlockingIOError:
        raise ArgumentError(
            f"another process is writing its execution trace to {os.fspath(final)!r}: give each process its own path; "
            "in a distributed job, `{rank}` in the path becomes the rank."
        ) from None
    except OSError as error:
        raise ArgumentError(
            f"the execution trace cannot be written to {os.fspath(final)!r} ({error}): use a file in a folder that "
            "exists and is writable."
        ) from error


def _add_torch_observer(file: Path) -> bool:
    """Register torch's observer; torch returns True even if another one is registered, so check that it has opened the file."""
    before = len(_descriptors_of(file))
    added: bool = torch_observer._add_execution_trace_observer(str(file))  # noqa: SLF001  (torch's own)
    return added and (not _DESCRIPTORS.is_dir() or len(_descriptors_of(file)) > before)


def _descriptors_of(file: Path) -> list[int]:
    wanted = file.stat()
    descriptors = []
    for name in os.listdir(_DESCRIPTORS) if _DESCRIPTORS.is_dir() else []:
        # The list contains the descriptor of the listing itself, which is closed by now.
        with contextlib.suppress(OSError, ValueError):
            status = os.fstat(int(name))
            if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
                descriptors.append(int(name))
    return descriptors


def _finish_file(growing: Path, final: Path) -> None:
    """Repair what torch wrote, and write it under the final name; the hidden file is removed even after an error."""
    try:
        with growing.open("rb") as source, open_packed(final) as target:
            target.writelines(text.encode() for text in mended(source))
    finally:
        if growing != final:
            growing.unlink(missing_ok=True)


def _record_process_groups() -> None:
    if not in_process_group():
        return
    distributed: Any = torch.distributed
    groups = json.dumps(distributed.distributed_c10d._world.pg_config_info, default=str)  # noqa: SLF001  (torch's own)
    end_range(begin_range(GROUPS_NODE, groups))


def _copy_generated_sources(folder: Path) -> None:
    """Copy the source of this process's generated kernels, Python and C++, into a folder; warn of files that cannot be read."""
    for source in sorted(set(_generated_sources())):
        try:
            shutil.copyfile(source, folder / source.name)
        except OSError as error:
            warn_user(f"execution trace: the generated kernel {os.fspath(source)!r} was not copied ({error})")


def _generated_sources() -> Iterator[Path]:
    """Iterate over the files of Inductor's generated code, without importing Inductor if the program did not."""
    cache: Any = sys.modules.get("torch._inductor.codecache")
    if cache is None:
        return
    for module in list(cache.PyCodeCache.modules):
        if isinstance(file := getattr(module, "__file__", None), str):
            yield Path(file)
    bindings = getattr(cache, "CppPythonBindingsCodeCache", None)
    keys = set(getattr(bindings, "cache", ()))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) if name.partition(".")[0] in keys else None
        # `kernel.main.so` was compiled from `kernel.main.cpp`.
        if isinstance(file, str) and (source := Path(file).with_suffix(".cpp")).is_file():
            yield source


atexit.register(_finish_registered)
# A thread of the parent may hold the lock.
os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001  (Python's own)
os.register_at_fork(after_in_child=_after_fork)


# torch does not escape the names of ranges, and writes an escape of eight digits for each byte of non-ASCII text. Everything
# else in a finished file is valid JSON.

_NAME = re.compile(r'(?<="name": ").*?(?=", "ctrl_deps": \d+,\s*\n)', re.DOTALL)
_BYTE_ESCAPES = re.compile(r"(?:\\uffffff[0-9a-f]{2})+")


def mended(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield an execution trace in torch's layout as valid JSON, a node at a time, with its strings as the program passed them.

    Args:
        lines: The lines of a file, with their line ends.
    """
    node_lines: list[bytes] = []
    for line in lines:
        if line.lstrip().startswith(b'"id": ') and node_lines and node_lines[-1].strip() == b"{":
            yield _mended_node(node_lines[:-1])
            node_lines = node_lines[-1:]
        node_lines.append(line)
    yield _mended_node(node_lines)


def _mended_node(lines: list[bytes]) -> str:
    text = _BYTE_ESCAPES.sub(_characters, b"".join(lines).decode("utf-8", "replace"))
    return _NAME.sub(lambda name: json.dumps(name[0])[1:-1], text, count=1)


def _characters(escapes: re.Match[str]) -> str:
    return bytes.fromhex(escapes[0].replace("\\uffffff", "")).decode("utf-8", "replace")
