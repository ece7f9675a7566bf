"""The flight recorder: always on within a budget, so that the last steps before a failure are there without having been asked for."""

__all__ = [
    "control", "environment", "flight", "jobs", "last", "own_threads", "settings", "slow_ranks", "triggers",
]  # fmt: skip
