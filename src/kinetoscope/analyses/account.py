"""The account of a step, as people and programs get it: what each nanosecond was spent on, where, and how far the step is from its floor.

To what the trace by itself shows (`attribution`) comes what findings say: work that a program does not need to do, such as an evaluation in each step, is no
part of the floor, whatever it takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinetoscope._errors import ArgumentError, checked_choice
from kinetoscope.analyses.rule_findings import rule_findings
from kinetoscope.ledger.breakdown import BY
from kinetoscope.ledger.ledger import (
    LeftOut,
    ProcessLedger,
    ledger_of,
    raw_ledger,
)
from kinetoscope.model.arrow import ArrowTable, Labels, rows_to_arrow, to_arrow
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.hierarchy import nearest_of
from kinetoscope.model.processes import of_processes
from kinetoscope.model.time_spent import CAUSES, ENTRIES, Cause, Entry
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.attainable import rates_of
from kinetoscope.tables.host.requests import names_by_time
from kinetoscope.tables.host.units_of_work import Unit
from kinetoscope.tables.stacks import project_lines


@derived
def accounts(trace: TraceData) -> list[ProcessLedger]:
    """The account of each process with steps or, where none has any, of those with requests, else of all that was recorded of each."""
    left_out = _left_out(trace)
    raw = raw_ledger(trace)
    return raw if left_out is None else [ledger_of(ledger, left_out, ledger) for ledger in raw]


def _left_out(trace: TraceData) -> LeftOut | None:
    """What findings say that the program can leave out; None for nothing."""
    claims = [finding.not_needed for finding in rule_findings(trace).found if finding.not_needed is not None]
    if not claims:
        return None
    count = len(trace.columns("spans")) + 1
    left_out = LeftOut(np.zeros(count), np.zeros(count), np.zeros(count, np.uint8))
    for claim in claims:
        inside = np.flatnonzero(nearest_of(trace, claim.rows) >= 0)
        inside = inside[left_out.part[inside] < claim.part]
        left_out.part[inside], left_out.why[inside] = claim.part, claim.cause
        left_out.part_of_calls[inside] = claim.part if claim.calls else 0.0
    return left_out


MOST_UNKNOWN = 0.2
"""Where more of the time of steps is unknown than this part, so is their floor."""


@dataclass(frozen=True)
class KindAccount:
    """What the steps of one kind of a process were spent on, all together.

    Attributes:
        process: The row of the process in `processes`, -1 in a trace of one process.
        pid: The process id; None where the trace does not say.
        kind: The kind, as in `step_kinds`, or of requests the place of their name, those with most time first; -1 where the trace has neither,
            and all that was recorded counts as one step.
        steps: How many steps or requests there are.
        duration_ns: How long they took.
        floor_ns: What they need on this machine, and what they must wait for; None where too little is known of it.
        entry_ns: The time of each entry by its name; together `duration_ns`.
        above_ns: What is known to be above the floor, also where the floor is unknown: Python, waits, what is slow or not needed.
        request: The name of the requests; empty of steps.
    """

    process: int
    pid: int | None
    kind: int
    steps: int
    duration_ns: int
    floor_ns: int | None
    entry_ns: dict[str, int]
    above_ns: int
    request: str = ""

    @property
    def times_floor(self) -> float | None:
        """How many times its floor a step takes; None where the floor is unknown."""
        return self.duration_ns / self.floor_ns if self.floor_ns else None


@dataclass(frozen=True)
class Account:
    """What the time of the steps of a trace was spent on.

    Attributes:
        kinds: Each kind of steps of each process, most time first; of requests those of each name.
        calibrated: Whether the rates are those that `kinetoscope calibrate` measured on the machine; else the best that the trace shows.
        rows: The rows of the table `account`, as mappings.
    """

    kinds: tuple[KindAccount, ...]
    calibrated: bool
    rows: tuple[dict[str, Any], ...]

    def rows_of(self, kind: KindAccount) -> list[dict[str, Any]]:
        """The rows of one kind of steps of one process."""
        number = None if kind.kind < 0 else kind.kind
        column, value = ("request_name", kind.request) if kind.request else ("step_kind", number)
        return [row for row in self.rows if row[column] == value and row["process"] == kind.pid]

    def what_if(self, *mended: str) -> WhatIf:
        """Predict a step in which some things take what they need, and no more.

        On a host this is exact as far as the floor is: what is taken out is time that the step waits for. With a device it is a bound, as what was hidden
        behind that time may then be waited for.

        Args:
            mended: For each a line (`train.py:12`, or the finding `hot-line:train.py:12`), a cause (`fresh memory`), an entry (`python`) or an operator
                (`aten::zero_`); what several of them are about counts once.

        Returns:
            The step as it is and as it would be, on average over the steps of all kinds of the process with most time.

        Raises:
            ArgumentError: There is no time above the floor that one of these is about.
        """
        if not self.kinds:
            raise ArgumentError("what_if needs a trace with time in it: this one has none")
        kinds = [kind for kind in self.kinds if kind.process == self.kinds[0].process]
        rows = [row for kind in kinds for row in self.rows_of(kind)]
        steps = max(sum(kind.steps for kind in kinds), 1)
        duration_ns = sum(kind.duration_ns for kind in kinds)
        gain_ns = sum(row["time_ns"] for row in mended_rows(rows, mended))
        return WhatIf(duration_ns / steps, (duration_ns - gain_ns) / steps)


def mended_rows(rows: Iterable[dict[str, Any]], mended: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of the account above the floor that some changes are about, each once.

    Raises:
        ArgumentError: One of the changes is about none.
    """
    rows = [row for row in rows if not row["needed_ns"]]
    # What operators of unknown inputs need is unknown, and so is what they would gain.
    above = [row for row in rows if row["entry"] != "unknown"]
    taken: set[int] = set()
    for change in mended:
        rows_about = {index for index, row in enumerate(above) if _is_about(change, row)}
        if not rows_about and any(_is_about(change, row) for row in rows):
            raise ArgumentError(
                f"what_if({change!r}): what that needs is unknown, as the sizes of inputs were not recorded: record_shapes=True, or kinetoscope run"
            )
        if not rows_about:
            raise ArgumentError(
                f"what_if({change!r}): nothing above the floor is of that name; use a line such as 'train.py:12', a cause, an entry or an operator "
                "of the table account"
            )
        taken |= rows_about
    return [above[index] for index in sorted(taken)]


