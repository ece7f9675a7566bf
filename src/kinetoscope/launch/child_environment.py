"""How Pythons that a recorded program starts find us: by one folder at the beginning of their `PYTHONPATH`.

The program itself does not see it. `os.environ` is as it would be without us; only the environment that the system hands to
new programs has the folder, and programs that have nothing to do with Python are started without it. Run by path in
every Python that is followed, so it imports nothing but what Python has loaded anyway.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

_NAME = "PYTHONPATH"
# What starts other programs: these hand the environment on, to whatever it may be.
_LAUNCHERS = frozenset(
    b"ash bash busybox chrt cmake csh dash env fish flock gdb ionice ksh ltrace make micromamba mpiexec mpirun ncu nice "
    b"ninja nohup nsys numactl orterun parallel perf pixi prlimit runuser script setarch setpriv setsid sh srun stdbuf "
    b"strace su sudo taskset tcsh time timeout tini torchrun unshare uv uvx valgrind xargs zsh".split()
)
_BINARY = b"\x7fELF"


class ChildEnvironment:
    """Sees to it that followed programs, and only they, find the folder."""

    def __init__(self, folder: str) -> None:
        """`folder` is what Pythons shall look into first; it has no colon in it."""
        self._folder = folder
        self._program_path: str | None = None
        self._carried = False

    def hide(self) -> None:
        """Take the folder out of what this process itself sees, where it was started with it."""
        sys.path[:] = [entry for entry in sys.path if entry != self._folder]
        entries = os.environ.get(_NAME, "").split(os.pathsep)
        if self._folder in entries:
            entries.remove(self._folder)
            if entries:
                os.environ[_NAME] = os.pathsep.join(entries)
            else:
                del os.environ[_NAME]

    def carry(self) -> None:
        """Hand the folder to the programs that are started from now on."""
        self._refresh()
        self._wrap()

    # ------------------------------------------------------------------------------------------- the environments

    def _refresh(self) -> None:
        """Bring what the system hands on up to date with what the program did to its own variable."""
        told = os.environ.get(_NAME)
        if not self._carried or told != self._program_path:
            # Beside `os.environ`, which the program reads and copies.
            os.putenv(_NAME, self._joined(told))
            self._program_path, self._carried = told, True

    def _joined(self, path: str | None) -> str:
        """The folder before the program's own path."""
        return self._folder if path is None else f"{self._folder}{os.pathsep}{path}"

    def for_list(
        self, executables: Iterable[Any], words: Iterable[Any], entries: list[bytes] | None
    ) -> list[bytes] | None:
        """The environment, as a list of entries, with which a program shall be started; None is what the system hands on."""
        wanted = not is_foreign(executables, words)
        if entries is None:
            if wanted:
                self._refresh()
                return None
            return self._without(_entries_handed_on())
        if not wanted:
            return entries
        begin = os.fsencode(f"{_NAME}=")
        told = next((entry[len(begin) :] for entry in entries if entry.startswith(begin)), None)
        joined = self._joined(None if told is None else os.fsdecode(told))
        return [*(entry for entry in entries if not entry.startswith(begin)), begin + os.fsencode(joined)]

    def for_mapping(
        self, executables: Iterable[Any], words: Iterable[Any], env: Mapping[Any, Any] | None
    ) -> Mapping[Any, Any] | None:
        """The same as a mapping."""
        foreign = is_foreign(executables, words)
        if env is None:
            if not foreign:
                self._refresh()
                return None
            entries = self._without(_entries_handed_on())
            return {name: value for name, _, value in (entry.partition(b"=") for entry in entries)}
        if foreign:
            return env
        changed = dict(env)
        told = changed.pop(os.fsencode(_NAME), None)
        told = changed.get(_NAME, told)
        changed[_NAME] = self._joined(None if told is None else os.fsdecode(told))
        return changed

    def _without(self, entries: list[bytes]) -> list[bytes]:
        """What the system would hand on, but without the folder."""
        begin = os.fsencode(f"{_NAME}=")
        path = os.environ.get(_NAME)
        kept = [entry for entry in entries if not entry.startswith(begin)]
        return kept if path is None else [*kept, begin + os.fsencode(path)]

    # --------------------------------------------------------------------------------------------- what starts them

    def _wrap(self) -> None:
        """Stand before the functions of Python that start programs."""
        import _posixsubprocess

        starts: Callable[..., Any] = _posixsubprocess.fork_exec

        def fork_exec(*arguments: Any) -> Any:
            # (words, executables, close_fds, pass_fds, folder, environment, ...) on all Pythons we know.
            entries = self.for_list(arguments[1], arguments[0], arguments[5])
            return starts(*arguments[:5], entries, *arguments[6:])

        self._replace(_posixsubprocess, "fork_exec", fork_exec)
        if "subprocess" in sys.modules:
            sys.modules["subprocess"]._fork_exec = fork_exec  # type: ignore[attr-defined]
        replaces, replaces_with, system = os.execv, os.execve, os.system
        for name in ("posix_spawn", "posix_spawnp", "execve"):
            self._replace(os, name, self._with_mapping(getattr(os, name)))

        def execv(path: Any, words: Any) -> Any:
            env = self.for_mapping([path], words, None)
            return replaces(path, words) if env is None else replaces_with(path, words, env)

        def run_by_shell(command: Any) -> int:
            self._refresh()
            return system(command)

        self._replace(os, "execv", execv)
        self._replace(os, "system", run_by_shell)

    def _with_mapping(self, starts: Callable[..., Any]) -> Callable[..., Any]:
        """A function that takes a path, words and a mapping, with the mapping chosen by us."""

        def started(path: Any, words: Any, env: Any, **options: Any) -> Any:
            return starts(path, words, self.for_mapping(_places(path), words, env), **options)

        return started

    def _replace(self, module: Any, name: str, function: Any) -> None:
        """Put a function in the place of one of Python's, looking like it."""
        replaced = getattr(module, name)
        function.__wrapped__ = replaced
        for told in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(function, told, getattr(replaced, told, None))
        setattr(module, name, function)
        for known in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
            if replaced in known:
                known.add(function)


def is_foreign(executables: Iterable[Any], words: Iterable[Any]) -> bool:
    """Whether a program certainly leads to no Python: a binary that is none, launches none, and is told of none.

    Args:
        executables: The places where it is looked for, in order; numbers of open files count as unknown.
        words: Its command line.
    """
    if any(isinstance(place, int) for place in executables):
        return False
    try:
        path = next((place for place in map(os.fsencode, executables) if os.path.isfile(place)), None)
        if path is None or os.path.basename(path) in _LAUNCHERS:
            return False
        told = [os.path.basename(path), *map(os.fsencode, words)]
        if any(b"python" in word or b"pypy" in word or word.endswith((b".py", b".sh")) for word in told):
            return False
        with open(path, "rb") as file:
            return file.read(len(_BINARY)) == _BINARY
    except (OSError, TypeError, ValueError):
        # Whatever is wrong with it, the real function shall say.
        return False


def _places(path: Any) -> list[Any]:
    """Where a program of this name may lie."""
    if isinstance(path, int) or os.path.dirname(os.fsencode(path)):
        return [path]
    return [os.path.join(folder, os.fsencode(path)) for folder in map(os.fsencode, os.get_exec_path())]


def _entries_handed_on() -> list[bytes]:
    """The environment as the system hands it on; libraries may have changed it without Python's knowledge."""
    import ctypes

    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found: list[bytes] = []
    while (entry := entries[len(found)]) is not None:
        found.append(entry)
    return found
