"""The rank of this process and its process group, and paths that no other rank has."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import torch
import torch.distributed

RANK_PLACE = "{rank}"


def process_group() -> dict[str, str]:
    """The key `distributedInfo` when a process group is initialised, else nothing."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return {}
    backend = distributed.get_backend()
    facts: dict[str, object] = {
        "backend": backend,
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
        "pg_count": distributed.get_pg_count(),
        "pg_config": distributed.distributed_c10d._get_all_pg_configs(),
    }
    if backend == "nccl":
        facts["nccl_version"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {"distributedInfo": json.dumps(facts, default=str)}


def own_rank() -> int | None:
    """The rank of this process: in its process group or, before there is one, as its launcher set it; else None."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isascii() and rank.isdecimal() else None


def rank_info() -> dict[str, str]:
    """The keys of the rank that recorded: `rank`, and `distributedInfo` in a process group."""
    rank = own_rank()
    return process_group() | ({} if rank is None else {"rank": json.dumps(rank)})


def ranked(path: Path) -> Path:
    """A path that no other rank of this job has: `{rank}` in its name is filled in, else `.rank3` goes before the suffix.

    Without a rank, or with only one, the path stays as it is, with 0 for `{rank}`. So does a name that
    ends in the rank already.
    """
    rank = own_rank()
    if RANK_PLACE in str(path):
        return rank_filled_in(path)
    if rank is None or rank_count() < 2 or re.search(rf"(?<![0-9A-Za-z])rank{rank}$", path.stem):
        return path
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def rank_filled_in(path: Path) -> Path:
    """The path with `{rank}` replaced by the rank of this process, or 0."""
    return Path(str(path).replace(RANK_PLACE, str(own_rank() or 0)))


def numbered(path: Path, number: int) -> Path:
    """The path of a cycle: of the first as it is, of later ones with their number before the suffix."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}") if number else path


def rank_count() -> int:
    """The number of ranks; 1 outside a distributed job."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isascii() and size.isdecimal() else 1
