"""Build the wheels to publish, with recorders for many torch releases, and their bill of materials.

One wheel is for Python 3.12 and later, the other for 3.11, whose stable ABI lacks functions that the compiled module needs.
Each wheel is then installed without a compiler, for each available Python and torch, and must record with the native engine,
also what `torch.compile` compiles meanwhile; `kinetoscope doctor` must say that the recorder is the wheel's.

    python tools/build_wheels.py --torch 2.12 2.13 --python python3.11 python3.12

writes the wheels, `kinetoscope-VERSION.cdx.json` (CycloneDX), and the results, `wheels.md`, to dist/.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from bill_of_materials import bill_of_materials

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
_STABLE = (3, 12)

# Runs in the environment with the wheel, without a compiler and without previously compiled recorders.
TRY = """
import subprocess, sys, torch, kinetoscope
from kinetoscope.collect.engines.native import native_engine_status
with kinetoscope.profile(engine="native", with_stack=True, record_shapes=True, profile_memory=True) as prof:
    torch.nn.Linear(8, 8)(torch.randn(4, 8)).sum().backward()
names = set(prof.trace.table("spans").column("name").to_pylist())
model = torch.compile(torch.nn.Linear(8, 8), backend="aot_eager")
with kinetoscope.profile(engine="native") as compiling:
    for size in (2, 3):
        model(torch.randn(size, 8)).sum().backward()
(first, *_) = compiling.trace.table("compiles").to_pylist()
assert (first["compile_id"], first["recompile"], first["stage"]) == ("0/0", False, "frame"), first
assert {"aten::addmm", "aten::sum", "autograd::engine::evaluate_function: AddmmBackward0"} <= names, names
details = native_engine_status().details
assert details["taken"] == "prebuilt, from the wheel", details
passed = all(value == "ok" for key, value in details.items() if key.startswith("self-test"))
doctor = subprocess.run([sys.executable, "-m", "kinetoscope", "doctor"], capture_output=True, text=True, check=True)
assert details["taken"] in " ".join(doctor.stdout.split()), doctor.stdout
print(torch.__version__, passed)
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
        subprocess.run(["uv", "venv", "-q", "--python", python, folder], check=True)
        subprocess.run(["uv", "pip", "install", "-q", "--python", made, *packages], check=True)
        return made
    subprocess.run([python, "-m", "venv", folder], check=True)
    if packages:
        subprocess.run([made, "-m", "pip", "install", "-q", *packages], check=True)
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
            check=True, env={**os.environ, "PIP_CONSTRAINT": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
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


def try_wheel(wheel: Path, python: str, torch: str) -> str:
    """Install a wheel and record without a compiler.

    Returns:
        The version of torch, and the result of the recorder's self-test.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        interpreter = environment(
            scratch / "venv", python, str(wheel), f"torch=={torch}.*", "numpy", fast=True
        )
        bare = {"PATH": str(interpreter.parent), "HOME": name, "KINETOSCOPE_CACHE": str(scratch / "cache")}
        done = subprocess.run(
            [interpreter, "-c", TRY], check=False, capture_output=True, text=True, env=bare, cwd=scratch
        )
        if done.returncode != 0:
            return f"FAILED: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        if any((scratch / "cache").glob("*.so")):
            return "FAILED: the recorder was compiled"
        version, passed = done.stdout.split()
        return f"{version}: {'self-test passed' if passed == 'True' else 'self-test partly passed'}"


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
        current = {entry["library"] for entry in json.loads((recorders / "recorders.json").read_text())}
        for library in recorders.glob("*.so"):
            if library.name not in current:
                library.unlink()
        made = build_wheel(of_wheel[0], recorders)
        print(f"built {made.name} ({made.stat().st_size / 1e6:.1f} MB)")
        wheels |= dict.fromkeys(of_wheel, made)
    print(f"wrote {bill_of_wheels(sorted(set(wheels.values()))).name}")
    if wanted.no_try:
        return
    rows, failed = ["| Python | torch | result |", "|---|---|---|"], False
    for python, version in pythons.items():
        for torch in wanted.torch:
            result = try_wheel(wheels[python], python, torch)
            failed |= result.startswith("FAILED")
            rows.append(f"| {version[0]}.{version[1]} | {torch} | {result} |")
            print(rows[-1], flush=True)
    (DIST / "wheels.md").write_text("\n".join(rows) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
