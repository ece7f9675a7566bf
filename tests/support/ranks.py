"""Real distributed jobs of a few processes on this machine, over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tests.support import warm_python

BEGIN = """
import json, os, sys, warnings
from pathlib import Path
import torch
import torch.distributed as dist
import kinetoscope
warnings.simplefilter("ignore", FutureWarning)
torch.set_num_threads(1)
CPU = [kinetoscope.ProfilerActivity.CPU]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
"""
END = """
dist.barrier()
dist.destroy_process_group()
"""


def run_ranks(program: str, folder: Path, ranks: int = 2, exit_codes: Sequence[int] | None = None) -> None:
    """Runs a program in every rank of a job, with `rank` and `ranks` set, in a folder; fails if one of them fails."""
    run_in_ranks([_script(program, folder)], folder, ranks, exit_codes)


def run_in_ranks(
    words: Sequence[str | os.PathLike[str]], folder: Path, ranks: int, exit_codes: Sequence[int] | None = None
) -> None:
    """Runs `python WORDS...` in every rank of a job, in a folder; fails if one of them ends with another exit code than it should.

    The ranks have the environment that torchrun gives them, and this process keeps their store as torchrun does.
    """
    from torch.distributed import TCPStore

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    of_job = {
        **os.environ,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "job",
    }
    done = warm_python.run_together(
        [
            (words, {**of_job, "RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)})
            for rank in range(ranks)
        ],
        cwd=folder,
    )
    for rank, code in zip(done, exit_codes or [0] * ranks, strict=True):
        assert rank.returncode == code, rank.stderr[-4000:]


def run_ranks_by_torchrun(program: str, folder: Path, ranks: int = 2) -> None:
    """The same by torchrun, for what depends on it; the launcher takes a free port itself."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
        str(_script(program, folder)),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "OFF"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def _script(program: str, folder: Path) -> Path:
    """Writes what each rank runs."""
    script = folder / "job.py"
    script.write_text(BEGIN + textwrap.dedent(program) + END)
    return script
