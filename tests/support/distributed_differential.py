"""A job of several ranks: each records the distributed programs with both profilers and prints what they do not agree on."""

from __future__ import annotations

import json
import os
import sys
import warnings

import torch
import torch.distributed as dist

from tests.support.differential import (
    differences,
    marked,
    record_ours,
    record_theirs,
    told_by_ours,
    told_by_theirs,
)
from tests.support.known_differences import AT_THE_SAME_TIME, KNOWN
from tests.support.programs.distributed import DISTRIBUTED


def main(folder: str) -> None:
    """Writes the differences of this rank as JSON: for each program those that no known difference explains."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    found: dict[str, dict[str, object]] = {}
    for name, make in DISTRIBUTED.items():
        run = make()
        run()
        run()
        traces = []
        theirs = told_by_theirs(
            record_theirs(lambda run=run, traces=traces: traces.append(record_ours(marked(run))))
        )
        ours = told_by_ours(traces[0], theirs.threads)
        found[name] = {
            "events": sum(theirs.aspects["nesting"].values()),
            "unexplained": [
                [aspect, whose, repr(thing)]
                for aspect, whose, thing in differences(theirs, ours)
                if not any(known.explains_here(name, AT_THE_SAME_TIME, aspect, thing) for known in KNOWN)
            ],
        }
    with open(os.path.join(folder, f"rank{dist.get_rank()}.json"), "w", encoding="utf-8") as file:
        json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
