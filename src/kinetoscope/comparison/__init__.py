"""Two runs, or a run and its limits: what differs, by how much, and whether that fails a build."""

__all__ = ["budget", "history", "kinds", "limits", "measures", "result", "runs", "verdict"]
