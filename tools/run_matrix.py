"""Run the recorder's tests and the differential tests on other releases of torch and Python.

For each pair, `uv` creates an environment in a temporary folder, which is removed afterwards, with torch from the package registry (a
CUDA build of about 5 GB), the tests' packages, and the wheel of this checkout. The results are written to docs/measured/matrix.md;
rows of pairs that were not run remain. Tests that fail are run once more, alone and with more time: those that fail again have failed.

    python tools/run_matrix.py [TORCH-PYTHON ...] [--only TEST] [--keep FOLDER]     such as 2.11.0-3.12; by default all pairs
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "measured" / "matrix.md"
# All supported releases of torch, and each Python at least once. 2.6 must be rejected.
PAIRS = (
    "2.6.0-3.12",
    "2.7.1-3.11",
    "2.8.0-3.13",
    "2.11.0-3.12",
    "2.13.0-3.14",
    "2.14.1-3.12",
    "2.15.0-3.13",
    "2.15.0-3.14",
)
TESTS = (
    "tests/collect/engines/test_kineto.py",
    "tests/collect/engines/test_native_python_calls.py",
    "tests/collect/engines/test_native_recompute.py",
    "tests/collect/recorder/test_recorder.py",
    "tests/collect/recorder/test_library.py",
    "tests/collect/recorder/test_recorder_collectives.py",
    "tests/collect/recorder/test_recorder_differential.py",
    "tests/collect/recorder/test_recorder_samples.py",
    "tests/collect/recorder/test_recorder_samples_soak.py",
    "tests/collect/session/test_session_arguments.py",
    "tests/collect/session/test_session_interrupts.py",
    "tests/collect/session/test_session_keywords.py",
    "tests/collect/sources/test_compiled_kernels.py",
    "tests/collect/sources/test_compiling.py",
    "tests/collect/sources/test_storages.py",
    "tests/collect/sources/test_torch_ranges.py",
    "tests/e2e/test_torch_profiler_programs.py",
    "tests/tables/host/test_python_time.py",
)
PACKAGES = (
    "click", "duckdb", "fsspec", "hypothesis", "numpy", "nvidia-ml-py", "pandas", "polars", "psutil", "pyarrow", "pytest",
    "pytest-timeout", "pytest-xdist", "rich", "setuptools",
)  # fmt: skip
BUILD = ("cmake", "nanobind", "ninja", "scikit-build-core")
REFUSED = "recording needs torch"
LIMIT_S = 1200
"""How long a test may take when it is run again."""
HEADER = """# Releases of torch and Python

Written by `make matrix` (`tools/run_matrix.py`), which needs `uv` and is not part of `make test`. Each torch is the registry's CUDA build for
Linux on x86-64, run without a device. The tests are those of the recorder, samples, compiled programs, the session and the Kineto engine, and the
differential tests, which run the same programs under torch.profiler and Kinetoscope and compare the results. Tests that fail are run
once more, alone and with more time; "failed" counts those that fail again.

| torch | Python | passed | failed | skipped | date | remarks |
| --- | --- | --- | --- | --- | --- | --- |
"""


def say(line: str) -> None:
    """Print a progress line."""
    print(f"==> {line}", flush=True)


def run(*command: str | Path, **more) -> subprocess.CompletedProcess:
    """Run a command and return the completed process with its output."""
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, **more)


def checked(*command: str | Path, **more) -> None:
    """Run a command; raise RuntimeError with its last line of output if it fails."""
    done = run(*command, **more)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).strip().splitlines()]
        wrong = [line for line in lines if re.match(r"(error|×|╰)", line)]
        raise RuntimeError((wrong or lines or ["failed"])[-1])


def constraints(folder: Path) -> Path:
    """Return the pinned versions, without those that are specific to one torch or Python."""
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith(("torch==", "setuptools==", "sympy=="))
    ]
    path = folder / "constraints.txt"
    path.write_text("\n".join(pins), encoding="utf-8")
    return path


def wheel_for(python: Path, folder: Path) -> Path:
    """Build the wheel for an interpreter, without prebuilt recorders: each environment compiles its own."""
    tag = (
        "cp311"
        if run(python, "-c", "import sys; print(sys.version_info[1])").stdout.strip() == "11"
        else "cp312"
    )
    found = list(folder.glob(f"*-{tag}-*.whl"))
    if not found:
        builder = folder / f"builder-{tag}"
        checked("uv", "venv", "--clear", "--python", python, builder)
        checked(
            "uv", "pip", "install", "--python", builder / "bin" / "python", "-c", constraints(folder), *BUILD
        )
        environment = {**os.environ, "PATH": f"{builder / 'bin'}:{os.environ['PATH']}"}
        checked(
            "uv", "build", "--wheel", "--no-build-isolation", "--python", builder / "bin" / "python", "-o", folder, ".",
            env=environment,
        )  # fmt: skip
        found = list(folder.glob(f"*-{tag}-*.whl"))
    return found[0]


def install(torch: str, python: str, place: Path, folder: Path) -> Path:
    """Create an environment if needed, install this checkout's wheel, and return the interpreter."""
    interpreter = place / "bin" / "python"
    into = ("uv", "pip", "install", "--python", interpreter)
    if not interpreter.is_file():
        try:
            checked("uv", "venv", "--clear", "--python", python, place)
        except RuntimeError as error:
            raise RuntimeError(f"Python {python} was not found, and uv could not install it") from error
        checked(*into, "-c", constraints(folder), f"torch=={torch}", *PACKAGES)
    checked(*into, "--no-deps", "--reinstall", wheel_for(interpreter, folder))
    return interpreter


