"""The local server of the viewer."""

__all__ = ["serve"]
