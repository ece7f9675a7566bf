"""Builds the device that needs no hardware (`test_device/`) and lays it out as a plug-in of torch.

With the folder on its `PYTHONPATH` a Python finds the device when it imports torch, and so do those that it starts:

    python -m tests.support.test_device_plugin    # builds it if need be and prints the folder
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

NAME = "testdevice"
_SOURCES = Path(__file__).with_name("test_device")
_BUILT = Path(__file__).parents[2] / "build" / "test-device"
_FLAGS = ["-std=c++20", "-O0", "-fPIC", "-Wall", "-Wextra", "-pthread", "-DUSE_KINETO", "-DFMT_HEADER_ONLY"]
_MODULE = "kinetoscope_test_device"
# What makes torch load it: see "Autoload" in torch's notes on backends.
_ENTRY_POINTS = f"[torch.backends]\n{NAME} = {_MODULE}:begin\n"
_METADATA = f"Metadata-Version: 2.1\nName: {_MODULE}\nVersion: 1\n"


class NoTestDeviceError(Exception):
    """Why the device cannot be built here, in one sentence."""


def environment(**more: str) -> dict[str, str]:
    """The environment in which Pythons have the device; built on the first call, half a minute.

    Raises:
        NoTestDeviceError: It cannot be built here.
    """
    paths = [str(plugin_folder()), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def plugin_folder() -> Path:
    """Where the plug-in lies, for the installed torch and these sources.

    Raises:
        NoTestDeviceError: There is no compiler, or this torch has not what it takes.
    """
    root = Path(torch.__file__).parent
    if not (root / "include/torch/csrc/profiler/standalone/privateuse1_profiler.h").is_file():
        raise NoTestDeviceError(f"torch {torch.__version__} takes no profilers of other accelerators")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NoTestDeviceError("there is no C++ compiler")
    target = _BUILT / _digest(compiler)
    if target.is_dir():
        return target
    _BUILT.mkdir(parents=True, exist_ok=True)
    with open(_BUILT / "building.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=_BUILT) as scratch:
                made = Path(scratch, "plugin")
                made.mkdir()
                _compile(compiler, root, Path(scratch), made / "libtest_device.so")
                _lay_out(made)
                made.replace(target)
    return target


def _digest(compiler: str) -> str:
    """A name for what comes out: other sources, flags or versions make another."""
    digest = hashlib.sha256(repr((compiler, torch.__version__, sys.version_info[:2], _FLAGS)).encode())
    for path in sorted(_SOURCES.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: str, root: Path, scratch: Path, library: Path) -> None:
    """Compile every source by itself, at the same time, and link them."""
    include = root / "include"
    headers = [f"-isystem{include / part}" for part in ("", "kineto", "torch/csrc/api/include")]

    def compile_one(source: Path) -> str:
        made = str(scratch / f"{source.name}.o")
        _run([compiler, *_FLAGS, *headers, "-c", str(source), "-o", made])
        return made

    with concurrent.futures.ThreadPoolExecutor() as pool:
        objects = list(pool.map(compile_one, sorted(_SOURCES.glob("*.cpp"))))
    libraries = [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
    _run([compiler, "-shared", "-pthread", "-o", str(library), *objects, *libraries])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"the test device does not compile:\n{done.stderr[:4000]}")


def _lay_out(folder: Path) -> None:
    """Put beside the library what Python and torch look for."""
    shutil.copy(_SOURCES / f"{_MODULE}.py", folder)
    metadata = folder / f"{_MODULE}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(_METADATA)
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)


if __name__ == "__main__":
    print(plugin_folder())
