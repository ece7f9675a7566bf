"""The folders that file names in a trace are relative to."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

import torch
import torch.distributed


def import_folders() -> list[str]:
    """Return the folders whose names torch removes from file names, in reverse order, so that subfolders come first."""
    of_torch = str(Path(torch.__file__).parent.parent)
    folders = {*site.getsitepackages(), *sys.path, site.getuserbase(), site.getusersitepackages(), of_torch}
    return sorted({os.path.abspath(folder) for folder in folders}, reverse=True)