def _is_about(change: str, row: dict[str, Any]) -> bool:
    """Whether a change is about a row of the account: by its line, with or without folders, also as in the name of a finding, its cause, its entry or its operator."""
    lines = (f"{row['file']}:{row['line']}", line_of(row)) if row["file"] else ()
    names = (*lines, row["cause"] or "", row["entry"], row["operator"] or "")
    return change.removeprefix("hot-line:") in names


@dataclass(frozen=True)
class WhatIf:
    """A step as it is, and as it would be.

    Attributes:
        step_ns: How long a step takes, on average.
        then_ns: How long it would take.
        alone_ns: In a trace of several ranks the most that a rank would gain in a step if it did not wait for others; None of one process.
    """

    step_ns: float
    then_ns: float
    alone_ns: float | None = None

    @property
    def gain_percent(self) -> float:
        """What would be gained, in percent of the step."""
        return 100.0 * (1.0 - self.then_ns / self.step_ns) if self.step_ns else 0.0


def line_of(row: dict[str, Any]) -> str:
    """The line of a row without folders, such as `train.py:12`."""
    return f"{os.path.basename(row['file'])}:{row['line']}"


@derived
def account_of(trace: TraceData) -> Account:
    """Return what the time of the steps of a trace was spent on."""
    kinds = []
    for ledger in accounts(trace):
        pid = int(of_processes(trace, np.array([ledger.process], np.int32))["process"][0])
        for kind in np.unique(ledger.work.kind[ledger.counted]).tolist():
            of_kind = ledger.counted & (ledger.work.kind == kind)
            entry_ns = ledger.entry_ns[of_kind].sum(axis=0).tolist()
            duration_ns = int(ledger.duration_ns[of_kind].sum())
            without_core = (ledger.cells.cause == Cause.PROCESSOR) & of_kind[ledger.cells.step]
            # On a busy machine, the waits would hide how little is known of what ran.
            ran_ns = duration_ns - int(ledger.cells.time_ns[without_core].sum())
            floor_is_known = entry_ns[Entry.UNKNOWN] <= MOST_UNKNOWN * ran_ns
            floor_ns = int(ledger.floor_ns[of_kind].sum())
            kinds.append(
                KindAccount(
                    ledger.process,
                    None if pid < 0 else pid,
                    kind,
                    int(of_kind.sum()),
                    duration_ns,
                    floor_ns if floor_is_known else None,
                    dict(zip(ENTRIES, entry_ns, strict=True)),
                    duration_ns - floor_ns - entry_ns[Entry.UNKNOWN],
                    names_by_time(trace)[kind] if ledger.work.unit.overlaps else "",
                )
            )
    return Account(
        tuple(sorted(kinds, key=lambda kind: -kind.duration_ns)),
        rates_of(trace).is_calibrated,
        tuple(account(trace).to_pylist()),
    )


