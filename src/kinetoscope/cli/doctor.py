"""`kinetoscope doctor`: check which engine can record on this machine, and why."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope import collect
from kinetoscope._errors import RecorderError
from kinetoscope._version import __version__
from kinetoscope.cli.files import AS_JSON, echo_json
from kinetoscope.display.blocks import ERROR, GOOD, WARNING, Paragraph
from kinetoscope.model import units

if TYPE_CHECKING:
    from torch.profiler import ProfilerActivity

# The subject, the result and, if it has one, its state.
Line = tuple[str, str, str]

OK, POOR, BAD = "ok", "poor", "bad"
_TONES = {OK: GOOD, POOR: WARNING, BAD: ERROR}
_LONGEST_LABEL = 14
# torch.profiler as it is in a new process.
_REPLACED = (
    "replaced by Kinetoscope: something called kinetoscope.install() at start-up (sitecustomize, a .pth file)"
)
_SLOWER = "kineto (torch's own collector): slower, and without modules"
_OF_TORCH = "torch's own (kinetoscope.install() or `kinetoscope run --install` replaces it)"


@click.command("doctor")
@click.option("--build", is_flag=True, help="Compile the recorder now, even if there is one.")
@AS_JSON
def command(*, build: bool, as_json: bool) -> None:
    """Check which engine can record on this machine, and test each feature of the recorder.

    The exit code is 0 if any engine can record, even if it is only torch's own collector.
    """
    from kinetoscope.display.lines import print_blocks
    from kinetoscope.display.terminal import console

    printer, lines = console(), []
    for label, text, state in _lines(build=build):
        lines.append({"label": label, "text": text, "state": state})
        if not as_json:
            fact = Paragraph(text, label.ljust(_LONGEST_LABEL), _TONES.get(state, ""))
            print_blocks(printer, [fact], printer.width)
    records = not any(line["label"] == "Engine" and line["state"] == BAD for line in lines)
    if as_json:
        echo_json({"records": records, "lines": lines})
    if not records:
        sys.exit(1)


def _lines(*, build: bool) -> Iterator[Line]:
    yield "Kinetoscope", f"{__version__}, {Path(__file__).parents[1]}", ""
    yield "Python", f"{platform.python_version()}, {sys.executable}", ""
    cores = units.count(os.cpu_count() or 1, "CPU core")
    yield "Machine", f"{platform.system()} {platform.machine()}, {cores}", ""
    text, problem = _torch()
    yield "PyTorch", f"{text}: {problem}" if problem else text, BAD if problem else ""
    if problem:
        yield "Engine", "none", BAD
        return
    yield "Compiler", *_compiler()
    if build:
        yield "Built", _compile_anew(), OK

    status = collect.native_engine_status(_say)
    yield "Recorder", status.reason, OK if status.available else BAD
    for name, value in status.details.items():
        test, _, feature = name.partition("self-test: ")
        if not feature or test:
            yield "", f"{name}: {value}", ""
        elif value == "ok":
            yield "", f"✓ {feature}", OK
        else:
            yield "", f"✗ {feature}: {value}", BAD
    problem = _kineto_problem()
    yield from _engine_lines(status, collect.supported_activities() - {collect.ProfilerActivity.CPU}, problem)
    try:
        yield "Kineto", problem or collect.kineto_status(), BAD if problem else OK
    except RecorderError as error:
        yield "Kineto", str(error), BAD
    yield "torch.profiler", _REPLACED if collect.is_installed() else _OF_TORCH, ""


def _engine_lines(
    status: collect.EngineStatus, devices: set[ProfilerActivity], kineto_problem: str
) -> Iterator[Line]:
    if not status.available:
        if kineto_problem:
            yield "Engine", "none (see Recorder and Kineto)", BAD
        else:
            yield "Engine", f"{_SLOWER} (see Recorder)", POOR
        return
    checks = {
        device.name: collect.hybrid_status(device, _say, repeat_failed=True)
        for device in sorted(devices, key=lambda device: device.name)
    }
    for name, check in checks.items():
        yield "Hybrid", f"{name}: {check.reason}", OK if check.available else POOR
    if not checks:
        yield "Engine", "native", OK
    elif all(check.available for check in checks.values()):
        hybrid = f"hybrid: the native engine for the host, torch's own collector for {', '.join(checks)}"
        yield "Engine", hybrid, OK
    else:
        yield "Engine", f"{_SLOWER} (see Hybrid); engine='native' still records the host natively", POOR


def _kineto_problem() -> str:
    """Why torch's own collector cannot record here, tested by recording an operator; empty if it can."""
    import torch

    if not collect.kineto_available():
        return ""
    try:
        with collect.profile(activities=[collect.ProfilerActivity.CPU], engine="kineto") as session:
            torch.zeros(1).add(1)
        names = session.trace.table("ops").column("name").to_pylist()
    except Exception as error:  # noqa: BLE001  (whatever fails in torch is the report)
        return f"cannot record here: {type(error).__name__}: {error}"
    return "" if "aten::add" in names else "cannot record here: its recording lacks an operator that ran"


def _torch() -> tuple[str, str]:
    """The installed torch, and why it cannot be recorded; empty if it can."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return "not installed", "traces can be read, but nothing can be recorded"
    return f"{torch.__version__}, {Path(torch.__file__).parent}", collect.why_too_old(torch)


def _compiler() -> tuple[str, str]:
    """The C++ compiler that would build the recorder, and the state of that line."""
    try:
        command, _ = collect.compilers()
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    except collect.BuildError:
        return "none found (install g++ or clang++, or set CXX)", POOR
    except OSError as error:
        return f"{command[0]} does not run: {error.strerror}", POOR
    return f"{version.stdout.partition(chr(10))[0]}, {' '.join(command)}", ""


def _compile_anew() -> str:
    """Compile the recorder for this torch into the cache; return its path and the time that took."""
    import torch

    from kinetoscope.storage.cache import cache_directory

    cache = cache_directory()
    begin_ns = time.monotonic_ns()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            library = collect.build(torch, Path(scratch), _say)
            library.replace(cache / library.name)
    except collect.BuildError as error:
        raise RecorderError(f"the recorder cannot be compiled: {error}.") from error
    return f"{cache / library.name} in {units.duration(time.monotonic_ns() - begin_ns)}"


def _say(line: str) -> None:
    click.echo(f"kinetoscope: {line}", err=True)
