"""SQL on the page."""

__all__ = ["queries"]
