"""Run another program in this process, as if Python had been started with it."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import cast

from kinetoscope._errors import ArgumentError
from kinetoscope.display.terminal import complain
from kinetoscope.flight.environment import leave_on_from_torch

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
# Our code, below the program's frames on the stack.
OUR_FOLDERS = tuple(os.path.join(_PACKAGE, room, "") for room in ("launcher", "cli"))


class CannotRun(ArgumentError):
    """There is no such program; `exit_code` is what Python would exit with."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def installed_script(command: str) -> str | None:
    """Find the Python script that is installed as a command, such as `torchrun`.

    Returns:
        Its path; None if there is a file of that name here, or no such command.

    Raises:
        CannotRun: The command is not a Python script.
    """
    path = None if os.path.exists(command) or os.path.dirname(command) else shutil.which(command)
    if path is None:
        return None
    with open(path, "rb") as file:
        # If the path of Python is long, the first line names a shell instead.
        beginning = file.readline(300) + file.readline(300)
    if beginning.startswith(b"#!") and b"python" in beginning:
        return path
    raise CannotRun(
        f"{command!r} is not a Python script: put `kinetoscope run` before the script in that command, in place of `python`, "
        "as in `mpirun -n 2 kinetoscope run train.py`.",
        2,
    )


@dataclass(frozen=True)
class Program:
    """A script, a folder or archive with a `__main__.py`, or a module.

    Attributes:
        target: The path or, for a module, its dotted name.
        arguments: The program's own arguments.
        is_module: Whether `target` is what follows `python -m`.
    """

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def name(self) -> str:
        """A short name for files and headings: `train` for `train.py`, `package.train` for a module."""
        return self.target if self.is_module else Path(os.path.abspath(self.target)).stem

    @property
    def command_line(self) -> list[str]:
        """The arguments after `python` on a command line."""
        return [*(["-m"] if self.is_module else []), self.target, *self.arguments]

    def run(self) -> None:
        """Run it as `__main__`; its exceptions are raised, including `SystemExit`.

        Raises:
            CannotRun: There is no such program.
        """
        main = ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        # Stays in place after the end, for exit handlers, unpickling and spawned workers.
        sys.modules["__main__"] = main
        code = self._find_module(main) if self.is_module else self._find_script(main)
        exec(code, main.__dict__)  # noqa: S102

    def _find_script(self, main: ModuleType) -> CodeType:
        """Compile a script, and set up the interpreter as Python does for one."""
        sys.argv[:] = [self.target, *self.arguments]
        # Python does not resolve a link in the name, but does for the folder that modules are imported from.
        path = os.path.abspath(self.target)
        if not os.path.exists(path):
            raise CannotRun(f"script not found: {self.target!r}.", 2)
        spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
        if spec is not None and spec.loader is not None:
            _put_first(path, even_if_safe=True)
            return self._adopt(main, spec)
        if os.path.isdir(path):
            raise CannotRun(f"no __main__.py in the folder {self.target!r}.", 1)
        _put_first(os.path.dirname(os.path.realpath(path)))
        main.__file__ = path
        if path.endswith(".pyc"):
            main.__loader__ = compiled = importlib.machinery.SourcelessFileLoader("__main__", path)
            return cast("CodeType", compiled.get_code("__main__"))
        main.__loader__ = source = importlib.machinery.SourceFileLoader("__main__", path)
        try:
            # Not its `get_code`, which writes a file with the compiled code.
            return source.source_to_code(source.get_data(path), path)
        except OSError as error:
            raise CannotRun(f"cannot open {self.target!r}: {error.strerror}.", 2) from error

    def _find_module(self, main: ModuleType) -> CodeType:
        """Find a module or a package's `__main__`, and set up the interpreter as `python -m` does."""
        _put_first(os.getcwd())
        sys.argv[:] = ["-m", *self.arguments]
        name = self.target
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                name = f"{name}.__main__"
                spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            spec = None
        if spec is None or spec.loader is None:
            raise CannotRun(f"module not found: {name!r}.", 1)
        code = self._adopt(main, spec)
        sys.argv[0] = spec.origin or sys.argv[0]
        return code

    def _adopt(self, main: ModuleType, spec: importlib.machinery.ModuleSpec) -> CodeType:
        """Give `__main__` the attributes of a module that has a spec, and return the module's code."""
        main.__spec__ = spec
        main.__loader__ = spec.loader
        main.__package__ = spec.parent
        main.__file__ = spec.origin
        main.__dict__["__cached__"] = spec.cached
        get_code = getattr(spec.loader, "get_code", None)
        code = get_code(spec.name) if get_code is not None else None
        if not isinstance(code, CodeType):
            raise CannotRun(f"{spec.name!r} has no Python code to run.", 1)
        return code


def show_exception(error: BaseException) -> None:
    """Print an exception that ended the program, as Python would: through `sys.excepthook`, without our frames."""
    visited: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in visited:
            visited.add(id(link))
            link.__traceback__ = _without_ours(link.__traceback__)
            chain += [link.__cause__, link.__context__]
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error  # type: ignore[attr-defined,unused-ignore]  # from Python 3.12 on
    sys.excepthook(type(error), error, error.__traceback__)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    last = trace
    while last is not None:
        following = last.tb_next
        while following is not None and following.tb_frame.f_code.co_filename.startswith(OUR_FOLDERS):
            following = following.tb_next
        last.tb_next = following
        last = following
    return trace


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith((*OUR_FOLDERS, "<frozen importlib", "<frozen runpy"))


def _put_first(folder: str, *, even_if_safe: bool = False) -> None:
    """Put a folder first in `sys.path`, replacing ours; with `-P` or `PYTHONSAFEPATH` there is none to replace."""
    if not sys.flags.safe_path:
        sys.path[0] = folder
    elif even_if_safe:
        sys.path.insert(0, folder)


def take_name_of_python() -> None:
    """Give this process the name that the system gives Python.

    Linux names a process after its script, here `kinetoscope`, and a thread after the one that starts it, so unnamed threads of the program would have that
    name in the trace and in `top`.
    """
    # Linux only, and nothing depends on it.
    with suppress(OSError):
        Path("/proc/self/comm").write_text(os.path.basename(sys.executable)[:15], encoding="utf-8")


@contextmanager
def exiting_as_python(note: Callable[[BaseException], object]) -> Iterator[None]:
    """Let the program that runs in this block end the process as Python would; exceptions are shown without our frames.

    Args:
        note: Called with the exception that ends the program, `SystemExit` and `KeyboardInterrupt` among them, before it is shown.
    """
    try:
        yield
    except BaseException as error:
        note(error)
        if isinstance(error, SystemExit):
            raise
        if isinstance(error, CannotRun):
            complain(str(error))
            sys.exit(error.exit_code)
        show_exception(error)
        if isinstance(error, KeyboardInterrupt):
            # Raised again, so that Python ends the process as it does on an interrupt: by the signal.
            sys.excepthook = lambda *_: None
            raise
        sys.exit(1)


def run_left_on(program: Program) -> None:
    """Run a program with a flight recorder, write no trace at its end, and exit as it does."""
    take_name_of_python()
    leave_on_from_torch()
    with exiting_as_python(lambda _: None):
        program.run()
