"""The bars of the project, each measured by one script. `python -m benchmarks` runs them all and prints a table."""
