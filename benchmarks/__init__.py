"""The bars of the project, each measured by one script. `python -m benchmarks` runs them all and prints a table."""

import os

# torch.profiler's collector reports each start and stop on standard error otherwise; read when torch is loaded.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