def run_tests(
    interpreter: Path, environment: dict[str, str], folder: Path, output, *arguments: str
) -> tuple[int, dict[str, int], str]:
    """Run pytest and return its exit status, the counts of its summary, and its last line.

    A file opened for writing and reading takes the output, after what it contains.
    """
    begin, start = time.monotonic(), output.tell()
    done = subprocess.run(
        [interpreter, "-m", "pytest", "-q", "-o", f"cache_dir={folder / 'pytest'}", f"--basetemp={folder / 'tests'}", *arguments],
        check=False, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
    )  # fmt: skip
    say(f"{time.monotonic() - begin:.0f} s")
    output.seek(start)
    lines = output.read().strip().splitlines() or ["no output"]
    output.seek(0, os.SEEK_END)
    # Libraries may print more at exit.
    summary = [
        line for line in lines if re.search(r"\d+ (passed|failed|skipped|errors?)\b.* in [\d.]+s", line)
    ]
    if not summary:
        return done.returncode or 1, {}, lines[-1]
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)", summary[-1])
    return done.returncode, {word: int(number) for number, word in counts}, lines[-1]


def cached(folder: Path, name: str) -> list[str]:
    """Return the tests that pytest collected ("nodeids"), or those whose last run failed ("lastfailed")."""
    path = folder / "pytest" / "v" / "cache" / name
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []


def names(tests: list[str]) -> str:
    """Return the first names of tests without their files."""
    shown = [test.partition("::")[2].replace("|", "/") for test in tests]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def tested(interpreter: Path, folder: Path, log: Path, only: list[str] | None) -> tuple[int, int, int, str]:
    """Return the numbers of passed, failed and skipped tests, and remarks; only tests that fail twice have failed."""
    environment = {**os.environ, "KINETOSCOPE_CACHE": str(folder / "cache")}
    for name in ("PYTHONPATH", "PYTHONHOME", "CXX", "CC"):
        environment.pop(name, None)
    doctor = run(interpreter, "-m", "kinetoscope", "doctor", env=environment)
    if REFUSED in " ".join(doctor.stdout.split()):
        return 0, 0, 0, "rejected, as expected"
    tests = only or TESTS
    say(f"log: {log}")
    remarks = [f"only {', '.join(Path(name).name for name in only)}"] if only else []
    with log.open("w+", encoding="utf-8") as output:
        output.write(doctor.stdout)
        output.flush()
        shutil.rmtree(folder / "pytest", ignore_errors=True)
        code, counts, last = run_tests(interpreter, environment, folder, output, *tests)
        if code not in (0, 1) or not counts:
            return 0, 1, 0, f"pytest ended with {code}: {last[:160].replace('|', '/')}"
        skipped = counts.get("skipped", 0)
        failed = first = cached(folder, "lastfailed")
        if first:
            # Compilers and busy machines take longer than the limit that finds hanging tests.
            say(f"again: {len(first)} that failed")
            code, counts, last = run_tests(
                interpreter, environment, folder, output, "--last-failed", "-o", f"timeout={LIMIT_S}", *tests
            )
            if code not in (0, 1) or not counts:
                remarks.append(f"pytest, run again, ended with {code}: {last[:160].replace('|', '/')}")
            else:
                skipped += counts.get("skipped", 0)
                failed = cached(folder, "lastfailed")
    passed = [test for test in first if test not in failed]
    if passed:
        remarks.append(f"{len(passed)} failed at first and passed when run again alone: {names(passed)}")
    if failed:
        remarks.append(f"failed twice: {names(failed)}")
    return len(cached(folder, "nodeids")) - len(failed) - skipped, len(failed), skipped, "; ".join(remarks)


def rows() -> dict[tuple[str, str], str]:
    """Return the rows of the existing table."""
    if not TABLE.is_file():
        return {}
    found = re.findall(r"^\| (\d\S*) \| (\d\S*) \| .*$", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d", line)]
    return dict(zip(found, lines, strict=True))


def note(torch: str, python: str, cells: tuple[object, ...]) -> None:
    """Write one row, keeping the others."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    *numbers, remarks = cells
    table = rows() | {
        (torch, python): f"| {' | '.join(map(str, (torch, python, *numbers, today, remarks)))} |"
    }
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    order = sorted(table, key=lambda pair: [[int(number) for number in part.split(".")] for part in pair])
    TABLE.write_text(HEADER + "".join(table[pair] + "\n" for pair in order), encoding="utf-8")


def main() -> int:
    """Run the pairs; return 1 if any test failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", nargs="*", default=PAIRS)
    parser.add_argument(
        "--keep", type=Path, help="create or reuse the environments in this folder, and do not remove them"
    )
    parser.add_argument(
        "--only", action="append", metavar="TEST", help="run only this test file (repeatable)"
    )
    options = parser.parse_args()
    if shutil.which("uv") is None:
        print("make matrix needs `uv`: pip install uv", file=sys.stderr)
        return 2
    bad = 0
    with tempfile.TemporaryDirectory(prefix="kinetoscope-matrix-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for older in folder.glob("*.whl"):
            older.unlink()
        for pair in options.pairs:
            torch, _, python = pair.partition("-")
            place = folder / f"t{torch}-py{python}"
            say(f"torch {torch}, Python {python}")
            try:
                interpreter = install(torch, python, place, folder)
                cells = tested(interpreter, folder, folder / f"{pair}.log", options.only)
            except RuntimeError as error:
                say(f"not run: {error}")
                note(torch, python, ("", "", "", f"not run: {str(error)[:160].replace('|', '/')}"))
                continue
            finally:
                if options.keep is None:
                    shutil.rmtree(place, ignore_errors=True)
            say(f"{cells[0]} passed, {cells[1]} failed, {cells[2]} skipped {cells[3]}")
            bad += cells[1]
            note(torch, python, cells)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
