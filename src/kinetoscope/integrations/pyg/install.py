"""The switch: the names of `torch_geometric.profile` lead to Kinetoscope.

PyG's functions and `timeit` are replaced by copies of ours, which are found wherever they were imported
but never mistaken for what a program imported from here itself. The classes of statistics are put there themselves, so
that `isinstance` holds, and the places are written down.
"""

from __future__ import annotations

import importlib
import sys
import threading
from dataclasses import is_dataclass
from types import FunctionType
from typing import Any

from kinetoscope._errors import MissingDependencyError
from kinetoscope._replacements import Replacements
from kinetoscope.collect import Installation, copied_function, loaded_namespaces, replace_in_modules
from kinetoscope.integrations.pyg import memory, nvtx, profiling, recording, timing

# The modules of ours and of PyG in which the names are made.
_OURS = (memory, nvtx, profiling, recording, timing)
_THEIRS = ("benchmark", "nvtx", "profile", "utils")


def install_pyg() -> Installation:
    """Let the names of `torch_geometric.profile` lead to Kinetoscope, so that programs written for PyG use it unchanged.

    This holds for the package and its modules, for what is imported from them later, and for every loaded module that has
    imported such a name already. What this PyG does not have is not added to it. A second call changes nothing.

    Returns:
        Nothing that must be kept; in a `with` statement the end of the block undoes this call, unless the names led to
        Kinetoscope before it.

    Raises:
        MissingDependencyError: PyG is not installed.
    """
    global _stand_ins
    try:
        importlib.import_module("torch_geometric.profile")
    except ModuleNotFoundError as error:
        if error.name not in ("torch_geometric", "torch_geometric.profile"):
            raise
        raise MissingDependencyError(
            "install_pyg() replaces functions of torch_geometric, which is not installed: `pip install "
            '"kinetoscope[pyg]"`. The functions of kinetoscope.integrations.pyg work without it.'
        ) from error
    with _lock:
        if _stand_ins is not None:
            return Installation(None)
        # Stored before the first name is replaced: after an interrupt from here on, uninstall() can undo it.
        _stand_ins = _made_stand_ins()
        _replace_classes()
        replace_in_modules({id(theirs): ours for theirs, ours in _stand_ins})
        return Installation(uninstall_pyg)


def uninstall_pyg() -> None:
    """Give PyG its names back, in every loaded module. Without `install_pyg` nothing happens."""
    global _stand_ins
    with _lock:
        if _stand_ins is None:
            return
        replace_in_modules({id(ours): theirs for theirs, ours in _stand_ins if not is_dataclass(ours)})
        _classes.restore()
        _stand_ins = None


def _made_stand_ins() -> list[tuple[Any, Any]]:
    named = [item for module in _OURS for item in vars(module).items()]
    ours = {name: thing for name, thing in named if isinstance(thing, type | FunctionType)}
    stand_ins: list[tuple[Any, Any]] = []
    for home in (f"torch_geometric.profile.{name}" for name in _THEIRS):
        # Not by attribute: the package's `benchmark` is the function, not the module it is made in.
        for name, theirs in vars(sys.modules[home]).items() if home in sys.modules else ():
            if name in ours and getattr(theirs, "__module__", None) == home:
                stand_ins.append((theirs, _stand_in(ours[name])))
    return stand_ins


def _stand_in(ours: Any) -> Any:
    """Something that works the same and yet is another object, except for the classes of statistics."""
    if is_dataclass(ours):
        return ours
    if isinstance(ours, FunctionType):
        return copied_function(ours)
    return type(ours.__name__, (ours,), {"__module__": ours.__module__, "__doc__": ours.__doc__})


def _replace_classes() -> None:
    """Replace the classes of statistics, and note where: ours may be in other places, too."""
    ours_of = {id(theirs): ours for theirs, ours in _stand_ins or () if is_dataclass(ours)}
    for namespace in loaded_namespaces():
        for name, value in list(namespace.items()):
            if id(value) in ours_of:
                _classes.put(namespace, name, ours_of[id(value)])


_lock = threading.RLock()
_stand_ins: list[tuple[Any, Any]] | None = None
_classes = Replacements()
