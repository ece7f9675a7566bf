"""Under a profiler of Python calls, modules are imported on another thread: torch reads names of code that is gone."""

import json
import textwrap

import pytest

from tests.support import warm_python
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

# `import kinetoscope` is the program's own import; each of these keeps its code.
KEPT = {"kinetoscope", "kinetoscope._errors", "kinetoscope._import_aside", "kinetoscope._version"}

SESSION = """
    with kinetoscope.profile(activities=CPU, engine="native") as session:
        torch.ones(3) + 1
    session.export_chrome_trace("trace.json")
    session.save("trace.ktrace")
"""
INSTALLED = """
    kinetoscope.install()
    with torch.profiler.profile(activities=CPU) as session:
        torch.ones(3) + 1
    session.export_chrome_trace("trace.json")
    kinetoscope.uninstall()
"""
PROGRAM = """
import json, sys, threading
import torch

class Imports:
    begun = []
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            self.begun.append(name)

CPU = [torch.profiler.ProfilerActivity.CPU]
theirs = torch.profiler.profile(activities=CPU, with_stack=True)
sys.meta_path.insert(0, Imports())
{first}
Imports.begun.clear()
with theirs:
    import kinetoscope
{body}
    imported = list(Imports.begun)
print(json.dumps([imported, [event.name() for event in theirs.profiler.kineto_results.events()]]))
"""


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("body", [SESSION, INSTALLED])
@pytest.mark.parametrize("first", ["", "import kinetoscope"])
def test_names_of_a_profiler_of_torchs_stay_readable(first, body, tmp_path):
    done = warm_python.run("-c", PROGRAM.format(first=first, body=body), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    imported, names = json.loads(done.stdout)
    of_ours = {name for name in imported if name.partition(".")[0] in ("kinetoscope", "numpy", "pyarrow")}
    assert of_ours <= (set() if first else KEPT)
    assert any(name.endswith(": import_aside") for name in names)
    assert any("kinetoscope/collect/session/profile.py" in name for name in names)


def test_an_import_that_is_under_way_is_not_waited_for(tmp_path):
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").write_text("import kinetoscope; kinetoscope.open\n")
    program = """
        import sys
        sys.setprofile(lambda *_: None)
        import pyarrow
        import kinetoscope
        sys.setprofile(None)
        from kinetoscope import _import_aside
        print(_import_aside._done)
    """
    done = warm_python.run("-c", textwrap.dedent(program), cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["False"]), done.stderr


def test_without_threads_it_goes_on(tmp_path):
    program = """
        import sys, threading
        import kinetoscope
        def refuse(_):
            raise RuntimeError("can't start new thread")
        threading.Thread.start = refuse
        sys.setprofile(lambda *_: None)
        print(kinetoscope.open.__name__)
    """
    done = warm_python.run("-c", textwrap.dedent(program), cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["open"]), done.stderr


def test_without_a_profiler_nothing_is_imported_beforehand(tmp_path):
    program = """
        import sys
        import kinetoscope
        kinetoscope.open
        print("kinetoscope.collect.session.profile" in sys.modules, "kinetoscope.analyses.findings" in sys.modules)
    """
    done = warm_python.run("-c", textwrap.dedent(program), cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "False"]), done.stderr
