"""More threads compute than the machine has processors, so that they take turns.

Threads of operators (`torch.get_num_threads()`) of all processes of a machine, which torch makes as many as the machine has processors
in each process that does not limit them. A process that ran no operators, such as the one that starts the ranks, has none. Threshold: twice the processors; TraceML warns of a host that is 80 % busy.
"""

from __future__ import annotations

from collections import defaultdict

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model import units
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.processes import process_runs, thread_processes

TIMES_PROCESSORS = 2.0


def thread_oversubscription(loop: Loop) -> Finding | None:
    """Find machines on which the processes of the job have more threads for operators than there are processors."""
    if loop.device is not None:
        # The host's operators are then few, and not what the step waits for.
        return None
    threads: dict[str, int] = defaultdict(int)
    processes: dict[str, int] = defaultdict(int)
    processors: dict[str, int] = {}
    spans = loop.trace.columns("spans")
    ran = thread_processes(loop.trace)[spans["thread"][is_operator(spans["kind"])]]
    for row, run in enumerate(process_runs(loop.trace)):
        # A worker of a DataLoader computes with one thread.
        if (
            run.torch_threads is None
            or not run.cpu_count
            or (run.recorded_parent is not None and run.rank is None)
            or not (ran == row).any()
        ):
            continue
        threads[run.host] += run.torch_threads
        processes[run.host] += 1
        processors[run.host] = run.cpu_count
    crowded = max(threads, key=lambda host: threads[host] / processors[host], default=None)
    if crowded is None or threads[crowded] < TIMES_PROCESSORS * processors[crowded]:
        return None
    parts = (PARTS.index(name) for name in ("compute_ns", "processor_wait_ns"))
    share = loop.share(sum(loop.time.parts_ns[part] for part in parts)) if loop.time else 0.0
    limit = max(1, processors[crowded] // processes[crowded])
    return Finding(
        "thread-oversubscription",
        sentence(
            f"Operators compute with {{}} threads in {{}} processes, on a machine with {{}} {units.noun(processors[crowded], 'processor')}",
            threads[crowded],
            processes[crowded],
            processors[crowded],
        )
        if processes[crowded] > 1
        else sentence(
            f"Operators compute with {{}} threads, on a machine with {{}} {units.noun(processors[crowded], 'processor')}",
            threads[crowded],
            processors[crowded],
        ),
        f"Limit the threads of each process: torch.set_num_threads({limit}) or OMP_NUM_THREADS={limit}.",
        share,
        None,
    )
