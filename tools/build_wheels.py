"""Build the wheels to publish, with recorders for many torch releases, and their bill of materials.

One wheel is for Python 3.12 and later, the other for 3.11, whose stable ABI lacks functions that the compiled module needs.
Each wheel is then tried with each available Python and torch as in a container: without a compiler, as a user who is not root, with an
installation and a home that cannot be written. `kinetoscope run` must summarize a program there, a part of which `torch.compile`
compiles, without a warning, and `kinetoscope doctor` must say that the recorder is the wheel's and passed its self-test.

    python tools/build_wheels.py --torch 2.12 2.13 --python python3.11 python3.12

writes the wheels, `kinetoscope-VERSION.cdx.json` (CycloneDX), and the results, `wheels.md`, to dist/.
"""

import argparse
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bill_of_materials import bill_of_materials
from build_recorders import has_builds, unconstrained

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
_STABLE = (3, 12)

# The program of a user. The backend needs no compiler.
TRAIN = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
head = torch.nn.Linear(10, 10)
try:
    head = torch.compile(head, backend="aot_eager")
except RuntimeError as error:
    print(f"not compiled: {error}")
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
for step in range(12):
    optimizer.zero_grad()
    loss = head(model(torch.randn(32, 64))).square().mean()
    loss.backward()
    optimizer.step()
"""
# Looks for what each kind of recording adds to the trace of this program.
READ = """
import sys, kinetoscope
trace = kinetoscope.open("train.ktrace")
names = set(trace.table("spans").column("name").to_pylist())
assert {"aten::addmm", "aten::mean", "autograd::engine::evaluate_function: AddmmBackward0"} <= names, names
if "compiled" in sys.argv:
    (first, *_) = trace.table("compiles").to_pylist()
    assert (first["compile_id"], first["recompile"], first["stage"]) == ("0/0", False, "frame"), first
assert trace.table("steps").num_rows == 12, trace.table("steps").num_rows
assert any(line["line"] for line in trace.table("lines").to_pylist())
assert "torch" not in sys.modules
"""
_SUMMARY = re.compile(r"[\d,]+ operators on \d+ threads?, native engine, exit code 0")
_NOT_COMPILED = re.compile(r"^not compiled: (.*)$", re.MULTILINE)
_TAKEN = "taken: prebuilt, from the wheel"
_PASSED = "the recorder fits this torch and passed its self-test"
_HEADER = """# The wheels, tried

Written by `make wheels` (`tools/build_wheels.py`) on {day}, on {machine}. Each row is an environment with a torch of the package registry, in which `pip install` has put the wheel. The user is {user},
`PATH` has nothing but that environment's programs (so no compiler), and the installation and the home cannot be written:

- `kinetoscope run train.py` prints the summary of a program that trains, a part of it compiled by `torch.compile` with the backend `aot_eager`, without a warning of ours;
- the trace has its operators, lines and steps, and what was compiled;
- `kinetoscope doctor` says that the recorder is the wheel's and passed its self-test.

