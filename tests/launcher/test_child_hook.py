"""The start-up hook of the Pythons that a recorded program starts: who finds it, who does not, and what they see."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.launcher import child_hook, children, notes
from kinetoscope.launcher.child_hook import NO_VARIABLES, START_UP_FOLDER, VARIABLE, why_not_followed
from kinetoscope.launcher.options import LaunchOptions

INHERITED = {VARIABLE: "/the/run.children", "PYTHONPATH": f"{START_UP_FOLDER}:/own"}


@pytest.mark.parametrize(
    ("path", "words", "environment", "why"),
    [
        ("/usr/bin/python3", ["python3", "train.py"], INHERITED, ""),
        (b"/usr/bin/python3", [b"python3", Path("train.py")], {os.fsencode(VARIABLE): b"/x", b"PYTHONPATH": START_UP_FOLDER}, ""),
        ("/usr/bin/python3", ["python3", "train.py"], {}, NO_VARIABLES),
        ("/usr/bin/python3", ["python3", "train.py"], {VARIABLE: "/x", "PYTHONPATH": "/own"}, NO_VARIABLES),
        ("/usr/bin/python3", ["python3", "train.py"], {"PYTHONPATH": START_UP_FOLDER}, NO_VARIABLES),
        ("/usr/bin/python3", ["python3", "-I", "train.py"], INHERITED, "-I"),
        ("/usr/bin/python3", ["python3", "-uE", "train.py"], INHERITED, "-E"),
        ("/usr/bin/python3", ["python3", "-W", "error", "-X", "dev", "-S"], INHERITED, "-S"),
        ("/usr/bin/python3", ["python3", "-Werror", "-B", "train.py", "-I"], INHERITED, ""),
        ("/usr/bin/python3", ["python3", "-c", "-I"], INHERITED, ""),
        ("/usr/bin/python3", ["python3", "-mE"], INHERITED, ""),
        ("/usr/bin/python3", ["python3", "-", "-I"], INHERITED, ""),
        (sys.executable, [sys.executable], {}, NO_VARIABLES),
        ("/usr/bin/git", ["git", "-I"], {}, ""),
    ],
)  # fmt: skip
def test_a_python_that_will_not_find_the_hook_is_recognized(path, words, environment, why):
    assert why_not_followed(path, words, environment) == why


def test_without_an_environment_of_its_own_a_program_inherits_that_of_the_process(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert why_not_followed("python3", ["python3"], None) == NO_VARIABLES
    os.environ["PYTHONPATH"] = "/own::/other"
    child_hook.set_variables("/the/run.children")
    child_hook.set_variables("/the/run.children")
    assert os.environ["PYTHONPATH"] == f"{START_UP_FOLDER}:/own::/other"
    assert why_not_followed("python3", ["python3"], None) == ""


@pytest.fixture
def followed(tmp_path):
    """The folder of a run that follows its children."""
    options = LaunchOptions(prefix=tmp_path / "run", children=True)
    children._make_folder(options.children_folder, options)
    return options.children_folder


def start(folder: Path, code: str, *paths: Path, options: tuple[str, ...] = (), python: str = sys.executable):
    """Starts a Python as a program does that a run follows."""
    entries = [START_UP_FOLDER, *map(str, paths)]
    environment = {VARIABLE: str(folder), "PYTHONPATH": os.pathsep.join(entries)}
    return subprocess.run(
        [python, *options, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def output(folder: Path, code: str, *paths: Path, **how) -> str:
    """What such a Python prints."""
    done = start(folder, code, *paths, **how)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_followed_python_has_its_own_import_path(followed, tmp_path):
    seen = "import sys; print([path for path in sys.path if 'start_up' in path])"
    assert output(followed, seen) == output(followed, seen, tmp_path, tmp_path) == "[]\n"


def test_a_followed_python_imports_none_of_our_modules(followed):
    code = "import sys; print([name for name in sys.modules if name.partition('.')[0] in ('kinetoscope', 'click', 'typing', 'json')])"
    assert output(followed, code, Path(child_hook.__file__).parents[2]) == "[]\n"


def test_the_sitecustomize_that_python_would_have_run_is_run(followed, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('own', __file__)\nvalue = 3\n")
    code = "import sitecustomize; print(sitecustomize.value)"
    assert output(followed, code, own) == f"own {own / 'sitecustomize.py'}\n3\n"


def test_a_sitecustomize_that_fails_is_reported_as_always(followed, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import a_module_that_is_not_there\n")
    ours = start(followed, "print('on')", own)
    plain = subprocess.run(
        [sys.executable, "-c", "print('on')"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(own)},
    )
    assert ours.stdout == plain.stdout == "on\n"
    assert ours.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]


IS_FOLLOWED = f"import sys; print({child_hook.NAME!r} in sys.modules)"


def test_a_run_that_is_over_is_left_alone(followed):
    assert output(followed, IS_FOLLOWED) == "True\n"
    (followed / child_hook.OPTIONS_FILE).unlink()
    assert output(followed, IS_FOLLOWED) == "False\n"


def test_a_python_that_ignores_the_variables_is_not_followed(followed):
    assert output(followed, IS_FOLLOWED, options=("-I",)) == "False\n"


@pytest.mark.parametrize("through", ["subprocess", "shell", "spawn", "exec"])
def test_grandchildren_are_followed_whatever_starts_them(followed, through):
    words = [sys.executable, "-c", IS_FOLLOWED]
    start_it = {
        "subprocess": f"import subprocess; subprocess.run({words!r})",
        "shell": f"import os, shlex; os.system(shlex.join({words!r}))",
        "spawn": f"import os, sys; os.spawnv(os.P_WAIT, sys.executable, {words!r})",
        "exec": f"import os, sys; os.execv(sys.executable, {words!r})",
    }[through]
    assert output(followed, start_it) == "True\n"


def test_no_function_of_python_is_replaced(followed):
    names = "import os, _posixsubprocess, subprocess, multiprocessing.popen_fork as fork; print(all(type(one) is type(len) for one in (os.execv, os.execve, os.posix_spawn, os.system, os._exit, _posixsubprocess.fork_exec)), fork.Popen.terminate.__module__)"
    assert output(followed, names) == "True multiprocessing.popen_fork\n"


STARTS = """
import multiprocessing, os, subprocess, sys
words = [sys.executable, "-c", "pass"]
subprocess.run(words)
subprocess.run([words[0], "-I", *words[1:]])
subprocess.run(words, env={})
os.waitpid(os.posix_spawn(words[0], [words[0], "-E", *words[1:]], os.environ), 0)
if (child := os.fork()) == 0:
    os.execve(words[0], words, {})
