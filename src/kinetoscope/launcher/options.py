"""What to record of a program, and the names of its files."""

from __future__ import annotations

import atexit
import json
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope import collect
from kinetoscope._errors import ArgumentError
from kinetoscope.collect import OPTIONS, Move, RecordingOptions, checked_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kinetoscope.launcher.program import Program

_CHOSEN_BY_SESSION = ("activities", "path")
_SUFFIXES = (".ktrace", ".recording", ".json.gz", ".children")


@dataclass(frozen=True)
class LaunchOptions:
    """How a program is recorded.

    Attributes:
        prefix: What the names of the files begin with; absolute, because the program may change the working directory.
        recording: What to record: the options of the session, without activities and file, which `session` chooses.
        chrome: Write a Chrome trace too.
        summaries: A folder for the summaries of the ranks in the trace, or a `.parquet` file; None writes none.
        steps: The first optimizer step to record and the first one after that not to record (None: up to the end), or None
            for the whole run.
        install: Record only what the program itself profiles with `torch.profiler`.
        children: Record all processes that the program starts, not only those that `multiprocessing` spawns.
        folder: The working directory at the start; paths are shown relative to it.

    Raises:
        ArgumentError: Options that exclude each other, or that a launched program cannot have.
    """

    prefix: Path
    recording: RecordingOptions = field(default_factory=RecordingOptions.launched)
    chrome: bool = False
    summaries: Path | None = None
    steps: tuple[int, int | None] | None = None
    install: bool = False
    children: bool = False
    folder: Path = field(default_factory=Path.cwd)

    def __post_init__(self) -> None:
        """Refuse what cannot be combined, and what would be ignored."""
        for name in _CHOSEN_BY_SESSION:
            if (value := getattr(self.recording, name)) is not None:
                raise ArgumentError(
                    f"{name}={value!r} cannot be chosen for a launched program: {OPTIONS[name].stays}."
                )
        if self.steps is not None:
            first, end = self.steps
            if first < 0 or (end is not None and end <= first):
                raise ArgumentError(
                    f"steps={self.steps!r} is not a range of steps: give the first step, from 0, and a later one that is not recorded, "
                    "such as (10, 20) for the ten steps from 10 to 19."
                )
        if self.children and (self.install or self.recording.engine == "kineto"):
            other = "install (--install)" if self.install else "engine='kineto' (--engine kineto)"
            raise ArgumentError(
                f"children (--children) cannot be combined with {other}: child processes are recorded by the native engine, from "
                "their start. Use one of the two."
            )
        if not self.install:
            return
        ignored = [
            f"{name} ({option.long_flag})" if option.long_flag else name
            for name, option in OPTIONS.items()
            if name != "engine" and getattr(self.recording, name) != option.when_launched
        ]
        if self.steps is not None:
            ignored.append("steps (--steps)")
        if ignored:
            raise ArgumentError(
                f"{', '.join(ignored)} cannot be combined with install (--install): the program chooses what to record, in its "
                "own calls of torch.profiler. Use one or the other."
            )

    def shown(self, path: Path) -> str:
        """A path as people read it: relative to `folder` where it is inside."""
        return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)

    @property
    def live_path(self) -> Path:
        """The recording while it runs."""
        return self.prefix.with_name(f"{self.prefix.name}.recording")

    @property
    def trace_path(self) -> Path:
        """The finished trace."""
        return self.prefix.with_name(f"{self.prefix.name}.ktrace")

    @property
    def children_folder(self) -> Path:
        """The recordings of child processes while they run."""
        return self.prefix.with_name(f"{self.prefix.name}.children")

    @property
    def chrome_path(self) -> Path:
        """The Chrome trace."""
        return self.prefix.with_name(f"{self.prefix.name}.json.gz")

    def session(self, path: Path | None) -> collect.profile:
        """Make the session that records, with its live recording at `path`."""
        # The native engine alone records only the host, and warns when devices are requested.
        activities = (collect.ProfilerActivity.CPU,) if self.recording.engine == "native" else None
        return collect.profile.with_options(replace(self.recording, activities=activities, path=path))

    @property
    def first_step(self) -> int:
        """The first optimizer step that is recorded."""
        return 0 if self.steps is None else self.steps[0]

    def move_at(self, step: int) -> Move | None:
        """Whether recording starts or stops at the beginning of an optimizer step, counted from the start of the program."""
        first, end = self.steps or (0, None)
        return Move.START if step == first else Move.STOP if step == end else None

    def to_json(self) -> str:
        """The options as text, for another process.

        Raises:
            ArgumentError: An option of the recording has a value that cannot be passed to another process.
        """
        return json.dumps(vars(self) | {"recording": self.recording.to_json()}, default=str)

    @classmethod
    def from_json(cls, text: str) -> LaunchOptions:
        """Read what `to_json` wrote.

        Raises:
            ValueError: It is damaged.
            TypeError: Another version wrote it.
        """
        values: dict[str, Any] = json.loads(text)
        steps = values["steps"]
        values |= {
            "prefix": Path(values["prefix"]),
            "folder": Path(values["folder"]),
            "summaries": None if values["summaries"] is None else Path(values["summaries"]),
            "recording": RecordingOptions(**values["recording"]),
            "steps": None if steps is None else tuple(steps),
        }
        return cls(**values)


