"""The loop's thread is ready to run, but has no CPU core: other programs, or more threads than cores, use them.

The sampler reads it as the system counts it (`schedstat`). Threshold: 10 % of step time (`BUSY_MACHINE`); even a machine that does nothing else takes a
thread off its processor now and then.
"""

from __future__ import annotations

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop
from kinetoscope.display.sentence import sentence


def processor_wait(loop: Loop) -> Finding | None:
    """Find steps in which other programs used the CPU cores."""
    if not loop.machine_is_busy:
        return None
    waited_ns = loop.processor_wait_ns
    share = loop.share(waited_ns)
    run = loop.trace.run_info
    crowded = bool(run.cpu_count and run.torch_threads and run.torch_threads > run.cpu_count)
    return Finding(
        "processor-wait",
        sentence(
            f"{loop.unit.subject} was ready to run but had no CPU core for {{}} of {loop.unit.time}, {{}}{loop.unit.each}: "
            + (
                "its own threads, or other programs, were using them"
                if crowded
                else "other programs were using them"
            ),
            (share, "%"),
            (round(loop.per_step(waited_ns)), "ns"),
        ),
        "Use fewer threads: torch.set_num_threads, or OMP_NUM_THREADS."
        if crowded
        else "See with `top` what else runs on this machine, and move it, or raise the CPU limit of the container. These step times are not representative.",
        share,
        waited_ns,
    )
