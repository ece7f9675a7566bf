"""The version of Kinetoscope, in a module of its own so that whoever only names it imports nothing else."""

__version__ = "0.1.0"
