"""The local server of the viewer, and reports, which answer as it does from one file."""

__all__ = ["report", "serve"]
