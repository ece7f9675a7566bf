"""Jobs: why a job of many ranks is slow, from the summaries of its ranks."""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.findings import MOST_FINDINGS, Report
from kinetoscope.analyses.lateness import LEAST_LATE_PERCENT
from kinetoscope.analyses.rule import Match, Rule
from kinetoscope.analyses.rule_findings import findings_with_gains
from kinetoscope.analyses.rules.communication import exposed_communication as exposed_rule
from kinetoscope.analyses.rules.ranks import late_match, straggler_rank, unbalanced_ranks, uneven_match
from kinetoscope.model import units
from kinetoscope.model.rows import Mask
from kinetoscope.summaries.communication import exposed_communication, links
from kinetoscope.summaries.lateness import gain_without, late_hosts, stragglers
from kinetoscope.summaries.sections import Sections
from kinetoscope.tables.host.units_of_work import Unit
from kinetoscope.tables.intervals import Intervals

_MOST_STRAGGLERS = 3
_MOST_REPLAYED = 7
_MOST_NAMED = 8
_SLOWER = 1.5
IRREGULAR_RANKS = Rule(
    "irregular-ranks",
    "Steps would take {share} less if no rank were late at collectives: now one is, now another",
    (
        "Give ranks equal work in each step (samples of equal length), look for what interrupts them (garbage collection, logging, other processes on their "
        "machines), and record more steps."
    ),
    finds="now one and now another rank is late",
    source="a replay of the job without lateness",
    least=10.0,
)
SLOW_LINK = Rule(
    "slow-link",
    "Between rank {rank} and rank {peer} {name} takes {transfer:ns}, {times} times as long as between other ranks: {share} of {time}",
    "Check what connects the two: network cards, cables and switches between machines, and the order of devices and their topology on one.",
    finds="two ranks take longer to communicate than other pairs",
    source="the other pairs of ranks of the job",
    also=f"{_SLOWER} times as long",
    least=1.0,
)


def examine_job(sections: Sections) -> Report:
    """Find why a job is slow: at most seven findings, the largest possible gain first.

    Shares and gains refer to the steps of the median rank.
    """
    steps = sections.counts("steps")
    step_ns = int(np.median(sections.step_ns[steps > 0])) if steps.any() else 0
    count = int(np.median(steps[steps > 0])) if steps.any() else 0
    whole_ns = step_ns * count
    if whole_ns <= 0 or len(sections) < 2:
        return Report((), (), Unit.STEP, count, whole_ns, whole_ns)
    late, ranks = _stragglers(sections, whole_ns)
    matches = (
        *((straggler_rank, match) for match in late),
        (IRREGULAR_RANKS, _irregular(sections, ranks, whole_ns)),
        (unbalanced_ranks, _unbalanced(sections, step_ns, count)),
        (SLOW_LINK, _slow_link(sections, whole_ns)),
        (exposed_rule, _exposed(sections, step_ns, count)),
    )
    findings = findings_with_gains(
        [finding for rule, match in matches for finding in rule.of_job(match, whole_ns)],
        Intervals.between(0, whole_ns),
    )
    return Report(findings[:MOST_FINDINGS], (), Unit.STEP, count, whole_ns, whole_ns)


def _stragglers(sections: Sections, whole_ns: int) -> tuple[list[Match], list[int]]:
    """The late hosts and ranks whose lateness costs the most in a replay, and all these ranks."""
    matches: list[Match] = []
    late: list[int] = []
    gained = 0.0
    device_ranks = set(sections.ranks[_on_device(sections)].tolist())
    for host, ranks, host_late in late_hosts(sections):
        late += ranks
        together = gain_without(sections, late) or 0.0
        gain, gained = together - gained, together
        who = f"the {len(ranks)} ranks of {host} ({', '.join(map(str, ranks[:_MOST_NAMED]))}{', ...' if len(ranks) > _MOST_NAMED else ''})"
        share = (
            100.0
            * host_late.late_ns
            / max(1, int(sections.step_ns[np.searchsorted(sections.ranks, ranks[0])]))
        )
        gain_ns = int(0.01 * max(gain, 0.0) * whole_ns)
        matches.append(
            late_match(
                who,
                ranks[0],
                share,
                gain_ns,
                host_late.part,
                host_late.more_ns,
                on_host=ranks[0] not in device_ranks,
            )
        )
    rows = [row for row in stragglers(sections).to_pylist() if row["rank"] not in late][:_MOST_REPLAYED]
    percents = {row["rank"]: gain_without(sections, [row["rank"]]) for row in rows}
    rows.sort(key=lambda row: -(percents[row["rank"]] or 0.0))
    for row in rows:
        # Do not name a rank that is late only because of the ranks already named, and not by what it does itself.
        without = gain_without(sections, [*late, row["rank"]])
        is_named = late and without is not None and without < gained + LEAST_LATE_PERCENT
        is_named = is_named and row["extra_ns"] < row["late_ns"] / 2
        if len(matches) == _MOST_STRAGGLERS or is_named:
            continue
        gained = without or 0.0
        late.append(row["rank"])
        percent = percents[row["rank"]]
        share = row["late_percent"] * (1.0 if row["persistent"] else row["steps_percent"] / 100)
        matches.append(
            late_match(
                f"rank {row['rank']}",
                row["rank"],
                share,
                None if percent is None else int(0.01 * percent * whole_ns),
                row["phase"],
                row["extra_ns"],
                row["line"] or "",
                persistent=bool(row["persistent"]),
                on_host=row["rank"] not in device_ranks,
            )
        )
    return matches, late


