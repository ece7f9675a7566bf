"""Looking at traces: a local server for the viewer, and reports that are one file."""

__all__ = ["server"]
