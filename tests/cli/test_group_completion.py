"""Shells complete commands, options, files and tables. The page on the command line says how to turn this on."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
PROGRAM = Path(sys.executable).with_name("kinetoscope")


def completed(shell, words, number):
    """What the program answers a shell that completes the last word."""
    environment = {
        **os.environ,
        "_KINETOSCOPE_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(number) if shell != "fish" else words.rpartition(" ")[2],
    }
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_and_options_are_completed(shell):
    assert "findings" in completed(shell, "kinetoscope fin", 1)
    assert "--module-spans" in completed(shell, "kinetoscope run --mod", 2)


def test_traces_are_files_and_tables_have_names():
    assert completed("bash", "kinetoscope findings run.kt", 2) == "file,run.kt\n"
    assert "plain,modules\n" in completed("bash", "kinetoscope table run.ktrace mod", 3)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_page_says_what_each_shell_needs(shell):
    (line,) = re.findall(rf"^.*_KINETOSCOPE_COMPLETE={shell}_source kinetoscope.*$", PAGE, re.MULTILINE)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here: the line for it was only found on the page")
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    # What the page says comes before the line.
    before = "autoload -Uz compinit && compinit -D\n" if shell == "zsh" else ""
    shown = "complete -p kinetoscope" if shell == "bash" else "true"
    done = subprocess.run(
        [shell, "-c", f"{before}{line.strip()}\n{shown}"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shell != "bash" or "kinetoscope" in done.stdout
