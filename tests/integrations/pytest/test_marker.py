"""What pytest says of the marker and the settings of our plugin before anything is recorded."""

import runpy
import types

import pytest

from kinetoscope.integrations.pytest import plugin as plugin_module
from tests.support.pytest_runs import LOADED


def test_a_run_without_marked_tests_loads_nothing_and_torch_is_asked_for_where_it_is_not(pytester):
    pytester.makepyfile("""
        import sys, pytest

        def test_nothing_is_there():
            heavy = {"torch", "numpy", "pyarrow", "IPython", "kinetoscope.trace", "kinetoscope.collect", "kinetoscope.tables"}
            assert heavy & set(sys.modules) == set()
            assert "kinetoscope.integrations.pytest.plugin" in sys.modules
            sys.modules["torch"] = None

        @pytest.mark.kinetoscope(max_operators=1)
        def test_without_torch():
            raise AssertionError("it must not be run")
    """)
    done = pytester.runpytest_subprocess(*LOADED, "-p", "no:xdist")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*the test cannot be recorded: *pip install torch*"])


def test_a_pytest_that_is_too_old_runs_all_other_tests(pytester, monkeypatch):
    with monkeypatch.context() as old:
        old.setattr(pytest, "version_tuple", (7, 4, 4))
        made = runpy.run_path(plugin_module.__file__)
    plugin = types.ModuleType("plugin_of_an_old_pytest")
    vars(plugin).update({name: hook for name, hook in made.items() if name.startswith("pytest_")})
    pytester.makepyfile("""
        import pytest

        def test_without_a_marker():
            pass

        @pytest.mark.kinetoscope(max_operators=1)
        def test_it():
            raise AssertionError("it must not be run")
    """)
    done = pytester.runpytest_inprocess("-p", "no:kinetoscope", "--strict-markers", plugins=[plugin])
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["the marker kinetoscope needs pytest 8.0 or newer, and this is *"])


def test_the_marker_describes_itself(pytester):
    pytester.runpytest_inprocess(*LOADED, "--markers").stdout.fnmatch_lines(
        [
            "@pytest.mark.kinetoscope(max_step_ms=None, max_operators=None, *warmup_steps=0, *: record this test*"
        ]
    )


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("max_steps=3", "*has no keyword 'max_steps'; did you mean max_step_ms?*"),
        ("colour=3", "*has no keyword 'colour'; it knows: max_step_ms, max_operators, *"),
        ("100", "*was given 100 without a name; write it as a keyword, such as max_operators=100*"),
        ("max_step_ms=0", "*max_step_ms=0 is not valid * use a number above 0*"),
        ("max_step_ms=float('nan')", "*max_step_ms=nan is not valid * use a number above 0*"),
        ("max_allocations=-1", "*max_allocations=-1 is not valid * use a whole number, 0 or more*"),
        ("max_operators=True", "*max_operators=True is not valid * use a whole number, 0 or more*"),
        ("warmup_steps='two'", "*warmup_steps='two' is not valid * use a whole number, 0 or more*"),
        ("with_stack=1", "*with_stack=1 is not valid * use True or False*"),
        ("max_peak_bytes=1, profile_memory=False", "*max_peak_bytes needs profile_memory=True*"),
    ],
    ids=["near", "far", "positional", "zero_ms", "nan_ms", "negative", "bool", "text", "switch", "memory"],
)
def test_a_wrong_marker_says_what_to_write(pytester, marker, said):
    pytester.makepyfile(f"""
        import pytest
        @pytest.mark.kinetoscope({marker})
        def test_it():
            raise AssertionError("it must not be run")
    """)
    done = pytester.runpytest_inprocess(*LOADED)
    done.assert_outcomes(errors=1)
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.stdout.fnmatch_lines([f"*test_a_wrong_marker_says_what_to_write.py:2: test_it: {said}"])


def test_all_wrong_markers_of_a_file_are_told_and_the_other_files_run(pytester):
    pytester.makepyfile(
        test_wrong="""
        import pytest

        @pytest.mark.skip
        @pytest.mark.kinetoscope(max_steps=3)
        @pytest.mark.parametrize("size", [1, 2, 3])
        def test_of_three(size):
            raise AssertionError("it must not be run")

        @pytest.mark.xfail
        @pytest.mark.kinetoscope(7)
        def test_expected_to_fail():
            raise AssertionError("it must not be run")
        """,
        test_class="""
        import pytest, unittest

        @pytest.mark.kinetoscope(with_stack=None)
        class TestOfUnittest(unittest.TestCase):
            def test_method(self):
                raise AssertionError("it must not be run")
        """,
        test_right="""
        import pytest

        @pytest.mark.skip
        @pytest.mark.kinetoscope(max_operators=3)
        def test_skipped():
            raise AssertionError("it must not be run")

        def test_without_a_marker():
            pass
        """,
    )
    done = pytester.runpytest_inprocess(*LOADED, "--continue-on-collection-errors")
    done.assert_outcomes(passed=1, skipped=1, errors=2)
    done.stdout.fnmatch_lines(
        [
            "*test_wrong.py:3: test_of_three[[]1[]] (and 2 more): the marker kinetoscope has no keyword 'max_steps'*",
            "*test_wrong.py:9: test_expected_to_fail: the marker kinetoscope was given 7 without a name*",
        ]
    )
    done.stdout.fnmatch_lines(["*test_class.py:*: TestOfUnittest.test_method: with_stack=None is not valid*"])


def test_a_marker_that_comes_after_the_collection_is_refused_before_its_test_runs(pytester):
    pytester.makeconftest("""
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.kinetoscope(max_operators=3.5))
    """)
    pytester.makepyfile("""
        def test_it():
            raise AssertionError("it must not be run")
    """)
    done = pytester.runpytest_inprocess(*LOADED)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(
        ["*max_operators=3.5 is not valid for the marker kinetoscope; use a whole number, 0 or more*"]
    )


def test_a_wrong_configuration_ends_the_run(pytester):
    pytester.makeini("[pytest]\nkinetoscope_keep = some\n")
    done = pytester.runpytest_inprocess(*LOADED)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*kinetoscope_keep = 'some' is not valid; use one of: failed, all, none*"])
