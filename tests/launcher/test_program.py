"""Which programs there are to run; how they run is compared with Python's own way in tests/e2e/test_as_python_does.py."""

import pytest

from kinetoscope.launcher.program import CannotRun, installed_script

PYTHON = "#!/usr/bin/python3\nimport torch\n"
# What pip writes where the path of Python is too long for a first line.
BEHIND_A_SHELL = "#!/bin/sh\n'''exec' \"/a/long/path/bin/python\" \"$0\" \"$@\"\n' '''\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a command into PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)

    def install(name, content):
        path = tmp_path / "bin" / name
        path.write_text(content)
        path.chmod(0o755)
        return str(path)

    return install


@pytest.mark.parametrize("content", [PYTHON, BEHIND_A_SHELL], ids=["python", "shell"])
def test_an_installed_python_script_is_found_by_its_name(install, content):
    path = install("torchrun", content)
    assert installed_script("torchrun") == path


def test_a_file_here_comes_before_a_command_of_that_name(install, tmp_path):
    install("train", PYTHON)
    (tmp_path / "train").write_text("")
    assert installed_script("train") is None
    assert installed_script("bin/train") is None
    assert installed_script("nowhere") is None


@pytest.mark.parametrize("content", ["#!/bin/sh\nexec ./a.out\n", "\x7fELF python"], ids=["shell", "binary"])
def test_another_command_is_refused_with_the_line_that_works(install, content):
    install("mpirun", content)
    with pytest.raises(
        CannotRun, match=r"'mpirun' is not a Python script.*mpirun -n 2 kinetoscope run train.py"
    ):
        installed_script("mpirun")