def _irregular(sections: Sections, late: list[int], whole_ns: int) -> Match | None:
    """Lateness that alternates between ranks: what remains without the ranks that are always late."""
    everything = gain_without(sections, sections.ranks) or 0.0
    gain = everything - ((gain_without(sections, late) or 0.0) if late else 0.0)
    return Match(time_ns=0.01 * gain * whole_ns) if gain >= everything / 2 else None


def _on_device(sections: Sections) -> Mask:
    return ~np.isin(sections.summaries["device"].to_pylist(), ("", "cpu"))


def _unbalanced(sections: Sections, step_ns: int, steps: int) -> Match | None:
    computed = sections.usual_of_steps("compute_ns")
    rows = np.flatnonzero(_on_device(sections) & (computed >= 0))
    if len(rows) < 2:
        return None
    most = int(rows[np.argmax(computed[rows])])
    more_ns = gain_ns = float(computed[most] - computed[rows].mean())
    # Its additional work may be hidden behind the work of others.
    rank, median_ns = int(sections.ranks[most]), float(np.median(computed[rows]))
    if (gain := gain_without(sections, [rank])) is not None:
        gain_ns = min(gain_ns, 0.01 * gain * step_ns)
    return uneven_match(rank, float(computed[most]), median_ns, more_ns * steps, int(gain_ns * steps))


def _slow_link(sections: Sections, whole_ns: int) -> Match | None:
    rows = [row for row in links(sections).to_pylist() if (row["times_slower"] or 0) >= _SLOWER]
    if not rows:
        return None
    worst = max(rows, key=lambda row: row["extra_percent"])
    hosts = f" ({worst['host']} and {worst['peer_host']})" if worst["host"] else ""
    words = {
        "rank": str(worst["rank"]),
        "peer": f"{worst['peer']}{hosts}",
        "name": worst["name"],
        "transfer": worst["transfer_ns"],
        "times": f"{worst['times_slower']:.1f}",
    }
    return Match(time_ns=0.01 * worst["extra_percent"] * whole_ns, values=words, rank=worst["rank"])


def _exposed(sections: Sections, step_ns: int, steps: int) -> Match | None:
    """Communication that steps wait for. On the host nothing could hide it."""
    if all(device in ("", "cpu") for device in sections.summaries["device"].to_pylist()):
        return None
    parts = {
        name: float(np.median(sections.usual_of_steps(name))) for name in ("communication_ns", "compute_ns")
    }
    rows = exposed_communication(sections).to_pylist()
    if not rows:
        return None
    most = rows[0]
    where = next((most[name] for name in ("dimension", "description") if most[name]), None)
    mostly = f", mostly {most['name']}" + (f" in {where}" if where else "")
    if most["waited_ns"] is not None and most["total_ns"] > 0:
        late = units.percent(most["waited_ns"], most["total_ns"])
        mostly += f", {late} of which is waiting for late ranks"
    # Waiting for late ranks is not gained by less communication.
    with_waits = [row for row in rows if row["waited_ns"] is not None and row["total_ns"] > 0]
    total = sum(row["total_ns"] for row in rows)
    waiting = sum(row["waited_ns"] for row in with_waits) / total if total > 0 else 0.0
    gain_ns = int(parts["communication_ns"] * (1.0 - min(1.0, waiting))) * steps
    words = {"most": mostly, "computed": parts["compute_ns"] * steps}
    return Match(time_ns=parts["communication_ns"] * steps, values=words, gain_ns=gain_ns)
