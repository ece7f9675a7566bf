"""The most memory that reading a Chrome trace takes, as a share of its text, for files with little text for each event."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.dense_traces import KINDS, RANDOM_ARGUMENTS, write_dense_trace
from tests.support.effort import STRESS

ROOT = Path(__file__).parents[3]
# So many that what two threads keep between them, which is not always as much, is little beside it.
EVENTS = 400_000
# Random digits stay text, in memory and in a `.ktrace`.
# Those that have the most for each byte; writing and reading any of them takes four seconds.
FEW = ("operators without arguments", "begins and ends", RANDOM_ARGUMENTS)
MOST = dict.fromkeys(KINDS, 0.2) | {RANDOM_ARGUMENTS: 0.45}


@pytest.fixture(scope="module", params=KINDS if STRESS else FEW)
def dense_file(request, tmp_path_factory):
    """A file of each kind; its text also compressed."""
    path = tmp_path_factory.mktemp("dense") / "dense.json"
    write_dense_trace(request.param, EVENTS, path)
    packed = path.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), 1))
    yield request.param, path, packed
    path.unlink()
    packed.unlink()


@pytest.mark.parametrize("which", [0, 1], ids=["plain", "gzip"])
def test_reading_takes_a_small_part_of_the_text(dense_file, which):
    kind, *files = dense_file
    # A new Python: the memory that a fork has already would be used again.
    command = [sys.executable, "-m", "benchmarks.one_reading", "ours", str(files[which])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    peak_bytes = json.loads(done.stdout.splitlines()[-1])["peak_bytes"]
    assert 0 < peak_bytes <= MOST[kind] * files[0].stat().st_size
