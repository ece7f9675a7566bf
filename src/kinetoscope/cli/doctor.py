"""`kinetoscope doctor`: check which engine can record on this machine, and why."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope._errors import RecorderError
from kinetoscope._version import __version__
from kinetoscope.cli.output import AS_JSON, echo_json
from kinetoscope.display.blocks import ERROR, GOOD, WARNING, Paragraph
from kinetoscope.model import units

if TYPE_CHECKING:
    from rich.console import Console
    from torch.profiler import ProfilerActivity

    from kinetoscope.collect import EngineStatus

OK, POOR, BAD = "ok", "poor", "bad"
_TONES = {OK: GOOD, POOR: WARNING, BAD: ERROR}
_LONGEST_LABEL = 14
# What torch.profiler is in a fresh process such as this one.
_REPLACED = (
    "replaced by Kinetoscope: something called kinetoscope.install() at start-up (sitecustomize, a .pth file)"
)
_OF_TORCH = "torch's own (kinetoscope.install() or `kinetoscope run --install` replaces it)"


class _Findings:
    """What was found, line by line: printed at once, or collected for JSON."""

    def __init__(self, printer: Console | None) -> None:
        """Start without lines; they are collected if `printer` is None."""
        self._printer = printer
        self.lines: list[dict[str, str]] = []

    def add(self, label: str, text: str, state: str = "") -> None:
        """Add a line: its subject, what was found and, if that can be good or bad, which it is."""
        from kinetoscope.display.lines import print_blocks

        self.lines.append({"label": label, "text": text, "state": state})
        if self._printer is not None:
            fact = Paragraph(text, label.ljust(_LONGEST_LABEL), _TONES.get(state, ""))
            print_blocks(self._printer, [fact], self._printer.width)


@click.command("doctor")
@click.option("--build", is_flag=True, help="Compile the recorder now, even if there is one.")
@AS_JSON
def command(*, build: bool, as_json: bool) -> None:
    """Check which engine can record on this machine, and test each feature of the recorder.

    The exit code is 0 if any engine can record, even if it is only torch's own collector.
    """
    from kinetoscope.display.terminal import console

    report = _Findings(None if as_json else console())
    records = _examine(report, build=build)
    if as_json:
        echo_json({"records": records, "lines": report.lines})
    if not records:
        sys.exit(1)


def _examine(report: _Findings, *, build: bool) -> bool:
    report.add("Kinetoscope", f"{__version__}, {Path(__file__).parents[1]}")
    report.add("Python", f"{platform.python_version()}, {sys.executable}")
    report.add(
        "Machine",
        f"{platform.system()} {platform.machine()}, {units.count(os.cpu_count() or 1, 'processor')}",
    )
    text, problem = _torch()
    report.add("PyTorch", f"{text}: {problem}" if problem else text, BAD if problem else "")
    if problem:
        report.add("Engine", "none", BAD)
        return False
    report.add("Compiler", *_compiler())
    if build:
        _compile_anew(report)

    from kinetoscope.collect import (
        ProfilerActivity,
        is_installed,
        native_engine_status,
        supported_activities,
    )

    status = native_engine_status(_say)
    _native_lines(report, status)
    problem = _kineto_problem()
    _engine_line(report, status, supported_activities() - {ProfilerActivity.CPU}, problem)
    _kineto_line(report, problem)
    report.add("torch.profiler", _REPLACED if is_installed() else _OF_TORCH)
    return status.available or not problem


def _native_lines(report: _Findings, status: EngineStatus) -> None:
    report.add("Recorder", status.reason, OK if status.available else BAD)
    for name, value in status.details.items():
        test, _, feature = name.partition("self-test: ")
        if feature and not test:
            passed = value == "ok"
            report.add(
                "",
                f"{'✓' if passed else '✗'} {feature}{'' if passed else f': {value}'}",
                OK if passed else BAD,
            )
        else:
            report.add("", f"{name}: {value}")


def _engine_line(
    report: _Findings, status: EngineStatus, devices: set[ProfilerActivity], kineto_problem: str
) -> None:
    if kineto_problem and not status.available:
        report.add("Engine", "none (see Recorder and Kineto)", BAD)
        return
    if not status.available:
        report.add(
            "Engine",
            "kineto (torch's own collector): slower, and without modules (see Recorder)",
            POOR,
        )
        return
    from kinetoscope.collect import hybrid_status

    checks = {
        device.name: hybrid_status(device, _say, repeat_failed=True)
        for device in sorted(devices, key=lambda device: device.name)
    }
    for name, check in checks.items():
        report.add("Hybrid", f"{name}: {check.reason}", OK if check.available else POOR)
    if not checks:
        report.add("Engine", "native", OK)
    elif all(check.available for check in checks.values()):
        names = ", ".join(checks)
        report.add(
            "Engine",
            f"hybrid: the native engine for the host, torch's own collector for {names}",
            OK,
        )
    else:
        report.add(
            "Engine",
            "kineto (torch's own collector): slower, and without modules (see Hybrid); engine='native' still records the host "
            "natively",
            POOR,
        )


def _kineto_problem() -> str:
    """Why torch's own collector cannot record here, tested by recording an operator; empty if it can."""
    import torch

    from kinetoscope.collect import ProfilerActivity, kineto_available, profile

    if not kineto_available():
        return ""
    try:
        with profile(activities=[ProfilerActivity.CPU], engine="kineto") as session:
            torch.zeros(1).add(1)
        names = session.trace.table("ops").column("name").to_pylist()
    except Exception as error:  # noqa: BLE001  (whatever fails in torch is the report)
        return f"cannot record here: {type(error).__name__}: {error}"
    return "" if "aten::add" in names else "cannot record here: its recording lacks an operator that ran"


def _kineto_line(report: _Findings, problem: str) -> None:
    """Print how the data of torch's own collector is read, and whether it makes its event objects."""
    from kinetoscope.collect import kineto_status

    if problem:
        report.add("Kineto", problem, BAD)
        return
    try:
        report.add("Kineto", kineto_status(), OK)
    except RecorderError as error:
        report.add("Kineto", str(error), BAD)


def _torch() -> tuple[str, str]:
    """The installed torch, and why it cannot be recorded; empty if it can."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return "not installed", "traces can be read, but nothing can be recorded"
    from kinetoscope.collect import why_too_old

    return f"{torch.__version__}, {Path(torch.__file__).parent}", why_too_old(torch)


def _compiler() -> tuple[str, str]:
    """The C++ compiler that would build the recorder, and the state of that line."""
    from kinetoscope.collect import BuildError, compilers

    try:
        command, _ = compilers()
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    except BuildError:
        return "none found (install g++ or clang++, or set CXX)", POOR
    except OSError as error:
        return f"{command[0]} does not run: {error.strerror}", POOR
    return f"{version.stdout.partition(chr(10))[0]}, {' '.join(command)}", ""


def _compile_anew(report: _Findings) -> None:
    """Compile the recorder for this torch into the cache; it replaces an existing one only when it is complete."""
    import torch

    from kinetoscope.collect import BuildError
    from kinetoscope.collect import build as build_recorder
    from kinetoscope.storage.cache import cache_directory

    cache = cache_directory()
    begin_ns = time.monotonic_ns()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            library = build_recorder(torch, Path(scratch), _say)
            library.replace(cache / library.name)
    except BuildError as error:
        raise RecorderError(f"the recorder cannot be compiled: {error}.") from error
    report.add("Built", f"{cache / library.name} in {units.duration(time.monotonic_ns() - begin_ns)}", OK)


def _say(line: str) -> None:
    click.echo(f"kinetoscope: {line}", err=True)
