"""Run test files of other projects with torch.profiler and with Kinetoscope installed in its place, and compare.

    python tools/run_upstream_tests.py [--engine ENGINE] [--pytest ARGUMENT]... FILE...

The files are passed by path; none are in this repository. Each file is run with pytest in separate processes, once with the
installed torch alone and once after `kinetoscope.install(engine=ENGINE)`. Only tests that pass with torch alone count; those
that fail with Kinetoscope are listed. This needs pytest-xdist, which turns a crash of the interpreter into one failed test.
The exit code is 1 if fewer than 98 % of the tests pass.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

NEEDED = 0.98
_ENGINE = "KINETOSCOPE_UPSTREAM_ENGINE"
# Loaded by pytest before it imports the tests.
_PLUGIN = f"""
import os
import torch.profiler
import kinetoscope
kinetoscope.install(engine=os.environ[{_ENGINE!r}])
"""


def outcomes(file: Path, engine: str | None, arguments: list[str]) -> dict[str, str]:
    """Run a file and return the outcome of each test: `passed`, `skipped`, or the first line of its failure.

    Args:
        file: The test file; pytest runs in its folder.
        engine: The engine to install, None for torch alone.
        arguments: Additional arguments for pytest.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        environment = os.environ.copy()
        plugin = []
        if engine is not None:
            Path(folder, "kinetoscope_in_place.py").write_text(_PLUGIN, encoding="utf-8")
            environment[_ENGINE] = engine
            path = [folder, environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
            plugin = ["-p", "kinetoscope_in_place"]
        command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", *plugin]
        command += [f"--junitxml={report}", *arguments, file.name]
        done = subprocess.run(
            command, cwd=file.parent, env=environment, capture_output=True, text=True, check=False
        )
        if not report.is_file():
            sys.exit(f"{file}: pytest wrote no report.\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return {
            f"{case.get('classname')}.{case.get('name')}": _outcome(case)
            for case in ElementTree.parse(report).iter("testcase")  # noqa: S314  (pytest wrote it just now)
        }


def _outcome(case: ElementTree.Element) -> str:
    """Return the outcome of one test."""
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            return (found.get("message") or kind).strip().split("\n")[0]
    return "skipped" if case.find("skipped") is not None else "passed"


def main() -> int:
    """Run all files, print the table and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--engine", default="auto", choices=("auto", "native", "kineto"))
    parser.add_argument("--pytest", action="append", default=[], metavar="ARGUMENT")
    options = parser.parse_args()
    passed_of_all = counted_of_all = 0
    failures: list[str] = []
    print(f"{'file':40} {'tests':>6} {'pass with torch':>16} {'with Kinetoscope':>17}")
    for file in options.files:
        theirs = outcomes(file.resolve(), None, options.pytest)
        ours = outcomes(file.resolve(), options.engine, options.pytest)
        counted = [name for name, outcome in theirs.items() if outcome == "passed"]
        failed = {name: ours.get(name, "was not run") for name in counted if ours.get(name) != "passed"}
        passed = len(counted) - len(failed)
        print(f"{file.name:40} {len(theirs):6} {len(counted):16} {passed:17}", flush=True)
        failures += [f"{name}: {outcome}" for name, outcome in failed.items()]
        passed_of_all, counted_of_all = passed_of_all + passed, counted_of_all + len(counted)
    share = passed_of_all / counted_of_all if counted_of_all else 0.0
    print(f"{passed_of_all} of {counted_of_all} ({100 * share:.1f} %) with engine={options.engine!r}")
    for failure in failures:
        print(f"  {failure}")
    return 0 if share >= NEEDED else 1


if __name__ == "__main__":
    sys.exit(main())
