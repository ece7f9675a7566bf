"""Compile the recorder for the installed torch and Python.

Used in two ways: as a module of the package, if there is no compiled recorder for the installed torch; and as a script
(``python build.py --output DIR``) while a wheel is built. Therefore it must not import any other module of Kinetoscope.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_MACHINES = ("x86_64", "aarch64")
# Also in pyproject.toml and README.md.
OLDEST_TORCH = (2, 7)


class BuildError(Exception):
    """The recorder could not be compiled; the message says why in one sentence."""


def why_too_old(torch: Any) -> str:
    """Say in one sentence why this torch is too old to record with; empty if it is not."""
    numbers = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST_TORCH:
        return ""
    needed = ".".join(map(str, OLDEST_TORCH))
    return f"recording needs torch {needed} or newer, and torch {torch.__version__} is installed"


def source_root() -> Path:
    """Return the folder that contains ``recorder/`` and ``core/``: next to this file in a wheel, ``native/`` in a checkout."""
    packaged = _HERE / "recorder_source"
    for root in (packaged, _HERE.parents[3] / "native"):
        if (root / "recorder" / "recorder.cpp").is_file():
            return root
    raise BuildError(f"the recorder's sources are missing (looked in {packaged})")


def _sources(root: Path) -> list[Path]:
    sources = [*(root / "recorder").glob("*.cpp"), *(root / "recorder").glob("*.c")]
    return sorted([*sources, root / "core" / "recording" / "fault_guard.cpp"])


def _units(sources: list[Path], scratch: Path) -> list[Path]:
    """Return the files to compile: all C++ files that include torch joined into one, all other C++ files into another, and each C file.

    Joined, because reading torch's headers takes most of the time.
    """
    parts: dict[str, list[Path]] = {"with_torch.cpp": [], "without_torch.cpp": []}
    for source in sources:
        if source.suffix == ".cpp":
            of_torch = re.search(r"^#include <(ATen|c10|torch)/", source.read_text("utf-8"), re.MULTILINE)
            parts["with_torch.cpp" if of_torch else "without_torch.cpp"].append(source)
    units = [source for source in sources if source.suffix != ".cpp"]
    for name, part in parts.items():
        units.insert(0, scratch / name)
        units[0].write_text("".join(f'#include "{source}"\n' for source in part), "utf-8")
    return units


def _source_digest(root: Path) -> str:
    digest = hashlib.sha256()
    names = ("fault_guard.h", "format.h", "range_marks.h", "step_switch.h")
    shared = [root / "core" / "recording" / name for name in names]
    headers = [*(root / "recorder").glob("*.h"), *shared]
    for path in sorted([*_sources(root), *headers], key=lambda path: path.name):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    # The flags of the compiler are part of the digest, too.
    digest.update(" ".join(_flags()).encode())
    return digest.hexdigest()[:12]


def prebuilt_name(version: str, python: str | None = None) -> str:
    """Return the file name, in a wheel, of the recorder for a minor release of torch; its patch releases share the ABI.

    Args:
        version: The version of torch.
        python: The version of Python with one dot; default: the running one.
    """
    minor = ".".join(version.partition("+")[0].split(".")[:2])
    python = python or f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"kinetoscope_recorder-torch{minor}-py{python}-{platform.machine()}-{_source_digest(source_root())}.so"


def _flags() -> list[str]:
    # GCC inlines less in a large source file; this raises the limit. clang ignores it.
    inlining = ["--param", "large-unit-insns=1000000"]
    return ["-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread", *inlining]


def library_name(torch: Any) -> str:
    """Return the file name of the compiled recorder: it identifies torch, Python, C library, machine and source."""
    version = str(torch.__version__).replace("+", "-")
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    # Machines that share a cache may have different C libraries, and an older one cannot load a library linked with a newer one.
    libc = "".join(platform.libc_ver()) or "libc"
    digest = _source_digest(source_root())
    return f"kinetoscope_recorder-torch{version}-{python}-{libc}-{platform.machine()}-{digest}.so"


def is_complete(library: Path) -> bool:
    """Whether a library is as long as its ELF header says; loading a truncated one would crash the process."""
    with library.open("rb") as file:
        header = file.read(64)
        size = file.seek(0, os.SEEK_END)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return False
    sections, entry_bytes, entries = struct.unpack_from("<Q", header, 40) + struct.unpack_from(
        "<HH", header, 58
    )
    # The section table is at the end of the file.
    return bool(size >= sections + entry_bytes * entries)


def compilers() -> tuple[list[str], list[str]]:
    """Return the commands that compile C++ and C, from CXX and CC if set, which may have several words, as ``ccache g++``.

    Raises:
        BuildError: There is no C++ compiler.
    """
    cxx = shlex.split(os.environ.get("CXX", "")) or _found("g++", "clang++", "c++")
    if not cxx:
        raise BuildError("no C++ compiler was found: install g++ or clang++, or set CXX")
    # Without a C compiler, the C++ compiler compiles C, too.
    cc = shlex.split(os.environ.get("CC", "")) or _found("gcc", "clang", "cc") or [*cxx, "-x", "c"]
    return cxx, cc


def _found(*names: str) -> list[str]:
    return next(([path] for path in map(shutil.which, names) if path), [])


def _check_platform() -> None:
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        raise BuildError(
            f"the recorder runs on Linux on {' and '.join(_MACHINES)}, not on {sys.platform} {platform.machine()}"
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("the recorder does not support the free-threaded build of Python")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise BuildError("the headers of Python are missing: install its development package (python3-dev)")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"the compiler {command[0]} does not run: {error.strerror}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(
            f"{Path(command[0]).name} failed: {lines[0] if lines else f'exit code {done.returncode}'}"
        )


@contextmanager
def _only_one_builder(folder: Path) -> Iterator[None]:
    """Hold a lock while compiling, so that of several processes, such as the ranks of a job, one compiles and the others wait."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "building.lock", "w")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise BuildError(
            f"the compiled recorder cannot be cached in {folder} ({error.strerror}): set KINETOSCOPE_CACHE to a folder that "
            "can be written to"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(torch: Any, folder: Path, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Compile the recorder for ``torch`` into ``folder`` unless it exists.

    Args:
        torch: The imported torch module, whose headers and libraries are used.
        folder: The folder of the library; created if missing.
        progress: Called with one line of text when a compilation begins.

    Returns:
        Path of the library.

    Raises:
        BuildError: The compiler, headers or sources are missing, or the platform is not supported; the message says which.
    """
    _check_platform()
    if problem := why_too_old(torch):
        raise BuildError(problem)
    target = folder / library_name(torch)
    if target.is_file() and is_complete(target):
        return target
    cxx, cc = compilers()
    torch_root = Path(torch.__file__).parent
    root = source_root()
    include = torch_root / "include"
    if not (include / "ATen" / "record_function.h").is_file():
        raise BuildError(f"torch {torch.__version__} has no headers at {include}")
    headers = [
        *("-I", sysconfig.get_path("include"), "-I", str(Path(sysconfig.get_path("include"), "internal"))),
        *("-isystem", str(include), "-isystem", str(include / "torch" / "csrc" / "api" / "include")),
    ]
    abi = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    if torch.distributed.is_available():
        abi.append("-DKINETOSCOPE_DISTRIBUTED")
    libraries = [f"-L{torch_root / 'lib'}", "-ltorch_cpu", "-ltorch_python", "-lc10"]

    with _only_one_builder(folder):
        if target.is_file() and is_complete(target):
            return target
        progress(
            f"compiling the recorder for torch {torch.__version__} (once, about half a minute of CPU time)"
        )
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            units = _units(_sources(root), Path(scratch))

            def compile_one(source: Path) -> str:
                object_file = str(Path(scratch, source.name + ".o"))
                language = [*cxx, "-std=c++20", *abi] if source.suffix == ".cpp" else [*cc, "-std=c11"]
                _run([*language, *_flags(), *headers, "-c", str(source), "-o", object_file])
                return object_file

            with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                objects = list(pool.map(compile_one, units))
            library = Path(scratch, "recorder.so")
            _run([*cxx, "-shared", "-pthread", "-o", str(library), *objects, *libraries])
            # Atomic, so that no other process loads an incomplete library.
            library.replace(target)
    return target


def main() -> int:
    """Compile into ``--output`` and print the path; on failure print one line and return 1."""
    parser = argparse.ArgumentParser(description="Compile Kinetoscope's recorder for the installed torch.")
    parser.add_argument("--output", type=Path, required=True)
    folder = parser.parse_args().output
    try:
        import torch
    except ImportError as error:
        print(f"torch cannot be imported: {error}", file=sys.stderr)
        return 1
    try:
        print(build(torch, folder, lambda line: print(line, file=sys.stderr)))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    (folder / "building.lock").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
