"""A program under `kinetoscope run` behaves as under `python`: each one here is run both ways and compared.

None of them imports torch, so all that Kinetoscope adds is its one line that says so.
"""

import os
import re
import signal
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

OUR_HINT = re.compile(r"kinetoscope: [^\n]+ after the program and belongs? to it: [^\n]+\n")
OUR_LINE = "kinetoscope: nothing was recorded: the program never imported torch.\n"


@dataclass
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str


def start(
    folder: Path, *words: str, stdin: str = "", flags: tuple[str, ...] = (), **environment: str
) -> Ended:
    """Runs Python with the words of a command line, and returns how it ended."""
    done = subprocess.run(
        [sys.executable, *flags, *words],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def both_ways(
    folder: Path, *words: str, stdin: str = "", flags: tuple[str, ...] = (), **environment: str
) -> tuple[Ended, Ended]:
    """Runs a command line under `python` and under `kinetoscope run`; our own lines are taken out of the second."""
    plain = start(folder, *words, stdin=stdin, flags=flags, **environment)
    profiled = start(folder, "-m", "kinetoscope", "run", *words, stdin=stdin, flags=flags, **environment)
    assert profiled.err.count(OUR_LINE) == 1, profiled.err
    profiled.err = OUR_HINT.sub("", profiled.err.replace(OUR_LINE, ""))
    return plain, profiled


def script(folder: Path, text: str, name: str = "program.py") -> str:
    """Writes a program and returns its name."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return name


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "b c"],
        ["--steps", "3", "-m", "x"],
        ["--", "--help"],
        ["-o", "mine"],
        ["", "-"],
        ["--memory"],
    ],
    ids=str,
)
def test_arguments_reach_the_program_untouched(tmp_path, arguments):
    name = script(tmp_path, "import sys; print(sys.argv)")
    plain, profiled = both_ways(tmp_path, name, *arguments)
    assert profiled == plain


def test_the_program_is_main_in_every_respect(tmp_path):
    text = """
'''What it is for.'''
import sys, __main__
names = sorted(name for name in globals() if name not in ("__cached__", "__annotations__"))
print(names, __name__, __doc__, __file__, __spec__, __package__, type(__loader__).__name__, type(__builtins__))
print(__main__.__dict__ is globals(), sys.modules["__main__"] is __main__, sys.path[0], len(sys.path))
if __name__ == "__main__":
    print("main")
"""
    plain, profiled = both_ways(tmp_path, script(tmp_path, text, "inner/program.py"))
    assert profiled == plain
    assert plain.out.endswith("main\n")


def test_a_program_behind_a_link_imports_from_its_own_folder(tmp_path):
    script(tmp_path, "x = 5", "real/beside.py")
    script(
        tmp_path, "import beside, sys; print(beside.x, sys.path[0], __file__, sys.argv)", "real/program.py"
    )
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "program.py")
    plain, profiled = both_ways(tmp_path, "link.py")
    assert profiled == plain


@pytest.mark.parametrize(
    "ending",
    [
        "raise SystemExit",
        "import sys; sys.exit(7)",
        "import sys; sys.exit(-1)",
        "import sys; sys.exit(256 + 3)",
        "import sys; sys.exit('said before leaving')",
        "import sys; sys.exit((1, 2))",
        "import os; print('gone', flush=True); os.close(2)",
        "raise ValueError('no good')",
        "raise ValueError('a\\nb') from KeyError('c')",
        "def f():\n    g()\ndef g():\n    1 / 0\nf()",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['x']",
        "raise ExceptionGroup('both', [ValueError(1), TypeError(2)])",
        "import json; json.loads('{')",
        "def f(:",
        "  x = 1",
        "import nowhere_to_be_found",
        "import sys; sys.excepthook = lambda *what: print('hook', what[0], what[2].tb_next); 1 / 0",
        "import atexit, sys; atexit.register(print, 'bye'); sys.exit(4)",
        "import warnings; warnings.warn('old', DeprecationWarning)",
        "import threading; threading.Thread(target=lambda: [1 / 0]).start()",
    ],
)
def test_every_ending_is_pythons(tmp_path, ending):
    name = script(tmp_path, ending)
    if "os.close(2)" in ending:
        plain = start(tmp_path, name)
        profiled = start(tmp_path, "-m", "kinetoscope", "run", name)
    else:
        plain, profiled = both_ways(tmp_path, name)
    assert profiled == plain


def test_the_last_exception_is_kept_for_exit_handlers(tmp_path):
    text = "import atexit, sys; atexit.register(lambda: print(sys.last_type, sys.last_value)); 1 / 0"
    plain, profiled = both_ways(tmp_path, script(tmp_path, text))
    assert profiled == plain


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_the_same_way(tmp_path, number):
    text = f"import os\nprint('before', flush=True)\nos.kill(os.getpid(), {int(number)})\nfor _ in range(10**9): pass"
    name = script(tmp_path, text)
    plain = start(tmp_path, name)
    profiled = start(tmp_path, "-m", "kinetoscope", "run", name)
    assert plain.code == profiled.code == -number
    assert profiled.err.replace(OUR_LINE, "") == plain.err
    assert profiled.out == plain.out


def test_an_interrupt_can_be_caught(tmp_path):
    text = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10**9): pass
except KeyboardInterrupt:
    print("cleaning up")
raise SystemExit(9)
"""
    plain, profiled = both_ways(tmp_path, script(tmp_path, text))
    assert profiled == plain
    assert plain.code == 9


def test_standard_input_is_the_programs(tmp_path):
    text = "import sys\nfirst = input('? ')\nprint([first, sys.stdin.read(), sys.stdin.isatty()])"
    plain, profiled = both_ways(tmp_path, script(tmp_path, text), stdin="one\ntwo\nthree")
    assert profiled == plain
    assert "two" in plain.out


def test_a_broken_pipe_is_the_programs_affair(tmp_path):
    name = script(tmp_path, "while True: print('more')")
    endings = []
    for words in ([name], ["-m", "kinetoscope", "run", name]):
        with subprocess.Popen(
            [sys.executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            process.stdout.readline()
            process.stdout.close()
            error = process.stderr.read().replace(OUR_LINE, "")
            endings.append((process.wait(), error))
    assert endings[0] == endings[1]


def test_a_module_runs_as_python_runs_it(tmp_path):
    script(tmp_path, "print('package', __name__)", "package/__init__.py")
    text = "import sys; print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0])\nfrom . import part"
    script(tmp_path, text, "package/tool.py")
    script(tmp_path, "print('part')", "package/part.py")
    script(
        tmp_path, "import sys; print('main of the package', __spec__.name, sys.argv)", "package/__main__.py"
    )
    for module in ("package.tool", "package"):
        plain, profiled = both_ways(tmp_path, "-m", module, "--steps", "-x")
        assert profiled == plain


def test_a_module_that_fails_shows_its_own_frames_only(tmp_path):
    script(tmp_path, "def f():\n    raise ValueError('no good')\nf()", "tool.py")
    plain, profiled = both_ways(tmp_path, "-m", "tool")
    assert profiled.code == plain.code == 1
    # Python shows the two frames of its own machinery first; under us there is none.
    lines = [line for line in plain.err.splitlines() if "<frozen runpy>" not in line]
    assert profiled.err.splitlines() == lines


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere.py"], 2, "script not found: 'nowhere.py'."),
        (["folder"], 1, "no __main__.py in the folder 'folder'."),
        (["-m", "nowhere.inside"], 1, "module not found: 'nowhere.inside'."),
        (["-m", "plain"], 1, "module not found: 'plain.__main__'."),
    ],
)
def test_a_program_that_is_not_there_is_one_line(tmp_path, words, code, message):
    (tmp_path / "folder").mkdir()
    script(tmp_path, "", "plain/__init__.py")
    plain = start(tmp_path, *words)
    profiled = start(tmp_path, "-m", "kinetoscope", "run", *words)
    assert profiled == Ended(plain.code, "", f"kinetoscope: error: {message}\n")
    assert plain.code == code


def test_folders_and_archives_run(tmp_path):
    text = "import sys, beside; print(__name__, sys.argv, sys.path[0], beside.x, __package__ == '')"
    script(tmp_path, text, "app/__main__.py")
    script(tmp_path, "x = 5", "app/beside.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        for part in ("__main__.py", "beside.py"):
            archive.write(tmp_path / "app" / part, part)
    for words in (["app", "-x"], ["app.zip", "--y"]):
        plain, profiled = both_ways(tmp_path, *words)
        assert profiled == plain
        assert plain.code == 0, plain.err


def test_compiled_programs_run(tmp_path):
    import py_compile

    name = script(tmp_path, "import sys; print(__file__, sys.argv)")
    py_compile.compile(str(tmp_path / name), cfile=str(tmp_path / "program.pyc"), dfile="program.py")
    plain, profiled = both_ways(tmp_path, "program.pyc", "x")
    assert profiled == plain


def test_safe_paths_stay_safe(tmp_path):
    name = script(tmp_path, "import sys; print(sys.path[:2])", "inner/program.py")
    plain, profiled = both_ways(tmp_path, name, PYTHONSAFEPATH="1")
    assert profiled == plain


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_processes_that_it_starts_find_its_functions(tmp_path, method):
    text = f"""
import multiprocessing, os

def square(x):
    return x * x

if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(square, range(5)))
"""
    plain, profiled = both_ways(tmp_path, script(tmp_path, text))
    assert profiled == plain
    assert plain.out == "[0, 1, 4, 9, 16]\n"
    module_plain, module_profiled = both_ways(tmp_path, "-m", "program")
    assert module_profiled == module_plain


def test_a_fork_of_it_writes_nothing_of_ours(tmp_path):
    text = (
        "import os, sys\nif os.fork() == 0:\n    sys.exit(3)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))"
    )
    plain, profiled = both_ways(tmp_path, script(tmp_path, text))
    assert profiled == plain
    assert plain.out == "3\n"


def test_its_threads_are_waited_for(tmp_path):
    text = """
import threading
ready = threading.Event()
def late():
    ready.wait()
    print("late")
threading.Thread(target=late).start()
ready.set()
"""
    plain, profiled = both_ways(tmp_path, script(tmp_path, text))
    assert profiled == plain


def test_an_executor_left_open_does_not_hang_it(tmp_path):
    text = """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
print(pool.submit(pow, 2, 5).result())
"""
    plain, profiled = both_ways(tmp_path, script(tmp_path, text))
    assert profiled == plain


def test_what_it_pickles_belongs_to_main(tmp_path):
    text = """
import pickle
class Point:
    pass
print(pickle.loads(pickle.dumps(Point())).__class__ is Point, Point.__module__)
"""
    plain, profiled = both_ways(tmp_path, script(tmp_path, text))
    assert profiled == plain
    assert plain.out.startswith("True")


def test_nothing_is_left_behind_where_nothing_was_recorded(tmp_path):
    name = script(tmp_path, "print('short')")
    both_ways(tmp_path, name)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


NAMES = """
import ctypes, threading

def name():
    text = ctypes.create_string_buffer(16)
    ctypes.CDLL(None).prctl(16, text, 0, 0, 0)
    print(text.value.decode())

name()
thread = threading.Thread(target=name)
thread.start()
thread.join()
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux names processes and threads after what started them"
)
def test_process_and_threads_are_named_as_python_names_them(tmp_path):
    program = script(tmp_path, NAMES)
    command = Path(sys.executable).parent / "kinetoscope"
    done = subprocess.run([command, "run", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == start(tmp_path, program).out != ""
    assert "kinetoscope" not in done.stdout