os.waitpid(child, 0)
subprocess.run(["true"], env={})
"""


def test_pythons_that_are_started_without_the_hook_are_counted(followed):
    assert output(followed, STARTS) == ""
    lines = (followed / child_hook.UNFOLLOWED_FILE).read_text().split()
    assert sorted(lines) == ["-E", "-I", NO_VARIABLES, NO_VARIABLES]
    options = LaunchOptions(prefix=followed.with_suffix(""), children=True)
    _, messages = children.Children(options).join(None, "train.py")
    what = "Python processes started without the start-up hook"
    assert sorted(message.partition(": ")[::2] for message in messages) == [
        (
            f"{what} (1)",
            "They were started with -E, which makes Python ignore the hook: if they used PyTorch, that is not recorded.",
        ),
        (
            f"{what} (1)",
            "They were started with -I, which makes Python ignore the hook: if they used PyTorch, that is not recorded.",
        ),
        (
            f"{what} (2)",
            f"Their environment lacked {VARIABLE} or its entry in PYTHONPATH: if they used PyTorch, that is not recorded.",
        ),
    ]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_that_multiprocessing_terminates_are_marked(followed, tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(f"""
import multiprocessing, os, signal
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    children = [context.Process(target=signal.pause) for _ in range(2)]
    for child in children:
        child.start()
    children[0].terminate()
    # Somebody else's signal is none of its own.
    os.kill(children[1].pid, signal.SIGTERM)
    for child in children:
        child.join()
    print(children[0].pid)
""")
    process = output(followed, f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')").strip()
    marks = [path.name.split(".")[0] for path in followed.glob("*.terminated")]
    assert marks == [process]


@pytest.mark.parametrize(
    ("package", "module", "problem"),
    [
        ("raise ImportError('made for another Python')", "", "ImportError('made for another Python')"),
        (
            "",
            "__version__ = '0.0.1'",
            f"its environment has Kinetoscope 0.0.1, not {kinetoscope.__version__}",
        ),
        ("", f"__version__ = {kinetoscope.__version__!r}", "No module named 'kinetoscope.launcher'"),
    ],
    ids=["cannot be imported", "other version", "damaged"],
)
def test_torch_that_cannot_be_recorded_leaves_a_note(followed, tmp_path, package, module, problem):
    other = tmp_path / "other"
    for name, source in {"torch": "", "kinetoscope": package}.items():
        (other / name).mkdir(parents=True)
        (other / name / "__init__.py").write_text(source)
    (other / "kinetoscope" / "_version.py").write_text(module)
    # An editable installation of this package would be found before the other environment's.
    without = (
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in type(f).__module__]"
    )
    assert output(followed, f"{without}; import torch; print('on')", other) == "on\n"
    (note,) = notes.read_all(str(followed)).values()
    assert problem in note["problem"]


def test_options_that_cannot_be_read_leave_a_note_and_the_program_alone(followed, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (followed / child_hook.OPTIONS_FILE).write_text("{}")
    assert output(followed, "import torch; print('on')", tmp_path) == "on\n"
    (note,) = notes.read_all(str(followed)).values()
    assert "KeyError" in note["problem"]


@pytest.mark.parametrize("name", ["child_hook", "notes", "../_after_import"])
def test_what_every_environment_loads_is_no_newer_than_python_3_7(name):
    source = (Path(child_hook.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 7))


def test_what_every_python_reads_is_no_newer_than_python_2():
    tree = ast.parse((Path(START_UP_FOLDER) / "sitecustomize.py").read_text(encoding="ascii"))
    newer = (
        ast.AnnAssign,
        ast.AsyncFunctionDef,
        ast.JoinedStr,
        ast.NamedExpr,
        ast.Nonlocal,
        ast.Starred,
        ast.YieldFrom,
    )
    assert [node for node in ast.walk(tree) if isinstance(node, newer)] == []
