"""The cached calibration of this machine, for the metadata of recordings: one small file for a processor, a torch and a number of threads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from kinetoscope.collect.process.machine import processor_name
from kinetoscope.storage.atomic_write import write_atomically
from kinetoscope.storage.cache import cache_directory


def calibration_file() -> Path:
    """The file for this processor, torch and its present number of threads."""
    key = f"{processor_name()}|{torch.__version__}|{torch.get_num_threads()}"
    return cache_directory() / f"calibration-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def calibration() -> dict[str, str]:
    """The metadata with the cached calibration, as JSON text by key; empty without one. Reads the file once for a process."""
    text = _read(calibration_file())
    return {"attainable": text} if text else {}


def store_calibration(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Path:
    """Cache a calibration: for each sort of work pairs of a size and the nanoseconds that it takes at least.

    Raises:
        OSError: The file cannot be written.
    """
    path = calibration_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(curves).encode())
    _read.cache_clear()
    return path


@cache
def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        return text if isinstance(json.loads(text), dict) else ""
    except (OSError, ValueError):
        return ""
