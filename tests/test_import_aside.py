"""Under a profiler of Python calls, modules are imported on another thread: torch reads names of code that is gone."""

import json
import textwrap

import pytest

from tests.support import warm_python
from tests.support.effort import STRESS
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

# `import kinetoscope` is the program's own import; each of these keeps its code.
KEPT = {f"kinetoscope{module}" for module in ("", "._errors", "._forks", "._import_aside", "._version")}

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
    # Torch's own start may import, too.
    Imports.begun.clear()
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


# What a program can call with a trace, or with a session that it has used before; everything was imported for
# the session alone.
BEFORE = """
import kinetoscope
from kinetoscope import compare, merge, open as open_trace, profile, report, summarize
with profile(activities=CPU, engine="native", record_shapes=True) as session:
    torch.ones(3) + 1
trace = session.trace
"""
CALLS = {
    "table": 'trace.table("ops")',
    "pandas": 'trace.to_pandas("spans")',
    "polars": 'trace.to_polars("spans")',
    "findings": "trace.findings()",
    "averages": 'session.key_averages().table(sort_by="self_cpu_time_total")',
    "events": "[str(event) for event in session.events()]",
    "save": 'trace.save("a.ktrace"); open_trace("a.ktrace").table("spans")',
    "chrome": 'session.export_chrome_trace("a.json"); open_trace("a.json").findings()',
    "parquet": 'trace.save("a.parquet")',
    "stacks": 'session.export_stacks("a.txt")',
    "flops": 'trace.column("spans", "flops")',
    "report": 'report(trace, "a.html")',
    "compare": "str(compare(trace, trace))",
    "summarize": 'trace.save("rank0.ktrace"); str(summarize("rank0.ktrace", output="summaries"))',
    "merge": "str(merge([trace, trace]))",
    "window": "trace.window(0, 1000).table('spans')",
    "session": SESSION.replace("kinetoscope.profile", "profile"),
    "install": INSTALLED,
}


# Each needs a process of its own; `make stress` tries the others, too.
FEW = ("pandas", "report", "summarize", "install")


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("call", CALLS if STRESS else FEW)
def test_whatever_is_called_first_under_it_imports_on_another_thread(call, tmp_path):
    body = textwrap.indent(textwrap.dedent(CALLS[call]), "    ")
    done = warm_python.run("-c", PROGRAM.format(first=BEFORE, body=body), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    imported, _ = json.loads(done.stdout.splitlines()[-1])
    assert imported == []
