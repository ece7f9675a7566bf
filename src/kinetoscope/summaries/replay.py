"""How long steps would take if no rank were late: the collectives of a job replayed with other times between them, see `analyses.replay`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.replay import RankSteps, Replay
from kinetoscope.model.arrow import rows_to_arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.summaries.sections import Sections

    Rows = NDArray[np.int64]


def without_lateness(sections: Sections, ranks: Sequence[int]) -> pyarrow.Table:
    """Return the table `without_lateness`; without rows where ranks have no steps or collectives in common.

    Args:
        sections: The summaries.
        ranks: Ranks to replay as if they alone were not late.
    """
    replay = _replay(sections)
    recorded_ns, replayed_ns = replay.recorded_ns(), replay.step_ns(replay.own_ns)
    can_replay = recorded_ns > 0 and replayed_ns > 0 and len(replay.own_ns) > 0
    every_row = np.arange(len(sections))
    rows = []
    for rank in (-1, *ranks) if can_replay else ():
        without_ns = _without_ns(replay, every_row if rank < 0 else np.searchsorted(sections.ranks, [rank]))
        rows.append(
            {
                "rank": rank,
                "step_ns": recorded_ns,
                "replayed_ns": replayed_ns,
                "without_ns": without_ns,
                "gain_percent": 100.0 * (replayed_ns - without_ns) / replayed_ns,
            }
        )
    return rows_to_arrow("job: without_lateness", rows)


def gain_without(sections: Sections, ranks: Sequence[int]) -> float:
    """How much shorter steps are, in percent, in a replay in which none of some ranks is late; 0 where that is unknown."""
    replay = _replay(sections)
    replayed_ns = replay.step_ns(replay.own_ns)
    if replayed_ns <= 0 or len(replay.own_ns) == 0:
        return 0.0
    without_ns = _without_ns(replay, np.searchsorted(sections.ranks, list(ranks)))
    return max(100.0 * (replayed_ns - without_ns) / replayed_ns, 0.0)


def _without_ns(replay: Replay, late: Rows) -> int:
    shorter = np.minimum(replay.own_ns, replay.usual_ns)
    return replay.step_ns(np.where(np.isin(replay.rank, late), shorter, replay.own_ns))


def _replay(sections: Sections) -> Replay:
    begins = sections.numbers("steps", "start_ns")
    steps = RankSteps(sections.rows("steps"), begins, begins + sections.numbers("steps", "duration_ns"))
    return Replay(sections.matched, sections.numbers("collectives", "start_ns"), steps, len(sections))
