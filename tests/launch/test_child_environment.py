"""The one variable by which Pythons that a program starts find us: who gets it, who does not, and who sees it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinetoscope.launch import child_environment, child_places
from kinetoscope.launch.child_environment import is_foreign
from kinetoscope.launch.options import Wanted

PYTHON = os.path.realpath(sys.executable)
# A binary that is neither a Python nor starts anything else, and prints its environment.
PRINTENV = "/usr/bin/printenv"


@pytest.mark.parametrize(
    ("executable", "words", "foreign"),
    [
        (PRINTENV, ["printenv"], True),
        (PRINTENV, ["printenv", "python"], False),
        (PRINTENV, ["printenv", "tools/train.py"], False),
        (PYTHON, [PYTHON, "-V"], False),
        ("/bin/sh", ["sh", "-c", "printenv"], False),
        ("/nowhere/at/all", ["all"], False),
        (3, ["an open file"], False),
    ],
    ids=["binary", "told-of-python", "told-of-a-script", "python", "shell", "missing", "file-number"],
)
def test_a_program_is_foreign_only_where_it_certainly_leads_to_no_python(executable, words, foreign):
    assert is_foreign([executable], words) is foreign


def test_a_script_may_be_one_of_python(tmp_path):
    script = tmp_path / "tool"
    script.write_text("#!/bin/sh\nexec python train.py\n")
    assert not is_foreign([bytes(script)], [b"tool"])


# Prints, for each way of starting a program, the PYTHONPATH that a binary and that a shell got.
STARTS = """
import json, os, subprocess, sys
before = dict(os.environ)
from importlib.machinery import SourceFileLoader
names = {}
exec(SourceFileLoader("environment", sys.argv[1]).get_code("environment"), names)
if sys.argv[2] == "late":
    import asyncio
names["ChildEnvironment"]("/the/folder").carry()
shell, binary = ["/bin/sh", "-c", "echo $PYTHONPATH"], ["/usr/bin/printenv", "PYTHONPATH"]

def output(start):
    reading, writing = os.pipe()
    child = os.fork() if start.__name__.startswith("exec") else None
    if child in (0, None):
        kept = os.dup(1)
        os.dup2(writing, 1)
        child = start() or child
        os.dup2(kept, 1)
    os.waitpid(child, 0)
    os.close(writing)
    return os.read(reading, 1000).decode().strip()

def run(words, **options):
    return subprocess.run(words, text=True, stdout=subprocess.PIPE, **options).stdout.strip()

def every(words):
    own = {"PYTHONPATH": "/of/its/own", "PATH": os.environ["PATH"]}
    def execv(): os.execv(words[0], words)
    def execve(): os.execve(words[0], words, own)
    def execvp(): os.execvp(os.path.basename(words[0]), words)
    def spawn(): return os.posix_spawn(words[0], words, os.environ)
    def spawnp(): return os.posix_spawnp(os.path.basename(words[0]), words, own)
    return {
        "run": run(words), "own": run(words, env=own), "empty": run(words, env={}),
        "bytes": run(words, env={b"PYTHONPATH": b"/b"}), "quick": run(words, close_fds=False, env=own),
        **{start.__name__: output(start) for start in (execv, execve, execvp, spawn, spawnp)},
    }

