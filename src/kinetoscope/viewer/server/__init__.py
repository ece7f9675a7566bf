"""The local server of the viewer, and reports, which contain its responses in a single file."""

__all__ = ["report", "serve"]
