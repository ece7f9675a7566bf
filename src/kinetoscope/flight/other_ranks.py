"""An incident of one rank is one of all: the others are told, and copy their rings into a folder of the same name.

Ranks that share a folder see the incidents of each other there; all ranks of a job are told by the store that it was started with, over a
connection of its own. Nothing waits for another rank: a thread looks once a second. Of a rank that does not answer, the ring is copied from outside,
if it is on this machine; else it is named as missing.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kinetoscope.collect import JobStore, is_distributed, rank_count
from kinetoscope.flight.deaths import DeathWatch
from kinetoscope.flight.incidents import INCIDENTS, incident_folders, rank_name, time_of
from kinetoscope.flight.jobs import GONE, HANGS, RUNS, Attempt, RankFiles, first_failure, incident_ranks
from kinetoscope.flight.live_stacks import sight
from kinetoscope.flight.step_log import SUFFIX
from kinetoscope.flight.unclean_exits import end_text, last_seen_s
from kinetoscope.storage.atomic_write import write_atomically
from kinetoscope.storage.incident_files import SUMMARY
from kinetoscope.storage.recording_parts import clone

Follow = Callable[[str, Mapping[str, Any]], Path | None]

LOOK_S = 1.0
ANSWER_S = 6.0
"""So long after an incident, each rank that has not written its copy is taken not to answer."""

_STORE_S = 2.0
_TIMEOUT_S = 5.0
# After a failure the store is left alone for so long.
_REST_S = 60.0
_NEW_S = 120.0
_COUNT = "incidents"
_OF_INCIDENT = ("reason", "what", "step", "time_s", "rank")


@dataclass(eq=False)
class OtherRanks:
    """Tells the other ranks of this rank's incidents, and looks for theirs.

    Attributes:
        attempt: The folder of this start of the job.
        rank: This rank.
        follow: Called with the name of the folder of another rank's incident and what that rank says of it, on a thread of this
            object: copies this rank's ring there; returns the recording, or None.
        look_s: Seconds between looks.
        answer_s: How long other ranks have to answer.
        clock_s: A clock that is never set.
    """

    attempt: Path
    rank: int
    follow: Follow
    look_s: float = LOOK_S
    answer_s: float = ANSWER_S
    clock_s: Callable[[], float] = time.monotonic
    _store: JobStore = field(default_factory=partial(JobStore, "incidents"), init=False)
    _store_next_s: float = field(default=0.0, init=False)
    # How many incidents of the store were looked at; -1 before the first look.
    _seen: int = field(default=-1, init=False)
    _known: set[str] = field(default_factory=set, init=False)
    _to_tell: list[dict[str, Any]] = field(default_factory=list, init=False)
    # The folders of incidents whose ranks are still to be listed, and when.
    _due_s: dict[Path, float] = field(default_factory=dict, init=False)
    _deaths: DeathWatch = field(init=False)
    # The logs of ranks, by their inodes.
    _logs: dict[Path, int] = field(default_factory=dict, init=False)
    _wake: threading.Event = field(default_factory=threading.Event, init=False)
    _stopping: bool = field(default=False, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin to look; incidents that are there already are not followed."""
        self._deaths = DeathWatch(self.attempt)
        self._known = {incident.name for incident in incident_folders(self.attempt)}
        self._thread = threading.Thread(target=self._run, name="kinetoscope-ranks", daemon=True)
        self._thread.start()

    def tell(self, path: Path | None) -> None:
        """Tell the others of an incident of which this rank has written a recording; returns at once."""
        if path is None:
            return
        incident = path.parent
        self._known.add(incident.name)
        self._due_s[incident] = self.clock_s() + self.answer_s
        self._to_tell.append(
            {"folder": incident.name, "from": self.rank, "json": str(path.with_suffix(".json"))}
        )
        self._wake.set()

    def stop(self) -> None:
        """Stop looking, and list the ranks of the incidents of the last seconds."""
        self._stopping = True
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_TIMEOUT_S)
            self._deaths.close()
        for incident in list(self._due_s):
            with suppress(OSError):
                list_ranks(self.attempt, incident, self.rank)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self.look_s)
            self._wake.clear()
            if self._stopping:
                return
            # Whatever fails is tried again at the next look; the job has to go on.
            for look in (self._look_for_deaths, self._look_in_folder, self._look_in_store, self._list_due):
                with suppress(Exception):
                    look()

    def _look_for_deaths(self) -> None:
        logs = {path: path.stat().st_ino for path in self.attempt.glob(f"rank*{SUFFIX}")}
        # Their contents, only where one is new.
        rings = Attempt(self.attempt).rings() if logs != self._logs else []
        self._logs = logs
        of_here = [ring for ring in rings if ring.log is not None and ring.log.is_of_here]
        self._deaths.look({ring.rank: ring.process or 0 for ring in of_here if ring.rank != self.rank})

    def _look_in_folder(self) -> None:
        for incident in incident_folders(self.attempt):
            if incident.name in self._known:
                continue
            facts = [rank.facts for rank in incident_ranks(incident) if rank.facts]
            if facts:
                self._answer(incident.name, facts[0])

    def _answer(self, name: str, facts: Mapping[str, Any]) -> Path | None:
        """Copy this rank's ring into the incident of another one, unless it has done so."""
        self._known.add(name)
        incident = self.attempt / INCIDENTS / name
        if (incident / f"{rank_name(self.rank)}.json").exists():
            return None
        path = self.follow(name, facts)
        if path is not None:
            self._due_s[path.parent] = self.clock_s() + self.answer_s + self.look_s
        return path

    def _look_in_store(self) -> None:
        """Tell the ranks of other machines, and follow theirs."""
        now_s = self.clock_s()
        if not is_distributed():
            # Nobody else is to be told.
            self._to_tell.clear()
            return
        if now_s < self._store_next_s and not self._to_tell:
            return
        self._store_next_s = now_s + _REST_S
        store = self._store.connect(_TIMEOUT_S)
        count = int(store.add(_COUNT, 0))
        while self._to_tell:
            message = self._to_tell[0]
            number = int(store.add(_COUNT, 1))
            with suppress(OSError, ValueError):
                facts = json.loads(Path(message.pop("json", "")).read_bytes())
                message["facts"] = {name: facts[name] for name in _OF_INCIDENT if name in facts}
            store.set(f"incident/{number}", json.dumps(message, default=str))
            self._to_tell.pop(0)
        for number in range(max(self._seen, 0) + 1, count + 1):
            # A rank that has counted may not have written yet.
            if not store.check([f"incident/{number}"]):
                count = number - 1
                break
            message = json.loads(store.get(f"incident/{number}"))
            facts = message.get("facts") or {}
            # Of before this rank first looked, only what has just happened is not over.
            is_old = self._seen < 0 and abs(time.time() - float(facts.get("time_s", 0))) > _NEW_S
            if message.get("from") != self.rank and message.get("folder") not in self._known and not is_old:
                path = self._answer(str(message["folder"]), facts)
                answer = {"host": socket.gethostname(), "path": None if path is None else str(path)}
                store.set(f"answer/{message['folder']}/{self.rank}", json.dumps(answer))
        self._seen = count
        self._store_next_s = now_s + _STORE_S

    def _list_due(self) -> None:
        """List the ranks of the incidents that all had time to answer."""
        now_s = self.clock_s()
        for incident in [incident for incident, due_s in list(self._due_s.items()) if due_s <= now_s]:
            del self._due_s[incident]
            if not (incident / SUMMARY).exists():
                list_ranks(self.attempt, incident, self.rank, self._answers(incident.name))

    def _answers(self, name: str) -> dict[int, dict[str, Any]]:
        """What ranks of other machines have answered to an incident."""
        answers: dict[int, dict[str, Any]] = {}
        with suppress(Exception):
            if is_distributed():
                store = self._store.connect(_TIMEOUT_S)
                for rank in range(rank_count() or 0):
                    if store.check([f"answer/{name}/{rank}"]):
                        answers[rank] = json.loads(store.get(f"answer/{name}/{rank}"))
        return answers


