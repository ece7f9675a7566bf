"""The public names and the cost of `import kinetoscope`."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import kinetoscope


def test_every_name_in_all_exists_and_nothing_else_is_visible():
    offered = {*kinetoscope.__all__, "open"}
    for name in offered:
        getattr(kinetoscope, name)
    visible = {
        name
        for name, value in vars(kinetoscope).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert visible == {name for name in offered if not name.startswith("_")}


def test_all_is_sorted_and_listed_once():
    assert kinetoscope.__all__ == sorted(set(kinetoscope.__all__))


def test_stubs_list_what_the_packages_export():
    checked = subprocess.run(
        [sys.executable, Path(__file__).parents[2] / "tools" / "generate_stubs.py", "--check"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_importing_all_names_replaces_no_builtin():
    told = run(
        "import builtins; from kinetoscope import *; print(set(dir(builtins)) & set(globals()) - {'__doc__', '__loader__', '__name__', '__package__', '__spec__', '__build_class__'})"
    )
    assert told.strip() == "set()"
    assert "open" in dir(kinetoscope)


def test_dir_lists_names_that_were_not_used_yet():
    listed = run("import kinetoscope; print(*dir(kinetoscope))").split()
    assert set(kinetoscope.__all__) <= set(listed)


def test_every_public_thing_says_what_it_is():
    ours = [
        getattr(kinetoscope, name)
        for name in kinetoscope.__all__
        if name != "__version__" and not name.startswith("_")
    ]
    silent = [
        thing
        for thing in ours
        if str(getattr(thing, "__module__", "")).startswith("kinetoscope") and not inspect.getdoc(thing)
    ]
    assert silent == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'kinetoscope' has no attribute 'profil'"):
        _ = kinetoscope.profil


def test_exceptions_are_one_family_and_each_also_what_was_expected_before():
    expected = {
        "ArgumentError": ValueError,
        "StateError": RuntimeError,
        "FormatError": ValueError,
        "FolderNotEmptyError": FileExistsError,
        "RecorderError": RuntimeError,
        "MissingDependencyError": ImportError,
    }
    for name, builtin in expected.items():
        exception = getattr(kinetoscope, name)
        assert issubclass(exception, kinetoscope.KinetoscopeError)
        assert issubclass(exception, builtin)


@pytest.mark.parametrize("heavy", ["torch", "pyarrow", "numpy", "pandas", "duckdb", "click", "rich"])
def test_import_loads_nothing_heavy(heavy):
    assert run(f"import sys, kinetoscope; print({heavy!r} in sys.modules)") == "False"


@pytest.mark.parametrize("heavy", ["torch", "pyarrow", "pandas", "duckdb"])
def test_reaching_for_a_trace_loads_neither_torch_nor_arrow(heavy):
    assert run(f"import sys, kinetoscope; kinetoscope.Trace; print({heavy!r} in sys.modules)") == "False"


def test_without_torch_the_recording_names_say_what_to_install():
    # None in sys.modules makes Python fail to import a module.
    said = run(
        "import sys; sys.modules['torch'] = None\n"
        "import kinetoscope\n"
        "try: kinetoscope.profile\n"
        "except kinetoscope.MissingDependencyError as error: print(error)"
    )
    assert "pip install torch" in said
    assert "kinetoscope.profile" in said


def run(program: str) -> str:
    """Run a program in a new interpreter and return its output."""
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()
