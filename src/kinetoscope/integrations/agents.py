"""Answers coding agents by the Model Context Protocol, about the traces in some folders, in at most 4 kB each.

Agents only read, except by `capture`, which writes the next steps of a job into the first folder. Paths outside the folders, also through symbolic links, and URLs are refused.
The text of source lines is left out unless allowed. Each answer about a trace says whether the trace is complete.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError, KinetoscopeError, needed
from kinetoscope._version import __version__
from kinetoscope.analyses.description import describe, incomplete
from kinetoscope.analyses.findings import as_dict, examine
from kinetoscope.display.arrow_text import choose_columns, json_rows, sort_rows
from kinetoscope.flight.control.client import capture, targets, write_capture
from kinetoscope.flight.last import last_event
from kinetoscope.flight.settings import folder_of_jobs
from kinetoscope.model.losses import lost
from kinetoscope.tables.host.source_lines import SOURCE_LINES
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace
from kinetoscope.trace.opening import compare

if TYPE_CHECKING:
    from mcp.server import MCPServer

MOST_BYTES = 4000
"""Longer answers lose rows from their end, then the ends of their texts."""

_MOST_ROWS = 200
_LONGEST_TEXT = 400
_DIGITS = 6
# A listing checks at most this many files of a folder, and lists those with these suffixes; other .json files are rarely traces.
_MOST_FILES = 20_000
_TRACES = (
    ".ktrace",
    ".recording",
    ".trace.json",
    ".json.gz",
    ".json.xz",
    ".json.bz2",
    ".zip",
)
_OPEN_TRACES = 4
_MOST_WAIT_S = 600.0

INSTRUCTIONS = """\
Kinetoscope explains where the time and memory of a PyTorch program go, from a recording (.ktrace, or a trace of torch.profiler). `open` without \
a path lists the traces. Begin with `open` and `findings`, look at `evidence` and at tables, and prove a change with `compare`. Times are nanoseconds. `left_out` counts what did not fit: \
ask for fewer columns, or filter. `last` says what happened to a job whose flight recorder is on, `capture` records its next steps. `complete` is false where something was not recorded: conclude nothing from what is not there."""


class TraceAnswers:
    """Answers questions about the traces in some folders."""

    def __init__(self, folders: Sequence[str | Path], *, source_text: bool = False) -> None:
        """Allow the traces in `folders`, and with `source_text` the text of the program's lines that they contain.

        Raises:
            ArgumentError: One of them is no folder.
        """
        self._folders = [Path(folder).resolve() for folder in folders]
        for folder in self._folders:
            if not folder.is_dir():
                raise ArgumentError(
                    f"{folder} is not a folder: give the folders of traces that an agent may read"
                )
        self._source_text = source_text
        self._open = functools.lru_cache(maxsize=_OPEN_TRACES)(self._opened)

    def open(self, path: str | None = None) -> dict[str, Any]:
        """Describe a trace: what was recorded where, how much, and what is missing. Without a path, list the traces there are, the newest first."""
        if path is None:
            return {"traces": self._listed()}
        trace = self._trace(path)
        overview = trace.overview()
        return {
            "duration_ns": trace.duration_ns,
            "counts": {name: int(count) for name, count in overview.counts.items() if count},
            "facts": {fact.label: fact.text for fact in describe(overview)},
            "losses": lost(trace.losses),
            "tables": list(trace.table_names),
        }

    def findings(self, path: str, most: int = 7) -> dict[str, Any]:
        """List what makes the run slow, largest possible gain first: what was found, what to change, and where."""
        return as_dict(examine(self._trace(path)), most)

    def evidence(self, path: str, code: str) -> dict[str, Any]:
        """Show a finding, by its code, with the spans that prove it."""
        trace = self._trace(path)
        findings = [row for row in as_dict(examine(trace), most=0)["findings"] if row["code"] == code]
        if not findings:
            raise ArgumentError(f"{path} has no finding {code!r}: `findings` lists those that it has")
        span_ids = [span for row in findings for span in row["spans"]]
        columns = ("id", "name", "kind", "start_ns", "duration_ns", "self_ns", "step", "module")
        rows = trace.table("spans", where={"id": span_ids}) if span_ids else trace.table("spans").slice(0, 0)
        return {"findings": findings, "rows": choose_columns(rows, columns)}

    def table(
        self,
        path: str,
        name: str = "ops",
        columns: list[str] | None = None,
        where: dict[str, list[str]] | None = None,
        by: str | None = None,
        sort: str | None = None,
        limit: int = 20,
        step: int | None = None,
    ) -> dict[str, Any]:
        """Show rows of a table, such as ops, modules, steps, lines, kernels, breakdown, step_difference, requests, memory_peak or losses; `open` lists all.

        `columns` chooses columns (an unknown one is answered with those that there are), `where` keeps rows by values ({"name": ["aten::mm"]}), `by` groups (ops by
        module), `sort` names a column, numbers in descending order. `step` is which step, or request of a server, step_difference compares with usual ones.
        """
        options: dict[str, Any] = {"by": by, "step": step}
        chosen = {option: value for option, value in options.items() if value is not None}
        rows = self._trace(path).table(name, where=where or None, **chosen)
        if sort is not None:
            rows = sort_rows(rows, sort)
        if columns:
            rows = choose_columns(rows, columns)
        return {"total_rows": rows.num_rows, "rows": rows.slice(0, max(0, min(limit, _MOST_ROWS)))}

    def compare(self, base: str, new: str) -> dict[str, Any]:
        """Compare two recordings of a program: how much longer or shorter a step is, how sure that is, and what changed."""
        comparison = compare(self._trace(base), self._trace(new))
        facts: dict[str, Any] = json.loads(comparison.to_json())
        return facts

    def ranks(self, summaries: str) -> dict[str, Any]:
        """Compare the ranks of a job, by the folder of summaries that `kinetoscope summarize` wrote: what makes it slow, and which ranks are late."""
        from kinetoscope.summaries.job import Job

        job = Job.open(str(self._allowed(summaries)))
        return {
            "ranks": len(job),
            "report": as_dict(job.report, most=0),
            "stragglers": list(json_rows(job.stragglers())),
            "rows": job.ranks(),
        }

    def last(self, target: str | None = None) -> dict[str, Any]:
        """Show what happened last to the jobs of this machine with the flight recorder on, or to one of them: its newest incident, or where it hangs or runs.

        `target` is the id of a process or the name of a job. It is read from outside: the job may hang.
        """
        base = folder_of_jobs()
        if target is None or target.isdecimal():
            return last_event(target, base).as_dict()
        return last_event(str(self._job_folder(target, base)), base).as_dict()

    def capture(self, target: str, steps: int = 5, wait_s: float = 60.0) -> dict[str, Any]:
        """Record the next steps of a job whose flight recorder accepts requests, and write them as a trace into the first folder that may be read.

        `target` is the id of a process or the name of a job, of which the first rank is recorded. The job goes on.
        """
        base = folder_of_jobs()
        if not target.isdecimal():
            self._job_folder(target, base)
        ranks = targets(target, base)[:1]
        (recording,) = capture(ranks, steps, min(max(wait_s, 0.0), _MOST_WAIT_S))
        output = self._folders[0] / f"{recording.parents[2].name}-{recording.stem}.ktrace"
        return {"path": str(write_capture(recording, output))}

    def answer(self, ask: Callable[..., dict[str, Any]], **named: Any) -> str:
        """Return what one of these methods answers as JSON of at most `MOST_BYTES`.

        Raises:
            KinetoscopeError: See the method.
        """
        facts = ask(**named)
        if path := named.get("path"):
            trace = self._trace(path)
            missing = {} if trace.complete else {"incomplete": incomplete(trace)}
            facts = {"complete": trace.complete, **missing, **facts}
        if "rows" in facts:
            facts["rows"] = list(json_rows(facts["rows"].slice(0, _MOST_ROWS)))
        return fitted(facts)

    @staticmethod
    def _job_folder(name: str, base: Path) -> Path:
        """The folder of a job by its name, which cannot lead anywhere else."""
        if Path(name).name != name or name == ".." or not (base / name).is_dir():
            raise ArgumentError(
                f"{name!r} is not a job with the flight recorder on: `last` without a target lists those"
            )
        return base / name

    def _trace(self, path: str) -> Trace:
        file = self._allowed(path)
        if not file.exists():
            raise ArgumentError(f"there is no {path}: `open` without a path lists the traces that there are")
        return self._open(file, file.stat().st_mtime_ns)

    def _listed(self) -> list[dict[str, Any]]:
        stat_of: dict[Path, os.stat_result] = {}
        for folder in self._folders:
            for file in itertools.islice(_files(folder), _MOST_FILES):
                if file.name.lower().endswith(_TRACES) and self._is_inside(file.resolve()):
                    with suppress(OSError):
                        stat_of[file] = file.stat()
        newest = sorted(stat_of, key=lambda file: -stat_of[file].st_mtime_ns)
        return [
            {
                "path": str(file),
                "bytes": stat_of[file].st_size,
                "modified": datetime.fromtimestamp(stat_of[file].st_mtime, UTC).isoformat(timespec="seconds"),
            }
            for file in newest
        ]

    def _is_inside(self, file: Path) -> bool:
        return any(file.is_relative_to(folder) for folder in self._folders)

    def _opened(self, file: Path, changed_ns: int) -> Trace:
        trace = open_trace(file)
        if not self._source_text and SOURCE_LINES in trace.info:
            trace.info[SOURCE_LINES] = {}
        return trace

    def _allowed(self, path: str) -> Path:
        """A path in one of the folders, relative to the first one that has it; ArgumentError if it, or a link in it, leads outside."""
        resolved = [(folder / path).resolve() for folder in self._folders]
        inside = [file for file in resolved if self._is_inside(file)]
        chosen = next((file for file in inside if file.exists()), inside[0] if inside else None)
        # Everything below a folder; links are not followed.
        below = [] if chosen is None else os.walk(chosen)
        members = (Path(where, name) for where, folders, files in below for name in (*folders, *files))
        outside = next((file for file in members if not self._is_inside(file.resolve())), None)
        if chosen is None or outside is not None:
            allowed = ", ".join(map(str, self._folders))
            raise ArgumentError(f"{outside or path} is outside the folders that may be read ({allowed})")
        return chosen


def _files(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(where, name) for name in sorted(files))


def fitted(facts: dict[str, Any], most_bytes: int = MOST_BYTES) -> str:
    """Return facts as JSON of at most `most_bytes`: longest lists and objects lose entries from their end, counted in `left_out`.

    Args:
        facts: What JSON can express.
        most_bytes: The limit, at least 500 bytes.
    """
    facts = _shortened(facts)
    left_out: dict[str, int] = {}
    while True:
        answer = {**facts, **({"left_out": left_out} if left_out else {})}
        text = json.dumps(answer, ensure_ascii=False)
        excess = len(text.encode()) - most_bytes
        if excess <= 0:
            return text
        sizes = {
            key: len(json.dumps(value))
            for key, value in facts.items()
            if isinstance(value, list | dict) and value
        }
        if not sizes:
            return json.dumps(
                {"left_out": {"all": 1}, "why": "the answer has texts that are too long: ask for less"}
            )
        longest = max(sizes, key=sizes.__getitem__)
        value = facts[longest]
        # At least one entry, and as many as the excess takes if all are equally long.
        count = min(len(value), max(1, len(value) * excess // sizes[longest]))
        left = len(value) - count
        facts[longest] = value[:left] if isinstance(value, list) else dict(list(value.items())[:left])
        left_out[longest] = left_out.get(longest, 0) + count


def _shortened(value: Any) -> Any:
    """Copy a JSON value with long texts cut and numbers rounded."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}…"
    if isinstance(value, dict):
        return {key: _shortened(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_shortened(entry) for entry in value]
    return value


def mcp_server(answers: TraceAnswers) -> MCPServer:
    """Return a server of the Model Context Protocol whose tools answer about traces; run it with `run("stdio")`.

    Raises:
        MissingDependencyError: The package `mcp` is not installed.
    """
    with needed(
        'agents are answered with the package mcp, which is not installed: pip install "kinetoscope[mcp]"'
    ):
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations

    server = MCPServer("kinetoscope", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")

    def add(ask: Callable[..., dict[str, Any]], *, reads: bool = True) -> None:
        @functools.wraps(ask)
        def tool(**named: Any) -> str:
            try:
                return answers.answer(ask, **named)
            except (KinetoscopeError, OSError) as error:
                raise ToolError(str(error)) from error

        tool.__annotations__ = {**ask.__annotations__, "return": "str"}
        server.tool(
            annotations=ToolAnnotations(read_only_hint=reads, destructive_hint=False), structured_output=False
        )(tool)

    for ask in (
        answers.open,
        answers.findings,
        answers.evidence,
        answers.table,
        answers.compare,
        answers.ranks,
        answers.last,
    ):
        add(ask)
    add(answers.capture, reads=False)
    return server
