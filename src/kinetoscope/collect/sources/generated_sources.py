"""Copy the source files of kernels that `torch.compile` generated in this process next to an execution trace."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope.collect.process.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator


def resources_folder(path: str | os.PathLike[str]) -> Path:
    """Return the resource folder of the execution trace at `path`: `{stem}_resources` next to it."""
    file = Path(path)
    return file.with_name(f"{os.path.splitext(file.name)[0]}_resources")


def copy_generated_sources(folder: Path) -> int:
    """Copy every generated kernel source of this process into a folder.

    These are the Python modules of Inductor, which hold its Triton kernels, and the C++ files that its CPU kernels
    were compiled from. Files that cannot be read are skipped with a warning.

    Args:
        folder: The target folder, which must exist.

    Returns:
        The number of copied files.
    """
    copied = 0
    for source in sorted(set(_generated_sources())):
        try:
            shutil.copyfile(source, folder / source.name)
            copied += 1
        except OSError as error:
            warn_user(f"execution trace: the generated kernel {os.fspath(source)!r} was not copied ({error})")
    return copied


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
