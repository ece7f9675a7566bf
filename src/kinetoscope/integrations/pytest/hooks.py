"""The hooks of the pytest plugin: options, wrong markers, the recording of each test, the verdict, and the kept traces.

Loaded in every run of pytest, so torch, numpy and the rooms of this package are imported with the first recorded test.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kinetoscope._errors import KinetoscopeError
from kinetoscope.comparison.limits import Limits
from kinetoscope.integrations.pytest.marker import MARKER, limits_of

if TYPE_CHECKING:
    from kinetoscope.integrations.pytest.recording import RecordedTest

KEEP = ("failed", "all", "none")
FIXTURE = "kinetoscope_trace"

_LIMITS = pytest.StashKey[Limits]()
_RECORDING = pytest.StashKey["RecordedTest"]()
# Exceptions by which a test ends early, without anything to judge or keep.
_NOT_A_VERDICT = (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception, KeyboardInterrupt)


class LimitExceeded(pytest.fail.Exception):  # type: ignore[name-defined]
    """Fails a test that exceeded a limit of its marker; the text says which limit, by how much, and where."""

    # Reports show the module of an exception, too, and have few columns.
    __module__ = "builtins"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for saved traces."""
    group = parser.getgroup("kinetoscope", "recording tests with Kinetoscope")
    keep = "of which recorded tests the trace is kept: failed (the default), all or none"
    folder = "where traces are kept; default: in pytest's cache, or a temporary folder where there is none"
    group.addoption("--kinetoscope-keep", choices=KEEP, default=None, help=keep)
    group.addoption("--kinetoscope-dir", metavar="DIR", default=None, help=folder)
    parser.addini("kinetoscope_keep", keep, default="failed")
    parser.addini("kinetoscope_dir", folder, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the configuration file."""
    config.addinivalue_line("markers", MARKER)
    keep = config.getini("kinetoscope_keep")
    if keep not in KEEP:
        raise pytest.UsageError(f"kinetoscope_keep = {keep!r} is not valid; use one of: {', '.join(KEEP)}")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Reject wrong markers at collection, as pytest rejects unknown markers."""
    report = yield
    wrong: dict[str, list[pytest.Item]] = {}
    for item in report.result or ():
        if isinstance(item, pytest.Item) and (marks := list(item.iter_markers("kinetoscope"))):
            try:
                _limits(marks)
            except KinetoscopeError as error:
                wrong.setdefault(str(error), []).append(item)
    if wrong:
        report.outcome, report.result = "failed", []
        report.longrepr = "\n".join(_refused(problem, items) for problem, items in wrong.items())
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Prepare the recording of a test with the marker or the fixture; markers may have been added after collection."""
    marks = list(item.iter_markers("kinetoscope"))
    if not marks and FIXTURE not in getattr(item, "fixturenames", ()):
        return
    _prepare(item, marks)


@pytest.fixture
def kinetoscope_trace(request: pytest.FixtureRequest) -> RecordedTest:
    """The trace of this test, from its first line until the trace is first read.

    It has all that a `kinetoscope.Trace` has. `with kinetoscope_trace:` records that block only, and
    `with kinetoscope_trace.step():` marks a step.
    """
    if _RECORDING not in request.node.stash:
        _prepare(request.node, list(request.node.iter_markers("kinetoscope")))
    recording: RecordedTest = request.node.stash[_RECORDING]
    return recording


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record the call of a test, then judge it by its limits."""
    if _RECORDING not in item.stash:
        return (yield)
    recording, limits = item.stash[_RECORDING], item.stash[_LIMITS]
    try:
        recording.begin()
    except KinetoscopeError as error:
        raise pytest.fail.Exception(f"the test cannot be recorded: {error}", pytrace=False) from None
    try:
        result = yield
    except _NOT_A_VERDICT:
        recording.discard()
        raise
    except BaseException:
        _tell_of_failed(item, recording, limits)
        raise
    exceeded = _judged(item, recording, limits)
    trace_path = _keep(item, recording, failed=bool(exceeded))
    if exceeded:
        raise LimitExceeded("\n".join([exceeded, *_where_kept(item, trace_path)]), pytrace=False)
    return result


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Release the trace after the fixtures of the test have finished; a test that is run again starts over."""
    recording = item.stash.get(_RECORDING, None)
    if recording is not None:
        recording.discard()
        del item.stash[_RECORDING]


def _prepare(item: pytest.Item, marks: list[pytest.Mark]) -> None:
    try:
        limits = _limits(marks)
    except KinetoscopeError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    from kinetoscope.integrations.pytest.recording import RecordedTest

    item.stash[_LIMITS] = limits
    item.stash[_RECORDING] = RecordedTest(limits.settings)


def _limits(marks: list[pytest.Mark]) -> Limits:
    return limits_of([mark.kwargs for mark in marks], [mark.args for mark in marks])


def _refused(problem: str, items: list[pytest.Item]) -> str:
    file, line, name = items[0].location
    location = file if line is None else f"{file}:{line + 1}"
    more = f" (and {len(items) - 1:,} more)" if len(items) > 1 else ""
    return f"{location}: {name}{more}: {problem}"


def _judged(item: pytest.Item, recording: RecordedTest, limits: Limits) -> str:
    """Which limit was exceeded and where, or an empty text; adds the measurements to the test's report."""
    from kinetoscope.comparison.verdict import judge

    try:
        recording.end()
        if not limits.allowed:
            return ""
        verdict = judge(recording.trace, limits, recording.ran_ns)
    except KinetoscopeError as error:
        raise pytest.fail.Exception(f"the limits cannot be checked: {error}", pytrace=False) from None
    except Exception as error:
        if limits.allowed:
            problem = f"the limits could not be checked: {type(error).__name__}: {error}"
            raise pytest.fail.Exception(problem, pytrace=False) from error
        item.warn(pytest.PytestWarning(f"the recording of {item.nodeid} could not be stopped: {error}"))
        return ""
    item.user_properties.extend((f"kinetoscope_{name}", value) for name, value in verdict.measured.items())
    if verdict.lost:
        item.warn(pytest.PytestWarning(f"in the trace of {item.nodeid}, {verdict.lost}"))
    return verdict.text


def _tell_of_failed(item: pytest.Item, recording: RecordedTest, limits: Limits) -> None:
    try:
        exceeded = _judged(item, recording, limits)
    except pytest.fail.Exception as failure:
        exceeded = str(failure)
    lines = [*([exceeded] if exceeded else []), *_where_kept(item, _keep(item, recording, failed=True))]
    if lines:
        item.add_report_section("call", "kinetoscope", "\n".join(lines))


def _keep(item: pytest.Item, recording: RecordedTest, *, failed: bool) -> Path | None:
    """Save the trace if it is to be kept; otherwise remove an earlier run's and return None."""
    keep = item.config.getoption("--kinetoscope-keep") or item.config.getini("kinetoscope_keep")
    wanted = keep == "all" or (keep == "failed" and failed)
    try:
        path = _folder(item.config, make=wanted) / _file_name(item.nodeid)
        if not wanted:
            path.unlink(missing_ok=True)
            return None
        recording.trace.save(path)
    except Exception as error:  # noqa: BLE001  (a full disk is no failure of the test)
        item.warn(pytest.PytestWarning(f"the trace of {item.nodeid} could not be saved: {error}"))
        return None
    return path


def _folder(config: pytest.Config, *, make: bool) -> Path:
    folder: Path
    named = config.getoption("--kinetoscope-dir") or config.getini("kinetoscope_dir")
    if named:
        base = config.invocation_params.dir if config.getoption("--kinetoscope-dir") else config.rootpath
        folder = base / named
    elif (cache := getattr(config, "cache", None)) is not None:
        folder = Path(cache.mkdir("kinetoscope"))
    else:
        temporary: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # noqa: SLF001  (pytest's own)
        folder = temporary / "kinetoscope"
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _file_name(nodeid: str) -> str:
    """A valid file name that is unique to the test."""
    file, _, name = nodeid.partition("::")
    short = f"{file.rpartition('/')[2]}-{name}"
    readable = re.sub(r"[^\w.=-]+", "-", short, flags=re.ASCII).strip("-")[:100]
    return f"{readable}-{hashlib.sha256(nodeid.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}.ktrace"


def _where_kept(item: pytest.Item, path: Path | None) -> list[str]:
    if path is None:
        return []
    near = os.path.relpath(path, item.config.invocation_params.dir)
    nearest = path if near.startswith(os.pardir) else near
    return [f"its trace: {nearest}"]
