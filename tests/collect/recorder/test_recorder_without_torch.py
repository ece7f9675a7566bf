"""The recorder's calls on Pythons for which there may be no torch here: built without it, and tried by a script."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "calls_without_torch.py"
ASK = (
    "import os, sys, sysconfig; "
    "print(*sys.version_info[:2], os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
)


def installed(version: tuple[int, int]) -> list[str]:
    """Where a Python of that version may be: on the path, or kept by pyenv."""
    name = f"python{version[0]}.{version[1]}"
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"*/bin/{name}")
    found = shutil.which(name)
    return [*([found] if found else []), *map(str, sorted(kept))]


def answers(path: str, version: tuple[int, int], environment: dict[str, str]) -> bool:
    """Whether it runs, is what its name says, and has headers."""
    asked = subprocess.run(
        [path, "-c", ASK], capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    return asked.stdout.split() == [*map(str, version), "True"]


@pytest.mark.stress("it compiles a part of the recorder for each")
@pytest.mark.parametrize("version", [(3, 12), (3, 13)])
def test_calls_are_recorded_on_other_pythons(version: tuple[int, int], tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    found = next((path for path in installed(version) if answers(path, version, environment)), None)
    if found is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} with headers is installed here")
    done = subprocess.run(
        [found, "-W", "ignore::DeprecationWarning", SCRIPT, tmp_path],
        capture_output=True, text=True, env=environment, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all right" in done.stdout
    assert "FAILED" not in done.stdout