def account(trace: TraceData, by: str = "trace") -> ArrowTable:
    """Return the `account` table: what the time of steps was spent on.

    Args:
        trace: The trace.
        by: `trace` for one row for all steps of a kind; `step` for rows of each step, or of each request.

    Returns:
        The table; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: Another value of `by`.
    """
    by_step = checked_choice("by", by, BY) == "step"
    parts = [_columns(ledger, by_step=by_step) for ledger in accounts(trace)]
    if not parts:
        return rows_to_arrow("account", [])
    joined: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    process = joined.pop("process_row").astype(np.int32)
    frames, frame = trace.columns("frames"), joined.pop("frame")
    strings = trace.strings
    texts = [np.append(frames[name], -1)[frame] for name in ("file", "function")]
    columns = joined | {
        "process": of_processes(trace, process)["process"],
        "request_name": Labels(joined["request_name"], names_by_time(trace)),
        "entry": Labels(joined["entry"], ENTRIES),
        "cause": Labels(np.where(joined["cause"] > 0, joined["cause"], -1), CAUSES),
        "operator": Labels(joined.pop("name"), strings),
        "file": Labels(texts[0], strings),
        "function": Labels(texts[1], strings),
        "line": np.append(frames["line"], -1)[frame],
        "module": Labels(joined["module"], trace.columns("modules")["path"]),
    }
    return to_arrow("account", columns, np.argsort(-joined["time_ns"], kind="stable"))


def _columns(ledger: ProcessLedger, *, by_step: bool) -> dict[str, Any]:
    trace, cells = ledger.trace, ledger.cells
    rows = np.flatnonzero(ledger.counted[cells.step] & (cells.time_ns > 0))
    frame = project_lines(trace)[cells.stack[rows]]
    step = cells.step[rows] if by_step else np.full(len(rows), -1)
    kind = ledger.work.kind[cells.step[rows]]
    keys = [step, kind, cells.entry[rows], cells.cause[rows], cells.name[rows], frame, cells.module[rows]]
    groups = Groups.by(keys)
    first, time_ns = groups.first, groups.sums(cells.time_ns[rows])
    number, nothing = np.append(ledger.work.numbers, -1)[step[first]], np.full(len(first), -1)
    of_unit = {
        Unit.STEP: {"step": number, "step_kind": kind[first]},
        Unit.REQUEST: {"request": number, "request_name": kind[first]},
        Unit.RECORDING: {},
    }[ledger.work.unit]
    return {
        "process_row": np.full(len(first), ledger.process),
        **dict.fromkeys(("step", "step_kind", "request", "request_name"), nothing),
        **of_unit,
        "entry": cells.entry[rows[first]],
        "cause": cells.cause[rows[first]],
        "name": cells.name[rows[first]],
        "frame": frame[first],
        "module": cells.module[rows[first]],
        "count": groups.sums(cells.count[rows]),
        "time_ns": time_ns,
        "needed_ns": groups.sums(cells.needed_ns[rows]),
        "share_percent": percent(time_ns, int(ledger.duration_ns[ledger.counted].sum())),
    }
