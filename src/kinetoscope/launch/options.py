"""What of a program is recorded, and into which files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.collect import profile


@dataclass(frozen=True)
class Wanted:
    """What the user asked for.

    Attributes:
        prefix: The files are named after it; absolute, because the program may change the current folder.
        shapes: Record the shapes of inputs.
        memory: Record allocations.
        stack: Record Python stacks.
        modules: Record module paths.
        engine: `auto`, `native` or `kineto`.
        chrome: Write a Chrome trace too.
        ring_bytes: Upper limit of the recording, or None.
        steps: The first optimizer step to record and the first one not to, or None for the whole run.
        install: Record what the program profiles itself, and nothing else.
        children: Record the processes that the program starts, too.
        folder: The current folder when it was asked for.
    """

    prefix: Path
    shapes: bool = False
    memory: bool = False
    stack: bool = True
    modules: bool = True
    engine: str = "auto"
    chrome: bool = False
    ring_bytes: int | None = None
    steps: tuple[int, int | None] | None = None
    install: bool = False
    children: bool = False
    folder: Path = field(default_factory=Path.cwd)

    def shown(self, path: Path) -> str:
        """Write a path the shorter way: from the folder of the command line, where it lies in it."""
        return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)

    @property
    def live_path(self) -> Path:
        """Where the recording is kept while it runs."""
        return self.prefix.with_name(f"{self.prefix.name}.recording")

    @property
    def trace_path(self) -> Path:
        """Where the finished trace goes."""
        return self.prefix.with_name(f"{self.prefix.name}.ktrace")

    @property
    def children_folder(self) -> Path:
        """Where the processes that the program starts keep their recordings."""
        return self.prefix.with_name(f"{self.prefix.name}.children")

    @property
    def chrome_path(self) -> Path:
        """Where the Chrome trace goes."""
        return self.prefix.with_name(f"{self.prefix.name}.json.gz")

    def session(self, path: Path | None) -> profile:
        """Make the session that records this, keeping the live recording at `path`."""
        from kinetoscope.collect import ProfilerActivity, profile

        return profile(
            # The native engine records the CPU side only, and says so when asked for more.
            activities=[ProfilerActivity.CPU] if self.engine == "native" else None,
            record_shapes=self.shapes,
            profile_memory=self.memory,
            with_stack=self.stack,
            with_modules=self.modules,
            engine=self.engine,  # type: ignore[arg-type]  # click has checked it
            path=path,
            ring_bytes=self.ring_bytes,
        )
