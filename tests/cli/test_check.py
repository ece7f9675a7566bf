"""`kinetoscope check`."""

import json

import pytest

from tests.cli.conftest import training_trace
from tests.support.strict_json import read_strictly


@pytest.fixture
def budget(tmp_path, trace_path, call, monkeypatch):
    """A budget of that trace, without its times: one recording of two steps tells nothing about them."""
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "budget.toml"
    assert call("check", "--update", path, trace_path).exit_code == 0
    path.write_text(path.read_text("utf-8").partition("[time]")[0], "utf-8")
    return path


@pytest.fixture
def slower(tmp_path):
    """The same run with one more operator in a step."""
    builder = training_trace()
    line = builder.stack(("/code/train.py", 13, "<module>"))
    builder.span("aten::relu", 14_200_000, 100_000, stack=line)
    path = tmp_path / "slower.ktrace"
    builder.build().save(path)
    return path


def test_what_a_budget_was_made_of_keeps_to_it(call, budget, trace_path):
    done = call("check", "--strict", budget, trace_path)
    assert done.exit_code == 0, done.stdout
    assert done.stdout.splitlines()[-1].endswith("limits held: held")


def test_what_breaks_it_exits_with_1_and_can_be_written_into_it(call, budget, slower):
    done = call("check", budget, slower, "--json")
    assert done.exit_code == 1
    assert read_strictly(done.stdout)["verdict"] == "broken"
    assert call("check", "--update", budget, slower).stdout == f"{budget}: updated\n"
    assert call("check", budget, slower).exit_code == 0


def test_what_was_added_is_named_and_not_what_runs_most(call, budget, slower):
    told = call("check", budget, slower).stdout
    (place,) = [line.split() for line in told.splitlines() if "aten::" in line]
    assert place[:2] == ["+1", "aten::relu"]
    assert "train.py:13" in place[-3]


def test_what_cannot_be_told_exits_with_2(call, budget, trace_path):
    budget.write_text("[counts]\npython_calls = 1\n", "utf-8")
    assert call("check", budget, trace_path).exit_code == 2


@pytest.mark.parametrize("text", ["[counts]\nnothing = 1\n", "", "[counts", "\udcff"])
def test_an_error_exits_with_3(call, budget, trace_path, text):
    budget.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = call("check", budget, trace_path)
    assert done.exit_code == 3
    assert done.stderr.startswith("kinetoscope: error: ")


def test_a_missing_file_or_argument_exits_with_3(call, budget, tmp_path):
    assert call("check", budget).exit_code == 3
    assert call("check", budget, tmp_path / "none.ktrace").exit_code == 3
    assert call("check", tmp_path / "none.toml", tmp_path / "none.ktrace").exit_code == 3


def test_services_that_build_are_told(call, budget, slower, tmp_path, monkeypatch):
    summary, junit = tmp_path / "summary.md", tmp_path / "junit.xml"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    done = call("check", budget, slower, "--junit", junit, "--json")
    assert done.exit_code == 1
    assert "### Kinetoscope: budget broken" in summary.read_text("utf-8")
    assert 'failures="1"' in junit.read_text("utf-8")
    assert "::error file=" in done.stderr
    json.loads(done.stdout)
