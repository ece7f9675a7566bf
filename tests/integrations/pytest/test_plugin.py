"""The pytest plugin, by pytest itself: runs of projects that use it, and what they report.

`marked_tests.py` is run once, in a worker of xdist, for all tests here that need a recording.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

import kinetoscope
from tests.support import warm_python
from tests.support.pytest_runs import LOADED, WARNINGS_ARE_ERRORS

HERE = Path(__file__).parent
CONFTEST = """
import asyncio, inspect, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
"""


@dataclass(frozen=True)
class Outcome:
    """What the report of a run says of one test."""

    verdict: str
    headline: str
    text: str
    properties: dict[str, str]
    out: str


@dataclass(frozen=True)
class Run:
    """One run: its folder, its output, and the outcome of each test by name."""

    folder: Path
    output: str
    tests: dict[str, Outcome]

    def kept(self) -> set[str]:
        """Returns the tests whose traces were kept, by what their files' names begin with."""
        return {
            path.name.removeprefix("test_marked.py-").rpartition("-")[0]
            for path in (self.folder / "traces").glob("*.ktrace")
        }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_marked.py").write_text((HERE / "marked_tests.py").read_text("utf-8"), "utf-8")
    (folder / "pytest.ini").write_text(
        f"[pytest]\nkinetoscope_dir = traces\nstrict = true{WARNINGS_ARE_ERRORS}"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        *LOADED,
        "-n1",
        "--junitxml=report.xml",
        "-o",
        "junit_logging=all",
    ]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, env=os.environ)
    return Run(folder, done.stdout + done.stderr, outcomes(folder / "report.xml"))


