"""Real traces of accelerators that lie beside the repository, recorded by others; see the README of their folder."""

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "traces"
FOLDER = Path(os.environ.get("KINETOSCOPE_SHARED_TRACES", _BESIDE))

needs_shared_traces = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="reads real traces; to enable: put them in ../shared/traces or name their folder in KINETOSCOPE_SHARED_TRACES",
)


def shared_traces() -> list[Path]:
    """Every trace file of the folder, in order of name; none where the folder is absent."""
    return sorted(FOLDER.glob("**/*.json.gz"))


def traces_of_a_kind() -> list[Path]:
    """Those of them that differ: of the ranks of one run the first, for tests that take seconds with each."""
    return [path for path in shared_traces() if path.parent == FOLDER or path.name.startswith("rank-0.")]


def shared_trace(name: str) -> Path:
    """The file of one trace, by its name without suffix."""
    return FOLDER / f"{name}.json.gz"
