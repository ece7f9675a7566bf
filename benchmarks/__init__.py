"""Benchmarks against torch.profiler. `python -m benchmarks` runs all scripts and prints a table with their targets."""

import os

# Read when torch is loaded; otherwise torch.profiler reports each start and stop on standard error.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
