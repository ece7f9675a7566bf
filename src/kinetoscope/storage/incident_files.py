"""The files of an incident, written by the flight recorder: a copy of each rank's ring, and its facts about the incident.

A folder has `rank0.recording`, `rank0.json` and so on, and `incident.json`, which says whether each rank responded.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

INFO = "incident"
"""The metadata of a trace that is of an incident: `reason`, `what`, `step`, `time_s`, `overhead`, and for each of `ranks` its own facts."""

SUMMARY = "incident.json"
SUFFIX = ".recording"
_RANK = re.compile(r"rank(\d+)\.recording")


def incident_recordings(folder: Path) -> list[Path]:
    """Return the recordings in the folder of an incident, in order of the ranks; none for another folder."""
    path_of_rank = {
        int(name[1]): path for path in folder.glob(f"rank*{SUFFIX}") if (name := _RANK.fullmatch(path.name))
    }
    return [path_of_rank[rank] for rank in sorted(path_of_rank)]


def incident_facts(paths: list[Path]) -> dict[str, Any] | None:
    """Return the facts of the incident of some recordings, for `INFO`; None if they are not of an incident."""
    reports = [facts for path in paths if (facts := rank_facts(path))]
    if not reports:
        return None
    # The rank that wrote first; the others followed it.
    first = next((facts for facts in reports if "because_of_rank" not in facts), reports[0])
    named = ("reason", "what", "step", "time_s", "overhead", "rank")
    incident = {name: first[name] for name in named if name in first}
    summary = read_facts(paths[0].with_name(SUMMARY))
    ranks = {str(facts["rank"]): facts for facts in reports if "rank" in facts}
    return incident | {"ranks": ranks} | ({"missing": summary["missing"]} if summary.get("missing") else {})


def rank_facts(recording: Path) -> dict[str, Any]:
    """Return a rank's facts about the incident of its recording; empty for other recordings."""
    facts = read_facts(recording.with_suffix(".json"))
    return facts if "reason" in facts else {}


def read_facts(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none, or if the path is a link out of its folder."""
    content: Any = None
    with suppress(OSError, ValueError):
        if path.resolve().parent == path.parent.resolve():
            content = json.loads(path.read_bytes())
    return content if isinstance(content, dict) else {}
