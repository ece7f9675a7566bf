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
from kinetoscope.model import units

if TYPE_CHECKING:
    from rich.console import Console
    from torch.profiler import ProfilerActivity

    from kinetoscope.collect import EngineStatus

OK, POOR, BAD = "green", "yellow", "red"
_LABEL_WIDTH = 16


@click.command("doctor")
@click.option("--build", is_flag=True, help="Compile the recorder now, even if there is one.")
def command(*, build: bool) -> None:
    """Check which engine can record on this machine, and test each feature of the recorder.

    The exit code is 0 if any engine can record, even if it is only torch's own collector.
    """
    from kinetoscope.display.terminal import console

    printer = console()
    _line(printer, "Kinetoscope", f"{__version__}, {Path(__file__).parents[1]}")
    _line(printer, "Python", f"{platform.python_version()}, {sys.executable}")
    _line(
        printer,
        "Machine",
        f"{platform.system()} {platform.machine()}, {units.count(os.cpu_count() or 1, 'processor')}",
    )
    torch_version = _torch_version()
    if torch_version is None:
        _line(printer, "PyTorch", "not installed: traces can be read, but nothing can be recorded", BAD)
        _line(printer, "Engine", "none", BAD)
        sys.exit(1)
    if problem := _too_old():
        _line(printer, "PyTorch", f"{torch_version}: {problem}", BAD)
        _line(printer, "Engine", "none", BAD)
        sys.exit(1)
    _line(printer, "PyTorch", torch_version)
    _line(printer, "Compiler", *_compiler())
    if build:
        _compile_anew(printer)

    from kinetoscope.collect import ProfilerActivity, native_engine_status, supported_activities

    status = native_engine_status(_say)
    _native_lines(printer, status)
    problem = _kineto_problem()
    _engine_line(printer, status, supported_activities() - {ProfilerActivity.CPU}, problem)
    _kineto_line(printer, problem)
    _switch_line(printer)
    if problem and not status.available:
        sys.exit(1)


def _native_lines(printer: Console, status: EngineStatus) -> None:
    """Print the status of the native engine: its file, and each feature of its self-test."""
    _line(printer, "Recorder", status.reason, OK if status.available else BAD)
    for name, value in status.details.items():
        test, _, feature = name.partition("self-test: ")
        if feature and not test:
            passed = value == "ok"
            _line(
                printer,
                "",
                f"{'✓' if passed else '✗'} {feature}{'' if passed else f': {value}'}",
                OK if passed else BAD,
            )
        else:
            _line(printer, "", f"{name}: {value}")


def _engine_line(
    printer: Console, status: EngineStatus, devices: set[ProfilerActivity], kineto_problem: str
) -> None:
    """Print which engine `engine="auto"` chooses."""
    if kineto_problem and not status.available:
        _line(printer, "Engine", "none (see Recorder and Kineto)", BAD)
        return
    if not status.available:
        _line(
            printer,
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
        _line(printer, "Hybrid", f"{name}: {check.reason}", OK if check.available else POOR)
    if not checks:
        _line(printer, "Engine", "native", OK)
    elif all(check.available for check in checks.values()):
        names = ", ".join(checks)
        _line(
            printer,
            "Engine",
            f"hybrid: the native engine for the host, torch's own collector for {names}",
            OK,
        )
    else:
        _line(
            printer,
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


def _kineto_line(printer: Console, problem: str) -> None:
    """Print how the data of torch's own collector is read, and whether it makes its event objects."""
    from kinetoscope.collect import kineto_status

    if problem:
        _line(printer, "Kineto", problem, BAD)
        return
    try:
        _line(printer, "Kineto", kineto_status(), OK)
    except RecorderError as error:
        _line(printer, "Kineto", str(error), BAD)


def _switch_line(printer: Console) -> None:
    """Print whether `torch.profiler` is torch's own in a fresh process such as this one."""
    from kinetoscope.collect import is_installed

    if is_installed():
        text = "replaced by Kinetoscope: something called kinetoscope.install() at start-up (sitecustomize, a .pth file)"
    else:
        text = "torch's own (kinetoscope.install() or `kinetoscope run --install` replaces it)"
    _line(printer, "torch.profiler", text)


def _line(printer: Console, label: str, value: str, style: str = "") -> None:
    """Print a labeled line."""
    from kinetoscope.display.terminal import print_fact

    print_fact(printer, label, value, _LABEL_WIDTH, style)


def _torch_version() -> str | None:
    """The version and folder of torch, or None if it is not installed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    return f"{torch.__version__}, {Path(torch.__file__).parent}"


def _too_old() -> str:
    """Why the installed torch is too old to record; empty if it is not."""
    import torch

    from kinetoscope.collect import why_too_old

    return why_too_old(torch)


def _compiler() -> tuple[str, str]:
    """The C++ compiler that would build the recorder, and the style of that line."""
    from kinetoscope.collect import BuildError, compilers

    try:
        command, _ = compilers()
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    except BuildError:
        return "none found (install g++ or clang++, or set CXX)", POOR
    except OSError as error:
        return f"{command[0]} does not run: {error.strerror}", POOR
    return f"{version.stdout.partition(chr(10))[0]}, {' '.join(command)}", ""


def _compile_anew(printer: Console) -> None:
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
            made = build_recorder(torch, Path(scratch), _say)
            made.replace(cache / made.name)
    except BuildError as error:
        raise RecorderError(f"the recorder cannot be compiled: {error}.") from error
    _line(printer, "Built", f"{cache / made.name} in {units.duration(time.monotonic_ns() - begin_ns)}", OK)


def _say(line: str) -> None:
    """Print progress."""
    click.echo(f"kinetoscope: {line}", err=True)
