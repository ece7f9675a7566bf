"""What `make wheels` reads of a wheel, what it calls a warning, and the page that it writes."""

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch):
    """The tool, which imports its neighbors by their names."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("build_wheels")


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "kinetoscope-0.1.0-cp312-abi3-manylinux_2_28_x86_64.whl"
    folder = "kinetoscope/collect/recorder/prebuilt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{folder}/kinetoscope_recorder-torch2.1-py3.13-x86_64-0.so", b"0" * 10_000)
        archive.writestr(f"{folder}/kinetoscope_recorder-torch2.13-py3.13-x86_64-0.so", b"0" * 650_000)
        archive.writestr(
            "kinetoscope-0.1.0.dist-info/METADATA",
            'Requires-Dist: click>=8.1\nRequires-Dist: numpy>=1.26\nRequires-Dist: torch>=2.7; extra == "torch"\n',
        )
    return path


def test_what_a_wheel_needs_is_without_its_extras(tool, wheel):
    assert tool.requirements(wheel) == ["click>=8.1", "numpy>=1.26"]


def test_the_size_is_that_of_the_recorder_for_this_torch_and_python(tool, wheel):
    assert tool.recorder_bytes(wheel, "2.13", "3.13") == 650_000
    assert tool.recorder_bytes(wheel, "2.13", "3.12") == 0


def test_a_warning_of_torch_itself_is_none_of_ours(tool):
    of_torch, ours = tool.warnings_in(
        "/venv/lib/python3.13/site-packages/torch/_dynamo/guards.py:88: RuntimeWarning: slower on Python 3.13.0\n"
        "  warnings.warn(\n"
        "warm-up: the first 5 steps took longer\n"
        "/venv/lib/python3.13/site-packages/kinetoscope/api.py:1: UserWarning: no compiler\n"
        "Warning: the folder cannot be written\n"
    )
    assert [line.partition(": ")[2] for line in of_torch] == ["RuntimeWarning: slower on Python 3.13.0"]
    assert [line.partition(": ")[2] for line in ours] == [
        "UserWarning: no compiler",
        "the folder cannot be written",
    ]


def test_the_page_has_each_wheel_with_its_size_and_a_row_for_each_pair(tool, wheel):
    tried = [
        tool.Tried("2.13.0+cu130", "3.13.0", 650_000, "recorded", failed=False),
        tool.Tried("2.14.1", "3.13", 0, "FAILED: not installed", failed=True),
    ]
    text = tool.page([wheel], tried)
    assert f"| `{wheel.name}` | 0.7 MB | 2, together 0.7 MB unpacked |" in text
    assert (
        "| 2.13.0+cu130 | 3.13.0 | 0.65 MB | recorded |\n| 2.14.1 | 3.13 | none | FAILED: not installed |"
        in text
    )


def test_a_python_is_paired_only_with_torches_that_were_published_for_it(tool):
    assert not tool.has_builds("2.8", (3, 14))
    assert tool.has_builds("2.9", (3, 14))
    assert tool.has_builds("2.7", (3, 13))


def test_constraints_of_the_configuration_are_not_those_of_a_build(tool, tmp_path):
    """pip has no way to say so but another file: it passes over an empty value."""
    (tmp_path / "constraints.txt").write_text("kinetoscope-of-nowhere==1\n")
    (tmp_path / "pip.conf").write_text(f"[global]\nconstraint = {tmp_path / 'constraints.txt'}\n")
    environment = {**tool.unconstrained(), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--dry-run",
        "--no-index",
        "kinetoscope-of-nowhere",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "kinetoscope-of-nowhere" in done.stderr
    assert "(from versions: none)" in done.stderr
    assert "constraint" not in done.stderr
