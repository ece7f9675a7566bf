"""The start-up hook of the Pythons that a recorded program starts: it records them once they import torch.

Processes that `multiprocessing` spawns run it from their command line. `kinetoscope run --children` sets two inherited environment variables:
`KINETOSCOPE_CHILDREN` is the run's folder, and PYTHONPATH begins with `start_up/`, whose `sitecustomize.py` loads this file by its path.

Most of these Pythons never import torch, so this takes about two milliseconds, and imports our modules only with torch. Other environments may have
other Pythons, so this file needs only Python 3.7.
"""

from __future__ import annotations

import gc
import os
import sys

# Part of every Python; importing `importlib.util` would take longer than everything here.
from _frozen_importlib_external import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType
    from typing import Any

VARIABLE = "KINETOSCOPE_CHILDREN"
# In the run's folder while the program runs; without it the run is over.
OPTIONS_FILE = "run.options"
# In the run's folder: a line for each Python that was started without this hook, with the reason.
UNFOLLOWED_FILE = "unfollowed"
NO_VARIABLES = "variables"
# The name by which an inner `kinetoscope run`, which records this process itself, finds the hook of the outer one.
NAME = "kinetoscope_child_hook"

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)
START_UP_FOLDER = os.path.join(_HERE, "start_up")
# Where the path, the arguments and the environment are among the arguments of an audit event.
_STARTS = {"subprocess.Popen": (0, 1, 3), "os.posix_spawn": (0, 1, 2), "os.exec": (0, 1, 2)}
_SIGTERM = 15
# Prepended to the code of a spawned process, which runs even if this fails.
_SPAWNED = """\
import sys
try:
    from _frozen_importlib_external import SourceFileLoader
    names = dict(__name__="kinetoscope_child_hook", __file__={file!r})
    exec(SourceFileLoader(names["__name__"], names["__file__"]).get_code(names["__name__"]), names)
    names["begin"]({folder!r}, False)
except Exception as error:
    sys.stderr.write("kinetoscope: this process is not recorded: %s\\n" % error)
"""
_waiting: list[Any] = []


def begin(folder: str, watches: bool) -> None:
    """Record this process once it imports torch, if the run still goes on.

    Args:
        folder: The run's folder.
        watches: Whether to follow the processes that this one starts.
    """
    if not _goes_on(folder):
        return
    waiting = load("_after_import", _PACKAGE).AfterImport("torch", lambda: record(folder, "exec"))
    _waiting.append(waiting)
    handle: Any = type(sys)(NAME)
    handle.give_up = give_up
    sys.modules[NAME] = handle
    waiting.wait()
    if watches:
        watch(folder)


def give_up() -> None:
    """Do not record this process here."""
    while _waiting:
        _waiting.pop().give_up()


def set_variables(folder: str) -> None:
    """Set the environment variables by which child processes find the hook and the folder of the run."""
    os.environ[VARIABLE] = folder
    path = os.environ.get("PYTHONPATH", "")
    if START_UP_FOLDER not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{START_UP_FOLDER}{os.pathsep}{path}" if path else START_UP_FOLDER


def spawned_with_hook(words: list[str], folder: str) -> list[str]:
    """The command line of a process that `multiprocessing` spawns, with this hook before its code; unchanged for a frozen program."""
    if words[-1:] != ["--multiprocessing-fork"] or words[-3:-2] != ["-c"]:
        return words
    return [
        *words[:-2],
        _SPAWNED.format(file=os.path.abspath(__file__), folder=folder) + words[-2],
        words[-1],
    ]


def load(name: str, folder: str = _HERE) -> ModuleType:
    """Load a single file by its path, because importing the package would import more."""
    alone = f"kinetoscope_{name}"
    if alone not in sys.modules:
        path = os.path.join(folder, f"{name}.py")
        module = type(sys)(alone)
        module.__file__ = path
        exec(SourceFileLoader(alone, path).get_code(alone), module.__dict__)  # type: ignore[arg-type]  # noqa: S102
        sys.modules[alone] = module
    return sys.modules[alone]