def outcomes(report: Path) -> dict[str, Outcome]:
    """Reads a JUnit report."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        verdicts = [part for part in case if part.tag in ("failure", "error", "skipped")]
        part = verdicts[0] if verdicts else None
        found[case.get("name")] = Outcome(
            "passed" if part is None else part.tag,
            "" if part is None else part.get("message", ""),
            "" if part is None else part.text or "",
            {entry.get("name"): entry.get("value") for entry in case.iter("property")},
            "".join(out.text or "" for out in case.iter("system-out")),
        )
    return found


def test_what_keeps_to_its_limits_passes(run):
    passed = {name for name, outcome in run.tests.items() if outcome.verdict == "passed"}
    assert passed == {
        "test_within_all_limits",
        "test_parametrized[1]",
        "test_parametrized[2]",
        "test_lifted",
        "test_the_trace_of_the_whole_test",
        "test_the_trace_of_a_block",
        "test_limits_count_the_block_only",
        "test_a_fixture_looks_at_the_trace_afterwards",
        "test_asked_for_too_late",
        "test_records_itself",
        "test_whoever_traces_lines_goes_on",
        "test_random_numbers_stay_what_they_are",
    }, run.output


def test_what_exceeds_a_limit_fails_and_says_which_with_its_numbers(run):
    told = run.tests["test_beyond_all_limits"]
    assert told.verdict == "failure"
    assert re.search(
        r"^max_step_ms=1e-06: the test, which marks no steps, took [\d.]+ (µs|ms|s), .* too long$",
        told.text,
        re.MULTILINE,
    )
    assert re.search(r"^max_operators=4: (\d\d) operators ran, \d\d too many$", told.text, re.MULTILINE)
    assert re.search(
        r"^max_allocations=2: 4 blocks allocated, 2.63 KiB together, 2 too many$", told.text, re.MULTILINE
    )
    assert re.search(
        r"^max_peak_bytes=1,024: 2.50 KiB \(2,560 bytes\) held at once on cpu, 1.50 KiB too many, .* after the start$",
        told.text,
        re.MULTILINE,
    )


@pytest.mark.parametrize(
    "row",
    [
        r" +2  aten::as_strided +first +test_marked.py:\d+ in Net.forward",
        r" +1 KiB  aten::addmm +first +test_marked.py:\d+ in Net.forward",
        r" +512 B  aten::zeros +- +test_marked.py:\d+ in test_beyond_all_limits",
        r" +1  aten::clamp_min +Net +test_marked.py:\d+ in Net.forward",
        # Which operators take longest is up to the machine, but of six rows at most four are outside the model.
        r" +[\d.]+ (µs|ms|s)  aten::\w+ +(Net|first|second) +test_marked.py:\d+ in Net.forward",
        r" +\d+  in \d+ other places",
    ],
    ids=["calls", "bytes", "bytes_outside_modules", "blocks", "time", "rest"],
)
def test_it_says_where_by_operator_module_and_line(run, row):
    assert re.search(f"^{row}$", run.tests["test_beyond_all_limits"].text, re.MULTILINE), run.tests[
        "test_beyond_all_limits"
    ].text


def test_the_line_of_a_limit_is_the_line_of_the_source(run):
    text = run.tests["test_beyond_all_limits"].text
    line = int(re.search(r"test_marked.py:(\d+) in Net.forward", text)[1])
    source = (run.folder / "test_marked.py").read_text("utf-8").splitlines()
    assert "self.second(torch.relu(self.first(batch)))" in source[line - 1]


def test_the_headline_of_a_failure_is_the_first_limit(run):
    assert run.tests["test_parametrized[30]"].headline.startswith("LimitExceeded: max_operators=100: ")
    assert "Traceback" not in run.tests["test_parametrized[30]"].text


def test_steps_after_the_warm_up_are_looked_at_one_by_one(run):
    told = run.tests["test_slow_steps"].text
    assert re.search(
        r"^max_step_ms=1e-06: step [12] took .* the median of 2 steps is .*, 2 of them too long$",
        told,
        re.MULTILINE,
    )
    assert "leaves it out" not in told


def test_the_step_that_an_optimizer_ends_says_that_it_has_no_beginning(run):
    assert "warmup_steps=1 leaves it out" in run.tests["test_first_step_of_an_optimizer"].text


def test_a_warm_up_that_leaves_no_step_is_no_pass(run):
    told = run.tests["test_all_steps_are_warm_up"]
    assert told.verdict == "failure"
    assert told.text.startswith(
        "the limits cannot be checked: warmup_steps=2 leaves no step to be looked at: the trace has 1 step"
    )


def test_a_trace_that_the_test_closed_cannot_be_judged(run):
    assert run.tests["test_closes_its_trace"].text.startswith(
        "the limits cannot be checked: the trace was closed"
    )


def test_a_failure_of_the_test_itself_comes_first_and_the_limits_beside_it(run):
    told = run.tests["test_fails_itself_beyond_a_limit"]
    assert told.headline == "RuntimeError: its own failure"
    assert "max_operators=2: " in run.output.partition("RuntimeError: its own failure")[2]


def test_an_expected_failure_may_be_that_of_a_limit(run):
    assert run.tests["test_expected_to_exceed"].verdict == "skipped"
    assert "known to be too much" in run.tests["test_expected_to_exceed"].headline


def test_the_nearer_of_two_markers_counts(run):
    assert run.tests["test_from_the_class"].headline.startswith(
        "LimitExceeded: max_operators=0: 3 operators ran"
    )


def test_coroutines_are_recorded_whoever_runs_them(run):
    assert re.search(
        r"aten::addmm +first +test_marked.py:\d+ in Net.forward|other places",
        run.tests["test_asynchronous"].text,
    )
    assert run.tests["test_asynchronous"].headline.startswith("LimitExceeded: max_operators=1: ")
    assert run.tests["test_awaits"].headline.startswith("LimitExceeded: max_operators=1: 4 operators ran")


def test_what_was_measured_is_in_the_report(run):
    measured = run.tests["test_within_all_limits"].properties
    assert set(measured) == {
        f"kinetoscope_{name}" for name in ("step_ms", "operators", "allocations", "peak_bytes", "kernels")
    }
    assert measured["kinetoscope_allocations"] == "4"
    assert measured["kinetoscope_peak_bytes"] == "2560"
    assert float(measured["kinetoscope_step_ms"]) > 0
    assert set(run.tests["test_parametrized[30]"].properties) == {"kinetoscope_operators"}


def test_traces_of_failed_tests_are_kept_and_those_of_others_not(run):
    assert run.kept() == {
        "test_beyond_all_limits",
        "test_slow_steps",
        "test_first_step_of_an_optimizer",
        "test_fails_itself_beyond_a_limit",
        "test_expected_to_exceed",
        "test_parametrized-30",
        "TestNearerMarker-test_from_the_class",
        "test_wrong_about_its_trace",
        "test_asynchronous",
        "TestOfUnittest-test_awaits",
    }


def test_a_kept_trace_is_where_the_report_says_and_holds_the_test(run):
    path = re.search(r"^its trace: (\S+)$", run.tests["test_parametrized[30]"].text, re.MULTILINE)[1]
    with kinetoscope.open(run.folder / path) as trace:
        counts = dict(zip(*trace.table("ops").select(["name", "count"]).to_pydict().values(), strict=True))
        assert counts["aten::neg"] == 30


def test_a_test_that_fails_by_its_trace_says_where_that_is(run):
    assert "its trace: traces/test_marked.py-test_wrong_about_its_trace-" in run.output


def test_a_test_that_is_skipped_while_it_runs_is_not_judged(run):
    assert run.tests["test_skips_itself"].verdict == "skipped"


# Two runs in one process, with torch loaded once: first the test fails, then it passes.
TWICE = f"""
import os, pathlib, sys, pytest
arguments = {[*LOADED]!r} + sys.argv[1:]
def kept():
    return sorted(path.parent.name for path in pathlib.Path().rglob("*.ktrace"))
