"""The least that recording operators can cost: torch calls callbacks that do nothing, and opens its own ranges as in a session."""

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.harness import Result, Times, ratio_result
from kinetoscope.collect.recorder import build
from kinetoscope.collect.sources.torch_ranges import TORCH_RANGES

FLOOR = "empty callbacks"


@functools.cache
def _callbacks() -> ctypes.PyDLL:
    """Compile and load the empty callbacks."""
    source, folder = Path(__file__).with_name("empty_callback.cpp"), Path(torch.__file__).parent
    compiler, _ = build.compilers()
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch, "empty_callback.so")
        flags = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared", "-isystem", str(folder / "include")]
        flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
        libraries = [f"-L{folder / 'lib'}", "-ltorch_cpu", "-lc10"]
        subprocess.run([*compiler, *flags, str(source), "-o", str(library), *libraries], check=True)
        return ctypes.PyDLL(str(library))


@contextmanager
def empty_callbacks(*, inputs: bool = False) -> Iterator[None]:
    """Have torch call empty callbacks at every operator, if wanted with its inputs, and open its ranges."""
    callbacks = _callbacks()
    TORCH_RANGES.open(callbacks)
    callbacks.add_empty_callback(int(inputs))
    try:
        yield
    finally:
        callbacks.remove_empty_callback()
        TORCH_RANGES.close(callbacks)


def against_the_floor(what: str, times: dict[str, Times], ours: str, theirs: str) -> list[Result]:
    """Compare the floor with `theirs`, and what both profilers add to it."""
    return [
        ratio_result(f"{what}, the floor", None, times, FLOOR, theirs),
        ratio_result(f"{what}, above the floor", None, times, ours, theirs, base=FLOOR),
    ]
