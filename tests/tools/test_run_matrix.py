import importlib.util
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "tools" / "run_matrix.py"

# A run of pytest notes in a file that it was here.
SUITE = """
from pathlib import Path

import pytest

HERE = Path(__file__).with_name("ran-before")
AGAIN = HERE.exists()


def test_passes():
    pass


def test_skips():
    pytest.skip("on purpose")


@pytest.mark.parametrize("text", ["a - b", "c"])
def test_passes_when_run_again(text):
    HERE.touch()
    assert AGAIN


@pytest.fixture
def ends_badly():
    yield
    assert AGAIN


def test_ends_badly_at_first(ends_badly):
    pass


def test_fails():
    assert False
"""


def tool():
    spec = importlib.util.spec_from_file_location("_run_matrix", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(tmp_path, suite):
    """What the tool says of a file of tests, run in this environment."""
    path = tmp_path / "test_suite.py"
    path.write_text(suite)
    return tool().tested(Path(sys.executable), tmp_path / "scratch", tmp_path / "log.txt", [str(path)])


def test_only_tests_that_fail_twice_have_failed(tmp_path):
    (tmp_path / "scratch").mkdir()
    passed, failed, skipped, remarks = outcome(tmp_path, SUITE)
    assert (passed, failed, skipped) == (4, 1, 1)
    assert "3 failed at first and passed when run again alone" in remarks
    assert (
        "test_ends_badly_at_first, test_passes_when_run_again[a - b], test_passes_when_run_again[c]"
        in remarks
    )
    assert remarks.endswith("failed twice: test_fails")


def test_a_run_that_breaks_off_is_no_success(tmp_path):
    (tmp_path / "scratch").mkdir()
    suite = "import os\n\n\ndef test_one():\n    pass\n\n\ndef test_two():\n    os._exit(0)\n"
    passed, failed, _, remarks = outcome(tmp_path, suite)
    assert (passed, failed) == (0, 1)
    assert "ended with" in remarks