for verdict, more in (("fail", ["--kinetoscope-keep=none"]), ("fail", []), ("pass", []), ("pass", ["--kinetoscope-keep=all", "--kinetoscope-dir=all"])):
    os.environ["VERDICT"] = verdict
    pytest.main(["-q", "test_it.py", *arguments, *more])
    print("KEPT", *kept())
print("PAGE")
pytest.main(["-q", "test_model.py", "test_waste.py", "test_parts.py", *arguments])
"""
PAGE = Path(__file__).parents[3] / "docs" / "pytest.md"
BLOCK = re.compile(r"^```\{code-block\} python\n:caption: (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LATER = """
import os, torch
def test_it(kinetoscope_trace):
    torch.zeros(3).exp()
    assert os.environ["VERDICT"] == "pass"
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    # Not by `pytester`, which hides the home folder and with it the recorder that was compiled for this torch.
    folder = tmp_path_factory.mktemp("twice")
    (folder / "test_it.py").write_text(LATER)
    for name, source in BLOCK.findall(PAGE.read_text("utf-8")):
        (folder / name).write_text(source)
    done = warm_python.run("-c", TWICE, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_which_traces_are_kept_and_where(twice):
    # The cache of pytest is the place where no other is said, and a pass takes away what a failure left there.
    assert re.findall(r"^KEPT.*$", twice, re.MULTILINE) == ["KEPT", "KEPT kinetoscope", "KEPT", "KEPT all"]
    assert re.search(r"^its trace: \.pytest_cache/.*/kinetoscope/.*\.ktrace$", twice, re.MULTILINE)


def test_the_tests_of_the_page_do_what_it_says(twice):
    assert "1 failed, 4 passed" in twice.partition("PAGE\n")[2]
    shown = re.search(r"^```text\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)[1]
    missing = set(without_numbers(shown)) - set(without_numbers(twice))
    assert missing == set()


def without_numbers(text: str) -> list[str]:
    """Returns the lines of a text, numbers and widths of columns left out."""
    return [
        " ".join(re.sub(r"-[0-9a-f]{8}\.|[\d.,]+(?: \w+(?= after the start))?", "#", line).split())
        for line in text.splitlines()
    ]
