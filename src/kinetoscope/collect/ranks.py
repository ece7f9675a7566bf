"""Gather the summaries of all ranks at rank 0, without using the job's collectives."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed

from kinetoscope._errors import checked_seconds
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.process.job_store import JobStore, is_distributed, wait_for_key
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.model import units

if TYPE_CHECKING:
    from kinetoscope.summaries.job import Job
    from kinetoscope.trace import Trace


def gather_summaries(
    trace: Trace,
    output: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    timeout_s: float = 60.0,
) -> Job | None:
    """Gather the summaries of all ranks at rank 0, which writes them to a folder.

    Every rank must call it, and equally often. Each reduces its own trace and sends the summary, at most a megabyte, through the
    key-value store of the job, over a separate connection. Only rank 0 waits for the others, and no longer than `timeout_s`: it
    warns which ranks are missing, and continues without them. A failure of the store is a warning.

    Args:
        trace: The trace of this rank.
        output: The folder, which rank 0 makes if needed.
        source: Where the whole trace of this rank is saved, for links from summaries to traces.
        timeout_s: How many seconds rank 0 waits for the other ranks; 0 uses the summaries that have arrived already.

    Returns:
        The job of the summaries that arrived, on rank 0 or in a process without a process group; None on other ranks.

    Raises:
        ArgumentError: `timeout_s` is not a number of seconds.
        OSError: Rank 0 cannot write a file.
    """
    checked_seconds("timeout_s", timeout_s, or_zero="to take what is there")
    import_aside()
    from kinetoscope.storage.atomic_write import write_atomically
    from kinetoscope.summaries.job import Job
    from kinetoscope.summaries.summary import file_name, file_of, summary_of

    content = file_of(summary_of(trace, "" if source is None else os.path.abspath(source)))
    rank = torch.distributed.get_rank() if is_distributed() else 0
    gathered = {rank: content}
    if is_distributed():
        try:
            gathered |= _exchanged(rank, content, timeout_s)
        except Exception as error:  # noqa: BLE001  (whatever fails, the job must go on)
            _STORE.forget()
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            warn_user(f"the summaries of the ranks were not gathered: {reason.rstrip('.')}.")
    if rank != 0:
        return None
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for member, summary in sorted(gathered.items()):
        paths.append(folder / file_name(member))
        write_atomically(paths[-1], summary)
    return Job.open(*paths)


_STORE = JobStore("summaries")


def _exchanged(rank: int, content: bytes, timeout_s: float) -> dict[int, bytes]:
    store = _STORE.connect(max(timeout_s, 1.0))
    # The n-th calls of all ranks belong together.
    number = store.add(f"times/{rank}", 1)
    if rank != 0:
        store.set(f"{number}/{rank}", content)
        return {}
    until_ns = time.monotonic_ns() + int(timeout_s * 1e9)
    summaries, missing = {}, []
    for other in range(1, torch.distributed.get_world_size()):
        key = f"{number}/{other}"
        if wait_for_key(store, key, until_ns):
            summaries[other] = store.get(key)
            store.delete_key(key)
        else:
            missing.append(other)
    if missing:
        warn_user(
            f"no summary arrived within {timeout_s:g} s from {units.noun(len(missing), 'rank')} {units.ranges(missing)}: "
            f"{len(summaries) + 1:,} of {torch.distributed.get_world_size():,} were gathered."
        )
    return summaries
