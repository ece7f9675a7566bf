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
    """Whose a function is, which decides whether a call of it from Kinetoscope's code is work of the program."""

    OWN = "o"  # Kinetoscope's, and so are all calls in it but those of the program's functions
    PASSING_ON = "p"  # Kinetoscope's, which calls functions of torch on the program's behalf
    PYTHON = "l"  # of the standard library
    TORCH = "t"
    PROGRAM = "u"


# The parts of `collect` that call what they replace or follow. So does everything outside `collect`.
_PASSING_ON = (
    "recorder/selftest.py", "session/decorated.py", "sources/compiled_modules.py", "sources/compiling.py", "sources/data_loading.py",
    "sources/loader_worker.py", "sources/ranges.py", "sources/requests.py",
    "sources/torch_ranges.py",
)  # fmt: skip


@functools.cache
def code_prefixes() -> dict[str, Code]:
    """What the names of code files begin with: the longest one says whose the code is."""
    collect = PACKAGE / "collect"
    prefixes = {f"{PACKAGE}{os.sep}": Code.PASSING_ON, f"{collect}{os.sep}": Code.OWN}
    prefixes |= {f"{collect}{os.sep}{part}": Code.PASSING_ON for part in _PASSING_ON}
    for library in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}:
        prefixes |= {f"{library}{os.sep}": Code.PYTHON, "<frozen ": Code.PYTHON}
        prefixes |= {f"{library}{os.sep}{name}-packages{os.sep}": Code.PROGRAM for name in ("site", "dist")}
    prefixes[f"{Path(torch.__file__).parent}{os.sep}"] = Code.TORCH
    # What dataclasses and named tuples consist of; a program given by `-c` has the same name, but is not called from OWN code.
    prefixes["<string>"] = Code.TORCH
    return prefixes


def whose_code(file: str) -> Code:
    """Whose the code of a file is, by its full name."""
    prefix = max((text for text in code_prefixes() if file.startswith(text)), key=len, default="")
    return code_prefixes().get(prefix, Code.PROGRAM)
