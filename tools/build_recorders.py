"""Compile the recorder for other torch releases and Pythons than those of this environment, to be included in wheels.

Only the folder `torch/include` of each torch is downloaded, out of the wheel that pip would install. The recorder does not
link to torch: torch's libraries are already loaded when the recorder is.

    python tools/build_recorders.py --output build/recorders --torch 2.12 2.13 --python python3.12 python3.13

writes a library for each torch and Python, and `recorders.json`, which lists what each was compiled against.
"""

import argparse
import concurrent.futures
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST, NEWEST = 7, 15
"""The oldest and newest supported minor releases of torch 2."""
_FIRST_WITH = {(3, 14): 9}
"""The first minor release of torch 2 with builds for a Python, where that is not the oldest one."""
_BLOCK_BYTES = 1 << 22
# Prints the version of a Python, and the folder of its headers.
_ASK = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2]); print(sys.version.split()[0]); print(sysconfig.get_path('include'))"
_LIBRARIES = ("torch_cpu", "torch_python", "c10")


def _builder():
    """Load the package's module with sources, flags and names, which imports nothing else of the package."""
    path = ROOT / "src" / "kinetoscope" / "collect" / "recorder" / "build.py"
    spec = importlib.util.spec_from_file_location("_build", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Remote(io.RawIOBase):
    """A seekable file at a URL, downloaded in blocks as needed."""

    def __init__(self, url: str) -> None:
        """Request the size of the file.

        Raises:
            OSError: The server does not support range requests.
        """
        self._url, self._place = url, 0
        self._blocks: dict[int, bytes] = {}
        request = urllib.request.Request(url, headers={"Range": "bytes=0-0"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            if answer.status != 206:
                raise OSError("the registry does not support range requests")
            self._size = int(answer.headers["Content-Range"].rpartition("/")[2])

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def tell(self) -> int:
        """Return the position."""
        return self._place

    def readinto(self, buffer) -> int:
        """Read into a buffer, at most to the end of a block."""
        if self._place >= self._size:
            return 0
        number, skip = divmod(self._place, _BLOCK_BYTES)
        block = self._block(number)[skip : skip + len(buffer)]
        buffer[: len(block)] = block
        self._place += len(block)
        return len(block)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            first = number * _BLOCK_BYTES
            last = min(first + _BLOCK_BYTES, self._size) - 1
            request = urllib.request.Request(self._url, headers={"Range": f"bytes={first}-{last}"})  # noqa: S310
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
                self._blocks = {number: answer.read()}
        return self._blocks[number]


def has_builds(torch: str, python: tuple[int, int]) -> bool:
    """Whether a minor release of torch was published for a version of Python."""
    return int(torch.split(".")[1]) >= _FIRST_WITH.get(python, OLDEST)


def unconstrained() -> dict[str, str]:
    """Return the environment for a pip that ignores constraints, also those of its configuration: they are for other torches."""
    # An empty value would leave those of the configuration in force.
    return {**os.environ, "PIP_CONSTRAINT": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def headers(minor: str, folder: Path) -> tuple[str, Path]:
    """Download the headers of the newest patch release of a torch release.

    Returns:
        Its version, and the include folder.

    Raises:
        SystemExit: pip finds no such release.
    """
    for cached in sorted(folder.glob(f"torch-{minor}.*")):
        if (cached / "complete").exists():
            return cached.name.removeprefix("torch-"), cached / "torch" / "include"
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        # The headers are the same for each Python; all these releases have wheels for 3.12.
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "--target", scratch,
                   "--python-version", "3.12", "--only-binary=:all:", "--report", report, f"torch=={minor}.*"]  # fmt: skip
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=unconstrained())
        if done.returncode:
            sys.exit(f"pip finds no torch {minor}:\n{done.stderr.strip()}")
        found = json.loads(report.read_text())["install"][0]
    version = found["metadata"]["version"].partition("+")[0]
    target = folder / f"torch-{version}"
    target.mkdir(parents=True, exist_ok=True)
    remote = io.BufferedReader(Remote(found["download_info"]["url"]), _BLOCK_BYTES)
    with zipfile.ZipFile(remote) as wheel:
        wanted = [entry for entry in wheel.infolist() if entry.filename.startswith("torch/include/")]
        for entry in sorted(wanted, key=lambda entry: entry.header_offset):
            wheel.extract(entry, target)
    (target / "complete").touch()
    return version, target / "torch" / "include"


def compile_recorder(
    builder, version: str, include: Path, python: str, python_include: str, folder: Path
) -> Path:
    """Compile one recorder."""
    root = builder.source_root()
    target = folder / builder.prebuilt_name(version, python)
    if target.is_file():
        return target
    cxx, cc = os.environ.get("CXX", "g++").split(), os.environ.get("CC", "gcc").split()
    defined = ["-D_GLIBCXX_USE_CXX11_ABI=1", "-DKINETOSCOPE_DISTRIBUTED"]
    searched = [
        *("-I", python_include, "-I", f"{python_include}/internal"),
        *("-isystem", str(include), "-isystem", str(include / "torch" / "csrc" / "api" / "include")),
    ]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)

        def compile_one(source: Path) -> str:
            made = str(scratch / f"{source.name}.o")
            language = [*cxx, "-std=c++20", *defined] if source.suffix == ".cpp" else [*cc, "-std=c11"]
            subprocess.run(
                [*language, *builder._flags(), *searched, "-c", str(source), "-o", made], check=True
            )
            return made

        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
            objects = list(pool.map(compile_one, builder._units(builder._sources(root), scratch)))
        empty = scratch / "empty.c"
        empty.touch()
        for library in _LIBRARIES:
            stub = scratch / f"lib{library}.so"
            subprocess.run([*cc, "-shared", f"-Wl,-soname,{stub.name}", "-o", stub, empty], check=True)
        linked = scratch / "recorder.so"
        named = [f"-l{library}" for library in _LIBRARIES]
        subprocess.run(
            [
                *cxx,
                "-shared",
                "-s",
                "-pthread",
                "-o",
                linked,
                *objects,
                f"-L{scratch}",
                "-Wl,--no-as-needed",
                *named,
            ],
            check=True,
        )
        folder.mkdir(parents=True, exist_ok=True)
        shutil.move(linked, target)
    return target


def main() -> None:
    """Compile all recorders and write `recorders.json`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--torch", nargs="+", default=[f"2.{minor}" for minor in range(OLDEST, NEWEST + 1)])
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--headers", type=Path, default=ROOT / "build" / "torch-headers")
    wanted = parser.parse_args()
    builder = _builder()
    made = []
    for minor in wanted.torch:
        version, include = headers(minor, wanted.headers)
        for interpreter in wanted.python:
            answer = subprocess.run([interpreter, "-c", _ASK], check=True, capture_output=True, text=True)
            python, exact, python_include = answer.stdout.split("\n")[:3]
            if not has_builds(minor, tuple(map(int, python.split(".")))):
                continue
            library = compile_recorder(builder, version, include, python, python_include, wanted.output)
            print(f"torch {version}, Python {exact}: {library.name}", flush=True)
            made.append({"library": library.name, "torch": version, "python": exact})
    (wanted.output / "recorders.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