def options_for(
    program: Program,
    output: str | os.PathLike[str] | None,
    folder: Path,
    environment: Mapping[str, str],
    say: Callable[[str], object],
    *,
    summaries: str | os.PathLike[str] | None,
    **options: Any,
) -> LaunchOptions:
    """The options of a program's recording, with a prefix whose folder can be written to.

    Args:
        program: What will run.
        output: The user's choice of names, see `choose_prefix`.
        folder: The working directory, absolute.
        environment: The program's environment variables.
        say: Called with a sentence if the files are written elsewhere.
        summaries: Where summaries go, relative to `folder`: a folder or a `.parquet` file; None for nowhere.
        **options: The other options of `LaunchOptions`.

    Raises:
        ArgumentError: Options that exclude each other, or files that cannot be written.
    """
    chosen = LaunchOptions(
        prefix=choose_prefix(output, program, folder, environment),
        summaries=None if summaries is None else checked_summary("summaries", folder / summaries),
        folder=folder,
        **options,
    )
    return replace(chosen, prefix=writable_prefix(chosen.prefix, chosen=output is not None, say=say))


def choose_prefix(
    output: str | os.PathLike[str] | None, program: Program, folder: Path, environment: Mapping[str, str]
) -> Path:
    """Choose what the names of the files begin with.

    Args:
        output: The user's choice, with or without a suffix; None names the files after the program, with a number if files of that
            name exist.
        program: What will run.
        folder: The working directory, absolute.
        environment: The program's environment variables; a rank of a distributed job (`RANK`) has its number in the name.

    Returns:
        An absolute path.

    Raises:
        ArgumentError: The output names no file.
    """
    number = environment.get("RANK", "")
    rank = f"-rank{number}" if number.isdigit() else ""
    if output is not None:
        text = os.fspath(output)
        prefix = re.sub(r"\.(ktrace|json|json\.gz|recording)$", "", text)
        if not os.path.basename(prefix) or (folder / prefix).is_dir():
            raise ArgumentError(
                f"the output {text!r} is not a file name: give a path without a suffix, such as runs/first."
            )
        for path in (folder / text, folder / prefix):
            if path.exists() and not path.is_file():
                raise ArgumentError(
                    f"the output {text!r} is not a regular file, and a recording needs one: give a path without a suffix, "
                    "such as runs/first."
                )
        return folder / (prefix + rank)
    stem = program.name + rank
    for attempt in range(1, 10_000):
        path = folder / (stem if attempt == 1 else f"{stem}-{attempt}")
        if not any(Path(f"{path}{suffix}").exists() for suffix in _SUFFIXES):
            return path
    raise ArgumentError(f"{stem}.ktrace to {stem}-9999.ktrace exist: choose another output (-o PREFIX).")


def writable_prefix(prefix: Path, *, chosen: bool, say: Callable[[str], object]) -> Path:
    """Return a prefix in a folder that can be written to, checked before the program starts.

    Args:
        prefix: The desired prefix; its folder is created if missing.
        chosen: Whether the user chose it; if not, a new temporary folder may replace its folder.
        say: Called with a sentence in that case.

    Raises:
        ArgumentError: The folder that the user chose cannot be written to, nor created; or no folder can.
    """
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=prefix.parent):
            return prefix
    except OSError as error:
        problem = f"the folder {str(prefix.parent)!r} cannot be written to ({error.strerror})"
    if chosen:
        raise ArgumentError(f"{problem}: choose another output (-o PREFIX).")
    try:
        folder = tempfile.mkdtemp(prefix="kinetoscope-")
    except OSError as error:
        raise ArgumentError(f"{problem}: choose an output (-o PREFIX).") from error
    say(f"{problem}: recording to {folder}; -o PREFIX chooses another place.")
    atexit.register(_remove_if_empty, folder, os.getpid())
    return Path(folder, prefix.name)


def _remove_if_empty(folder: str, process: int) -> None:
    if os.getpid() == process:
        with suppress(OSError):
            os.rmdir(folder)
