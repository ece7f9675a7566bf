"""Control of a job that was left on, over a Unix socket that only its user can reach."""

__all__ = ["client"]
