"""The processor time of a command from its start: `kinetoscope --help`, and `kinetoscope findings` of a small trace."""

import os
import resource
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

import torch

import kinetoscope
from benchmarks.harness import Result, run

HELP_S, FINDINGS_S = 0.15, 0.6


def processor_s(*words: str, folder: Path) -> float:
    """Run a command, and return the processor time of its process."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "kinetoscope", *words], check=True, stdout=subprocess.DEVNULL, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def small_trace(path: Path) -> None:
    """Record ten steps of one layer."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with kinetoscope.profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
        for _ in range(10):
            model(torch.randn(32, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    prof.trace.save(path)


def measure(options: Namespace) -> list[Result]:
    """Measure each several times after a first run, in which Python compiles the modules."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = folder / "small.ktrace"
        small_trace(trace)
        results = []
        for words, target in ((("--help",), HELP_S), (("findings", str(trace)), FINDINGS_S)):
            processor_s(*words, folder=folder)
            rounds = 2 if options.quick else 10
            best = min(processor_s(*words, folder=folder) for _ in range(rounds))
            results.append(
                Result(
                    f"kinetoscope {words[0]}, processor time",
                    f"<= {target:g} s",
                    f"{best:.2f} s",
                    best <= target,
                    [],
                )
            )
    return results


if __name__ == "__main__":
    run(measure)
