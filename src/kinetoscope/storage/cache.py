"""The cache folder: compiled recorders, results of checks, the viewer's key."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """The cache folder: ``$KINETOSCOPE_CACHE``, else the user's cache folder."""
    if chosen := os.environ.get("KINETOSCOPE_CACHE"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "kinetoscope"
