"""Putting the ranks of one job together on one clock."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError
from kinetoscope.combine.ranks import merge_named
from kinetoscope.trace.opening import open  # noqa: A004  (the verb is `kinetoscope.open`)
from kinetoscope.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence


def merge(traces: Sequence[Trace | str | os.PathLike[str]]) -> Trace:
    """Put the traces of the ranks of one job into one trace, on one axis of time.

    What is counted within a process (steps, live memory, modules, links) is what it is in the trace of its rank alone. The
    column `rank` tells the ranks apart, `select_ranks` takes some out again, and the table `processes` says of each by
    what its clock was brought to that of the first (`clock`) and by how much its times may be off (`error_ns`):

    - `monotonic`: ranks of one machine have one clock, which their recordings say (Linux). To within microseconds.
    - `barriers`: ranks that aligned their clocks (`profile(align_ranks=True)` or `align_clocks()`).
    - `collectives`: ranks that called each other while they recorded. Nobody has the result of an all_reduce, all_gather,
      reduce_scatter or barrier before everybody has given his part; so each of these bounds the difference of two clocks
      from both sides; within these bounds they are taken to have left them together. Calls are told apart by step,
      group and order; of traces without steps only such with the same calls from beginning to end are compared.
    - `wall` or `unknown`: nothing ties them together, and `losses` says so. Their clocks on the wall were believed.

    For barriers and collectives the error is a bound, not an estimate: whatever the clocks did, as long as their difference was a
    straight line in time with a drift of at most 1 in 1000, and calls were told apart rightly, no moment is further off. If
    there is no such line, `info["processes"]` says by how much the bounds contradict each other (`violated_ns`),
    and `losses` has a row. It holds for the times of what carried the calls out: kernels of devices, or threads of the host.

    Args:
        traces: The traces, or paths or URLs of them; one for each rank. A trace that was put together of several processes
            counts as one. The cycles of one process belong together first, see `kinetoscope.trace.concatenate`.

    Returns:
        A new trace, the ranks in rising order; the given ones are as before. A warning says where they do not look like
        those of one job: of different programs, recorded at different times, or some with a rank and some without.

    Raises:
        ArgumentError: There is none, or two are of one rank, of one process, or of jobs of different size.
        FormatError: A file is no trace.
        OSError: A file cannot be read.
    """
    if isinstance(traces, (str, os.PathLike, Trace)):
        raise ArgumentError("pass a list of traces, one for each rank.")
    given = list(traces)
    opened = [trace if isinstance(trace, Trace) else open(trace) for trace in given]
    names = [
        f"trace {place}" if isinstance(one, Trace) else os.fspath(one)
        for place, one in enumerate(given, start=1)
    ]
    return merge_named(opened, names)
