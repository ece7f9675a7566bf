"""How long steps would take if no rank were late: the collectives of a job replayed with other times between them, see `analyses.replay`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.analyses.replay import RankSteps, Replay
from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.dictionary import table_definition

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
    shorter = np.minimum(replay.own_ns, replay.usual_ns)
    replays = []
    for rank in (-1, *ranks) if can_replay else ():
        late = replay.rank == np.searchsorted(sections.ranks, rank) if rank >= 0 else True
        replays.append((rank, replay.step_ns(np.where(late, shorter, replay.own_ns))))
    without = np.array([step_ns for _, step_ns in replays], dtype=np.int64)
    columns: dict[str, Any] = {
        "rank": np.array([rank for rank, _ in replays], dtype=np.int64),
        "step_ns": np.full(len(replays), recorded_ns),
        "replayed_ns": np.full(len(replays), replayed_ns),
        "without_ns": without,
        "gain_percent": 100.0 * (replayed_ns - without) / max(replayed_ns, 1),
    }
    return to_arrow(table_definition("job: without_lateness"), columns)


def gain_without(sections: Sections, ranks: Sequence[int]) -> float:
    """How much shorter steps are, in percent, in a replay in which none of some ranks is late; 0 where that is unknown."""
    replay = _replay(sections)
    replayed_ns = replay.step_ns(replay.own_ns)
    if replayed_ns <= 0 or len(replay.own_ns) == 0:
        return 0.0
    late = np.isin(replay.rank, np.searchsorted(sections.ranks, list(ranks)))
    without_ns = replay.step_ns(np.where(late, np.minimum(replay.own_ns, replay.usual_ns), replay.own_ns))
    return max(100.0 * (replayed_ns - without_ns) / replayed_ns, 0.0)


def _replay(sections: Sections) -> Replay:
    begins = sections.numbers("steps", "start_ns")
    steps = RankSteps(sections.rows("steps"), begins, begins + sections.numbers("steps", "duration_ns"))
    return Replay(sections.matched, sections.numbers("collectives", "start_ns"), steps, len(sections))