"""


def version_of(python: str) -> tuple[int, int]:
    """Return the version of an interpreter."""
    answer = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], check=True, capture_output=True, text=True
    )
    major, minor = map(int, answer.stdout.split())
    return major, minor


def environment(folder: Path, python: str, *packages: str, fast: bool = False) -> Path:
    """Create a virtual environment and return its interpreter.

    Args:
        folder: Where to create it.
        python: The interpreter to create it with.
        packages: The packages to install.
        fast: Install with uv if there is one: it takes seconds for a CUDA build of torch, pip takes minutes.
    """
    made = folder / "bin" / "python"
    if fast and shutil.which("uv"):
        # An environment of uv's is of the folder that it finds the interpreter in, where a link to it has no library.
        ask = [python, "-c", "import os, sys; print(os.path.realpath(sys.executable))"]
        real = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
        subprocess.run(["uv", "venv", "-q", "--seed", "--python", real, folder], check=True)
        install = ["uv", "pip", "install", "-q", "--python", made]
    else:
        subprocess.run([python, "-m", "venv", folder], check=True)
        install = [made, "-m", "pip", "install", "-q"]
    if packages:
        subprocess.run([*install, *packages], check=True, env=unconstrained())
    return made


def build_wheel(python: str, recorders: Path) -> Path:
    """Build a wheel with an interpreter, isolated and with pinned tools.

    Returns:
        The wheel, tagged with the oldest glibc that its compiled parts run with.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        interpreter = environment(scratch / "build", python, "wheel==0.46.3")
        subprocess.run(
            [interpreter, "-m", "pip", "wheel", "-q", "--no-deps", "-w", scratch, ROOT,
             "-C", f"build-dir={scratch / 'compiled'}", "-C", f"cmake.define.KINETOSCOPE_PREBUILT={recorders}"],
            check=True, env=unconstrained(),
        )  # fmt: skip
        (wheel,) = scratch.glob("kinetoscope-*.whl")
        tag = f"manylinux_2_{newest_libc(wheel)}_{platform.machine()}"
        subprocess.run(
            [interpreter, "-m", "wheel", "tags", "--platform-tag", tag, "--remove", wheel],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        (wheel,) = scratch.glob("kinetoscope-*.whl")
        DIST.mkdir(exist_ok=True)
        return Path(shutil.move(wheel, DIST / wheel.name))


def newest_libc(wheel: Path) -> int:
    """Return the minor version of the newest glibc that a wheel's compiled parts need."""
    needed = {17}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                needed |= {int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", archive.read(name))}
    return max(needed)


@dataclass(frozen=True)
class Tried:
    """What came of a wheel with one torch and Python: their exact versions, the size of the recorder, and a sentence."""

    torch: str
    python: str
    recorder_bytes: int
    result: str
    failed: bool

    def row(self) -> str:
        """Return the row of the table."""
        size = f"{self.recorder_bytes / 1e6:.2f} MB" if self.recorder_bytes else "none"
        return f"| {self.torch} | {self.python} | {size} | {self.result} |"


def stranger() -> dict[str, object]:
    """Return the arguments of a subprocess that runs as nobody, if this process is root's, which may write everywhere."""
    if os.geteuid():
        return {}
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}


def warnings_in(printed: str) -> tuple[list[str], list[str]]:
    """Divide the lines that warn into those of torch itself, which it prints without us, too, and all others."""
    # Below what a warning says is the line that warned.
    printed = re.sub(r"^(\S+:\d+: \w+: .*)\n +.*$", r"\1", printed, flags=re.MULTILINE)
    of_torch, others = [], []
    for line in map(str.strip, printed.splitlines()):
        if re.search(r"warn(ing|s)?\b|deprecat", line, re.IGNORECASE):
            (of_torch if re.match(r"\S*/torch/\S+\.py:\d+: ", line) else others).append(line)
    return of_torch, others


def recorder_bytes(wheel: Path, torch: str, python: str) -> int:
    """Return the size of a wheel's recorder for a minor release of torch and a version of Python; 0: there is none."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {entry.filename.rpartition("/")[2]: entry.file_size for entry in archive.infolist()}
    start = f"kinetoscope_recorder-torch{torch}-py{python}-"
    return next((size for name, size in sizes.items() if name.startswith(start)), 0)


def try_wheel(wheel: Path, python: str, torch: str) -> Tried:
    """Install a wheel beside a torch, and profile a program as in a container."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        interpreter = environment(
            scratch / "venv", python, f"torch=={torch}.*", "numpy", *requirements(wheel), fast=True
        )
        subprocess.run([interpreter, "-m", "pip", "install", "-q", wheel], check=True, env=unconstrained())
        size = recorder_bytes(wheel, torch, ".".join(map(str, version_of(interpreter))))
        work, home = scratch / "work", scratch / "home"
        work.mkdir()
        home.mkdir()
        (work / "train.py").write_text(TRAIN)
        work.chmod(0o777)
        scratch.chmod(0o755)
        for closed in (
            home,
            *(path for path in (scratch / "venv").rglob("*") if path.is_dir() and not path.is_symlink()),
        ):
            closed.chmod(0o555)
        bare = {"PATH": str(interpreter.parent), "HOME": str(home), "LANG": "C.UTF-8"}

        def attempt(*command: str | Path) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                command, check=False, cwd=work, env=bare, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **stranger()
            )  # fmt: skip

        exact = attempt(
            interpreter,
            "-c",
            "import sys, importlib.metadata as m; print(m.version('torch'), sys.version.split()[0])",
        )
        if exact.returncode:
            return Tried(
                torch,
                python,
                size,
                f"FAILED: {python} does not start: {last_line(exact.stdout)}",
                failed=True,
            )
        torch, _, full = exact.stdout.strip().partition(" ")
        ran = attempt(interpreter.parent / "kinetoscope", "run", "train.py")
        of_torch, warnings = warnings_in(ran.stdout)
        if ran.returncode or not _SUMMARY.search(ran.stdout):
            return Tried(torch, full, size, f"FAILED: no summary: {last_line(ran.stdout)}", failed=True)
        if warnings:
            return Tried(torch, full, size, f"FAILED: {warnings[0]}", failed=True)
        # Some releases of torch do not compile on the newest Python that they are built for.
        refused = _NOT_COMPILED.search(ran.stdout)
        read = attempt(interpreter, "-c", READ, *([] if refused else ["compiled"]))
        if read.returncode:
            return Tried(torch, full, size, f"FAILED: {last_line(read.stdout)}", failed=True)
        doctor = attempt(interpreter.parent / "kinetoscope", "doctor")
        told = " ".join(doctor.stdout.split())
        if doctor.returncode or _TAKEN not in told or _PASSED not in told:
            return Tried(torch, full, size, f"FAILED: doctor: {told}", failed=True)
        remark = f"; torch itself warns: {of_torch[0].partition(': ')[2]}" if of_torch else ""
        remark += f"; torch itself says: {refused[1]}" if refused else ""
        return Tried(torch, full, size, f"recorded{remark}", failed=False)