def _goes_on(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, OPTIONS_FILE))


def _without_garbage_collection(call: Callable[[], None]) -> None:
    """Call a function with the garbage collector off: with torch's objects, one collection takes longer than the call."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        call()
    finally:
        if was_on:
            gc.enable()


def record(folder: str, began: str) -> None:
    """Start recording now that torch is imported, or note why not; the process goes on either way.

    Args:
        folder: The run's folder.
        began: How the process began, `fork` or `exec`.
    """
    try:
        with open(os.path.join(folder, OPTIONS_FILE), encoding="utf-8") as file:
            options = file.read()
    except OSError:
        # The run is over.
        return
    try:
        _without_garbage_collection(lambda: _follow(folder, options, began))
    except Exception as error:  # noqa: BLE001  (packages of other environments can fail in any way)
        _note_problem(folder, f"Kinetoscope failed in its environment: {error!r}")


def _follow(folder: str, options: str, began: str) -> None:
    """Record with the Kinetoscope of this environment, if it has the same version."""
    version = load("_version", os.path.dirname(_HERE)).__version__
    from kinetoscope._version import __version__

    if __version__ != version:
        _note_problem(folder, f"its environment has Kinetoscope {__version__}, not {version}")
        return
    from kinetoscope.launcher.child import follow

    follow(folder, options, began)


def _note_problem(folder: str, problem: str) -> None:
    facts = {"process": os.getpid(), "executable": sys.executable, "problem": problem}
    load("notes").claim(folder, str(os.getpid()), facts)


def watch(folder: str) -> None:
    """Note the Pythons that this process starts without the hook, and the processes that `multiprocessing` terminates.

    Python reports both to audit hooks, so no function is replaced. Audit hooks cannot be removed: this one does nothing once the run is over.
    """
    # Not in Python 3.7.
    if not hasattr(sys, "addaudithook"):
        return

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS or event == "os.kill":
            try:
                _note_event(folder, event, arguments)
            except Exception:  # noqa: BLE001  (it would keep the program from starting or ending a process)
                return

    sys.addaudithook(hook)


def _note_event(folder: str, event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.kill":
        process, number = arguments
        # Two frames up: the hook, and the function that calls `os.kill`.
        caller = sys._getframe(2).f_globals.get("__name__")
        if number == _SIGTERM and caller == "multiprocessing.popen_fork" and _goes_on(folder):
            load("notes").mark_terminated(folder, process)
        return
    reason = why_not_followed(*(arguments[position] for position in _STARTS[event]))
    if reason and _goes_on(folder):
        file = os.open(os.path.join(folder, UNFOLLOWED_FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(file, "w") as lines:
            lines.write(f"{reason}\n")


def why_not_followed(path: Any, words: Iterable[Any], environment: Mapping[Any, Any] | None) -> str:
    """Why a Python that is about to be started will not find the hook.

    Args:
        path: The executable.
        words: Its command line.
        environment: Its environment; None for the one of this process.

    Returns:
        The option that makes it ignore PYTHONPATH or the hook, such as `-I`; `NO_VARIABLES` if its environment lacks ours; an empty
        text for a Python that finds the hook, and for other programs.
    """
    path = os.fsdecode(path)
    if path != sys.executable and not os.path.basename(path).startswith(("python", "pypy")):
        return ""
    rest = iter([os.fsdecode(word) for word in words][1:])
    for word in rest:
        if not word.startswith("-") or word == "-" or word.startswith("--"):
            break
        for end, letter in enumerate(word[1:], 2):
            if letter in "EIS":
                return f"-{letter}"
            if letter in "WX" and end == len(word):
                next(rest, "")
            if letter in "cmWX":
                break
        if letter in "cm":
            break
    variables = os.environ if environment is None else environment
    texts = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
    is_there = texts.get(VARIABLE) and START_UP_FOLDER in texts.get("PYTHONPATH", "").split(os.pathsep)
    return "" if is_there else NO_VARIABLES
