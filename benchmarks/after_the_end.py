"""What comes after a recorded program ends: how soon the first line of the summary is there, and all of it, and the peak of memory.

torch.profiler's part is `key_averages().table()` at the end of the same program, with a tenth of the operators: it needs
gigabytes for all of them.
"""

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Result, run

FIRST_LINE_S, ALL_S, PEAK_BYTES = 1.0, 3.0, 1 << 30
OPERATORS_PER_STEP = 530
_MARK = "the program ends at"
PROGRAM = f"""
import sys
import time
import torch
from torch import nn

def train(steps):
    torch.set_num_threads(1)
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16))]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        rows = torch.randn(8, 16)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), rows[:, :4].argmax(dim=-1)).backward()
        optimizer.step()
    print("{_MARK}", time.time(), flush=True)

if sys.argv[2:] == ["torch"]:
    with torch.profiler.profile() as profiler:
        train(int(sys.argv[1]))
    print(profiler.key_averages().table(), flush=True)
else:
    train(int(sys.argv[1]))
"""


class AfterTheEnd(NamedTuple):
    """How long after the program's end the first line came, the last line, and the end of the process; and its peak of memory."""

    first_s: float
    all_s: float
    exit_s: float
    peak_bytes: int


def measured(command: list[str]) -> AfterTheEnd:
    """Run a command that prints when the program ended, and what was found out after it."""
    end_s, first_s, last_s = 0.0, 0.0, 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(_MARK):
                end_s = float(line.split()[-1])
            elif end_s and line.strip():
                last_s = time.time() - end_s
                first_s = first_s or last_s
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not end_s:
        raise RuntimeError(f"{command} ended with exit code {process.returncode}")
    return AfterTheEnd(first_s, last_s, time.time() - end_s, usage.ru_maxrss * 1024)


def measure(options: Namespace) -> list[Result]:
    """Measure ours, and torch.profiler once for comparison."""
    operators, repeats = (100_000, 1) if options.quick else (4_700_000, 3)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        recorded = [sys.executable, "-m", "kinetoscope", "run", "-o", f"{folder}/recorded.ktrace"]
        # The first run may compile the recorder.
        measured([*recorded, str(program), "2"])
        command = [*recorded, str(program), str(operators // OPERATORS_PER_STEP)]
        ours = [measured(command) for _ in range(repeats)]
        plain_s = measured([sys.executable, str(program), "50"]).exit_s
        theirs = measured([sys.executable, str(program), str(operators // 10 // OPERATORS_PER_STEP), "torch"])
    first_s, all_s, exit_s, peak_bytes = (min(values) for values in zip(*ours, strict=True))
    note = (
        f"torch.profiler's table of a tenth of the operators: {theirs.all_s:.1f} s and {theirs.peak_bytes / 2**20:,.0f} MiB, "
        f"{10 * theirs.all_s / all_s:.0f} times as long for each operator"
    )
    ends = f"the process ends {exit_s:.1f} s after the program; without recording {plain_s:.1f} s after it"
    what = f"{operators:,} operators"
    return [
        Result(
            f"first line after the end, {what}",
            f"<= {FIRST_LINE_S:g} s",
            f"{first_s:.2f} s",
            first_s <= FIRST_LINE_S,
        ),
        Result(
            f"the whole summary, {what}", f"<= {ALL_S:g} s", f"{all_s:.2f} s", all_s <= ALL_S, [ends, note]
        ),
        Result(
            f"peak of memory, {what}",
            f"<= {PEAK_BYTES >> 20} MiB",
            f"{peak_bytes / 2**20:,.0f} MiB",
            peak_bytes <= PEAK_BYTES,
        ),
    ]


if __name__ == "__main__":
    run(measure)
