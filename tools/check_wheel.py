"""Build the wheel as `pip install .` does, isolated, and try the installed one without torch.

The isolated build has no torch, and only the build requirements that the project states. It compiles nothing, since all was
compiled for the installed wheel: both must contain the same files, apart from compiled ones.

This environment records a trace. A second environment under build/, with only the wheel and its dependencies, reads,
queries and writes the trace; recording there must fail with an error that says what is missing.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "wheel-test"

RECORD = """
import sys, torch, kinetoscope
with kinetoscope.profile() as prof:
    torch.nn.Linear(8, 8)(torch.randn(4, 8)).sum().backward()
prof.trace.save(sys.argv[1])
"""

READ = """
import pathlib, sys, kinetoscope
folder = pathlib.Path(sys.argv[1])
trace = kinetoscope.open(folder / "run.ktrace")
names = set(trace.table("spans").column("name").to_pylist())
assert {"aten::addmm", "aten::sum"} <= names, names
assert trace.table("ops").num_rows > 0
trace.save(folder / "again.parquet")
trace.save(folder / "again.json")
assert "torch" not in sys.modules
try:
    kinetoscope.profile
except kinetoscope.MissingDependencyError as error:
    assert "pip install torch" in str(error)
else:
    raise SystemExit("recording did not fail without torch")
print("ok: kinetoscope", kinetoscope.__version__, "reads, queries and writes without torch")
"""


def check_bill_of_materials(wheel: Path) -> None:
    """Fail unless the wheel has its bill of materials, with everything that it contains and needs."""
    with zipfile.ZipFile(wheel) as archive:
        (place,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        bill = json.loads(archive.read(place))
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        needed = re.findall(
            r"^Requires-Dist: ([\w.-]+)[^;\n]*$", archive.read(metadata).decode(), re.MULTILINE
        )
    names = {one["name"] for one in bill["components"]}
    missing = {*needed, "nanobind", "robin_map", "preact"} - names
    version = bill["metadata"]["component"]["version"]
    if bill["bomFormat"] != "CycloneDX" or version != wheel.name.split("-")[1] or not needed or missing:
        raise SystemExit(f"{place} is of {version}, and lacks {missing or 'nothing'} of {needed}")
    print(f"ok: {place} names {len(names)} libraries")


def contents(wheel: Path) -> set[str]:
    """The names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def run(*command: str | Path) -> None:
    """Run a command from outside the source tree, so that only installed packages can be imported."""
    environment = {
        **os.environ,
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    subprocess.run([str(word) for word in command], check=True, cwd=BUILD, env=environment)


def main() -> None:
    """Build, install and try the wheel."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    (wheel,) = (ROOT / "build" / "installed").glob("kinetoscope-*.whl")
    # A separate build folder: isolated and normal builds would invalidate each other's files.
    settings = [
        f"build-dir={ROOT / 'build' / 'isolated'}",
        "build.targets=help",
        "install.components=Unspecified",
    ]
    options = [word for setting in settings for word in ("-C", setting)]
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *options, "-w", BUILD, ROOT)
    (isolated,) = BUILD.glob("kinetoscope-*.whl")
    differing = {name for name in contents(wheel) ^ contents(isolated) if not name.endswith(".so")}
    if isolated.name != wheel.name or differing:
        raise SystemExit(
            f"the isolated build makes {isolated.name}, and differs in {sorted(differing)} from {wheel.name}"
        )
    print(f"ok: an isolated build makes {wheel.name} ({wheel.stat().st_size / 1e3:.0f} kB)")
    check_bill_of_materials(wheel)
    run(sys.executable, "-m", "venv", "--without-pip", BUILD / "venv")
    python = BUILD / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile", wheel)
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-c", RECORD, Path(folder) / "run.ktrace")
        run(python, "-c", READ, folder)
        run(python.with_name("kinetoscope"), "info", Path(folder) / "run.ktrace")


if __name__ == "__main__":
    main()
