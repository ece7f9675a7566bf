"""What a process knows of torch.compile's work, and the stored tables `compiles` and `graph_breaks` that it becomes.

A running recording has these facts in a table of its own, in parts: each as it became known, so that a killed process keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kinetoscope.model.names import COMPILED_REGION, region_id
from kinetoscope.model.schema import STORED

TABLE = "compiling"
"""The table of a recording that has the parts, in its column `facts`."""
RECOMPILE_LIMIT = re.compile(r"(recompile|cache_size)[_ ]limit", re.IGNORECASE)
"""What torch says of a function that it will not compile again, in all releases."""


@dataclass(frozen=True)
class Compilation:
    """One compilation that ran while a session was open; times in nanoseconds, -1 where unknown.

    Attributes:
        columns: Its values for the columns of the stored table `compiles` that need no trace.
        begin_ns: When it began, by the monotonic clock.
        thread: The operating system's id of its thread.
        broke: Where its frame could not be compiled at all, if so: the reason, file and line.
    """

    columns: dict[str, Any]
    begin_ns: int
    thread: int
    broke: tuple[str, str, int] | None = None


@dataclass(frozen=True)
class GraphBreak:
    """One time that a compilation was cut; the frames are (function, file, line), outermost first."""

    reason: str
    frames: tuple[tuple[str, str, int], ...]
    skipped: bool = False


@dataclass(frozen=True)
class CompileFacts:
    """What was compiled.

    Attributes:
        compilations: The compilations during a recording.
        breaks: All graph breaks of the process, those of earlier compilations too.
        functions: Function, file and line of all compiled code, by the id of its compilation.
        given_up: Earlier compilations that failed because their function had been compiled too often, as columns of `compiles`: what reaches that
            limit before a recording runs uncompiled in it, and nothing is compiled that would say so.
        missing: What this torch lacks, so that compilations are not known, if so.
    """

    compilations: list[Compilation] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    functions: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    given_up: list[dict[str, Any]] = field(default_factory=list)
    missing: str = ""

    def as_part(self) -> dict[str, Any]:
        """As JSON has it, for `from_parts`."""
        return asdict(self)

    @classmethod
    def from_parts(cls, parts: Iterable[Any]) -> CompileFacts:
        """Join what `as_part` made.

        Raises:
            ValueError: A part is damaged.
        """
        facts, missing = cls(), ""
        try:
            for part in parts:
                for entry in part["compilations"]:
                    broke = None if entry["broke"] is None else tuple(entry["broke"])
                    facts.compilations.append(Compilation(**{**entry, "broke": broke}))
                for break_ in part["breaks"]:
                    frames = tuple(map(tuple, break_["frames"]))
                    facts.breaks.append(GraphBreak(**{**break_, "frames": frames}))
                for compile_id, (function, file, line) in part["functions"].items():
                    facts.functions[compile_id] = (function, file, line)
                # Older recordings have none.
                facts.given_up.extend(dict(failed) for failed in part.get("given_up", ()))
                missing = str(part.get("missing", "")) or missing
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return replace(facts, missing=missing)

    def and_later(self, later: CompileFacts) -> CompileFacts:
        """What two recordings have; the later one has the graph breaks of all earlier compilations."""
        return CompileFacts(
            [*self.compilations, *later.compilations],
            later.breaks,
            self.functions | later.functions,
            later.given_up,
            self.missing or later.missing,
        )

    def ended_in(self, begin_ns: int, end_ns: int) -> CompileFacts:
        """The compilations that ended in a window of the monotonic clock; another session may have recorded more."""
        entries = [
            entry
            for entry in self.compilations
            if begin_ns <= entry.begin_ns + entry.columns.get("duration_ns", 0) and entry.begin_ns < end_ns
        ]
        return replace(self, compilations=entries)

    def tables(self, strings: Sequence[str], os_tids: Iterable[int], begin_ns: int) -> dict[str, Any]:
        """The stored tables of a trace, without empty ones.

        Args:
            strings: The strings of the trace, which say what ran in it.
            os_tids: The operating system's ids of its threads.
            begin_ns: When it began, by the monotonic clock.
        """
        ran = {region_id(text) for text in strings if text.startswith(COMPILED_REGION)}
        names = {*strings, *(text.rpartition(".")[2] for text in strings)} if self.given_up else set()
        given_up = any({failed["function"], failed["file"]} <= names for failed in self.given_up)
        if not self.compilations and not ran and not given_up:
            # What the process compiled earlier did not run here.
            return {}
        tables = {"compiles": self._compiles(ran, os_tids, begin_ns), "graph_breaks": self._graph_breaks(ran)}
        return {name: columns for name, columns in tables.items() if any(map(len, columns.values()))}

    def _compiles(self, ran: set[str], os_tids: Iterable[int], begin_ns: int) -> dict[str, list[Any]]:
        """The columns of `compiles`: the compilations, then the functions of older ones whose code ran, by their ids."""
        thread_of = {tid: row for row, tid in enumerate(os_tids)}
        functions = dict(self.functions)
        for entry in self.compilations:
            if entry.columns["function"]:
                location = (entry.columns["function"], entry.columns["file"], entry.columns["line"])
                functions.setdefault(entry.columns["compile_id"], location)
        rows = []
        for entry in self.compilations:
            row = {**entry.columns, "recorded": 1, "start_ns": entry.begin_ns - begin_ns}
            row["thread"] = thread_of.get(entry.thread, -1)
            if not row["function"] and row["compile_id"] in functions:
                row |= dict(zip(("function", "file", "line"), functions[row["compile_id"]], strict=True))
            rows.append(row)
        described = {row["compile_id"] for row in rows if row["stage"] == "frame"}
        for failed in self.given_up:
            if failed["compile_id"] not in described:
                rows.append({**failed, "recorded": 0, "start_ns": -1, "thread": -1})
                described.add(failed["compile_id"])
        for compile_id, (function, file, line) in self.functions.items():
            if compile_id in ran - described:
                older = {"compile_id": compile_id, "stage": "frame", "start_ns": -1}
                rows.append({**older, "function": function, "file": file, "line": line})
        return _columns("compiles", rows)

    def _graph_breaks(self, ran: set[str]) -> dict[str, list[Any]]:
        """The columns of `graph_breaks`, equal ones once: those of functions that were compiled or ran, by the ids of their compilations."""
        compiled = {(entry.columns["function"], entry.columns["file"]) for entry in self.compilations}
        functions = {self.functions[compile_id][:2] for compile_id in ran & self.functions.keys()} | compiled
        # The code of the others is gone: any break may be theirs.
        unknown = ran - self.functions.keys() - {entry.columns["compile_id"] for entry in self.compilations}
        counts: dict[GraphBreak, int] = {}
        for break_ in (*self.breaks, *map(_skipped, self.compilations)):
            if break_ is not None and (unknown or break_.skipped or break_.frames[0][:2] in functions):
                counts[break_] = counts.get(break_, 0) + 1
        rows = []
        for break_, count in counts.items():
            (root, root_file, root_line), (function, file, line) = break_.frames[0], break_.frames[-1]
            stack = ";".join(f"{file}({line}): {name}" for name, file, line in break_.frames)
            row = {"function": function, "file": file, "line": line, "reason": break_.reason, "stack": stack}
            row |= {"root_function": root, "root_file": root_file, "root_line": root_line}
            rows.append({**row, "skipped": int(break_.skipped), "compiles": count})
        return _columns("graph_breaks", rows)


def _skipped(compilation: Compilation) -> GraphBreak | None:
    """The break that a compilation is whose function could not be compiled at all."""
    if compilation.broke is None:
        return None
    reason, file, line = compilation.broke
    columns = compilation.columns
    frame = (columns["function"], file or columns["file"], line if file else columns["line"])
    return GraphBreak(reason or "torch.compile failed", (frame,), skipped=True)


def _columns(table: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {
        column.name: [row.get(column.name, "" if column.type == "text" else column.default) for row in rows]
        for column in STORED[table].columns
        if column.name != "process_row"
    }
