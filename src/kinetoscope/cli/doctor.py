"""`kinetoscope doctor`: which engine records on this machine, and why."""

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
_LABEL_WIDTH = 12


@click.command("doctor")
@click.option("--build", is_flag=True, help="Compile the recorder now, also if one is there.")
def command(*, build: bool) -> None:
    """Say which engine records on this machine and why, and test the recorder feature by feature.

    The exit code is 0 when something can record here, also if it is only torch's own collector.
    """
    from kinetoscope.display.terminal import console

    printer = console()
    _line(printer, "kinetoscope", f"{__version__}, {Path(__file__).parents[1]}")
    _line(printer, "Python", f"{platform.python_version()}, {sys.executable}")
    _line(
        printer,
        "machine",
        f"{platform.system()} {platform.machine()}, {units.count(os.cpu_count() or 1, 'processor')}",
    )
    torch_version = _torch_version()
    if torch_version is None:
        _line(printer, "torch", "not installed: traces can be read here, but nothing can be recorded", BAD)
        _line(printer, "engine", "none", BAD)
        sys.exit(1)
    if problem := _too_old():
        _line(printer, "torch", f"{torch_version}: {problem}", BAD)
        _line(printer, "engine", "none", BAD)
        sys.exit(1)
    _line(printer, "torch", torch_version)
    _line(printer, "compiler", *_compiler())
    if build:
        _compile_anew(printer)

    from kinetoscope.collect import ProfilerActivity, supported_activities
    from kinetoscope.collect.engines.native import native_engine_status

    status = native_engine_status(_say)
    _native_lines(printer, status)
    problem = _kineto_problem()
    _engine_line(printer, status, supported_activities() - {ProfilerActivity.CPU}, problem)
    _kineto_line(printer, problem)
    _switch_line(printer)
    if problem and not status.available:
        sys.exit(1)


def _native_lines(printer: Console, status: EngineStatus) -> None:
    """Tell what is known of the native engine: its file, and each feature of its self-test."""
    _line(printer, "recorder", status.reason, OK if status.available else BAD)
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
    """Conclude."""
    if kineto_problem and not status.available:
        _line(printer, "engine", "none (see recorder above and kineto below)", BAD)
        return
    if not status.available:
        _line(
            printer,
            "engine",
            "kineto, torch's own collector: slower, and without modules (see recorder above)",
            POOR,
        )
        return
    from kinetoscope.collect.engines.hybrid_check import hybrid_status

    checks = {
        device.name: hybrid_status(device, _say, repeat_failed=True)
        for device in sorted(devices, key=lambda device: device.name)
    }
    for name, check in checks.items():
        _line(printer, "hybrid", f"{name}: {check.reason}", OK if check.available else POOR)
    if not checks:
        _line(printer, "engine", "native", OK)
    elif all(check.available for check in checks.values()):
        names = ", ".join(checks)
        _line(printer, "engine", f"hybrid: the host natively, {names} by torch's own collector", OK)
    else:
        _line(
            printer,
            "engine",
            "kineto, torch's own collector: slower, and without modules (see hybrid above); engine='native' records the "
            "host natively all the same",
            POOR,
        )


def _kineto_problem() -> str:
    """Why torch's own collector cannot record here, found out by recording an operator with it; empty if it can."""
    import torch

    from kinetoscope.collect import ProfilerActivity, kineto_available, profile

    if not kineto_available():
        return ""
    try:
        with profile(activities=[ProfilerActivity.CPU], engine="kineto") as session:
            torch.zeros(1).add(1)
        names = session.trace.table("ops").column("name").to_pylist()
    except Exception as error:  # noqa: BLE001  (whatever fails in torch is what is to be reported)
        return f"cannot record here: {type(error).__name__}: {error}"
    return (
        "" if "aten::add" in names else "cannot record here: an operator that ran was not in what it recorded"
    )


def _kineto_line(printer: Console, problem: str) -> None:
    """Tell how what torch's own collector records would reach us, and whether it is spared its event objects."""
    from kinetoscope.collect.engines.kineto import kineto_status

    if problem:
        _line(printer, "kineto", problem, BAD)
        return
    try:
        _line(printer, "kineto", kineto_status(), OK)
    except RecorderError as error:
        _line(printer, "kineto", str(error), BAD)


def _switch_line(printer: Console) -> None:
    """Tell where the names of `torch.profiler` lead in a fresh process such as this one."""
    from kinetoscope.collect import is_installed

    if is_installed():
        text = "Kinetoscope: something has called kinetoscope.install() (sitecustomize, a .pth file)"
    else:
        text = (
            "torch's own; kinetoscope.install() or `kinetoscope run --install` puts Kinetoscope in its place"
        )
    _line(printer, "profiler", text)


def _line(printer: Console, label: str, value: str, style: str = "") -> None:
    """Print a fact."""
    from kinetoscope.display.terminal import print_fact

    print_fact(printer, label, value, _LABEL_WIDTH, style)


def _torch_version() -> str | None:
    """The version and place of torch, or None when it is not there."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    return f"{torch.__version__}, {Path(torch.__file__).parent}"


def _too_old() -> str:
    """Why nothing can be recorded with the installed torch; empty for one that is new enough."""
    import torch

    from kinetoscope.collect.engines import build as build_module

    return build_module.why_too_old(torch)


def _compiler() -> tuple[str, str]:
    """The C++ compiler that would build the recorder, and how good that is."""
    from kinetoscope.collect.engines import build as build_module

    try:
        command, _ = build_module.compilers()
        told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    except build_module.BuildError:
        return "none found (install g++ or clang++, or set CXX)", POOR
    except OSError as error:
        return f"{command[0]} does not run: {error.strerror}", POOR
    return f"{told.stdout.partition(chr(10))[0]}, {' '.join(command)}", ""


def _compile_anew(printer: Console) -> None:
    """Compile the recorder for this torch into the cache; the one that is there stays until the new one is whole."""
    import torch

    from kinetoscope.collect.engines import build as build_module

    cache = build_module.cache_directory()
    begin_ns = time.monotonic_ns()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            made = build_module.build(torch, Path(scratch), _say)
            made.replace(cache / made.name)
    except build_module.BuildError as error:
        raise RecorderError(f"the recorder cannot be compiled: {error}.") from error
    _line(printer, "built", f"{cache / made.name} in {units.duration(time.monotonic_ns() - begin_ns)}", OK)


def _say(line: str) -> None:
    """Tell what is going on."""
    click.echo(f"kinetoscope: {line}", err=True)
