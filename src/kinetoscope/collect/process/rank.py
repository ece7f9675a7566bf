"""The rank of this process and its process group, and paths that contain the rank."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import torch
import torch.distributed

RANK_PLACE = "{rank}"


def in_process_group() -> bool:
    """Whether a process group is initialized."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def process_group() -> dict[str, str]:
    """Return the metadata `distributedInfo` as a JSON text; empty unless a process group is initialized."""
    if not in_process_group():
        return {}
    distributed = torch.distributed
    backend = distributed.get_backend()
    facts: dict[str, object] = {
        "backend": backend,
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
        "pg_count": distributed.get_pg_count(),
        "pg_config": distributed.distributed_c10d._get_all_pg_configs(),  # noqa: SLF001  (torch's own)
    }
    if backend == "nccl":
        facts["nccl_version"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {"distributedInfo": json.dumps(facts, default=str)}


def own_rank() -> int | None:
    """Return the rank of this process: of its process group or, before that is initialized, of `RANK`; else None."""
    return int(torch.distributed.get_rank()) if in_process_group() else _from_launcher("RANK")


def rank_info() -> dict[str, str]:
    """Return the metadata `rank` and, in a process group, `distributedInfo`, as JSON texts."""
    rank = own_rank()
    return process_group() | ({} if rank is None else {"rank": json.dumps(rank)})


def ranked(path: Path) -> Path:
    """Make a path unique among the ranks of the job: replace `{rank}` in it, or else insert `.rank3` before the suffix.

    Outside a distributed job, or with only one rank, `{rank}` becomes 0 and nothing is inserted. Nor is it if the name already
    ends in the rank.
    """
    rank = own_rank()
    if RANK_PLACE in str(path):
        return rank_filled_in(path)
    if rank is None or rank_count() < 2 or re.search(rf"(?<![0-9A-Za-z])rank{rank}$", path.stem):
        return path
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def rank_filled_in(path: Path) -> Path:
    """Replace `{rank}` in a path by the rank of this process, or 0 without one."""
    return Path(str(path).replace(RANK_PLACE, str(own_rank() or 0)))


def numbered(path: Path, number: int) -> Path:
    """Return the path of a cycle: unchanged for cycle 0, with the number before the suffix for later cycles."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}") if number else path


def rank_count() -> int:
    """Return the number of ranks; 1 outside a distributed job."""
    if in_process_group():
        return int(torch.distributed.get_world_size())
    size = _from_launcher("WORLD_SIZE")
    return 1 if size is None else size


def _from_launcher(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdecimal() else None
