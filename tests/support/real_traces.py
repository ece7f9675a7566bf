"""Real traces of accelerators that others recorded: a few in tests/traces, more in a folder outside of the repository."""

import os
from pathlib import Path

import pytest

from tests.support.effort import STRESS

IN_REPOSITORY = Path(__file__).resolve().parents[1] / "traces"
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "traces"
_OUTSIDE = Path(os.environ.get("KINETOSCOPE_SHARED_TRACES", _BESIDE))

# With NCCL, with RCCL, and of an older torch; the last two are in the repository.
_MOST_DIFFERENT = ("a100_nccl_rank3of8", "mi300_resnet_stack_rccl_rank0of8", "v100_resnet50_mem")


def real_traces() -> list[Path]:
    """Every trace file that is here, in order of name."""
    files = {
        path.relative_to(folder): path
        for folder in (_OUTSIDE, IN_REPOSITORY)
        for path in folder.glob("**/*.json.gz")
    }
    return [files[name] for name in sorted(files)]


def trace_name(path: Path) -> str:
    """The name by which `real_trace` knows a file."""
    folder = IN_REPOSITORY if path.is_relative_to(IN_REPOSITORY) else _OUTSIDE
    return str(path.relative_to(folder)).removesuffix(".json.gz")


def different_traces() -> list[Path]:
    """Those that differ most, for tests that take seconds with each; in `make stress` one of each program."""
    if STRESS:
        return [path for path in real_traces() if "rank-" not in path.name or path.name.startswith("rank-0.")]
    return [path for path in real_traces() if trace_name(path) in _MOST_DIFFERENT]


def real_trace(name: str) -> Path:
    """The file of a trace, by its name without suffix; skips the test where it is not here."""
    for folder in (IN_REPOSITORY, _OUTSIDE):
        if (path := folder / f"{name}.json.gz").is_file():
            return path
    pytest.skip(
        f"reads the real trace {name}, which is too large for the repository: "
        "put it into ../shared/traces or a folder that KINETOSCOPE_SHARED_TRACES names"
    )


def ranks_of_a_job() -> list[Path]:
    """The traces of eight ranks of one job, by rank."""
    return [IN_REPOSITORY / "dlrm_8rank" / f"rank-{rank}.json.gz" for rank in range(8)]
