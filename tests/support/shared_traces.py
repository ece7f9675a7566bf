"""Real traces of accelerators that lie beside the repository, recorded by others; see the README of their folder."""

import os
from pathlib import Path

import pytest

from tests.support.effort import STRESS

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "traces"
FOLDER = Path(os.environ.get("KINETOSCOPE_SHARED_TRACES", _BESIDE))

# With NCCL, with RCCL, and of an older torch.
_MOST_DIFFERENT = ("a100_nccl_rank3of8", "mi300_resnet_stack_rccl_rank0of8", "rtx2080ti_resnet")

needs_shared_traces = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="reads real traces; to enable: put them in ../shared/traces or name their folder in KINETOSCOPE_SHARED_TRACES",
)


def shared_traces() -> list[Path]:
    """Every trace file of the folder, in order of name; none where the folder is absent."""
    return sorted(FOLDER.glob("**/*.json.gz"))


def traces_of_a_kind() -> list[Path]:
    """Those of them that differ most, for tests that take seconds with each: of two makers, and of an older torch.

    In `make stress` all, but of the ranks of one run the first.
    """
    found = [path for path in shared_traces() if path.parent == FOLDER or path.name.startswith("rank-0.")]
    return found if STRESS else [path for path in found if path.name.split(".")[0] in _MOST_DIFFERENT]


def shared_trace(name: str) -> Path:
    """The file of one trace, by its name without suffix."""
    return FOLDER / f"{name}.json.gz"
