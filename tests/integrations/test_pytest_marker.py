"""What pytest says of the marker and the settings of our plugin before anything is recorded."""

import pytest

from tests.support.pytest_runs import LOADED


def test_a_run_without_marked_tests_loads_nothing_and_torch_is_asked_for_where_it_is_not(pytester):
    pytester.makepyfile("""
        import sys, pytest

        def test_nothing_is_there():
            heavy = {"torch", "numpy", "pyarrow", "IPython", "kinetoscope.trace", "kinetoscope.collect", "kinetoscope.tables"}
            assert heavy & set(sys.modules) == set()
            assert "kinetoscope.integrations.pytest_plugin" in sys.modules
            sys.modules["torch"] = None

        @pytest.mark.kinetoscope(max_operators=1)
        def test_without_torch():
            raise AssertionError("it must not be run")
    """)
    done = pytester.runpytest_subprocess(*LOADED, "-p", "no:xdist")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*the test cannot be recorded: *pip install torch*"])


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
    done.stdout.fnmatch_lines([said])


def test_a_skipped_test_is_skipped_whatever_its_marker_says(pytester):
    pytester.makepyfile("""
        import pytest
        @pytest.mark.skip
        @pytest.mark.kinetoscope(max_steps=3)
        def test_it():
            raise AssertionError("it must not be run")
    """)
    pytester.runpytest_inprocess(*LOADED).assert_outcomes(skipped=1)


def test_a_wrong_configuration_ends_the_run(pytester):
    pytester.makeini("[pytest]\nkinetoscope_keep = some\n")
    done = pytester.runpytest_inprocess(*LOADED)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*kinetoscope_keep = 'some' is not valid; use one of: failed, all, none*"])
