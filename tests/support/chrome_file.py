"""Reads a Chrome trace as strictly as any reader might, and checks what every such file must keep to."""

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any


def read_strictly(path: Path) -> dict[str, Any]:
    """Parses UTF-8 JSON without NaN, without duplicate keys, with times as exact decimals."""
    raw = path.read_bytes()
    if path.name.endswith(".gz"):
        raw = gzip.decompress(raw)
    return json.loads(
        raw.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_once, parse_float=Decimal
    )


def slices(trace: dict[str, Any], name: str | None = None) -> list[dict[str, Any]]:
    """Lists the complete events, or those of one name."""
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and name in (None, event["name"])]


def partly_overlapping(trace: dict[str, Any]) -> list[tuple[str, str]]:
    """Finds pairs of slices of one track of which neither holds the other."""
    tracks = defaultdict(list)
    for event in slices(trace):
        start = Decimal(event["ts"])
        tracks[event["pid"], event["tid"]].append((start, -(start + Decimal(event["dur"])), event["name"]))
    found = []
    for track in tracks.values():
        around: list[tuple[Decimal, str]] = []
        for start, minus_end, name in sorted(track, key=lambda event: event[:2]):
            while around and around[-1][0] <= start:
                around.pop()
            if around and -minus_end > around[-1][0]:
                found.append((around[-1][1], name))
            around.append((-minus_end, name))
    return found


def track_names(trace: dict[str, Any]) -> dict[tuple[int, int], str]:
    """What the viewer shows beside each track."""
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["ph"] == "M" and event["name"] == "thread_name"
    }


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(keys) != len(set(keys)):
        raise ValueError(f"a key stands twice in {keys}")
    return dict(pairs)