def requirements(wheel: Path) -> list[str]:
    """Return what a wheel needs, without its extras."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return re.findall(r"^Requires-Dist: ([^;\n]+)$", archive.read(metadata).decode(), re.MULTILINE)


def last_line(printed: str) -> str:
    """Return the last line of what a program printed, as a cell of a table."""
    return (printed.strip().splitlines() or ["it printed nothing"])[-1].strip().replace("|", "/")


def page(wheels: list[Path], tried: list[Tried]) -> str:
    """Return the page with the wheels and what came of each pair."""
    user = "nobody" if os.geteuid() == 0 else "a user who is not root"
    day = datetime.now(UTC).date().isoformat()
    lines = ["| wheel | size | recorders |", "|---|---|---|"]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            recorders = [
                entry.file_size for entry in archive.infolist() if "/kinetoscope_recorder-" in entry.filename
            ]
        lines.append(
            f"| `{wheel.name}` | {wheel.stat().st_size / 1e6:.1f} MB | {len(recorders)}, together {sum(recorders) / 1e6:.1f} MB unpacked |"
        )
    lines += [
        "",
        "| torch | Python | recorder, unpacked | result |",
        "|---|---|---|---|",
        *(one.row() for one in tried),
    ]
    return (
        _HEADER.format(day=day, machine=f"{platform.system()} {platform.machine()}", user=user)
        + "\n".join(lines)
        + "\n"
    )


def bill_of_wheels(wheels: list[Path]) -> Path:
    """Write the bill of materials, which is inside the wheels, too, with their checksums and the time."""
    bill = bill_of_materials()
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid4()}"
    bill["metadata"]["timestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    bill["metadata"]["component"]["components"] = [
        {
            "type": "file",
            "name": wheel.name,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
        }
        for wheel in wheels
    ]
    path = DIST / f"kinetoscope-{bill['metadata']['component']['version']}.cdx.json"
    path.write_text(json.dumps(bill, indent=1) + "\n")
    return path


def main() -> None:
    """Build and try the wheels; fail if one does not record natively."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", nargs="+", required=True)
    parser.add_argument("--python", nargs="+", required=True)
    parser.add_argument("--no-try", action="store_true", help="build only")
    wanted = parser.parse_args()
    pythons = {python: version_of(python) for python in wanted.python if shutil.which(python)}
    for python in set(wanted.python) - set(pythons):
        print(f"skipped {python}: not found")
    shutil.rmtree(DIST, ignore_errors=True)
    wheels: dict[str, Path] = {}
    for stable in (False, True):
        of_wheel = [python for python, version in pythons.items() if (version >= _STABLE) == stable]
        if not of_wheel:
            continue
        recorders = ROOT / "build" / "recorders" / ("from-3.12" if stable else "3.11")
        command = [sys.executable, ROOT / "tools" / "build_recorders.py", "--output", recorders]
        subprocess.run([*command, "--torch", *wanted.torch, "--python", *of_wheel], check=True)
        current = [entry["library"] for entry in json.loads((recorders / "recorders.json").read_text())]
        with tempfile.TemporaryDirectory() as chosen:
            for library in current:
                shutil.copy2(recorders / library, chosen)
            made = build_wheel(of_wheel[0], Path(chosen))
        print(f"built {made.name} ({made.stat().st_size / 1e6:.1f} MB)")
        wheels |= dict.fromkeys(of_wheel, made)
    print(f"wrote {bill_of_wheels(sorted(set(wheels.values()))).name}")
    if wanted.no_try:
        return
    tried = []
    for torch in wanted.torch:
        # Beside the environments, so that uv links the files of this torch, and no longer than these: it is 5 GB and more.
        with tempfile.TemporaryDirectory() as cache:
            os.environ["UV_CACHE_DIR"] = cache
            for python, version in pythons.items():
                if not has_builds(torch, version):
                    print(f"torch {torch} has no builds for Python {version[0]}.{version[1]}")
                    continue
                try:
                    tried.append(try_wheel(wheels[python], python, torch))
                except subprocess.CalledProcessError as error:
                    tried.append(
                        Tried(torch, f"{version[0]}.{version[1]}", 0, f"FAILED: {error}", failed=True)
                    )
                print(tried[-1].row(), flush=True)
                (DIST / "wheels.md").write_text(page(sorted(set(wheels.values())), tried))
    sys.exit(any(one.failed for one in tried))


if __name__ == "__main__":
    main()
