"""Memory snapshots that torch writes on a device."""

import torch

import kinetoscope


def test_the_peak_is_torchs_and_its_lines_are_the_programs(cuda, tmp_path):
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    torch.cuda.reset_peak_memory_stats()
    try:
        kept = [torch.ones(1 << 22, device=cuda).requires_grad_() for _ in range(3)]
        sum(one.mul(2).sum() for one in kept).backward()
        torch.cuda.synchronize()
        path = tmp_path / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    with kinetoscope.open(path) as trace:
        rows = trace.table("memory_peak").to_pylist()
    assert sum(row["bytes"] for row in rows) == torch.cuda.max_memory_allocated()
    largest = max((row for row in rows if row["line"]), key=lambda row: row["bytes"])
    assert "test_memory_snapshots.py" in largest["line"]
