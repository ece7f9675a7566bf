"""Jobs of one and two processes over gloo: on each rank both profilers tell the same of DDP, FSDP2 and collectives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.programs.distributed import DISTRIBUTED
from tests.support.ranks import run_in_ranks

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_both_profilers_record_the_same_on_every_rank(processes: int, tmp_path: Path) -> None:
    run_in_ranks(["-m", "tests.support.distributed_differential", str(tmp_path)], ROOT, processes)
    for rank in range(processes):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8"))
        assert set(found) == set(DISTRIBUTED)
        for name, told in found.items():
            assert told["unexplained"] == [], (name, rank)
            assert told["events"] > 5
