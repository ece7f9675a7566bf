"""The moment at which a program imports a module, here torch. A package of that name made for the test stands in where the import itself
is what is tested; the end-to-end tests import the real one."""

import subprocess
import sys
from pathlib import Path

import kinetoscope

FOLDER = Path(kinetoscope.__file__).parents[1]


def run(tmp_path: Path, program: str, torch: str = "value = 7\n") -> str:
    """Runs a program in a fresh interpreter that finds a small package called torch, and returns what it prints."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(torch)
    (tmp_path / "torch" / "note.txt").write_text("beside it")
    start = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(FOLDER)!r}]
from kinetoscope._after_import import AfterImport
calls = []
waiting = AfterImport("torch", lambda: calls.append(sys.modules["torch"].value))
waiting.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", start + program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_function_is_called_once_when_torch_has_been_imported(tmp_path):
    assert (
        run(tmp_path, "import json, torch, torch as again\nprint(calls, waiting in sys.meta_path)")
        == "[7] False\n"
    )


def test_the_function_may_wait_for_a_thread_that_imports_torch(tmp_path):
    program = """
import threading
def work():
    import torch
    calls.append(torch.value)
def start():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    calls.append(thread.is_alive())
waiting.give_up()
AfterImport("torch", start).wait()
import torch
print(calls)
"""
    assert run(tmp_path, program) == "[7, False]\n"


def test_without_torch_it_is_never_called(tmp_path):
    assert run(tmp_path, "import json\nprint(calls)") == "[]\n"


def test_the_module_looks_as_if_nobody_had_waited(tmp_path):
    program = """
import importlib.resources, inspect, torch
print(type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)
print(inspect.getsource(torch).strip(), importlib.resources.files(torch).joinpath("note.txt").read_text())
"""
    expected = "SourceFileLoader SourceFileLoader\nvalue = 7 beside it\n"
    assert run(tmp_path, program) == expected


def test_an_import_that_fails_can_be_tried_again(tmp_path):
    torch = "import os\nif 'READY' not in os.environ: raise ImportError('not yet')\nvalue = 8\n"
    program = """
import os
try:
    import torch
except ImportError as error:
    print(error, calls)
os.environ["READY"] = "1"
import torch
print(calls)
"""
    assert run(tmp_path, program, torch) == "not yet []\n[8]\n"


def test_torch_that_is_there_already_counts_at_once(tmp_path):
    assert run(tmp_path, "import torch\nAfterImport('torch', lambda: print('now')).wait()") == "now\n"


def test_asking_whether_torch_exists_is_not_importing_it(tmp_path):
    program = "import importlib.util\nprint(importlib.util.find_spec('torch').name, calls)"
    assert run(tmp_path, program) == "torch []\n"


def test_a_missing_torch_is_reported_as_always(tmp_path):
    program = f"""
sys.path.remove({str(tmp_path)!r})
sys.path[:] = [place for place in sys.path if "site-packages" not in place and place]
try:
    import torch
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(tmp_path, program) == "No module named 'torch'\n"


def test_nobody_waits_after_giving_up(tmp_path):
    program = "waiting.give_up()\nimport torch\nwaiting.give_up()\nprint(calls)"
    assert run(tmp_path, program) == "[]\n"


def test_nothing_is_called_while_another_thread_imports_the_module(tmp_path):
    program = """
import threading
waiting.give_up()
at_the_import, go_on = threading.Event(), threading.Event()
sys.at_the_import, sys.go_on = at_the_import, go_on
thread = threading.Thread(target=__import__, args=("torch",))
thread.start()
at_the_import.wait(60)
waiting.wait()
print(calls)
go_on.set()
thread.join(60)
waiting.wait()
print(calls)
"""
    torch = "import sys\nsys.at_the_import.set()\nsys.go_on.wait(60)\nvalue = 7\n"
    assert run(tmp_path, program, torch) == "[]\n[7]\n"
