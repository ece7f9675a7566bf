"""The switch: the names of `torch_geometric.profile` lead to Kinetoscope.

Ours are put in every place where a loaded module has PyG's, and the places are written down, for the way back. What a program
imports from PyG in between is ours, and stays it.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import FunctionType

from kinetoscope._errors import MissingDependencyError
from kinetoscope._replacements import Replacements
from kinetoscope.collect import Installation, loaded_namespaces
from kinetoscope.integrations.pyg import memory, profiling, recording

# The modules of ours and of PyG in which the names are made.
_OURS = (memory, profiling, recording)
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
    try:
        importlib.import_module("torch_geometric.profile")
    except ModuleNotFoundError as error:
        if error.name not in ("torch_geometric", "torch_geometric.profile"):
            raise
        raise MissingDependencyError(
            "install_pyg() replaces functions of torch_geometric, which is not installed: `pip install "
            '"kinetoscope[pyg]"`. The functions of kinetoscope.integrations.pyg work without it.'
        ) from error
    ours = {name: value for module in _OURS for name, value in vars(module).items()}
    replacement_of = {}
    for home in (f"torch_geometric.profile.{name}" for name in _THEIRS):
        # Not by attribute: the package's `benchmark` is the function, not the module it is made in.
        for name, theirs in vars(sys.modules[home]).items() if home in sys.modules else ():
            is_made_there = getattr(theirs, "__module__", None) == home
            if is_made_there and isinstance(ours.get(name), type | FunctionType):
                replacement_of[id(theirs)] = ours[name]
    with _lock:
        if _replaced:
            return Installation(None)
        for namespace in loaded_namespaces():
            for name, value in list(namespace.items()):
                if id(value) in replacement_of:
                    _replaced.put(namespace, name, replacement_of[id(value)])
        return Installation(uninstall_pyg)


def uninstall_pyg() -> None:
    """Give PyG its names back, in every module in which `install_pyg` found them. Without it nothing happens."""
    with _lock:
        _replaced.restore()


_lock = threading.RLock()
_replaced = Replacements()
