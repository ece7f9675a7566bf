"""What `leave_on` is asked for, from its arguments or the environment."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetoscope._errors import ArgumentError, ArgumentTypeError, checked_choice
from kinetoscope.model import units

REASONS = ("hang", "crash", "oom", "slow", "nan", "exit")
"""What can be an incident."""

DEFAULT_BUDGET = "1%"
DEFAULT_KEEP = ("60s", "256MiB")
DEFAULT_LIMITS = "6/hour"
DEFAULT_CONTROL = "off"
SWITCH = "KINETOSCOPE"
_BUDGET, _KEEP, _FOLDER, _ON, _CONTROL = (
    f"KINETOSCOPE_{name}" for name in ("BUDGET", "KEEP", "DIR", "ON", "CONTROL")
)


@dataclass(frozen=True)
class FlightSettings:
    """The settings of a flight recorder.

    Attributes:
        budget: The share of the time of the steps that it may cost.
        keep_s: How many seconds back copies of the ring reach, if the ring does.
        keep_bytes: The size of the ring.
        folder: Where the folders of jobs are.
        on: What is kept as an incident.
        most_in_an_hour: How many incidents an hour are kept.
        control: Whether requests are accepted, at a Unix socket beside the ring.
    """

    budget: float
    keep_s: float
    keep_bytes: int
    folder: Path
    on: frozenset[str]
    most_in_an_hour: int
    control: bool


def settings(
    budget: str | float = DEFAULT_BUDGET,
    keep: str | Iterable[str] = DEFAULT_KEEP,
    folder: str | os.PathLike[str] | None = None,
    on: str | Iterable[str] = REASONS,
    limits: str = DEFAULT_LIMITS,
    control: str = DEFAULT_CONTROL,
    environment: Mapping[str, str] = os.environ,
) -> FlightSettings:
    """Check the arguments of `leave_on`; environment variables take their place.

    Raises:
        ArgumentError: A value cannot be used; the message names it.
    """
    keep_s, keep_bytes = _read_keep(_words("keep", environment.get(_KEEP) or keep))
    chosen = _words("on", environment.get(_ON) or on)
    if unknown := [reason for reason in chosen if reason not in REASONS]:
        raise ArgumentError(f"on={unknown[0]!r} is not an event: choose from {', '.join(REASONS)}.")
    chosen_folder = environment.get(_FOLDER) or folder
    if not isinstance(chosen_folder, str | os.PathLike | None):
        raise ArgumentTypeError(f"folder={chosen_folder!r} is not valid: need the name of a folder, or None.")
    return FlightSettings(
        budget=_read_budget(environment.get(_BUDGET) or budget),
        keep_s=keep_s,
        keep_bytes=keep_bytes,
        folder=default_folder() if chosen_folder is None else Path(chosen_folder).absolute(),
        on=frozenset(chosen),
        most_in_an_hour=_read_limits(limits),
        control=checked_choice("control", environment.get(_CONTROL) or control, ("off", "socket"))
        == "socket",
    )


def default_folder() -> Path:
    """The folder of this user's jobs, on a local disk: below the system's folder of temporary files."""
    return Path(tempfile.gettempdir(), f"kinetoscope-{os.getuid()}")


def folder_of_jobs(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder that `KINETOSCOPE_DIR` names, or the default one."""
    folder = environment.get(_FOLDER)
    return Path(folder).absolute() if folder else default_folder()


def job_name(environment: Mapping[str, str] = os.environ) -> str:
    """A name that all ranks of a job on this machine have in common: of its launcher, or of the program and its process."""
    if name := _launched_job(environment):
        return _as_file_name(name)
    program = program_name(sys.argv, sys.orig_argv)
    # The ranks of one machine are children of one launcher.
    process = os.getppid() if environment.get("LOCAL_RANK") else os.getpid()
    return _as_file_name(f"{program}-{process}")


def program_name(arguments: Sequence[str], python_arguments: Sequence[str]) -> str:
    """A name for a program: that of its file, or of its module for `python -m`.

    Args:
        arguments: `sys.argv`, whose first one is `-m` while the packages around the module are imported.
        python_arguments: `sys.orig_argv`.
    """
    path = Path(arguments[0] if arguments else "")
    if path.name == "-m":
        return next((word for word in python_arguments[python_arguments.index("-m") + 1 :]), "python")
    if path.name == "__main__.py":
        return path.parent.name or "python"
    return "python" if path.name in ("", "-c") else path.stem


def plan_name(environment: Mapping[str, str] = os.environ) -> str:
    """A name that all ranks of a job have in common on all machines, for the plan of its steps."""
    address = ":".join(environment.get(variable, "") for variable in ("MASTER_ADDR", "MASTER_PORT"))
    return _launched_job(environment) or address


def _launched_job(environment: Mapping[str, str]) -> str:
    """The name that the launcher or the batch system gave the job; empty if neither did."""
    names = (environment.get(variable, "") for variable in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"))
    return next((name for name in names if name and name != "none"), "")


def attempt_name(environment: Mapping[str, str] = os.environ) -> str:
    """Which start of the job this is, from 0, by its launcher."""
    for variable in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        if (number := environment.get(variable, "")).isdecimal():
            return number
    return "0"


def _as_file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:100].lstrip(".") or "job"


def _words(option: str, text: object) -> list[str]:
    """The words of a text, separated by commas, or those that are given one by one."""
    words = text.split(",") if isinstance(text, str) else text
    listed: list[Any] = list(words) if isinstance(words, Iterable) else [None]
    if not all(isinstance(word, str) for word in listed):
        raise ArgumentTypeError(f"{option}={text!r} is not valid: need a text, or several, each a string.")
    return [word.strip() for word in listed if word.strip()]


def _read_budget(budget: str | float) -> float:
    """Read `1%`, `0.5 %` or the fraction 0.01."""
    text = str(budget).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1 or isinstance(budget, bool):
        raise ArgumentError(f"budget={budget!r} is not a share: write a percentage such as '1%'.")
    return share


def _read_keep(words: list[str]) -> tuple[float, int]:
    """Read a time and a size, in any order; what is missing has its default."""
    keep_s = units.parse_duration(DEFAULT_KEEP[0]) / 1e9
    keep_bytes = units.parse_size(DEFAULT_KEEP[1])
    for word in words:
        try:
            keep_s = units.parse_duration(word) / 1e9
        except ArgumentError:
            try:
                keep_bytes = units.parse_size(word)
            except ArgumentError:
                raise ArgumentError(
                    f"keep={word!r} is neither a time nor a size: write such as ('60s', '256MiB')."
                ) from None
    return keep_s, keep_bytes


def _read_limits(text: str) -> int:
    """Read `6/hour`."""
    match = re.fullmatch(r"(\d+)\s*/\s*(?:hour|h)", str(text).strip())
    if match is None or int(match[1]) == 0:
        raise ArgumentError(f"limits={text!r} is not a rate: write such as '6/hour'.")
    return int(match[1])
