"""Run benchmarks in separate processes, and print a table of their results and targets."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Result, machine

SCRIPTS = (
    "collecting_step",
    "processor_time",
    "everything_on",
    "flag_costs",
    "paused_step",
    "nested_session",
    "deep_steps",
    "leave_on",
    "step_switch",
    "left_off",
    "last_rings",
    "hangs",
    "compiled_programs",
    "samples",
    "stop_cost",
    "table_cost",
    "kineto_engine",
    "memory_cost",
    "memory_start",
    "chrome_export",
    "listed_calls",
    "demo_overhead",
    "overhead_estimate",
    "python_calls",
    "data_loading",
    "child_processes",
    "reading",
    "ktrace",
    "findings",
    "blind_programs",
    "unlisted_programs",
    "healthy_networks",
    "compare",
    "gate",
    "stragglers",
    "summaries",
    "trainers",
    "requests",
    "start_up",
    "after_the_end",
    "viewing",
    "viewer_pages",
)


def results_of(script: str, folder: Path, arguments: list[str]) -> list[Result]:
    """Run one script without capturing its output, and return the results that it writes."""
    target = folder / f"{script}.json"
    subprocess.run([sys.executable, "-m", f"benchmarks.{script}", "--json", target, *arguments], check=True)
    return [Result(**row) for row in json.loads(target.read_text(encoding="utf-8"))]


def main() -> None:
    """Run the scripts named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "scripts", nargs="*", metavar="SCRIPT", help=f"any of: {', '.join(SCRIPTS)} (default: all)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="use tiny sizes as a smoke test; the results are meaningless"
    )
    options = parser.parse_args()
    if unknown := set(options.scripts) - set(SCRIPTS):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}: choose from {', '.join(SCRIPTS)}")
    table = Table(
        "benchmark",
        "target",
        "measured",
        "verdict",
        title="Kinetoscope and torch.profiler",
        caption=machine(),
    )
    with tempfile.TemporaryDirectory() as folder:
        for number, script in enumerate(options.scripts or SCRIPTS, 1):
            print(f"\n[{number}/{len(options.scripts or SCRIPTS)}] {script}", flush=True)
            for result in results_of(script, Path(folder), ["--quick"] if options.quick else []):
                table.add_row(result.what, result.target, result.measured, result.verdict)
    console = Console()
    console.print()
    console.print(table)
    if options.quick:
        console.print("These sizes are only a smoke test; the results are meaningless.")


if __name__ == "__main__":
    main()
