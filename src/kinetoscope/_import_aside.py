"""Import on another thread what later calls would import while a profiler records this thread's Python calls.

torch's collector reads the names of calls when it stops, from memory that belongs to the code. The code of a module is freed when
its import has ended, so torch then reads other data in place of its name: `events()` raises UnicodeDecodeError, or names are wrong.
It records no thread that began after it did. Modules are imported by the functions that need them, so whichever comes
first under a profiler imports all of them here. The few modules that `import kinetoscope` itself imports keep their code instead.
"""

from __future__ import annotations

import sys

# Those that have pages, commands, or hooks for a program's start, and those of other packages.
_NOT_THESE = ("__main__", "cli", "examples", "integrations", "launcher", "viewer")
# What our functions import from elsewhere, and pyarrow, which looks for pandas when it makes arrays; missing ones are skipped.
_OF_OTHERS = (
    "encodings.ascii", "encodings.cp437", "duckdb", "numpy.ma", "numpy.polynomial", "pyarrow",
    "pyarrow.compute", "pyarrow.csv", "pyarrow.ipc", "pyarrow.parquet", "pandas", "pyarrow.pandas_compat",
    "pyarrow.vendored.version", "pandas.core.arrays.arrow._arrow_utils", "torch.profiler._memory_profiler",
)  # fmt: skip
# An import that has begun on this thread must end on it; another thread would wait for it.
_TREES = ("duckdb", "kinetoscope", "numpy", "pandas", "pyarrow", "torch")
# A thousand times longer than it takes; an import that hangs must not hang the program.
_PATIENCE_SECONDS = 60.0

# Keeps the names in it alive, see above.
_CODE = sys._getframe().f_code

_done = False
_done_extra: set[str] = set()


def import_aside(*extra_modules: str) -> None:
    """Import everything now if this thread's Python calls are recorded; every function that users call and that imports does this first.

    Only the first call does anything, and the first one with another argument.

    Args:
        extra_modules: Modules that the caller needs as well, of rooms that are left out here or of other packages.
    """
    global _done
    if (_done and _done_extra.issuperset(extra_modules)) or sys.getprofile() is None or _is_importing():
        return
    wanted = [name for name in extra_modules if name not in _done_extra]
    everything = not _done
    _done = True
    _done_extra.update(extra_modules)
    import threading

    def work() -> None:
        if everything:
            _import_all()
        for name in wanted:
            _imported(name)

    thread = threading.Thread(target=work, name="kinetoscope imports", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # No threads can be started: each module is imported where it is needed.
        return
    thread.join(_PATIENCE_SECONDS)


def _is_importing() -> bool:
    """Whether an import of a module that we need is under way."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _TREES:
            spec = getattr(module, "__spec__", None)
            if getattr(spec, "_initializing", False):
                return True
    return False


def _import_all() -> None:
    """Import every module of the package that records, reads or writes traces, and what they need."""
    import pkgutil

    package = sys.modules["kinetoscope"]
    rooms = [info.name for info in pkgutil.iter_modules(package.__path__) if info.name not in _NOT_THESE]
    names = [f"kinetoscope.{room}" for room in rooms]
    # Packages are in front of what is in them.
    for name in names:
        module = _imported(name)
        names += [
            f"{name}.{info.name}" for info in pkgutil.iter_modules(getattr(module, "__path__", None) or [])
        ]
    for name in _OF_OTHERS:
        if name.partition(".")[0] != "torch" or "torch" in sys.modules:
            _imported(name)


def _imported(name: str) -> object:
    """A module; None if it cannot be imported, which the function that needs it will report."""
    import importlib

    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001  (whatever is wrong with it: it is reported where it is needed)
        return None
