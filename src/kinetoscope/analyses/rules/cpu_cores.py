"""CPU cores: the program could go on, but other threads or programs run."""

from __future__ import annotations

from kinetoscope.analyses.loop import BUSY_MACHINE, Loop
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model import units
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.processes import process_runs, thread_processes
from kinetoscope.model.schema import SampleState

LEAST_SAMPLES = 5
TIMES_PROCESSORS = 2.0


@Rule(
    "gil-contention",
    "{subject} waits for Python's global lock while {what}: {share} of {time}",
    "Do this work in another process, such as a worker of a DataLoader, or with operators and libraries that release the lock.",
    finds="the loop waits for Python's global lock, which another thread of the program holds, and its line; needs samples",
    source="no public threshold",
    least=5.0,
    explains=("python-bound",),
).selects
def gil_contention(loop: Loop) -> Answer:
    """Samples of the loop's thread that wait for the global lock, and the line of another thread that runs most meanwhile."""
    samples = loop.trace.columns("samples")
    waiting = loop.in_step_samples(samples["state"] == SampleState.WAITING_FOR_GIL)
    waiting = waiting[loop.threads[samples["thread"][waiting]]]
    if len(waiting) < LEAST_SAMPLES:
        return None
    running = loop.in_step_samples(samples["state"] == SampleState.RUNNING)
    thread = samples["thread"][running]
    of_process = loop.trace.column("threads", "process_row")[thread] == loop.process
    line = loop.most_sampled(running[(thread != loop.thread) & of_process])
    culprit = f"{line.named} runs on another thread" if line else "another thread runs"
    return Match(time_ns=int(samples["period_ns"][waiting].sum()), values={"what": culprit}, place=line)


@Rule(
    "processor-wait",
    "{subject} was ready to run but had no CPU core for {share} of {time}, {waited:each_ns}{a_step}: {who} were using them",
    (
        "See with `top` what else runs on this machine, and move it, or raise the CPU limit of the container. Shares of other findings are of the time that "
        "had a core."
    ),
    finds="the loop's thread is ready to run but has no CPU core, because other programs or threads use them; needs samples on Linux",
    source="the system's count (`schedstat`); even an idle machine takes a thread off its core now and then",
    least=BUSY_MACHINE,
).selects
def processor_wait(loop: Loop) -> Answer:
    """Steps in which other programs used the CPU cores."""
    run, waited_ns = loop.trace.run_info, loop.processor_wait_ns
    is_crowded = bool(run.cpu_count and run.torch_threads and run.torch_threads > run.cpu_count)
    who = "its own threads, or other programs," if is_crowded else "other programs"
    advice = "Use fewer threads: torch.set_num_threads, or OMP_NUM_THREADS." if is_crowded else ""
    share = 100.0 * waited_ns / max(loop.duration_ns, 1)
    words = {"waited": waited_ns, "who": who}
    return Match(time_ns=waited_ns, values=words, gain_ns=None, advice=advice, share_percent=share)


@Rule(
    "thread-oversubscription",
    "Operators compute with {threads} threads{processes}, on a machine with {processors} {noun}",
    "Limit the threads of each process: torch.set_num_threads or OMP_NUM_THREADS.",
    finds="operators have more threads than the machine has processors",
    source="TraceML warns of a host that is 80 % busy",
    also="twice the processors, all processes that run operators together",
).selects
def thread_oversubscription(loop: Loop) -> Answer:
    """A machine on which the processes of the job have more threads for operators than there are processors.

    torch makes as many as the machine has processors in each process that does not limit them. A process that ran no operators, such as the one that
    starts the ranks, has none.
    """
    hosts = _threads_of_hosts(loop)
    threads, processes, processors = max(hosts, key=lambda host: host[0] / host[2], default=(0, 0, 1))
    # With a device the host's operators are few, and not what the step waits for.
    if loop.device is not None or threads < TIMES_PROCESSORS * processors:
        return None
    parts = (PARTS.index(name) for name in ("compute_ns", "processor_wait_ns"))
    time_ns = sum(loop.time.parts_ns[part] for part in parts) if loop.time else 0
    limit = max(1, processors // processes)
    words = {
        "threads": threads,
        "processes": f" in {processes} processes" if processes > 1 else "",
        "processors": processors,
        "noun": units.noun(processors, "processor"),
    }
    advice = f"Limit the threads of each process: torch.set_num_threads({limit}) or OMP_NUM_THREADS={limit}."
    return Match(time_ns=time_ns, values=words, gain_ns=None, advice=advice)


def _threads_of_hosts(loop: Loop) -> list[tuple[int, int, int]]:
    """For each machine: the threads for operators of all processes that run any, the number of these processes, and the processors of the machine."""
    hosts: dict[str, tuple[int, int, int]] = {}
    spans = loop.trace.columns("spans")
    ran = thread_processes(loop.trace)[spans["thread"][is_operator(spans["kind"])]]
    for row, run in enumerate(process_runs(loop.trace)):
        is_worker = run.recorded_parent is not None and run.rank is None
        # A worker of a DataLoader computes with one thread.
        if run.torch_threads is None or not run.cpu_count or is_worker or not (ran == row).any():
            continue
        threads, processes, _ = hosts.get(run.host, (0, 0, 0))
        hosts[run.host] = threads + run.torch_threads, processes + 1, run.cpu_count
    return [*hosts.values()]
