"""Which Python functions Kinetoscope runs for itself: recordings of calls contain neither these nor what they call."""

from __future__ import annotations

import functools
import os
import sysconfig
from enum import Enum
from pathlib import Path

import torch

PACKAGE = Path(__file__).parents[2]


class Code(Enum):
    """Who owns a function; decides whether a call of it from Kinetoscope's code is recorded as the program's work."""

    OWN = "o"  # Kinetoscope's; calls inside it are not recorded, except of the program's functions
    PASSING_ON = "p"  # Kinetoscope's, but calls torch on the program's behalf
    PYTHON = "l"  # of the standard library
    TORCH = "t"
    PROGRAM = "u"


# The parts of `collect` that call the functions they replaced or hooked. So does everything outside `collect`.
_PASSING_ON = (
    "recorder/selftest.py", "session/decorated.py", "sources/compiled_modules.py", "sources/compiling.py", "sources/data_loading.py",
    "sources/loader_worker.py", "sources/ranges.py", "sources/requests.py",
    "sources/torch_ranges.py",
)  # fmt: skip


@functools.cache
def code_prefixes() -> dict[str, Code]:
    """The owner of code by the start of its file name; the longest match counts."""
    collect = PACKAGE / "collect"
    prefixes = {f"{PACKAGE}{os.sep}": Code.PASSING_ON, f"{collect}{os.sep}": Code.OWN}
    prefixes |= {f"{collect}{os.sep}{part}": Code.PASSING_ON for part in _PASSING_ON}
    for library in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}:
        prefixes |= {f"{library}{os.sep}": Code.PYTHON, "<frozen ": Code.PYTHON}
        prefixes |= {f"{library}{os.sep}{name}-packages{os.sep}": Code.PROGRAM for name in ("site", "dist")}
    prefixes[f"{Path(torch.__file__).parent}{os.sep}"] = Code.TORCH
    # The generated methods of dataclasses and named tuples. A program given by `-c` has this file name, too, but OWN code never calls it.
    prefixes["<string>"] = Code.TORCH
    return prefixes


def whose_code(file: str) -> Code:
    """Return who owns the code of a file, given by its full name."""
    prefix = max((text for text in code_prefixes() if file.startswith(text)), key=len, default="")
    return code_prefixes().get(prefix, Code.PROGRAM)
