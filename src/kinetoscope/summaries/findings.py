"""What makes a job of many ranks slow, in words, from the tables of its summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.findings import MOST_FINDINGS, Report
from kinetoscope.analyses.lateness import LEAST_LATE_PERCENT
from kinetoscope.analyses.rule_findings import ranked
from kinetoscope.analyses.rules.communication import LEAST_PERCENT, exposed_finding
from kinetoscope.analyses.rules.ranks import late_finding, uneven_finding
from kinetoscope.display.sentence import sentence
from kinetoscope.summaries.communication import exposed_communication, links
from kinetoscope.summaries.lateness import late_hosts, stragglers
from kinetoscope.summaries.replay import gain_without, without_lateness
from kinetoscope.tables.host.units_of_work import Unit

if TYPE_CHECKING:
    from kinetoscope.summaries.sections import Sections

_MOST_STRAGGLERS = 3
_MOST_REPLAYED = 7
_MOST_NAMED = 8
_LEAST_IRREGULAR_PERCENT = 10.0
_SLOWER = 1.5
"""A link is slow if it takes so many times as long as others."""
_LEAST_LINK_PERCENT = 1.0


def examine_job(sections: Sections) -> Report:
    """Say what makes a job slow: at most seven findings, the largest possible gain first.

    Shares and gains are of the steps of the median rank.
    """
    steps = np.bincount(sections.rows("steps"), minlength=len(sections))
    step_ns = int(np.median(sections.step_ns[steps > 0])) if steps.any() else 0
    count = int(np.median(steps[steps > 0])) if steps.any() else 0
    whole_ns = step_ns * count
    if whole_ns <= 0 or len(sections) < 2:
        return Report((), (), Unit.STEP, count, whole_ns)
    late, ranks = _stragglers(sections, whole_ns)
    findings = [
        *late,
        _irregular(sections, ranks, whole_ns),
        _unbalanced(sections, step_ns, count),
        _slow_link(sections, whole_ns),
        _exposed(sections, step_ns, count),
    ]
    return Report(ranked([*filter(None, findings)])[:MOST_FINDINGS], (), Unit.STEP, count, whole_ns)


def _stragglers(sections: Sections, whole_ns: int) -> tuple[list[Finding], list[int]]:
    """The hosts and ranks for which the others wait and without which, as a replay says, most is gained; and all these ranks."""
    findings: list[Finding] = []
    late: list[int] = []
    gained = 0.0
    for host, ranks, late_ns in late_hosts(sections):
        late += ranks
        gain, gained = gain_without(sections, late) - gained, gain_without(sections, late)
        who = f"the {len(ranks)} ranks of {host} ({', '.join(map(str, ranks[:_MOST_NAMED]))}{', ...' if len(ranks) > _MOST_NAMED else ''})"
        share = 100.0 * late_ns / max(1, int(sections.step_ns[np.searchsorted(sections.ranks, ranks[0])]))
        findings.append(late_finding(who, ranks[0], share, int(0.01 * max(gain, 0.0) * whole_ns)))
    rows = [row for row in stragglers(sections).to_pylist() if row["rank"] not in late][:_MOST_REPLAYED]
    percents = _gains(sections, [row["rank"] for row in rows])
    rows.sort(key=lambda row: -percents.get(row["rank"], 0.0))
    for row in rows:
        # Whoever is late because it waits for one of those before, or is slow beside it, is not named, too.
        together = gain_without(sections, [*late, row["rank"]])
        if len(findings) == _MOST_STRAGGLERS or (late and together < gained + LEAST_LATE_PERCENT):
            continue
        gained = together
        late.append(row["rank"])
        percent = percents.get(row["rank"])
        share = row["late_percent"] * (1.0 if row["persistent"] else row["steps_percent"] / 100)
        findings.append(
            late_finding(
                f"rank {row['rank']}",
                row["rank"],
                share,
                None if percent is None else int(0.01 * percent * whole_ns),
                row["phase"],
                row["extra_ns"],
                persistent=bool(row["persistent"]),
            )
        )
    return findings, late


def _gains(sections: Sections, ranks: list[int]) -> dict[int | None, float]:
    """How much of a step a replay says is gained without the lateness of each of some ranks, and for None without any; in percent."""
    rows = without_lateness(sections, ranks).to_pylist()
    return {row["rank"]: max(row["gain_percent"], 0.0) for row in rows}


def _irregular(sections: Sections, late: list[int], whole_ns: int) -> Finding | None:
    """Ranks of which now one and now another is late: what remains without those that always are."""
    everything = _gains(sections, []).get(None, 0.0)
    gain = everything - (gain_without(sections, late) if late else 0.0)
    if gain < max(_LEAST_IRREGULAR_PERCENT, everything / 2):
        return None
    return Finding(
        "irregular-ranks",
        sentence(
            "Steps would take {} less if no rank were late at collectives: now one is, now another",
            (gain, "%"),
        ),
        "Give ranks equal work in each step (samples of equal length), look for what interrupts them (garbage collection, logging, other "
        "processes on their machines), and record more steps.",
        gain,
        int(0.01 * gain * whole_ns),
    )


def _unbalanced(sections: Sections, step_ns: int, steps: int) -> Finding | None:
    """Ranks whose devices compute for longer than those of the others."""
    devices = np.array(
        [device not in ("", "cpu") for device in sections.summaries["device"].to_pylist()], dtype=bool
    )
    computed = sections.usual_of_steps("compute_ns")
    rows = np.flatnonzero(devices & (computed >= 0))
    if len(rows) < 2:
        return None
    most = int(rows[np.argmax(computed[rows])])
    more_ns = gain_ns = float(computed[most] - computed[rows].mean())
    # What it has to do more may be hidden behind what others do.
    gains = _gains(sections, [int(sections.ranks[most])])
    if gains:
        gain_ns = min(gain_ns, 0.01 * gains[int(sections.ranks[most])] * step_ns)
    return uneven_finding(
        int(sections.ranks[most]),
        float(computed[most]),
        float(np.median(computed[rows])),
        100.0 * more_ns / step_ns,
        int(gain_ns * steps),
    )


def _slow_link(sections: Sections, whole_ns: int) -> Finding | None:
    """The pair of ranks that loses most time compared to other pairs."""
    rows = [
        row
        for row in links(sections).to_pylist()
        if (row["times_slower"] or 0) >= _SLOWER and row["extra_percent"] >= _LEAST_LINK_PERCENT
    ]
    if not rows:
        return None
    worst = max(rows, key=lambda row: row["extra_percent"])
    hosts = f" ({worst['host']} and {worst['peer_host']})" if worst["host"] else ""
    return Finding(
        "slow-link",
        sentence(
            f"Between rank {worst['rank']} and rank {worst['peer']}{hosts} {worst['name']} takes {{}}, {worst['times_slower']:.1f} times as "
            "long as between other ranks: {} of step time",
            (worst["transfer_ns"], "ns"),
            (worst["extra_percent"], "%"),
        ),
        "Check what connects the two: network cards, cables and switches between machines, and the order of devices and their topology on one.",
        worst["extra_percent"],
        int(0.01 * worst["extra_percent"] * whole_ns),
    )


def _exposed(sections: Sections, step_ns: int, steps: int) -> Finding | None:
    """Communication that steps wait for; on the host nothing could hide it."""
    if all(device in ("", "cpu") for device in sections.summaries["device"].to_pylist()):
        return None
    parts = {
        name: float(np.median(sections.usual_of_steps(name))) for name in ("communication_ns", "compute_ns")
    }
    share = 100.0 * parts["communication_ns"] / step_ns
    rows = exposed_communication(sections).to_pylist()
    if share < LEAST_PERCENT or not rows:
        return None
    most = rows[0]
    where = next((most[name] for name in ("dimension", "description") if most[name]), None)
    name = most["name"] + (f" in {where}" if where else "")
    late: tuple[Any, ...] = ()
    if most["waited_ns"] is not None and most["total_ns"] > 0:
        name += ", {} of which is waiting for late ranks"
        late = ((100.0 * most["waited_ns"] / most["total_ns"], "%"),)
    computed = 100.0 * parts["compute_ns"] / step_ns
    # What is waiting for late ranks is gained where these are not late, and not by less communication.
    with_waits = [row for row in rows if row["waited_ns"] is not None and row["total_ns"] > 0]
    total = sum(row["total_ns"] for row in rows)
    waiting = sum(row["waited_ns"] for row in with_waits) / total if total > 0 else 0.0
    gain_ns = int(parts["communication_ns"] * (1.0 - min(1.0, waiting))) * steps
    return exposed_finding(share, name, late, computed, gain_ns)
