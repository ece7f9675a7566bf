"""Real distributed jobs of a few processes on this machine, over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

BEGIN = """
import json, os, sys, warnings
from pathlib import Path
import torch
import torch.distributed as dist
import kinetoscope
warnings.simplefilter("ignore", FutureWarning)
CPU = [kinetoscope.ProfilerActivity.CPU]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
"""
END = """
dist.barrier()
dist.destroy_process_group()
"""


def run_ranks(program: str, folder: Path, ranks: int = 2) -> None:
    """Runs a program in every rank of a job, with `rank` and `ranks` set, in a folder; fails if one of them fails.

    The launcher takes a free port itself.
    """
    script = folder / "job.py"
    script.write_text(BEGIN + textwrap.dedent(program) + END)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "OFF"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
