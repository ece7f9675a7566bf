"""What a Python that was started by a recorded program does first: it gets ready to record, should it import torch.

`sitecustomize.py` in the folder of the run runs this by path, before anything else, in every Python that the program
starts, directly or not. Most of them never import torch, so this costs two milliseconds and imports nothing of ours: the
package, and what it needs, come with torch.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

# Under this name the module is known to an inner `kinetoscope run`, which takes over.
NAME = "kinetoscope_child_start"
_waiting: list[Any] = []
# What loads files of Python; its module is not imported for that.
_file_loaders: list[Any] = []


def begin(folder: str, site: str, version: str, file_loader: Any) -> None:
    """Follow this process.

    Args:
        folder: The folder of the run.
        site: The folder that leads Pythons here.
        version: The version of Kinetoscope that follows.
        file_loader: The class of what loads files of Python.
    """
    _file_loaders.append(file_loader)
    environment = load("child_environment").ChildEnvironment(site)
    environment.hide()
    environment.carry()
    waiting = load("torch_import").TorchImport(lambda: _without_collecting(lambda: _record(folder, version)))
    _waiting.append(waiting)
    known: Any = type(sys)(NAME)
    known.give_up = give_up
    sys.modules[NAME] = known
    waiting.wait()


def give_up() -> None:
    """Leave the recording of this process to somebody else."""
    while _waiting:
        _waiting.pop().give_up()


def load(name: str) -> ModuleType:
    """Load a file that lies beside this one, on its own: not through the package, which imports more."""
    known_as = f"kinetoscope_{name}"
    if known_as not in sys.modules:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
        module = type(sys)(known_as)
        module.__file__ = path
        code = _file_loaders[0](known_as, path).get_code(known_as)
        if code is None:
            raise ImportError(f"{path} holds no code")
        exec(code, module.__dict__)  # noqa: S102
        sys.modules[known_as] = module
    return sys.modules[known_as]


def _without_collecting(call: Callable[[], None]) -> None:
    """Call a function while Python looks for no garbage: among all that torch has made, a look costs more than the call."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        call()
    finally:
        if was_on:
            gc.enable()


def _record(folder: str, version: str) -> None:
    """Torch is there: record, or say why not. Whatever goes wrong, the process goes on as it would have."""
    if not os.path.isdir(folder):
        return
    try:
        import kinetoscope
        from kinetoscope.launch.child import follow
    except Exception as error:  # noqa: BLE001  (another Python's packages can fail in any way)
        _cannot(folder, f"Kinetoscope cannot be imported there: {error}")
        return
    if kinetoscope.__version__ != version:
        _cannot(folder, f"its Kinetoscope is {kinetoscope.__version__}, and not {version}")
        return
    follow(folder)


def _cannot(folder: str, problem: str) -> None:
    """Leave a note that this process imported torch and is not recorded."""
    note = load("child_notes")
    facts = {"process": os.getpid(), "executable": sys.executable, "problem": problem}
    note.claim(folder, str(os.getpid()), facts)
