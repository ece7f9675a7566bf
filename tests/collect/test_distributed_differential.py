"""Jobs of one and two processes over gloo: on each rank both profilers tell the same of DDP, FSDP2 and collectives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs.distributed import DISTRIBUTED

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_both_tell_the_same_on_every_rank(processes: int, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
    job = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"),
            *("-m", "tests.support.distributed_differential", str(tmp_path)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert job.returncode == 0, job.stderr[-3000:]
    for rank in range(processes):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8"))
        assert set(found) == set(DISTRIBUTED)
        for name, told in found.items():
            assert told["unexplained"] == [], (name, rank)
            assert told["events"] > 5
