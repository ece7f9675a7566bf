"""How long steps would take if no rank were late: the collectives of a job replayed with other times between them, see `analyses.replay`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow

from kinetoscope.analyses.replay import RankSteps, Replay
from kinetoscope.model.arrow import rows_to_arrow
from kinetoscope.model.rows import Rows
from kinetoscope.summaries.sections import Sections


def without_lateness(sections: Sections, ranks: Sequence[int]) -> pyarrow.Table:
    """Return the table `without_lateness`; without rows where ranks have no steps or collectives in common.

    Args:
        sections: The summaries.
        ranks: Ranks to replay as if they alone were not late.
    """
    replay, replayed_ns = _replayed(sections)
    rows = []
    for rank in (-1, *ranks) if replayed_ns else ():
        without_ns = _without_ns(sections, sections.ranks if rank < 0 else [rank])
        gain_percent = 100.0 * (replayed_ns - without_ns) / replayed_ns
        rows.append(
            {"rank": rank, "step_ns": replay.recorded_ns(), "replayed_ns": replayed_ns}
            | {"without_ns": without_ns, "gain_percent": gain_percent}
        )
    return rows_to_arrow("job: without_lateness", rows)


def gain_without(sections: Sections, ranks: Sequence[int] | Rows) -> float | None:
    """How much shorter steps are, in percent, in a replay in which none of some ranks is late; None where ranks have no steps or collectives in common."""
    _, replayed_ns = _replayed(sections)
    if not replayed_ns:
        return None
    return max(100.0 * (replayed_ns - _without_ns(sections, ranks)) / replayed_ns, 0.0)


def _without_ns(sections: Sections, ranks: Sequence[int] | Rows) -> int:
    """How long a step of the replay takes if none of some ranks is late."""
    replay, _ = _replayed(sections)
    is_late = np.isin(replay.rank, np.searchsorted(sections.ranks, ranks))
    return replay.step_ns(np.where(is_late, np.minimum(replay.own_ns, replay.usual_ns), replay.own_ns))


def _replayed(sections: Sections) -> tuple[Replay, int]:
    """The replay, and how long a step takes in it with the times that were recorded; 0 where nothing can be replayed."""

    def make() -> tuple[Replay, int]:
        begins = sections.numbers("steps", "start_ns")
        steps = RankSteps(sections.rows("steps"), begins, begins + sections.numbers("steps", "duration_ns"))
        starts = sections.numbers("collectives", "start_ns")
        replay = Replay(sections.matched, starts, steps, len(sections))
        is_known = len(replay.own_ns) > 0 and replay.recorded_ns() > 0
        return replay, max(replay.step_ns(replay.own_ns), 0) if is_known else 0

    return sections.cached("replay", make)
