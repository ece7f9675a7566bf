"""Control of a job that was left on: a socket or a port, answered by a process beside the job, also while the job hangs."""

__all__ = ["client"]
