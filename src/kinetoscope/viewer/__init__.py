"""The viewer: a local server, and reports, which are single HTML files."""

__all__ = ["server"]