def list_ranks(
    attempt: Path, incident: Path, own_rank: int, answers: Mapping[int, dict[str, Any]] | None = None
) -> None:
    """Write `incident.json`, which names the files of all ranks of an incident; copy the rings of those on this machine that did not answer.

    Args:
        attempt: The folder of the start of the job.
        incident: The folder of the incident.
        own_rank: The rank that writes.
        answers: What ranks of other machines answered, by rank: their `host` and `path`.

    Raises:
        OSError: The file cannot be written.
    """
    written = {rank.rank: rank for rank in incident_ranks(incident) if rank.facts}
    first = next((rank.facts for rank in first_failure(written.values())), {})
    rings = {ring.rank: ring for ring in Attempt(attempt).rings() if ring.state in (HANGS, RUNS, GONE)}
    summary: dict[str, Any] = {name: first[name] for name in _OF_INCIDENT if name in first}
    ranks: dict[str, Any] = {}
    missing = []
    for rank in sorted({*range(rank_count() or 1), *written, *rings}):
        if rank in written:
            ranks[str(rank)] = {"answered": True, "recording": written[rank].recording.name}
        elif rank in rings and _copy_from_outside(rings[rank], incident, first, own_rank):
            ranks[str(rank)] = {"answered": False, "recording": f"{rank_name(rank)}.recording"}
        elif answers and rank in answers:
            ranks[str(rank)] = {"answered": True, **answers[rank]}
        else:
            missing.append(rank)
    write_atomically(
        incident / SUMMARY, json.dumps({**summary, "ranks": ranks, "missing": missing}, indent=1).encode()
    )


def _copy_from_outside(ring: RankFiles, incident: Path, first: Mapping[str, Any], by: int) -> bool:
    """Copy the ring of a rank that does not answer; return whether that worked."""
    target = incident / ring.recording.name
    try:
        clone(ring.recording, target)
    except Exception:  # noqa: BLE001  (the ring may be gone, or damaged by a process that was killed; then the rank is missing)
        target.unlink(missing_ok=True)
        return False
    log_file = ring.recording.with_suffix(SUFFIX)
    if log_file.exists():
        shutil.copyfile(log_file, target.with_suffix(SUFFIX))
    log = ring.log
    facts: dict[str, Any] = {"rank": ring.rank, "process": ring.process, "answered": False}
    if ring.state == GONE:
        step = log.number if log is not None and log.number >= 0 else None
        facts |= {
            "reason": GONE,
            "time_s": last_seen_s(ring),
            "what": f"the process {end_text(step, log, ring.death)}",
        }
    else:
        facts |= {
            "reason": first.get("reason", "hang"),
            "time_s": time_of(incident),
            "because_of_rank": first.get("rank"),
            "what": f"it did not answer: rank {by} copied its ring",
        }
        look = sight(log.process, log.layout) if log is not None and log.is_of_here else None
        facts["sight"] = None if look is None else asdict(look)
    if ring.log is not None:
        facts["step"] = ring.log.number
    write_atomically(target.with_suffix(".json"), json.dumps(facts, indent=1).encode())
    return True