found = {"shell": every(shell), "binary": every(binary)}
reading, writing = os.pipe()
os.dup2(writing, 1)
os.system("echo $PYTHONPATH")
found["system"] = os.read(reading, 1000).decode().strip()
os.environ["PYTHONPATH"] = "/changed"
found["changed"] = [run(shell), run(binary)]
del os.environ["PYTHONPATH"]
found["deleted"] = [run(shell), run(binary)]
os.environ["PYTHONPATH"] = before["PYTHONPATH"]
found["same"] = dict(os.environ) == before
found["looks"] = [os.execve.__name__, os.execve.__module__, os.execve in os.supports_fd]
print(json.dumps(found), file=sys.stderr)
"""


@pytest.mark.parametrize("late", ["early", "late"], ids=["before-subprocess", "after-subprocess"])
def test_whatever_starts_a_program_hands_the_folder_to_those_that_may_need_it(late):
    done = subprocess.run(
        [sys.executable, "-c", STARTS, child_environment.__file__, late],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": "/own", "PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stderr)
    own, theirs = "/own", "/of/its/own"
    plain = {
        "run": own, "own": theirs, "empty": "", "bytes": "/b", "quick": theirs, "execv": own, "execve": theirs,
        "execvp": own, "spawn": own, "spawnp": theirs,
    }  # fmt: skip
    assert found["binary"] == plain
    assert found["shell"] == {how: f"/the/folder:{path}".rstrip(":") for how, path in plain.items()}
    assert found["system"] == "/the/folder:/own"
    assert found["changed"] == ["/the/folder:/changed", "/changed"]
    assert found["deleted"] == ["/the/folder", ""]
    assert found["same"]
    assert found["looks"] == ["execve", "posix", True]


@pytest.fixture
def followed(tmp_path):
    """The folder of a run that follows its children."""
    folder = tmp_path / "run.children"
    child_places.prepare(folder, Wanted(prefix=tmp_path / "run"))
    return folder


def python(folder: Path, code: str, *paths: Path, options: tuple[str, ...] = ()) -> str:
    """What a Python prints that a followed program starts."""
    entries = [child_places.site_folder(folder), *map(str, paths)]
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entries)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


SEEN = "import os, sys; print(os.environ.get('PYTHONPATH'), [p for p in sys.path if 'children' in p])"


def test_a_followed_python_sees_nothing_of_it(followed, tmp_path):
    assert python(followed, SEEN) == "None []\n"
    assert python(followed, SEEN, tmp_path, tmp_path) == f"{tmp_path}:{tmp_path} []\n"


def test_a_followed_python_imports_none_of_our_modules(followed):
    source = Path(child_environment.__file__).parents[2]
    code = "import sys; print([name for name in sys.modules if name.partition('.')[0] in ('kinetoscope', 'click', 'typing')])"
    assert python(followed, code, source) == "[]\n"


def test_the_sitecustomize_that_python_would_have_run_is_run(followed, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('own', __file__)\nvalue = 3\n")
    code = "import sitecustomize; print(sitecustomize.value)"
    assert python(followed, code, own) == f"own {own / 'sitecustomize.py'}\n3\n"


def test_a_sitecustomize_that_fails_is_reported_as_always(followed, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import a_module_that_is_not_there\n")
    entries = [child_places.site_folder(followed), str(own)]
    shown = [
        subprocess.run(
            [sys.executable, "-c", "print('on')"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(some)},
        )
        for some in (entries[1:], entries)
    ]
    assert [done.stdout for done in shown] == ["on\n", "on\n"]
    assert [done.stderr.splitlines()[-1] for done in shown] == [shown[0].stderr.splitlines()[-1]] * 2


def test_a_run_that_is_over_leads_to_nothing(followed):
    child_places.stop_following(followed)
    assert python(followed, "import sys; print('kinetoscope_child_start' in sys.modules)") == "False\n"


def test_a_python_that_does_not_look_goes_on(followed):
    code = "import sys; print('kinetoscope_child_start' in sys.modules)"
    assert python(followed, code, options=("-I",)) == "False\n"
    assert python(followed, code) == "True\n"


def test_grandchildren_are_followed(followed):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', {0!r}])"
    inner = "import sys; print('kinetoscope_child_start' in sys.modules)"
    assert python(followed, code.format(code.format(inner))) == "True\n"


def test_torch_that_cannot_be_recorded_leaves_a_note(followed, tmp_path):
    other = tmp_path / "other"
    (other / "torch").mkdir(parents=True)
    (other / "torch" / "__init__.py").write_text("")
    (other / "kinetoscope").mkdir()
    (other / "kinetoscope" / "__init__.py").write_text("raise ImportError('made for another Python')\n")
    assert python(followed, "import torch; print('on')", other) == "on\n"
    (note,) = followed.glob("*.json")
    assert "made for another Python" in json.loads(note.read_text())["problem"]
