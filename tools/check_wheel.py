"""Builds the wheel as `pip install .` does, isolated, and tries it where there is no torch.

A trace is recorded with the environment that runs this script. A second environment, made under build/, gets the wheel
and its dependencies only; there the trace is opened, asked and written again, and recording must say what is missing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
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
    raise SystemExit("recording should have asked for torch")
print("ok: kinetoscope", kinetoscope.__version__, "reads, asks and writes without torch")
"""


def run(*command: str | Path) -> None:
    """Runs one command from outside the source tree, so that only what is installed can be imported."""
    environment = {
        **os.environ,
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    subprocess.run([str(word) for word in command], check=True, cwd=BUILD, env=environment)


def main() -> None:
    """Builds, installs and tries."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    # A build folder of its own: sharing the other one would make each build start afresh.
    where = f"build-dir={ROOT / 'build' / 'isolated'}"
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-C", where, "-w", BUILD, ROOT)
    (wheel,) = BUILD.glob("kinetoscope-*.whl")
    print(f"built {wheel.name} ({wheel.stat().st_size / 1e3:.0f} kB)")
    run(sys.executable, "-m", "venv", BUILD / "venv")
    python = BUILD / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel)
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-c", RECORD, Path(folder) / "run.ktrace")
        run(python, "-c", READ, folder)
        run(python.with_name("kinetoscope"), "info", Path(folder) / "run.ktrace")


if __name__ == "__main__":
    main()
